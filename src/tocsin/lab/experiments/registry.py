"""Every experiment by its name. The command line, the documents and the tests read this table."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Experiment
from tocsin.lab.experiments.running import find
from tocsin.wire.errors import NotFoundError

# Where worker processes find them, too: hence names and not objects.
EXPERIMENTS: Final = {
    "edge-caching": "tocsin.lab.experiments.edge_caching.declared:EXPERIMENT",
    "edge-caching-prototype": "tocsin.lab.experiments.edge_caching_prototype.declared:EXPERIMENT",
    "kafka-admission": "tocsin.lab.experiments.kafka_admission.declared:EXPERIMENT",
    "queues": "tocsin.lab.experiments.queues:EXPERIMENT",
}


def reference(name: str) -> str:
    """Where the experiment is. `NotFoundError` tells which there are."""
    try:
        return EXPERIMENTS[name]
    except KeyError:
        raise NotFoundError(f"no experiment {name}", hint=f"there are: {', '.join(EXPERIMENTS)}") from None


def experiment(name: str) -> Experiment:
    return find(reference(name))
