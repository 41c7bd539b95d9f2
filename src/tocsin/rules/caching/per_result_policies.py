"""Policies that may drop any result, not only the oldest of an interest: what they are told, and those that rank.

A result dropped from the middle leaves a hole, and whoever asks for the range fetches just that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar, Final

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.rank_heap import Rank, RankHeap


class PerResultPolicy(ABC):
    """A policy is told what happens to residents, and names one when asked. It is never told of holes."""

    keeps: ClassVar[bool] = True
    reads: ClassVar[bool] = False
    """Wants to be told of reads."""
    counts: ClassVar[bool] = False
    """Wants to be told when `needed` of a result has changed."""

    @abstractmethod
    def came(self, entry: CacheEntry, now_s: float) -> None:
        """It is resident now; `needed` is right."""

    def read(self, entry: CacheEntry, readers: int) -> None:  # noqa: B027 - only some want to know
        """So many get it from the cache."""

    def needed(self, entry: CacheEntry) -> None:  # noqa: B027 - only some want to know
        """Another number of subscribers needs it."""

    @abstractmethod
    def gone(self, entry: CacheEntry) -> None:
        """It is not resident any more, for whatever reason."""

    def closed(self, number: int) -> None:  # noqa: B027 - only some remember caches
        """The cache with this number is gone for good, and all its residents before it."""

    @abstractmethod
    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:
        """Who has to go now. `spared` is passed over; somebody else is resident."""


class _Ranking(PerResultPolicy):
    """By `worth`, the lowest first; between equals the oldest."""

    def __init__(self) -> None:
        self._heap: RankHeap[CacheEntry] = RankHeap(_rank)

    def gone(self, entry: CacheEntry) -> None:
        self._heap.forget(entry)

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:  # noqa: ARG002
        found = self._heap.lowest(besides=spared)
        assert found is not None, "somebody is resident"
        return found[3]


def _rank(entry: CacheEntry) -> Rank[CacheEntry] | None:
    return (entry.worth, entry.sequence, entry.order, entry) if entry.resident else None


class GreedyDual(_Ranking):
    """GDSF: (reads + 1) / size above a level that rises to the worth of whoever had to go."""

    reads: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._level = 0.0
        self._reads: dict[CacheEntry, int] = {}

    def came(self, entry: CacheEntry, now_s: float) -> None:  # noqa: ARG002
        self._reads[entry] = 1
        self._value(entry)

    def read(self, entry: CacheEntry, readers: int) -> None:
        self._reads[entry] += readers
        self._value(entry)

    def gone(self, entry: CacheEntry) -> None:
        super().gone(entry)
        del self._reads[entry]

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:
        found = super().victim(spared, now_s)
        self._level = found.worth
        return found

    def _value(self, entry: CacheEntry) -> None:
        entry.worth = self._level + self._reads[entry] / max(1, entry.size_bytes)
        self._heap.changed(entry)


# How much more a result is worth whose readers are on their way: they come within a round trip, others in minutes.
_SOON: Final = 1e6


class MostHits(_Ranking):
    """Those who still need a result, for each byte of it; but before all others what is just being told.

    A result that came a moment ago, and that nobody has acknowledged yet, has its online readers on their way: dropping
    it would make a miss of every one of them.
    """

    counts: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.fresh_s = 2.0
        self._fresh: deque[tuple[float, CacheEntry]] = deque()
        self._unread: dict[CacheEntry, int] = {}

    def came(self, entry: CacheEntry, now_s: float) -> None:
        self._age(now_s)
        self._fresh.append((now_s + self.fresh_s, entry))
        self._unread[entry] = entry.needed
        self._value(entry)

    def needed(self, entry: CacheEntry) -> None:
        if entry.needed < self._unread.get(entry, 0):
            # Whoever is online acknowledges within moments of each other: the first tells of all.
            del self._unread[entry]
        self._value(entry)

    def gone(self, entry: CacheEntry) -> None:
        super().gone(entry)
        self._unread.pop(entry, None)

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:
        self._age(now_s)
        return super().victim(spared, now_s)

    def worth(self, entry: CacheEntry) -> float:
        return entry.needed / max(1, entry.size_bytes)

    def _age(self, now_s: float) -> None:
        while self._fresh and self._fresh[0][0] <= now_s:
            _, entry = self._fresh.popleft()
            if self._unread.pop(entry, None) is not None:
                self._value(entry)

    def _value(self, entry: CacheEntry) -> None:
        worth = self.worth(entry)
        entry.worth = _SOON * worth if entry in self._unread else worth
        self._heap.changed(entry)


class MostBytes(MostHits):
    """The same for bytes: a hit is worth its size, so those who still need a result count, and its size does not."""

    def worth(self, entry: CacheEntry) -> float:
        return entry.needed
