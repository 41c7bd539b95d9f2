"""Caches the recent results of one interest and counts how many subscribers still need each result.

    floor           tail                                    head
      │   missing     │  resident · resident · hole · resident │
    ──┴───────────────┴────────────────────────────────────────┴──▶ cursor

A subscriber still needs a result if its marker (the last cursor that it acknowledged) lies below the result. The cache
therefore keeps no set of subscribers per result; it counts markers: `counts` has one number per marker,
`CacheEntry.reached` one number per entry, and `needed` the subscribers below the tail. Moving any number of subscribers
from one marker to another costs two look-ups. The tail is always resident: everything before it, holes included, is
simply missing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from tocsin.rules.caching.entries import BrokerResult, CachedRun, CacheEntry, CacheRun, MissingRun
from tocsin.rules.model.cursors import Cursor, InterestId

_TRIM_AT: Final = 32
_CURSOR: Final = attrgetter("cursor")


class ResultCache:
    """The cache of one interest. Every method that drops results returns the number of bytes that it freed."""

    __slots__ = (
        "_entries", "_start", "counts", "floor", "head", "interest", "last_access_s", "latency_s", "needed",
        "number", "on_dropped", "rates", "resident_bytes", "residents", "subscribers", "ttl_s",
    )  # fmt: skip

    def __init__(self, interest: InterestId, since: Cursor, *, number: int, now_s: float, ttl_s: float) -> None:
        self.interest = interest
        self.number = number
        self.floor = since
        self.head = since
        self.needed = 0
        self.subscribers = 0
        self.counts: dict[Cursor, int] = {}
        self.resident_bytes = 0
        self.residents = 0
        self.last_access_s = now_s
        self.latency_s: float | None = None
        self.ttl_s = ttl_s
        self.rates = GrowthRates(now_s)
        # Called for every resident that leaves, so that a per-result policy can forget it.
        self.on_dropped: Callable[[CacheEntry], None] | None = None
        self._entries: list[CacheEntry] = []
        self._start = 0

    # --- reading

    @property
    def tail(self) -> CacheEntry | None:
        """The oldest resident result: the only entry that a tail-ranking policy looks at."""
        return self._entries[self._start] if self._start < len(self._entries) else None

    @property
    def oldest(self) -> CacheEntry:
        """The tail of a cache that has residents."""
        return self._entries[self._start]

    @property
    def newest(self) -> CacheEntry | None:
        return self._entries[-1] if self._start < len(self._entries) else None

    def lowest_marker(self) -> Cursor:
        """The cursor that every subscriber has reached; the head if there are no subscribers."""
        return min(self.counts, default=self.head)

    def __iter__(self) -> Iterator[CacheEntry]:
        """Residents and holes, oldest first."""
        return iter(self._entries[self._start :])

    def __len__(self) -> int:
        return len(self._entries) - self._start

    def between(self, after: Cursor, to: Cursor) -> Iterator[CacheEntry]:
        """The residents in this range, oldest first."""
        for index in range(bisect_right(self._entries, after, self._start, key=_CURSOR), len(self._entries)):
            entry = self._entries[index]
            if entry.cursor > to:
                return
            if entry.resident:
                yield entry

    def place(self, entry: CacheEntry) -> int:
        """The index of the entry, oldest = 0."""
        return bisect_right(self._entries, entry.cursor, self._start, key=_CURSOR) - 1 - self._start

    def count_needed(self) -> None:
        """Writes into every entry how many subscribers still need it."""
        needed = self.needed
        for entry in self:
            entry.needed = needed
            needed += entry.reached

    def get(self, after: Cursor, to: Cursor) -> list[CacheRun]:
        """Splits the range into cached and missing runs, oldest first. An empty range has no runs."""
        runs: list[CacheRun] = []
        if after >= to:
            return runs
        if to == self.head and self.residents == len(self._entries) - self._start:
            return self._get_unbroken(after)
        position = after
        if position < self.floor:
            position = min(self.floor, to)
            runs.append(MissingRun(after, position))
        cached: list[BrokerResult] = []
        run_start = position
        for index in range(bisect_right(self._entries, position, self._start, key=_CURSOR), len(self._entries)):
            entry = self._entries[index]
            if entry.result is not None:
                if entry.cursor > to:
                    break
                cached.append(entry.result)
                position = entry.cursor
                continue
            if position >= to:
                break
            if position > run_start:
                runs.append(CachedRun(run_start, position, tuple(cached)))
                cached = []
            run_start = min(entry.cursor, to)
            runs.append(MissingRun(position, run_start, entry.size_bytes))
            position = run_start
        known = min(to, self.head)
        if run_start < known:
            runs.append(CachedRun(run_start, known, tuple(cached)))
            run_start = known
        if run_start < to:
            runs.append(MissingRun(run_start, to))
        return _merge_missing_runs(runs)

    def _get_unbroken(self, after: Cursor) -> list[CacheRun]:
        """`get` up to the head for a cache without holes: at most one missing run, then everything after it."""
        entries, floor, head = self._entries, self.floor, self.head
        if after < floor:
            missing = MissingRun(after, floor)
            if floor == head:
                return [missing]
            return [missing, CachedRun(floor, head, tuple([entry.result for entry in entries[self._start :]]))]  # type: ignore[misc]
        begin = bisect_right(entries, after, self._start, key=_CURSOR)
        return [CachedRun(after, head, tuple([entry.result for entry in entries[begin:]]))]  # type: ignore[misc]

    # --- inserting and dropping results

    def put(self, result: BrokerResult, *, resident: bool, now_s: float, sequence: int) -> None:
        """Appends the next result after the head. A result that is not resident leaves a hole."""
        cursor = result.cursor
        assert cursor > self.head, f"{cursor} comes after {self.head}"
        self.head = cursor
        if not self.subscribers:
            # No subscriber needs the result: a result leaves once every attached subscriber has it.
            self.floor = self.head
        elif resident:
            self._entries.append(CacheEntry(result, resident=True, inserted_s=now_s, sequence=sequence))
            self.resident_bytes += result.size_bytes
            self.residents += 1
        elif self._start == len(self._entries):
            self.floor = self.head
        elif self._entries[-1].resident:
            self._entries.append(CacheEntry(result, resident=False, inserted_s=now_s, sequence=sequence))
        else:
            # Markers at the end of the hole now belong to the preceding entry, because the hole grows past them.
            hole = self._entries[-1]
            self._entries[-2].reached += hole.reached
            hole.reached = 0
            hole.cursor = result.cursor
            hole.size_bytes += result.size_bytes

    def skip(self, to: Cursor) -> None:
        """Moves the head over results that will not arrive here: readers have to fetch them."""
        if to > self.head:
            self.put(BrokerResult(to, 0), resident=False, now_s=0.0, sequence=0)

    def reach(self, to: Cursor) -> None:
        """Moves the head: there are no results between the old head and `to`."""
        self.head = max(self.head, to)

    def drop_tail(self) -> int:
        """Drops the oldest resident and the hole behind it."""
        tail = self.tail
        assert tail is not None, "only a cache with residents has a tail"
        self._let_go(tail)
        self._drop_holes()
        self._trim()
        return tail.size_bytes

    def drop(self, index: int) -> int:
        """Drops the resident at this index (oldest = 0), which leaves a hole."""
        if index == 0:
            return self.drop_tail()
        at = self._start + index
        entry = self._entries[at]
        assert entry.resident, "a hole cannot go again"
        freed = entry.size_bytes
        entry.resident, entry.result = False, None
        self.resident_bytes -= freed
        self.residents -= 1
        if self.on_dropped is not None and entry.owner is not None:
            self.on_dropped(entry)
        for first in (at, at - 1):
            if first + 1 < len(self._entries) and not (
                self._entries[first].resident or self._entries[first + 1].resident
            ):
                self._merge(first)
        return freed

    def fill(self, after: Cursor, to: Cursor, results: Sequence[BrokerResult], *, now_s: float, sequence: int) -> None:
        """Inserts fetched results of this range where they are missing and adjoin results that are cached."""
        entries: list[CacheEntry] = []
        position = self.floor
        if after < self.floor <= to:
            entries += self._residents(results, after, self.floor, now_s, sequence)
            self.floor = after
        for entry in self:
            low, high = max(position, after), min(entry.cursor, to)
            if entry.resident or low >= high:
                entries.append(entry)
            else:
                if low > position:
                    entries.append(
                        CacheEntry(BrokerResult(low, 0), resident=False, inserted_s=entry.inserted_s, sequence=sequence)
                    )
                filled = self._residents(results, low, high, now_s, sequence)
                entries += filled
                if high < entry.cursor:
                    entry.size_bytes = max(0, entry.size_bytes - sum(new_entry.size_bytes for new_entry in filled))
                    entries.append(entry)
            position = entry.cursor
        # A filled entry must not expire later than the entries after it, so that the tail stays the first to expire.
        for entry_before, following in zip(entries[-2::-1], entries[:0:-1], strict=False):
            entry_before.inserted_s = min(entry_before.inserted_s, following.inserted_s)
            entry_before.sequence = min(entry_before.sequence, following.sequence)
        self._rebuild(entries)

    # --- subscribers

    def attach(self, marker: Cursor, count: int = 1) -> int:
        """Adds subscribers that have everything up to the marker, which is at most the head."""
        self.subscribers += count
        self._count(marker, count)
        return 0

    def detach(self, marker: Cursor, count: int = 1) -> int:
        self.subscribers -= count
        self._count(marker, -count)
        freed = self._let_go_of_consumed()
        if not self.subscribers:
            self.floor = self.head
        return freed

    def advance(self, before: Cursor, after: Cursor, count: int = 1) -> int:
        """Moves subscribers that acknowledged everything up to `after`. Drops results that are not needed any more."""
        self._count(before, -count)
        self._count(after, count)
        return self._let_go_of_consumed()

    # --- internals

    def _count(self, marker: Cursor, count: int) -> None:
        """Counts subscribers at the marker: in the entry at or before it, or in `needed` if it is below the tail."""
        remaining = self.counts.get(marker, 0) + count
        assert remaining >= 0, f"nobody stands at {marker}"
        if remaining:
            self.counts[marker] = remaining
        else:
            del self.counts[marker]
        entries, start = self._entries, self._start
        if start == len(entries) or marker < entries[start].cursor:
            self.needed += count
        elif marker == self.head:
            entries[-1].reached += count
        else:
            entries[bisect_right(entries, marker, start, key=_CURSOR) - 1].reached += count

    def _let_go(self, entry: CacheEntry) -> None:
        """Removes the first entry from the list."""
        self._start += 1
        self.floor = entry.cursor
        self.needed += entry.reached
        if entry.resident:
            self.resident_bytes -= entry.size_bytes
            self.residents -= 1
            entry.resident = False
            if self.on_dropped is not None and entry.owner is not None:
                self.on_dropped(entry)

    def _let_go_of_consumed(self) -> int:
        freed, first = 0, self._start
        while not self.needed and self._start < len(self._entries):
            entry = self._entries[self._start]
            freed += entry.size_bytes if entry.resident else 0
            self._let_go(entry)
        if self._start == first:
            return 0
        self._drop_holes()
        self._trim()
        self.rates.consumed_bytes += freed
        return freed

    def _drop_holes(self) -> None:
        while self._start < len(self._entries) and not self._entries[self._start].resident:
            self._let_go(self._entries[self._start])

    def _trim(self) -> None:
        start, length = self._start, len(self._entries)
        if start == length or (start > _TRIM_AT and start > length // 2):
            del self._entries[: self._start]
            self._start = 0

    def _merge(self, first: int) -> None:
        """Merges two neighbouring holes. Markers at the end of the first hole now belong to the entry before it."""
        hole, longer = self._entries[first], self._entries[first + 1]
        longer.size_bytes += hole.size_bytes
        self._entries[first - 1].reached += hole.reached
        del self._entries[first]

    def _residents(
        self, results: Sequence[BrokerResult], after: Cursor, to: Cursor, now_s: float, sequence: int
    ) -> list[CacheEntry]:
        added = [result for result in results if after < result.cursor <= to]
        self.resident_bytes += sum(result.size_bytes for result in added)
        self.residents += len(added)
        return [CacheEntry(result, resident=True, inserted_s=now_s, sequence=sequence) for result in added]

    def _rebuild(self, entries: list[CacheEntry]) -> None:
        self._entries, self._start = entries, 0
        for entry in entries:
            entry.reached = 0
        self.needed = 0
        counts, self.counts = self.counts, {}
        for marker, count in counts.items():
            self._count(marker, count)
        self._drop_holes()
        self._let_go_of_consumed()


def _merge_missing_runs(runs: list[CacheRun]) -> list[CacheRun]:
    """Merges neighbouring missing runs."""
    merged: list[CacheRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if isinstance(run, MissingRun) and isinstance(last, MissingRun):
            merged[-1] = MissingRun(last.after, run.to, last.size_bytes + run.size_bytes)
        else:
            merged.append(run)
    return merged


class GrowthRates:
    """How fast a cache grows: counts bytes; `update` folds the counts into moving averages.

    They smooth single bursts, and the past decays with the time constant of the window, so that they follow changes."""

    __slots__ = ("arrived_bytes", "arriving_bytes_s", "consumed_bytes", "consuming_bytes_s", "estimated", "since_s")

    def __init__(self, now_s: float) -> None:
        self.arrived_bytes = 0
        self.consumed_bytes = 0
        self.arriving_bytes_s = 0.0
        self.consuming_bytes_s = 0.0
        self.estimated = False
        self.since_s = now_s

    def update(self, now_s: float, window_s: float) -> None:
        """Updates the averages: the first call takes the measured rate, later calls weigh the past by
        exp(−elapsed/window).
        """
        elapsed_s = now_s - self.since_s
        if elapsed_s <= 0:
            return
        weight = 1.0 - math.exp(-elapsed_s / window_s) if self.estimated else 1.0
        self.arriving_bytes_s += weight * (self.arrived_bytes / elapsed_s - self.arriving_bytes_s)
        self.consuming_bytes_s += weight * (self.consumed_bytes / elapsed_s - self.consuming_bytes_s)
        self.arrived_bytes = self.consumed_bytes = 0
        self.estimated = True
        self.since_s = now_s

    @property
    def growth_bytes_s(self) -> float:
        """ρ = (λ − η)⁺"""
        return max(0.0, self.arriving_bytes_s - self.consuming_bytes_s)
