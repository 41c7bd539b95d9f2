"""Tombstones: data files that no state of ours needs any more, kept for readers outside this process.

Another engine opens a version of the table and reads its files afterwards; we cannot see it. A removed file therefore
stays for a while, and so does the part of the log that describes the versions of that time. Both are bounded.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow.parquet as pq

from tocsin.clock import span_us
from tocsin.pipeline.datasets.delta.log_entries import read_entry_time_us, split_lines
from tocsin.pipeline.datasets.delta.log_files import checkpoint_name, entry_name, log_of, log_versions
from tocsin.storage.interface import StorageFolder

# Outside readers list the log when they open a table: with more entries even the listing would take a second.
LOG_ENTRIES_MAX: Final = 100_000
_MARK_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class OutsideReaders:
    """What is kept for readers in other processes: for how long, and how many bytes of removed files at most."""

    keep_s: float = 0.0
    keep_bytes: int = 1 << 32

    @property
    def keep_us(self) -> int:
        return span_us(self.keep_s)


@dataclass(frozen=True, slots=True, order=True)
class Tombstone:
    removed_at_us: int
    name: str
    size_bytes: int


class Tombstones:
    """Removed files, the earliest removal first. Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[Tombstone] = []
        self._latest_us = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Tombstone]:
        return iter(self._heap)

    def add(self, tombstone: Tombstone) -> None:
        heapq.heappush(self._heap, tombstone)
        self._latest_us = max(self._latest_us, tombstone.removed_at_us)
        self.size_bytes += tombstone.size_bytes

    def hold_to(self, now_us: int) -> None:
        """Corrects removal times in the future, which a fast clock may have recorded, to the present time."""
        if self._latest_us > now_us:
            self._heap = [replace(entry, removed_at_us=min(entry.removed_at_us, now_us)) for entry in self._heap]
            heapq.heapify(self._heap)
            self._latest_us = now_us

    def has_expired(self, before_us: int) -> bool:
        return bool(self._heap) and self._heap[0].removed_at_us <= before_us

    def take_expired(self, before_us: int) -> list[Tombstone]:
        """The tombstones of files that were removed by this time."""
        return self._take(lambda: self._heap[0].removed_at_us <= before_us)

    def take_beyond(self, limit_bytes: int) -> list[Tombstone]:
        """The oldest tombstones, until the others take at most this many bytes."""
        return self._take(lambda: self.size_bytes > limit_bytes)

    def _take(self, goes: Any) -> list[Tombstone]:
        taken = []
        while self._heap and goes():
            tombstone = heapq.heappop(self._heap)
            self.size_bytes -= tombstone.size_bytes
            taken.append(tombstone)
        return taken


class LogFiles:
    """The entries and checkpoints of a log on the disk, and when each version was superseded.

    The folder is listed once: with 36,000 entries a listing costs more than a commit.
    """

    def __init__(self, folder: StorageFolder) -> None:
        entries, self.checkpoints = log_versions(folder)
        self.entries = deque(entries)
        # (time, version): by this time, every version before this one was superseded.
        self._superseded: deque[tuple[int, int]] = deque()
        logs = log_of(folder)
        for version in entries[-1::-_MARK_EVERY][::-1]:
            # The entry's own time, because the time of its file comes from the wall clock, which may have been wrong.
            at_us = read_entry_time_us(logs.read(entry_name(version)))
            self._superseded.append((_modified_us(logs, version) if at_us is None else at_us, version))
        self._needed = entries[0] if entries else 0

    def extend_to(self, version: int, at_us: int) -> None:
        """Extends the log to this version."""
        last = self.entries[-1] if self.entries else max(self.checkpoints, default=-1)
        # A time in the future cannot be right, whatever the clock said then.
        while self._superseded and self._superseded[-1][0] > at_us:
            self._superseded.pop()
        if version > last or not self._superseded:
            self.entries.extend(range(last + 1, version + 1))
            self._superseded.append((at_us, version))

    def has_expired(self, before_us: int) -> bool:
        return bool(self._superseded) and self._superseded[0][0] <= before_us

    def needed_since(self, before_us: int) -> int:
        """The first version that was still current after this time."""
        while self.has_expired(before_us):
            self._needed = max(self._needed, self._superseded.popleft()[1])
        return self._needed

    def needed_within(self, entries_max: int) -> int:
        """The first of the last `entries_max` versions."""
        return self.entries[-entries_max] if len(self.entries) > entries_max else 0

    def take_before(self, base: int) -> list[int]:
        """Takes the versions whose entries a reader that begins at the checkpoint `base` does not need, the oldest
        first.
        """
        taken = []
        while self.entries and self.entries[0] < base:
            taken.append(self.entries.popleft())
        return taken


def _modified_us(logs: StorageFolder, version: int) -> int:
    name = entry_name(version)
    return next((file.modified_us for file in logs.list_files() if file.name == name), 0)


def find_newest_time_us(folder: StorageFolder) -> int:
    """When the newest entry of a dataset's log was written; 0 if unknown."""
    try:
        entries, _ = log_versions(folder)
        return read_entry_time_us(log_of(folder).read(entry_name(entries[-1]))) or 0 if entries else 0
    except OSError:
        return 0


def read_tombstones(folder: StorageFolder) -> dict[str, int]:
    """The files that the newest checkpoint and the entries after it list as removed, with the time of removal."""
    entries, checkpoints = log_versions(folder)
    logs = log_of(folder)
    removed: dict[str, int] = {}
    base = checkpoints[-1] if checkpoints else -1
    if checkpoints:
        for tombstone in _checkpointed(logs, checkpoint_name(base)):
            removed[tombstone["path"]] = (tombstone["deletionTimestamp"] or 0) * 1000
    for version in entries:
        if version > base:
            removed |= _removed_by(split_lines(logs.read(entry_name(version)).decode()))
    return removed


def _checkpointed(logs: StorageFolder, name: str) -> Iterable[dict[str, Any]]:
    with logs.open_input(name) as source, pq.ParquetFile(source) as file:
        columns = ["remove.path", "remove.deletionTimestamp"]
        for batch in file.iter_batches(columns=columns, use_threads=False):
            yield from (
                tombstone
                for tombstone in batch.column("remove").drop_null().to_pylist()
                if tombstone["path"] is not None
            )


def _removed_by(lines: Iterable[str]) -> dict[str, int]:
    removes = (json.loads(line).get("remove") for line in lines)
    return {remove["path"]: (remove.get("deletionTimestamp") or 0) * 1000 for remove in removes if remove is not None}
