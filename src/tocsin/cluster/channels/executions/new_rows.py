"""New rows as Spark sees them: those that several channels read at the same time are handed over once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tocsin.cluster.channels.executions.execution_snapshot import ExecutionSnapshot
from tocsin.cluster.engine.engine import Engine
from tocsin.pipeline.datasets.snapshots import Snapshot

# Views that nobody uses now, for a channel that comes a moment later.
KEPT_VIEWS: Final = 8
KEPT_BYTES: Final = 64 << 20


@dataclass(slots=True)
class _View:
    building: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    name: str | None = None
    snapshot: Snapshot | None = None  # its files stay while the view does
    size_bytes: int = 0


class NewRows:
    """Thread-safe. A view stays while somebody uses it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._views: OrderedDict[tuple[int, str, int, int], _View] = OrderedDict()

    @contextmanager
    def view(self, reading: ExecutionSnapshot, folder: str) -> Iterator[str]:
        """The name of a view of the dataset's rows that are new to this reading (and perhaps of older ones)."""
        # A view is a session's: in the next one it is made again.
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
                gone = self._unneeded()
            for name in gone:
                self._engine.views.drop(name)

    def _build(self, view: _View, reading: ExecutionSnapshot, folder: str) -> None:
        rows = reading.new_rows(folder)
        if rows is not None:
            view.size_bytes = rows.nbytes
            view.name = self._engine.views.of_rows(rows)
        else:
            view.snapshot = reading.rows_in_files(folder)
            view.name = self._engine.views.of_part(view.snapshot, reading.entries[folder].type)

    def _unneeded(self) -> list[str]:
        """The names of those that go, the least recently used first. The caller has the lock."""
        idle = [(key, view) for key, view in self._views.items() if not view.users]
        count, size_bytes, gone = len(idle), sum(view.size_bytes for _, view in idle), []
        for key, view in idle:
            if view.name is None or count > KEPT_VIEWS or size_bytes > KEPT_BYTES:
                count, size_bytes = count - 1, size_bytes - view.size_bytes
                del self._views[key]
                if view.name is not None:
                    gone.append(view.name)
        return gone
