"""The newest entries in memory, so that landing what just arrived reads no file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from tocsin.cluster.intake.frames import LogEntry

# What an entry costs beside its bytes, roughly.
_ENTRY_COST_BYTES: Final = 400


class RecentEntries:
    """Entries without a gap up to the log's end, as many as the bytes allow."""

    __slots__ = ("_before", "_bytes", "_entries", "_firsts", "_limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._entries: list[LogEntry] = []
        self._firsts: list[int] = []
        self._before: list[int] = []

    def add(self, entry: LogEntry, bytes_before: int) -> None:
        """The log's next entry; so many bytes of frames lie before it."""
        self._entries.append(entry)
        self._firsts.append(entry.first)
        self._before.append(bytes_before)
        self._bytes += _held_bytes(entry)
        if self._bytes > self._limit_bytes:
            self._drop_front(self._excess())

    def drop(self, position: int) -> None:
        """Forget the entries that end at the position or before."""
        below = bisect_right(self._firsts, position)
        if below and self._entries[below - 1].end > position:
            below -= 1
        self._drop_front(below)

    def since(self, position: int, max_rows: int, max_bytes: int) -> list[LogEntry] | None:
        """From the entry that holds the position on, as `within`; None where that one is not here."""
        at = self._at(position)
        if at is None:
            return None
        return list(within((self._entries[each] for each in range(at, len(self._entries))), max_rows, max_bytes))

    def bytes_before(self, position: int) -> int | None:
        """How many bytes of frames lie before the entry that holds the position; None where that one is not here."""
        at = self._at(position)
        return None if at is None else self._before[at]

    def _at(self, position: int) -> int | None:
        at = bisect_right(self._firsts, position) - 1
        return at if at >= 0 and self._entries[at].end > position else None

    def _excess(self) -> int:
        """How many to drop: down to half the limit, because taking the front off a list costs its length."""
        at = len(self._entries) - 1
        kept_bytes = _held_bytes(self._entries[at])
        if kept_bytes > self._limit_bytes:
            return len(self._entries)
        while at and kept_bytes + _held_bytes(self._entries[at - 1]) <= self._limit_bytes // 2:
            at -= 1
            kept_bytes += _held_bytes(self._entries[at])
        return at

    def _drop_front(self, count: int) -> None:
        self._bytes -= sum(_held_bytes(entry) for entry in self._entries[:count])
        del self._entries[:count], self._firsts[:count], self._before[:count]


def within(entries: Iterable[LogEntry], max_rows: int, max_bytes: int) -> Iterator[LogEntry]:
    """As many as fit, and the first in any case."""
    rows = size_bytes = 0
    for entry in entries:
        rows += entry.rows
        size_bytes += len(entry.payload)
        if rows > entry.rows and (rows > max_rows or size_bytes > max_bytes):
            return
        yield entry


def _held_bytes(entry: LogEntry) -> int:
    return _ENTRY_COST_BYTES + len(entry.payload) + len(entry.answer)
