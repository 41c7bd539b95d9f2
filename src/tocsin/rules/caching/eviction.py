"""Eviction policies by name: each chooses what to drop when the cache is full.

The policies of this file rank caches by their tail, the oldest result they hold; the lowest value goes first. The
policies of per_result_policies.py and queue_policies.py look at every result. caches.py does the dropping. Every policy
has a page in docs/policies that says what it optimises.
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
    """False: the policy caches nothing new."""
    weighs_latency: ClassVar[bool]
    """False: a new estimate of the latency changes no rank."""

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:
        """The value of keeping this cache's tail. `latency_s` is the time that fetching it again would take."""


class LeastRecentlyUsed:
    """LRU: drops from the cache whose last access is the longest ago."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.last_access_s


class FewestSubscribers:
    """LSC: drops the result that the fewest subscribers still need."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.needed


class FewestSubscribersPerByte:
    """LSCz: drops the result with the fewest needing subscribers per byte."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return cache.needed / max(1, tail.size_bytes)


class LeastDelayPerByte:
    """LSD: drops the result that saves the least waiting time per byte."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = True

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:
        return latency_s * cache.needed / max(1, tail.size_bytes)


class EarliestToExpire:
    """EXP: drops the result whose time to live ends first, or ended longest ago."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return tail.inserted_s + cache.ttl_s


class FirstInFirstOut:
    """FIFO: drops the result that arrived first."""

    keeps: ClassVar[bool] = True
    weighs_latency: ClassVar[bool] = False

    def value(self, cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:  # noqa: ARG002
        return tail.sequence


class NoCaching(FirstInFirstOut):
    """Caches no new result. Results of an earlier policy stay until they are consumed."""

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

# Which tail goes first among tails of equal value.
TIES: Final[dict[str, Callable[[CacheEntry], float]]] = {
    "oldest": lambda tail: tail.sequence,
    "newest": lambda tail: -tail.sequence,
    "largest": lambda tail: -tail.size_bytes,
}
