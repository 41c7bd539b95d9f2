"""Shares the Spark views of new rows: channels that read the same new rows at the same time use one view.

Spark reads the rows from Python once per view, however many channels join them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tocsin.cluster.channels.executions.commit_range import CommitRange
from tocsin.cluster.engine.engine import Engine
from tocsin.pipeline.datasets.snapshots import Snapshot


@dataclass(slots=True)
class _View:
    building: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    name: str | None = None
    snapshot: Snapshot | None = None  # keeps the files of the view from being removed
    size_bytes: int = 0


class NewRowViews:
    """Thread-safe. A view exists at least as long as somebody uses it."""

    def __init__(self, engine: Engine, *, most_idle: int = 8, most_idle_bytes: int = 64 << 20) -> None:
        """The limits are those of idle views, which stay for channels that run a moment later."""
        self._engine = engine
        self._most_idle = most_idle
        self._most_idle_bytes = most_idle_bytes
        self._lock = threading.Lock()
        self._views: OrderedDict[tuple[int, str, int, int], _View] = OrderedDict()

    @contextmanager
    def view(self, reading: CommitRange, folder: str) -> Iterator[str]:
        """Yields the name of a view of the dataset's rows that are new to this execution. The view may also have older
        rows."""
        # A view belongs to one Spark session, so the key has the session's generation.
        key = (self._engine.generation, folder, reading.since.get(folder, 0), reading.snapshots[folder].number)
        with self._lock:
            view = self._views.setdefault(key, _View())
            self._views.move_to_end(key)
            view.users += 1
        try:
            with view.building:
                if view.name is None:
                    self._build(view, reading, folder)
            assert view.name is not None
            yield view.name
        finally:
            with self._lock:
                view.users -= 1
                dropped_names = self._unneeded_views()
            for name in dropped_names:
                self._engine.views.drop(name)

    def _build(self, view: _View, reading: CommitRange, folder: str) -> None:
        rows = reading.new_rows_in_memory(folder)
        if rows is not None:
            view.size_bytes = rows.nbytes
            view.name = self._engine.views.of_rows(rows)
        else:
            view.snapshot = reading.rows_in_files(folder)
            view.name = self._engine.views.of_part(view.snapshot, reading.entries[folder].type)

    def _unneeded_views(self) -> list[str]:
        """Removes idle views above the limits, the least recently used first, and returns their names. The caller holds
        the lock."""
        idle = [(key, view) for key, view in self._views.items() if not view.users]
        count, size_bytes, dropped_names = len(idle), sum(view.size_bytes for _, view in idle), []
        for key, view in idle:
            if view.name is None or count > self._most_idle or size_bytes > self._most_idle_bytes:
                count, size_bytes = count - 1, size_bytes - view.size_bytes
                del self._views[key]
                if view.name is not None:
                    dropped_names.append(view.name)
        return dropped_names
