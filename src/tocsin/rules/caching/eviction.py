"""Whom to drop when the cache is full: every policy by its name.

Those of this file rank caches by their tail, the oldest result they hold; the lowest value goes first. Those of
by_result.py and queues.py look at every result. The mechanism does the rest (caches.py). What each optimises is on its
page in docs/policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Protocol

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.per_result_policies import GreedyDual, MostBytes, MostHits, PerResultPolicy
from tocsin.rules.caching.queue_policies import Sieve, SmallThenMain, WindowedFrequency
from tocsin.rules.caching.result_cache import ResultCache


class Eviction(Protocol):
    keeps: ClassVar[bool]
    """False: no newcomer is kept at all."""
    weighs_latency: ClassVar[bool]
    """False: another estimate of the latency changes no rank."""

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:
        """What keeping this cache's tail is worth. `latency_s`: what fetching it again would take."""


class LeastRecentlyUsed:
    """The cache that was read the longest time ago."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.last_access_s


class FewestSubscribers:
    """LSC: the result that the fewest subscribers still need."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.needed


class FewestSubscribersPerByte:
    """LSCz: the fewest who still need it, for each byte it takes."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.needed / max(1, tail.size_bytes)


class LeastDelayPerByte:
    """LSD: the least waiting saved for each byte."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = True

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:
        return latency_s * cache.needed / max(1, tail.size_bytes)


class EarliestToExpire:
    """EXP: the result whose time to live ends first, or ended longest ago."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return tail.inserted_s + cache.ttl_s


class FirstInFirstOut:
    """The result that came in first."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return tail.sequence


class NoCaching(FirstInFirstOut):
    """Keeps no newcomer. What a policy before it kept stays until it is consumed."""

    keeps: ClassVar[bool] = False


EVICTION: Final[dict[str, type[Eviction] | type[PerResultPolicy]]] = {
    "lru": LeastRecentlyUsed,
    "lsc": FewestSubscribers,
    "lscz": FewestSubscribersPerByte,
    "lsd": LeastDelayPerByte,
    "exp": EarliestToExpire,
    "fifo": FirstInFirstOut,
    "none": NoCaching,
    "worth": MostHits,
    "saving": MostBytes,
    "gdsf": GreedyDual,
    "sieve": Sieve,
    "s3fifo": SmallThenMain,
    "wtinylfu": WindowedFrequency,
}

# Between tails of equal value: which goes first.
TIES: Final[dict[str, Callable[[CacheEntry], float]]] = {
    "oldest": lambda tail: tail.sequence,
    "newest": lambda tail: -tail.sequence,
    "largest": lambda tail: -tail.size_bytes,
}
