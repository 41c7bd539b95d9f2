"""The cells of a live run, each a policy with a cache size, and the settings that the command line gives it.

Times that policies measure in seconds shrink with the speed of the hour; otherwise a fast run would compare other
policies than the simulated one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.experiments.cells import code_digest
from tocsin.lab.experiments.edge_caching_prototype.experiment import EXPERIMENT
from tocsin.lab.scenarios.city import CHANNELS, City, city
from tocsin.lab.simulators.fast_broker import PAPER, POLICIES, make_caching_settings
from tocsin.rules.caching.settings import CachingSettings
from tocsin.wire.errors import InputError

# Settings in seconds, which must shrink with the hour.
_SECONDS: Final = ("fresh_s", "ttl_every_s", "ttl_first_s", "ttl_cap_s", "rate_window_s", "latency_first_s")
_A_DAY_S: Final = 86_400
_MOST_AT_ONCE: Final = 32
# Every subscriber subscribes at every broker, so they take longer for it than in the simulated sweep.
_JOIN_S: Final = 600.0
_QUICK: Final = City(
    subscribers=40, subscriptions=300, span_s=600.0, places=6, join_s=60.0, publish_every_s=6.0, zone_every_s=60.0
)


@dataclass(frozen=True, slots=True, order=True)
class LiveCell:
    policy: str
    size_kb: float

    @property
    def name(self) -> str:
        return self.policy if self.policy == "nc" else f"{self.policy}-{self.size_kb:g}"

    def to_caching_settings(self) -> CachingSettings:
        return make_caching_settings(self.policy, int(self.size_kb * 1e3))

    def settings(self, speed: float) -> Mapping[str, str]:
        """Returns the settings of a live broker, by their paths."""
        caching = self.to_caching_settings()
        shrunk = replace(caching, **{name: getattr(caching, name) / speed for name in _SECONDS})
        settings = {f"broker.cache.{name}": str(value).lower() for name, value in asdict(shrunk).items()}
        return {
            **settings,
            "broker.delivery.grace_s": str(CoreSettings().grace_s / speed),
            # Tokens last a day, so that nobody must log in twice, however slow the run.
            "broker.accounts.token_s": str(_A_DAY_S),
        }


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """`at_once`: this many brokers, each with its own policy and size, run through one hour together. `late_s`: how
    late executions may be, in seconds of the scenario, for the stated error to count. `code` is the digest of the code,
    as for simulated cells."""

    city: City
    policies: tuple[str, ...] = (*PAPER, "worth")
    sizes_kb: tuple[float, ...] = (100.0,)
    speed: float = 2.0
    at_once: int = 8
    late_s: float = 60.0
    seed: int = 1
    given: tuple[str, ...] = ()
    code: str = ""

    @property
    def end_s(self) -> float:
        """When all results of the hour have been announced: the longest period after its end, and a reserve."""
        return self.city.span_s + max(period_s for _, _, period_s in CHANNELS) + self.late_s

    def cells(self) -> list[LiveCell]:
        return cells(self.policies, self.sizes_kb)

    def key(self, cell: LiveCell) -> str:
        """Returns a key for everything that the cell's figures depend on."""
        fields = {**self.to_json(), "cell": asdict(cell), "code": self.code}
        return json.dumps(fields, sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return {"city": asdict(self.city), "speed": self.speed, "late_s": self.late_s, "seed": self.seed}


def parse_options(settings: Mapping[str, str], *, quick: bool, seed: int) -> LiveOptions:
    """Parses the settings. `InputError` names the setting that does not fit."""
    remaining = dict(settings)
    defaults = LiveOptions(replace(_QUICK) if quick else City(join_s=_JOIN_S), seed=seed, code=code_digest(EXPERIMENT))
    if quick:
        defaults = replace(defaults, policies=("nc", "lsc"), sizes_kb=(10.0,), speed=5.0)
    chosen: dict[str, Any] = {"given": tuple(f"{name}={value}" for name, value in settings.items())}
    if "policy" in remaining:
        chosen["policies"] = policies_of(remaining.pop("policy"))
    if "size_kb" in remaining:
        chosen["sizes_kb"] = sizes_of(remaining.pop("size_kb"))
    for name in ("speed", "late_s"):
        if name in remaining:
            chosen[name] = above_0(name, remaining.pop(name))
    if "at_once" in remaining:
        broker_count = above_0("at_once", remaining.pop("at_once"))
        if broker_count != int(broker_count) or broker_count > _MOST_AT_ONCE:
            raise InputError(f"at_once: must be a whole number up to {_MOST_AT_ONCE}")
        chosen["at_once"] = int(broker_count)
    return replace(defaults, city=city(remaining, defaults.city), **chosen)


def cells(policies: Sequence[str], sizes_kb: Sequence[float]) -> list[LiveCell]:
    """Returns every policy with every size; first, if requested, no cache at all, which has no size to vary."""
    cached = [LiveCell(policy, size) for policy in policies if policy != "nc" for size in sizes_kb]
    return [LiveCell("nc", 0.0), *cached] if "nc" in policies else cached


def policies_of(text: str) -> tuple[str, ...]:
    """Parses policies with commas between. `InputError` lists the policies."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise InputError(f"policy: no {name!r}", hint=f"there are: {', '.join(POLICIES)}")
    return names


def sizes_of(text: str) -> tuple[float, ...]:
    """Parses numbers with commas between."""
    return tuple(dict.fromkeys(above_0("size_kb", part) for part in text.split(",")))


def above_0(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name}: must be a number, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise InputError(f"{name}: must be > 0, got {text}")
    return value
