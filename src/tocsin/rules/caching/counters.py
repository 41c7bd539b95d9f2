"""Counters by which a caching policy is judged.

Each policy has its own, so that policies can be compared when they are switched while a broker runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Counts under one policy. A result that goes to five subscribers counts as five hits or five misses.

    A result that is pushed to subscribers as it arrives is not a hit: no reader had to look it up.
    """

    arrived: int = 0
    arrived_bytes: int = 0
    admitted: int = 0
    copies: int = 0
    """Σ subscribers over all admitted results: the number of copies that a cache per subscriber would hold."""
    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    pushed: int = 0
    pushed_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    """All results fetched from the cluster: new results and missing results."""
    filled: int = 0
    """Missing results that entered the cache after they were fetched."""
    consumed: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    expired: int = 0
    expired_bytes: int = 0
    most_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0
