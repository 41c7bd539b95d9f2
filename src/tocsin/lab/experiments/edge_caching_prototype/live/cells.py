"""One policy with one cache size, as the simulated broker has it and as a live one does at many times the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.simulators.policies import named
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.settings import CachingSettings
from tocsin.wire.errors import InputError

POLICIES: Final = ("nc", "ttl", *(name for name in EVICTION if name != "none"))

# What a policy measures in seconds, which have to shrink with the hour.
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
        return CachingSettings(budget_bytes=int(self.size_kb * 1e3), **named(self.policy))

    def settings(self, speed: float) -> Mapping[str, str]:
        """Of a live broker, by their paths."""
        caching = self.caching()
        shrunk = replace(caching, **{name: getattr(caching, name) / speed for name in _SECONDS})
        told = {f"broker.cache.{name}": str(value).lower() for name, value in asdict(shrunk).items()}
        return {
            **told,
            "broker.delivery.grace_s": str(CoreSettings().grace_s / speed),
            # Nobody has to give a password twice in an hour, however slowly it goes.
            "broker.accounts.token_s": str(_A_DAY_S),
        }


def cells(policies: Sequence[str], sizes_kb: Sequence[float]) -> list[LiveCell]:
    """Every policy with every size, and first, where it is asked for, no cache at all, which has no size to vary."""
    made = [LiveCell(policy, size) for policy in policies if policy != "nc" for size in sizes_kb]
    return [LiveCell("nc", 0.0), *made] if "nc" in policies else made


def policies_of(text: str) -> tuple[str, ...]:
    """Names with commas in between. `InputError` tells which there are."""
    wanted = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    for one in wanted:
        if one not in POLICIES:
            raise InputError(f"policy: no {one!r}", hint=f"there are: {', '.join(POLICIES)}")
    return wanted


def sizes_of(text: str) -> tuple[float, ...]:
    """Numbers with commas in between."""
    return tuple(dict.fromkeys(above_0("size_kb", one) for one in text.split(",")))


def above_0(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name}: must be a number, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise InputError(f"{name}: must be > 0, got {text}")
    return value
