"""Eviction policies that may drop any result, not only the oldest of an interest: the interface and those that rank.

A result dropped from the middle leaves a hole; a reader of the range fetches only the hole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar, Final

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.rank_heap import Rank, RankHeap


class PerResultPolicy(ABC):
    """A policy follows the residents through notifications and names a victim on request. It never sees holes."""

    keeps: ClassVar[bool] = True
    reads: ClassVar[bool] = False
    """True: the policy needs `read` notifications."""
    counts: ClassVar[bool] = False
    """True: the policy needs a notification when `needed` of an entry changes."""

    @abstractmethod
    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:
        """The entry is resident now; its `needed` is correct."""

    def read(self, entry: CacheEntry, readers: int) -> None:  # noqa: B027 - only some want to know
        """This many readers get the entry from the cache."""

    def on_need_changed(self, entry: CacheEntry) -> None:  # noqa: B027 - only some want to know
        """The number of subscribers that need the entry has changed."""

    @abstractmethod
    def on_dropped(self, entry: CacheEntry) -> None:
        """The entry is not resident any more, for any reason."""

    def on_cache_closed(self, number: int) -> None:  # noqa: B027 - only some remember caches
        """The cache with this number is closed; all its residents left before."""

    @abstractmethod
    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:
        """Returns the entry that has to go now. It is never `spared`; another entry is resident."""


class _WorthRanks:
    """Ranks the resident entries: the entry of the lowest `worth` goes first, and the oldest among equals."""

    def __init__(self) -> None:
        self._heap: RankHeap[CacheEntry] = RankHeap(_rank)

    def set_worth(self, entry: CacheEntry, worth: float) -> None:
        entry.worth = worth
        self._heap.update_rank(entry)

    def forget(self, entry: CacheEntry) -> None:
        self._heap.forget(entry)

    def lowest(self, spared: CacheEntry | None) -> CacheEntry:
        rank = self._heap.lowest(besides=spared)
        assert rank is not None, "there is a resident"
        return rank[3]


def _rank(entry: CacheEntry) -> Rank[CacheEntry] | None:
    return (entry.worth, entry.sequence, entry.order, entry) if entry.resident else None


class GreedyDual(PerResultPolicy):
    """GDSF: worth is (reads + 1) / size above a level, which rises to the worth of each victim."""

    reads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._ranks = _WorthRanks()
        self._level = 0.0
        self._reads: dict[CacheEntry, int] = {}

    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:  # noqa: ARG002
        self._reads[entry] = 1
        self._value(entry)

    def read(self, entry: CacheEntry, readers: int) -> None:
        self._reads[entry] += readers
        self._value(entry)

    def on_dropped(self, entry: CacheEntry) -> None:
        self._ranks.forget(entry)
        del self._reads[entry]

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:  # noqa: ARG002
        entry = self._ranks.lowest(spared)
        self._level = entry.worth
        return entry

    def _value(self, entry: CacheEntry) -> None:
        self._ranks.set_worth(entry, self._level + self._reads[entry] / max(1, entry.size_bytes))


# The factor for a result whose online readers are about to read it: they come within a round trip, others in minutes.
_SOON: Final = 1e6


class MostHits(PerResultPolicy):
    """Worth is the number of subscribers that still need a result, per byte; fresh results come before all others.

    A result is fresh if it arrived a moment ago and no subscriber has acknowledged it yet. Its online readers are about
    to read it: dropping it would turn every one of these reads into a miss.
    """

    counts: ClassVar[bool] = True

    def __init__(self) -> None:
        self._ranks = _WorthRanks()
        self.fresh_s = 2.0
        self._fresh: deque[tuple[float, CacheEntry]] = deque()
        self._unread: dict[CacheEntry, int] = {}

    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:
        self._age(now_s)
        self._fresh.append((now_s + self.fresh_s, entry))
        self._unread[entry] = entry.needed
        self._value(entry)

    def on_need_changed(self, entry: CacheEntry) -> None:
        if entry.needed < self._unread.get(entry, 0):
            # Online subscribers acknowledge almost together: after the first acknowledgement the result is not fresh.
            del self._unread[entry]
        self._value(entry)

    def on_dropped(self, entry: CacheEntry) -> None:
        self._ranks.forget(entry)
        self._unread.pop(entry, None)

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:
        self._age(now_s)
        return self._ranks.lowest(spared)

    def worth(self, entry: CacheEntry) -> float:
        return entry.needed / max(1, entry.size_bytes)

    def _age(self, now_s: float) -> None:
        while self._fresh and self._fresh[0][0] <= now_s:
            _, entry = self._fresh.popleft()
            if self._unread.pop(entry, None) is not None:
                self._value(entry)

    def _value(self, entry: CacheEntry) -> None:
        worth = self.worth(entry)
        self._ranks.set_worth(entry, _SOON * worth if entry in self._unread else worth)


class MostBytes(MostHits):
    """Like MostHits, for bytes: a hit is worth its size, so worth is the number of needing subscribers alone."""

    def worth(self, entry: CacheEntry) -> float:
        return entry.needed
