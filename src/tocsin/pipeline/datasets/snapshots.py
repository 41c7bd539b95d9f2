"""Snapshots of datasets: the files of a state stay while a reader holds it.

Clean-up asks which files are in use, so that a reader needs no lock. Snapshots are known by weak references: the files
of one that nobody refers to any more are free, even if its reader failed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Snapshot:
    """The files of one state of a dataset.

    If `rows_up_to` is set, the reader leaves out rows whose `_commit` is greater.
    """

    files: tuple[str, ...]
    number: int
    version: int
    rows_up_to: int | None


class SnapshotHolds:
    """The snapshots in use: pinned, or still referred to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._issued: list[weakref.ref[Snapshot]] = []
        self._prune_at = 64
        self._pinned: dict[object, Snapshot] = {}

    def issued(self, snapshot: Snapshot) -> Snapshot:
        with self._lock:
            self._issued.append(weakref.ref(snapshot))
            if len(self._issued) >= self._prune_at:
                self._issued = [issued for issued in self._issued if issued() is not None]
                self._prune_at = 64 + 2 * len(self._issued)
        return snapshot

    @contextmanager
    def pin(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        token = object()
        with self._lock:
            self._pinned[token] = snapshot
        try:
            yield snapshot
        finally:
            with self._lock:
                del self._pinned[token]

    def files(self) -> set[str]:
        """The full paths of the files that must stay."""
        with self._lock:
            alive = [snapshot for issued in self._issued if (snapshot := issued()) is not None]
            return {path for snapshot in (*alive, *self._pinned.values()) for path in snapshot.files}
