"""The recent results of one interest, and how many subscribers still need each.

    floor           tail                                    head
      │   missing     │  resident · resident · hole · resident │
    ──┴───────────────┴────────────────────────────────────────┴──▶ cursor

There is no set of subscribers per result. Whoever's marker (the last cursor it acknowledged) lies below a result still
needs it, so markers are counted: in `counts` per marker, and between the entries (`CacheEntry.reached`, and
`needed` for those below the tail). A move of any number of subscribers from one marker to another costs two look-ups.
The tail is always resident: what lies before it, holes too, is merely missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from tocsin.rules.caching.entries import BrokerResult, CachedRun, CacheEntry, MissingRun, Run
from tocsin.rules.caching.rates import GrowthRates
from tocsin.rules.model.cursors import Cursor

_TRIM_AT: Final = 32
_CURSOR: Final = attrgetter("cursor")


class ResultCache:
    """Every method that lets go of results answers how many bytes that freed."""

    __slots__ = (
        "_entries", "_start", "counts", "floor", "head", "interest", "last_access_s", "latency_s", "needed",
        "number", "on_gone", "rates", "resident_bytes", "residents", "subscribers", "ttl_s",
    )  # fmt: skip

    def __init__(self, interest: Hashable, since: Cursor, *, number: int, now_s: float, ttl_s: float) -> None:
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
        # Who wants to know of every resident that goes, for whatever reason.
        self.on_gone: Callable[[CacheEntry], None] | None = None
        self._entries: list[CacheEntry] = []
        self._start = 0

    # --- looking

    @property
    def tail(self) -> CacheEntry | None:
        """The oldest resident result: the only one that a policy has to look at."""
        return self._entries[self._start] if self._start < len(self._entries) else None

    @property
    def oldest(self) -> CacheEntry:
        """The tail of a cache with residents."""
        return self._entries[self._start]

    @property
    def newest(self) -> CacheEntry | None:
        return self._entries[-1] if self._start < len(self._entries) else None

    def lowest_marker(self) -> Cursor:
        """What every subscriber has; the head when there is none."""
        return min(self.counts, default=self.head)

    def __iter__(self) -> Iterator[CacheEntry]:
        """Residents and holes, oldest first."""
        return iter(self._entries[self._start :])

    def __len__(self) -> int:
        return len(self._entries) - self._start

    def needing(self, index: int) -> int:
        """How many subscribers still need the entry with this place, oldest = 0. Linear: not for ranking."""
        return self.needed + sum(entry.reached for entry in self._entries[self._start : self._start + index])

    def between(self, after: Cursor, to: Cursor) -> Iterator[CacheEntry]:
        """The residents in this range, oldest first."""
        for index in range(bisect_right(self._entries, after, self._start, key=_CURSOR), len(self._entries)):
            entry = self._entries[index]
            if entry.cursor > to:
                return
            if entry.resident:
                yield entry

    def place(self, entry: CacheEntry) -> int:
        """The entry's place, oldest = 0."""
        return bisect_right(self._entries, entry.cursor, self._start, key=_CURSOR) - 1 - self._start

    def count_needed(self) -> None:
        """Writes into every entry how many still need it."""
        needed = self.needed
        for entry in self:
            entry.needed = needed
            needed += entry.reached

    def get(self, after: Cursor, to: Cursor) -> list[Run]:
        """The range split into what is here and what is missing, oldest first; nothing when the range is empty."""
        runs: list[Run] = []
        if after >= to:
            return runs
        if to == self.head and self.residents == len(self._entries) - self._start:
            return self._get_unbroken(after)
        place = after
        if place < self.floor:
            place = min(self.floor, to)
            runs.append(MissingRun(after, place))
        found: list[BrokerResult] = []
        begun = place
        for index in range(bisect_right(self._entries, place, self._start, key=_CURSOR), len(self._entries)):
            entry = self._entries[index]
            if entry.result is not None:
                if entry.cursor > to:
                    break
                found.append(entry.result)
                place = entry.cursor
                continue
            if place >= to:
                break
            if place > begun:
                runs.append(CachedRun(begun, place, tuple(found)))
                found = []
            begun = min(entry.cursor, to)
            runs.append(MissingRun(place, begun, entry.size_bytes))
            place = begun
        known = min(to, self.head)
        if begun < known:
            runs.append(CachedRun(begun, known, tuple(found)))
            begun = known
        if begun < to:
            runs.append(MissingRun(begun, to))
        return joined(runs)

    def _get_unbroken(self, after: Cursor) -> list[Run]:
        """The same up to the head, where there are no holes: at most one missing run, and all that is after it."""
        entries, floor, head = self._entries, self.floor, self.head
        if after < floor:
            missing = MissingRun(after, floor)
            if floor == head:
                return [missing]
            return [missing, CachedRun(floor, head, tuple([entry.result for entry in entries[self._start :]]))]  # type: ignore[misc]
        begin = bisect_right(entries, after, self._start, key=_CURSOR)
        return [CachedRun(after, head, tuple([entry.result for entry in entries[begin:]]))]  # type: ignore[misc]

    # --- results come and go

    def put(self, result: BrokerResult, *, resident: bool, now_s: float, sequence: int) -> None:
        """The next result, after the head. One that is not resident leaves a hole."""
        cursor = result.cursor
        assert cursor > self.head, f"{cursor} comes after {self.head}"
        self.head = cursor
        if not self.subscribers:
            # Nobody needs it: an object leaves when everybody attached to it has it.
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
            # Who stood at the hole's end stands inside the longer hole now, which is the place of the entry before.
            hole = self._entries[-1]
            self._entries[-2].reached += hole.reached
            hole.reached = 0
            hole.cursor = result.cursor
            hole.size_bytes += result.size_bytes

    def skip(self, to: Cursor) -> None:
        """Results up to there may exist and will not come: whoever asks for them has to fetch."""
        if to > self.head:
            self.put(BrokerResult(to, 0), resident=False, now_s=0.0, sequence=0)

    def reach(self, to: Cursor) -> None:
        """There is nothing between the head and there."""
        self.head = max(self.head, to)

    def drop_tail(self) -> int:
        """The oldest resident goes, and the hole behind it."""
        tail = self.tail
        assert tail is not None, "only a cache with residents has a tail"
        self._let_go(tail)
        self._drop_holes()
        self._trim()
        return tail.size_bytes

    def drop(self, index: int) -> int:
        """The resident with this place (oldest = 0) goes and leaves a hole."""
        if index == 0:
            return self.drop_tail()
        at = self._start + index
        entry = self._entries[at]
        assert entry.resident, "a hole cannot go again"
        freed = entry.size_bytes
        entry.resident, entry.result = False, None
        self.resident_bytes -= freed
        self.residents -= 1
        if self.on_gone is not None and entry.owner is not None:
            self.on_gone(entry)
        for first in (at, at - 1):
            if first + 1 < len(self._entries) and not (
                self._entries[first].resident or self._entries[first + 1].resident
            ):
                self._merge(first)
        return freed

    def fill(self, after: Cursor, to: Cursor, results: Sequence[BrokerResult], *, now_s: float, sequence: int) -> None:
        """What was fetched of this range takes its place, as far as it is missing and touches what is here."""
        entries: list[CacheEntry] = []
        place = self.floor
        if after < self.floor <= to:
            entries += self._residents(results, after, self.floor, now_s, sequence)
            self.floor = after
        for entry in self:
            low, high = max(place, after), min(entry.cursor, to)
            if entry.resident or low >= high:
                entries.append(entry)
            else:
                if low > place:
                    entries.append(
                        CacheEntry(BrokerResult(low, 0), resident=False, inserted_s=entry.inserted_s, sequence=sequence)
                    )
                found = self._residents(results, low, high, now_s, sequence)
                entries += found
                if high < entry.cursor:
                    entry.size_bytes = max(0, entry.size_bytes - sum(one.size_bytes for one in found))
                    entries.append(entry)
            place = entry.cursor
        # A result filled in grows no older than those after it: so the tail stays the first to expire.
        for one, following in zip(entries[-2::-1], entries[:0:-1], strict=False):
            one.inserted_s = min(one.inserted_s, following.inserted_s)
            one.sequence = min(one.sequence, following.sequence)
        self._rebuild(entries)

    # --- subscribers

    def attach(self, marker: Cursor, count: int = 1) -> int:
        """So many more subscribers that have everything up to the marker, which is at most the head."""
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
        """So many subscribers have acknowledged everything up to `after`. What nobody needs any more goes."""
        self._count(before, -count)
        self._count(after, count)
        return self._let_go_of_consumed()

    # --- inside

    def _count(self, marker: Cursor, count: int) -> None:
        """So many more stand at the marker: at the entry at or before it, or below the tail."""
        left = self.counts.get(marker, 0) + count
        assert left >= 0, f"nobody stands at {marker}"
        if left:
            self.counts[marker] = left
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
        """The first entry leaves the list."""
        self._start += 1
        self.floor = entry.cursor
        self.needed += entry.reached
        if entry.resident:
            self.resident_bytes -= entry.size_bytes
            self.residents -= 1
            entry.resident = False
            if self.on_gone is not None and entry.owner is not None:
                self.on_gone(entry)

    def _let_go_of_consumed(self) -> int:
        freed, begun = 0, self._start
        while not self.needed and self._start < len(self._entries):
            entry = self._entries[self._start]
            freed += entry.size_bytes if entry.resident else 0
            self._let_go(entry)
        if self._start == begun:
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
        """Two neighbouring holes become one; who stood at the end of the first stands at the entry before."""
        hole, longer = self._entries[first], self._entries[first + 1]
        longer.size_bytes += hole.size_bytes
        self._entries[first - 1].reached += hole.reached
        del self._entries[first]

    def _residents(
        self, results: Sequence[BrokerResult], after: Cursor, to: Cursor, now_s: float, sequence: int
    ) -> list[CacheEntry]:
        found = [one for one in results if after < one.cursor <= to]
        self.resident_bytes += sum(one.size_bytes for one in found)
        self.residents += len(found)
        return [CacheEntry(one, resident=True, inserted_s=now_s, sequence=sequence) for one in found]

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


def joined(runs: list[Run]) -> list[Run]:
    """Neighbouring missing runs as one."""
    whole: list[Run] = []
    for run in runs:
        last = whole[-1] if whole else None
        if isinstance(run, MissingRun) and isinstance(last, MissingRun):
            whole[-1] = MissingRun(last.after, run.to, last.size_bytes + run.size_bytes)
        else:
            whole.append(run)
    return whole
