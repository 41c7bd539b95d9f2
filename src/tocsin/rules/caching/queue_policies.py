"""Eviction policies made of queues: SIEVE, S3-FIFO and W-TinyLFU, each for results of any size.

They were designed for caches in which the same object is requested again and again. Here every result is new: online
subscribers read it at once, and returning subscribers read it later, now and then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import ClassVar, Final

from tocsin.rules.caching.entries import CacheEntry
from tocsin.rules.caching.per_result_policies import PerResultPolicy


class Sieve(PerResultPolicy):
    """SIEVE: a queue and a hand that moves from old to new entries and skips entries read since its last pass."""

    reads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._visited: dict[CacheEntry, bool] = {}
        # Newer and older neighbours; None marks the end. The hand is at the entry that is examined next.
        self._newer: dict[CacheEntry, CacheEntry | None] = {}
        self._older: dict[CacheEntry, CacheEntry | None] = {}
        self._oldest: CacheEntry | None = None
        self._newest: CacheEntry | None = None
        self._hand: CacheEntry | None = None

    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:  # noqa: ARG002
        self._visited[entry] = False
        self._older[entry], self._newer[entry] = self._newest, None
        if self._newest is not None:
            self._newer[self._newest] = entry
        else:
            self._oldest = entry
        self._newest = entry

    def read(self, entry: CacheEntry, readers: int) -> None:  # noqa: ARG002
        self._visited[entry] = True

    def on_dropped(self, entry: CacheEntry) -> None:
        del self._visited[entry]
        newer, older = self._newer.pop(entry), self._older.pop(entry)
        if self._hand is entry:
            self._hand = newer
        if newer is not None:
            self._older[newer] = older
        else:
            self._newest = older
        if older is not None:
            self._newer[older] = newer
        else:
            self._oldest = newer

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:  # noqa: ARG002
        while True:
            entry = self._hand if self._hand is not None else self._oldest
            assert entry is not None, "there is a resident"
            if not self._visited[entry] and entry is not spared:
                self._hand = entry
                return entry
            self._visited[entry] = False
            self._hand = self._newer[entry]


# The small queue's and the window's share of the bytes; how many dropped results the ghost queue remembers.
_SMALL: Final = 0.1
_WINDOW: Final = 0.01
_PROTECTED: Final = 0.8
_GHOSTS: Final = 10_000
_MOST_READS: Final = 3
# Counts are halved when the average interest has this many reads.
_AGE_AT: Final = 1_000


class SmallThenMain(PerResultPolicy):
    """S3-FIFO: newcomers enter a small queue; entries read there move to the main queue, where reads delay eviction."""

    reads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._small: OrderedDict[CacheEntry, int] = OrderedDict()
        self._main: OrderedDict[CacheEntry, int] = OrderedDict()
        self._small_bytes = self._main_bytes = 0
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()

    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:  # noqa: ARG002
        if self._ghosts.pop((entry.owner.number, entry.cursor), 0) is None:
            self._main[entry] = 0
            self._main_bytes += entry.size_bytes
        else:
            self._small[entry] = 0
            self._small_bytes += entry.size_bytes

    def read(self, entry: CacheEntry, readers: int) -> None:
        queue = self._small if entry in self._small else self._main
        queue[entry] = min(_MOST_READS, queue[entry] + readers)

    def on_dropped(self, entry: CacheEntry) -> None:
        if self._small.pop(entry, None) is not None:
            self._small_bytes -= entry.size_bytes
        elif self._main.pop(entry, None) is not None:
            self._main_bytes -= entry.size_bytes

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:  # noqa: ARG002
        while True:
            total = self._small_bytes + self._main_bytes
            if self._small and (self._small_bytes > _SMALL * total or not self._main):
                entry, reads = self._small.popitem(last=False)
                if not reads and entry is not spared:
                    self._small[entry] = reads
                    self._remember(entry)
                    return entry
                self._small_bytes -= entry.size_bytes
                self._main[entry] = 0
                self._main_bytes += entry.size_bytes
            else:
                entry, reads = self._main.popitem(last=False)
                self._main[entry] = max(0, reads - 1)
                if not reads and entry is not spared:
                    return entry

    def _remember(self, entry: CacheEntry) -> None:
        self._ghosts[entry.owner.number, entry.cursor] = None
        if len(self._ghosts) > _GHOSTS:
            self._ghosts.popitem(last=False)


class WindowedFrequency(PerResultPolicy):
    """W-TinyLFU: an entry that leaves the small window stays only if its interest is read more often than the victim's.

    Every result is new, so the policy counts the reads of interests. There are few enough to count them exactly, where
    the original uses a sketch. The policy halves the counts from time to time.
    """

    reads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._window: OrderedDict[CacheEntry, None] = OrderedDict()
        self._probation: OrderedDict[CacheEntry, None] = OrderedDict()
        self._protected: OrderedDict[CacheEntry, None] = OrderedDict()
        self._bytes = {0: 0, 1: 0, 2: 0}
        # Entries that have left the window and were not compared yet.
        self._candidates: deque[CacheEntry] = deque()
        self.interest_reads: dict[int, int] = {}
        self.counted_reads = 0

    def on_admitted(self, entry: CacheEntry, now_s: float) -> None:  # noqa: ARG002
        self._window[entry] = None
        self._bytes[0] += entry.size_bytes
        # Earlier candidates found room without a comparison, so they need none any more.
        self._candidates.clear()
        while len(self._window) > 1 and self._bytes[0] > _WINDOW * sum(self._bytes.values()):
            candidate = next(iter(self._window))
            self._move(candidate, self._window, self._probation, 0, 1)
            self._candidates.append(candidate)

    def read(self, entry: CacheEntry, readers: int) -> None:
        number: int = entry.owner.number
        self.interest_reads[number] = self.interest_reads.get(number, 0) + readers
        self.counted_reads += readers
        if self.counted_reads >= _AGE_AT * len(self.interest_reads):
            self.interest_reads = {
                interest_number: count // 2 for interest_number, count in self.interest_reads.items() if count > 1
            }
            self.counted_reads //= 2
        if entry in self._window:
            self._window.move_to_end(entry)
        elif entry in self._protected:
            self._protected.move_to_end(entry)
        else:
            self._move(entry, self._probation, self._protected, 1, 2)
            while self._bytes[2] > _PROTECTED * (self._bytes[1] + self._bytes[2]) and len(self._protected) > 1:
                self._move(next(iter(self._protected)), self._protected, self._probation, 2, 1)

    def on_dropped(self, entry: CacheEntry) -> None:
        for number, queue in enumerate((self._window, self._probation, self._protected)):
            if entry in queue:
                del queue[entry]
                self._bytes[number] -= entry.size_bytes

    def on_cache_closed(self, number: int) -> None:
        self.counted_reads -= self.interest_reads.pop(number, 0)

    def victim(self, spared: CacheEntry | None, now_s: float) -> CacheEntry:  # noqa: ARG002
        main = next(
            (entry for queue in (self._probation, self._protected) for entry in queue if entry is not spared), None
        )
        while self._candidates:
            candidate = self._candidates.popleft()
            if candidate not in self._probation or candidate is spared:
                continue
            if main is None or main is candidate or self._frequency(candidate) <= self._frequency(main):
                return candidate
            break
        if main is not None:
            return main
        return next(entry for entry in self._window if entry is not spared)

    def _frequency(self, entry: CacheEntry) -> int:
        return self.interest_reads.get(entry.owner.number, 0)

    def _move(
        self,
        entry: CacheEntry,
        source: OrderedDict[CacheEntry, None],
        target: OrderedDict[CacheEntry, None],
        before: int,
        after: int,
    ) -> None:
        del source[entry]
        target[entry] = None
        self._bytes[before] -= entry.size_bytes
        self._bytes[after] += entry.size_bytes
