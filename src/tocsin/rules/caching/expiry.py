"""Expiry policies: each decides when results leave although there is room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, Protocol

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.result_cache import ResultCache


class Expiry(Protocol):
    expires: ClassVar[bool]
    """False: no result leaves because of its age."""

    def due_s(self, cache: ResultCache, tail: CacheEntry) -> float:
        """When this cache's oldest result has to leave."""

    def limit_bytes(self, budget_bytes: int, ceiling_bytes: int) -> int:
        """How many bytes may be resident at any moment."""


class Never:
    """Results leave only when they are consumed or evicted; the budget holds at every moment."""

    expires: ClassVar[bool] = False

    def due_s(self, cache: ResultCache, tail: CacheEntry) -> float:  # noqa: ARG002
        return math.inf

    def limit_bytes(self, budget_bytes: int, ceiling_bytes: int) -> int:  # noqa: ARG002
        return budget_bytes


class TimeToLive:
    """Results leave after their cache's time to live; the budget holds in expectation, the ceiling always."""

    expires: ClassVar[bool] = True

    def due_s(self, cache: ResultCache, tail: CacheEntry) -> float:
        return tail.inserted_s + cache.ttl_s

    def limit_bytes(self, budget_bytes: int, ceiling_bytes: int) -> int:  # noqa: ARG002
        return ceiling_bytes


EXPIRY: Final[dict[str, type[Expiry]]] = {"ttl": TimeToLive, "never": Never}


def by_subscribers(cache: ResultCache) -> float:
    return float(cache.subscribers)


def equally(cache: ResultCache) -> float:  # noqa: ARG001
    return 1.0


# ω_i before they are scaled to sum to 1.
WEIGHTS: Final[dict[str, Callable[[ResultCache], float]]] = {"subscribers": by_subscribers, "equal": equally}


def set_times_to_live(
    caches: Iterable[ResultCache],
    weight: Callable[[ResultCache], float],
    *,
    budget_bytes: int,
    first_s: float,
    cap_s: float,
) -> None:
    """Sets the time to live of every cache."""
    listed = list(caches)
    weights = [weight(cache) for cache in listed]
    total = sum(weights)
    for cache, cache_weight in zip(listed, weights, strict=True):
        cache.ttl_s = time_to_live_s(
            cache, cache_weight, total, budget_bytes=budget_bytes, first_s=first_s, cap_s=cap_s
        )


def time_to_live_s(
    cache: ResultCache, mine: float, total: float, *, budget_bytes: int, first_s: float, cap_s: float
) -> float:
    """T_i = ω_i · B / ρ_i, so that Σ ρ_i · T_i = B over all caches that grow and are not capped. ω_i is this cache's
    share of the total weight.

    A cache that does not grow would keep its results forever, so it gets the cap. A cache without an estimate yet gets
    `first_s`.
    """
    growth = cache.rates.growth_bytes_s
    if not cache.rates.estimated:
        return min(first_s, cap_s)
    if growth <= 0 or total <= 0:
        return cap_s
    return min(cap_s, mine / total * budget_bytes / growth)
