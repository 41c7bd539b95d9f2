"""The settings of result caching: three independent policies, one budget, and the options of the policies.

Any admission, eviction and expiry go together, so they are chosen separately and not as a product of names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.rules.caching.admission import admission
from tocsin.rules.caching.eviction import EVICTION, TIES
from tocsin.rules.caching.expiry import EXPIRY, WEIGHTS

_TABLES: Final[dict[str, Mapping[str, object]]] = {
    "eviction": EVICTION,
    "expiry": EXPIRY,
    "ties": TIES,
    "weights": WEIGHTS,
}


@dataclass(frozen=True, slots=True)
class CachingSettings:
    """Settings of the cache. A wrong value raises ValueError with the name of the setting."""

    budget_bytes: int = 256 << 20
    eviction: str = "lsc"
    expiry: str = "never"
    admission: str = "all"

    put_is_access: bool = True
    """For `lru`: whether a new result counts as an access of its cache, as a read does."""
    newcomer_may_go: bool = True
    """Whether the result that fills the cache may be the result that is dropped."""
    ties: str = "oldest"
    """Which of two results of equal value goes first: the `oldest`, the `newest` or the `largest`."""
    fresh_s: float = 2.0
    """For `worth` and `saving`: how long after arrival online readers may still fetch a result."""
    fetched_enters: bool = False
    """Whether a fetched result that was missing enters the cache."""

    ceiling: float = 2.0
    """With `ttl`: the resident bytes never exceed this many times the budget."""
    ttl_every_s: float = 300.0
    """How often times to live are recomputed."""
    ttl_first_s: float = 600.0
    """The time to live before a cache's growth is known."""
    ttl_cap_s: float = 600.0
    """The longest time to live; a cache that does not grow has it."""
    weights: str = "subscribers"
    """How times to live share the budget: by `subscribers`, or `equal`."""
    rate_window_s: float = 300.0
    """The time constant of the moving averages of growth."""

    latency_first_s: float = 0.5
    """For `lsd`: the assumed latency of a fetch before the first measurement."""
    latency_share: float = 0.2
    """The weight of the newest fetch in the running estimate of the latency."""
    buffer_learns_first: bool = False
    """For `buffer`: whether a result moves the threshold before the threshold judges it."""

    def __post_init__(self) -> None:
        for name, table in _TABLES.items():
            if getattr(self, name) not in table:
                raise ValueError(f"{name}: no {getattr(self, name)!r}; there are: {', '.join(table)}")
        try:
            admission(self.admission)
        except ValueError as error:
            raise ValueError(f"admission: {error}") from None
        if self.budget_bytes < 0:
            raise ValueError(f"budget_bytes: must be >= 0, got {self.budget_bytes}")
        if not 1 <= self.ceiling < math.inf:
            raise ValueError(f"ceiling: must be >= 1 and finite, got {self.ceiling:g}")
        if not 0 < self.latency_share <= 1:
            raise ValueError(f"latency_share: must be > 0 and <= 1, got {self.latency_share:g}")
        for name in ("ttl_every_s", "ttl_first_s", "ttl_cap_s", "rate_window_s", "latency_first_s", "fresh_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be > 0 and finite, got {getattr(self, name):g}")

    @property
    def policy(self) -> str:
        """The names of the three policies in one string."""
        return f"{self.admission}+{self.eviction}+{self.expiry}"

    @property
    def ceiling_bytes(self) -> int:
        return int(self.budget_bytes * self.ceiling)
