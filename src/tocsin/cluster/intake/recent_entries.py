"""Keeps the newest entries in memory, so that landing them reads no file.

A feed that keeps up lands an entry moments after it was appended. The memory is bounded: a feed that is far behind
reads its older entries from the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from tocsin.cluster.intake.frames import LogEntry

# The approximate cost of an entry beside its bytes.
_ENTRY_COST_BYTES: Final = 400


class RecentEntries:
    """Consecutive entries up to the log's end, as many as the limit allows."""

    __slots__ = ("_before", "_bytes", "_entries", "_firsts", "_limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._entries: list[LogEntry] = []
        self._firsts: list[int] = []
        self._before: list[int] = []

    def add(self, entry: LogEntry, bytes_before: int) -> None:
        """Adds the log's next entry; `bytes_before` is the number of frame bytes before it."""
        self._entries.append(entry)
        self._firsts.append(entry.first)
        self._before.append(bytes_before)
        self._bytes += _held_bytes(entry)
        if self._bytes > self._limit_bytes:
            self._drop_front(self._excess())

    def drop(self, position: int) -> None:
        """Drops the entries that end at or below the position."""
        below = bisect_right(self._firsts, position)
        if below and self._entries[below - 1].end > position:
            below -= 1
        self._drop_front(below)

    def since(self, position: int, max_rows: int, max_bytes: int) -> list[LogEntry] | None:
        """Returns entries, beginning with the one that holds the position; None if that one is not in memory."""
        start = self._at(position)
        if start is None:
            return None
        return list(within((self._entries[index] for index in range(start, len(self._entries))), max_rows, max_bytes))

    def bytes_before(self, position: int) -> int | None:
        """Returns the frame bytes before the entry that holds the position; None if that entry is not in memory."""
        index = self._at(position)
        return None if index is None else self._before[index]

    def _at(self, position: int) -> int | None:
        index = bisect_right(self._firsts, position) - 1
        return index if index >= 0 and self._entries[index].end > position else None

    def _excess(self) -> int:
        """Returns how many entries to drop: down to half the limit, because cutting the front of a list costs its
        length."""
        index = len(self._entries) - 1
        kept_bytes = _held_bytes(self._entries[index])
        if kept_bytes > self._limit_bytes:
            return len(self._entries)
        while index and kept_bytes + _held_bytes(self._entries[index - 1]) <= self._limit_bytes // 2:
            index -= 1
            kept_bytes += _held_bytes(self._entries[index])
        return index

    def _drop_front(self, count: int) -> None:
        self._bytes -= sum(_held_bytes(entry) for entry in self._entries[:count])
        del self._entries[:count], self._firsts[:count], self._before[:count]


def within(entries: Iterable[LogEntry], max_rows: int, max_bytes: int) -> Iterator[LogEntry]:
    """Yields as many entries as fit, and always the first."""
    rows = size_bytes = 0
    for entry in entries:
        rows += entry.rows
        size_bytes += len(entry.payload)
        if rows > entry.rows and (rows > max_rows or size_bytes > max_bytes):
            return
        yield entry


def _held_bytes(entry: LogEntry) -> int:
    return _ENTRY_COST_BYTES + len(entry.payload) + len(entry.answer)
