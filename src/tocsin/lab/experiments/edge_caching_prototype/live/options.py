"""What a live run is asked for, from the words of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tocsin.lab.experiments.cells import code_digest
from tocsin.lab.experiments.edge_caching_prototype.experiment import EXPERIMENT
from tocsin.lab.experiments.edge_caching_prototype.live.cells import (
    LiveCell,
    above_0,
    cells,
    policies_of,
    sizes_of,
)
from tocsin.lab.scenarios.city import CHANNELS, City, city
from tocsin.wire.errors import InputError

_PAPER: Final = ("nc", "lru", "lsc", "lscz", "lsd", "exp", "ttl", "worth")
_MOST_AT_ONCE: Final = 32
# Everybody subscribes at every broker, so they take more time for it than in the simulated sweep.
_JOIN_S: Final = 600.0
_QUICK: Final = City(
    subscribers=40, subscriptions=300, span_s=600.0, places=6, join_s=60.0, publish_every_s=6.0, zone_every_s=60.0
)


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """`at_once`: so many brokers, each with a policy and a size of its own, live through one hour together. `late_s`:
    so late, in seconds of the scenario, executions may be for the stated error to count. `code` names
    the code that cells come from, as it does for simulated ones."""

    city: City
    policies: tuple[str, ...] = _PAPER
    sizes_kb: tuple[float, ...] = (100.0,)
    speed: float = 2.0
    at_once: int = 8
    late_s: float = 60.0
    seed: int = 1
    given: tuple[str, ...] = ()
    code: str = ""

    @property
    def end_s(self) -> float:
        """When everything that was published within the hour has been told: the longest period after it, and some."""
        return self.city.span_s + max(period_s for _, _, period_s in CHANNELS) + self.late_s

    def cells(self) -> list[LiveCell]:
        return cells(self.policies, self.sizes_kb)

    def key(self, cell: LiveCell) -> str:
        """Names what its figures come from, but the hours of others."""
        said = {**self.to_json(), "cell": asdict(cell), "code": self.code}
        return json.dumps(said, sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return {"city": asdict(self.city), "speed": self.speed, "late_s": self.late_s, "seed": self.seed}


def options(settings: Mapping[str, str], *, quick: bool, seed: int) -> LiveOptions:
    """`InputError` names the setting that does not fit."""
    left = dict(settings)
    made = LiveOptions(replace(_QUICK) if quick else City(join_s=_JOIN_S), seed=seed, code=code_digest(EXPERIMENT))
    if quick:
        made = replace(made, policies=("nc", "lsc"), sizes_kb=(10.0,), speed=5.0)
    chosen: dict[str, Any] = {"given": tuple(f"{name}={value}" for name, value in settings.items())}
    if "policy" in left:
        chosen["policies"] = policies_of(left.pop("policy"))
    if "size_kb" in left:
        chosen["sizes_kb"] = sizes_of(left.pop("size_kb"))
    for name in ("speed", "late_s"):
        if name in left:
            chosen[name] = above_0(name, left.pop(name))
    if "at_once" in left:
        many = above_0("at_once", left.pop("at_once"))
        if many != int(many) or many > _MOST_AT_ONCE:
            raise InputError(f"at_once: must be a whole number up to {_MOST_AT_ONCE}")
        chosen["at_once"] = int(many)
    return replace(made, city=city(left, made.city), **chosen)
