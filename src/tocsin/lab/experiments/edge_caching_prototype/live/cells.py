"""One policy with one cache size, for the simulated broker and for a live one at many times the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.simulators.fast_broker import caching_settings
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.settings import CachingSettings
from tocsin.wire.errors import InputError

POLICIES: Final = ("nc", "ttl", *(name for name in EVICTION if name != "none"))

# Settings in seconds, which must shrink with the hour.
_SECONDS: Final = ("fresh_s", "ttl_every_s", "ttl_first_s", "ttl_cap_s", "rate_window_s", "latency_first_s")
_A_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, order=True)
class LiveCell:
    policy: str
    size_kb: float

    @property
    def name(self) -> str:
        return self.policy if self.policy == "nc" else f"{self.policy}-{self.size_kb:g}"

    def caching(self) -> CachingSettings:
        return caching_settings(self.policy, int(self.size_kb * 1e3))

    def settings(self, speed: float) -> Mapping[str, str]:
        """Returns the settings of a live broker, by their paths."""
        caching = self.caching()
        shrunk = replace(caching, **{name: getattr(caching, name) / speed for name in _SECONDS})
        settings = {f"broker.cache.{name}": str(value).lower() for name, value in asdict(shrunk).items()}
        return {
            **settings,
            "broker.delivery.grace_s": str(CoreSettings().grace_s / speed),
            # Tokens last a day, so that nobody must log in twice, however slow the run.
            "broker.accounts.token_s": str(_A_DAY_S),
        }


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
