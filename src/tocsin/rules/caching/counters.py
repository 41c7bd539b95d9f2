"""What a policy is judged by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Counts under one policy. A result that goes to five subscribers is five hits or five misses.

    What is pushed to subscribers the moment it arrives is no hit: nobody had to look for it.
    """

    arrived: int = 0
    arrived_bytes: int = 0
    admitted: int = 0
    copies: int = 0
    """Σ subscribers over what was admitted: as many copies as a cache per subscriber would hold."""
    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    pushed: int = 0
    pushed_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    """All that came from the cluster on asking: news and what was missing."""
    filled: int = 0
    """Results of those that were kept because they had been missing."""
    consumed: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    expired: int = 0
    expired_bytes: int = 0
    most_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    @property
    def admission_rate(self) -> float:
        """The share of arriving results that were let in."""
        return self.admitted / self.arrived if self.arrived else 0.0

    @property
    def duplication_factor(self) -> float:
        """Subscribers per result let in; 1 when none was."""
        return self.copies / self.admitted if self.admitted else 1.0
