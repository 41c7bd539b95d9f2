"""Lists every experiment by name. The command line, the documents and the tests read this table."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tocsin.lab.experiments.declaration import Experiment
from tocsin.wire.errors import InputError, NotFoundError

# Names and not objects, because worker processes must find the experiments too.
EXPERIMENTS: Final = {
    "edge-caching": "tocsin.lab.experiments.edge_caching.experiment:EXPERIMENT",
    "edge-caching-prototype": "tocsin.lab.experiments.edge_caching_prototype.experiment:EXPERIMENT",
    "kafka-admission": "tocsin.lab.experiments.kafka_admission.experiment:EXPERIMENT",
    "queues": "tocsin.lab.experiments.queues:EXPERIMENT",
}
# Experiments that also run live, on their own cluster and brokers: modules with the functions of `LiveExperiment`.
_LIVE: Final = {"edge-caching-prototype": "tocsin.lab.experiments.edge_caching_prototype.live.run_live"}

# One package of each part that servers and clients need.
_NEEDED: Final = ("aiohttp", "argon2", "deltalake", "jwt", "psutil", "pyspark", "sqlglot", "uvloop")


class LiveExperiment(Protocol):
    """Runs an experiment on the live system and reports it. The results contain the verdict."""

    def run(self, settings: Mapping[str, str], out: Path, *, quick: bool, seed: int, fresh: bool, say: Any) -> Any: ...

    def report(self, out: Path, *, quick: bool, to: Path | None) -> Any: ...


def live(name: str) -> LiveExperiment:
    """Raises `NotFoundError` for an experiment that does not run live, `InputError` if the live system is missing."""
    reference(name)
    if name not in _LIVE:
        raise NotFoundError(f"{name} does not run live", hint=f"these do: {', '.join(_LIVE)}")
    check_installed()
    module: LiveExperiment = importlib.import_module(_LIVE[name])
    return module


def check_installed() -> None:
    """Raises `InputError` if the live system is not installed, with the command that installs it: the lab itself
    installs without it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "pip install 'tocsin[lab,cluster]'"
        raise InputError(f"the live system is not installed here: missing: {', '.join(missing)}", hint=hint)


def reference(name: str) -> str:
    """Returns where the experiment is. `NotFoundError` lists the experiments."""
    try:
        return EXPERIMENTS[name]
    except KeyError:
        raise NotFoundError(f"no experiment {name}", hint=f"there are: {', '.join(EXPERIMENTS)}") from None


def experiment(name: str) -> Experiment:
    return find(reference(name))


def find(reference: str) -> Experiment:
    """Returns the experiment at `module:name`."""
    module, _, name = reference.partition(":")
    experiment = getattr(importlib.import_module(module), name)
    assert isinstance(experiment, Experiment), reference
    return experiment
