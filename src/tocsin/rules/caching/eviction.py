"""Eviction policies by name: each chooses what to drop when the cache is full.

The policies of this file rank caches by their tail, the oldest result they hold; `TailRanks` finds the victim, the tail
of the lowest value. The policies of per_result_policies.py and queue_policies.py look at every result and choose their
victims themselves. caches.py does the dropping. Every policy has a page in docs/policies that says what it optimises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.per_result_policies import GreedyDual, MostBytes, MostHits, PerResultPolicy
from tocsin.rules.caching.queue_policies import Sieve, SmallThenMain, WindowedFrequency
from tocsin.rules.caching.rank_heap import Rank, RankHeap
from tocsin.rules.caching.result_cache import ResultCache


@dataclass(frozen=True, slots=True)
class Eviction:
    """A policy that ranks caches by their tail. `value(cache, tail, latency_s)` is the value of keeping the tail;
    `latency_s` is the time that fetching it again would take.
    """

    value: Callable[[ResultCache, CacheEntry, float], float]
    weighs_latency: bool = False
    """False: a new estimate of the latency changes no rank."""
    keeps: bool = True
    """False: the policy caches nothing new. Results of an earlier policy stay until they are consumed."""


def _least_recently_used(cache: ResultCache, _tail: CacheEntry, _latency_s: float) -> float:
    """LRU: drops from the cache whose last access is the longest ago."""
    return cache.last_access_s


def _fewest_subscribers(cache: ResultCache, _tail: CacheEntry, _latency_s: float) -> float:
    """LSC: drops the result that the fewest subscribers still need."""
    return cache.needed


def _fewest_subscribers_per_byte(cache: ResultCache, tail: CacheEntry, _latency_s: float) -> float:
    """LSCz: drops the result with the fewest needing subscribers per byte."""
    return cache.needed / max(1, tail.size_bytes)


def _least_delay_per_byte(cache: ResultCache, tail: CacheEntry, latency_s: float) -> float:
    """LSD: drops the result that saves the least waiting time per byte."""
    return latency_s * cache.needed / max(1, tail.size_bytes)


def _earliest_to_expire(cache: ResultCache, tail: CacheEntry, _latency_s: float) -> float:
    """EXP: drops the result whose time to live ends first, or ended longest ago."""
    return tail.inserted_s + cache.ttl_s


def _first_in_first_out(_cache: ResultCache, tail: CacheEntry, _latency_s: float) -> float:
    """FIFO: drops the result that arrived first."""
    return tail.sequence


FIFO: Final = Eviction(_first_in_first_out)

EVICTION: Final[dict[str, Eviction | type[PerResultPolicy]]] = {
    "lru": Eviction(_least_recently_used),
    "lsc": Eviction(_fewest_subscribers),
    "lscz": Eviction(_fewest_subscribers_per_byte),
    "lsd": Eviction(_least_delay_per_byte, weighs_latency=True),
    "exp": Eviction(_earliest_to_expire),
    "fifo": FIFO,
    "none": Eviction(_first_in_first_out, keeps=False),
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


class TailRanks(RankHeap[ResultCache]):
    """Ranks the caches by the value of their tails. `usual_latency_s` counts for caches that have made no fetch yet."""

    __slots__ = ("_policy", "_ties", "usual_latency_s")

    def __init__(self, policy: Eviction, ties: str, usual_latency_s: float) -> None:
        super().__init__(self._rank)
        self._policy = policy
        self._ties = TIES[ties]
        self.usual_latency_s = usual_latency_s

    def victim(self, newcomer: ResultCache | None) -> ResultCache:
        """The cache whose tail goes next. A newcomer is spared while it is the only resident of its cache."""
        rank = self.lowest(besides=newcomer if newcomer is not None and newcomer.residents == 1 else None)
        assert rank is not None, "bytes are resident only in caches that are ranked"
        return rank[3]

    def _rank(self, cache: ResultCache) -> Rank[ResultCache] | None:
        if not cache.residents:
            return None
        tail = cache.oldest
        latency_s = self.usual_latency_s if cache.latency_s is None else cache.latency_s
        return (self._policy.value(cache, tail, latency_s), self._ties(tail), cache.number, cache)
