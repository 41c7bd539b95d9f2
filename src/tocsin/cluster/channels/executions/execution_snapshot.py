"""The states that one execution of a channel reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa

from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.language.channels.compiler import Scan, SharedQuery, WatchedDataset
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.pipeline.datasets.table import DatasetTable

Vector = dict[str, int]
SMALL_ROWS: Final = 200_000


@dataclass(slots=True)
class ExecutionSnapshot:
    """Every dataset as of one commit, held until the execution is over. `since`: up to there nothing is new."""

    tables: DatasetTables
    engine: Engine
    query: SharedQuery
    since: Vector
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    entries: dict[str, DatasetEntry] = field(default_factory=dict)

    @classmethod
    def begun(
        cls, tables: DatasetTables, engine: Engine, query: SharedQuery, since: Vector, at: datetime | None = None
    ) -> ExecutionSnapshot:
        """Every dataset as of this instant, or as it is now; PastStateError where one no longer has that state."""
        made = cls(tables, engine, query, since)
        for scan in query.scans:
            entry = entry_of(scan)
            if entry.folder not in made.snapshots:
                made.snapshots[entry.folder] = _state(tables.table(entry), at, since.get(entry.folder, 0))
                made.entries[entry.folder] = entry
        return made

    @property
    def vector(self) -> Vector:
        """How far it reads, per watched dataset."""
        return {folder: self.snapshots[folder].number for folder in self.watched}

    @property
    def watched(self) -> list[str]:
        return [folder_of(one) for one in self.query.watched]

    def is_empty(self) -> bool:
        """Whether there can be no answer: every part of the query wants new rows, and there are none."""
        behind = [self.snapshots[one].number - self.since.get(one, 0) for one in self.watched]
        return self.query.needs_new and max(behind, default=0) <= 0

    def new_rows(self, folder: str) -> pa.Table | None:
        """The new rows as they are in memory; None where they are not."""
        table = self.tables.table(self.entries[folder])
        return table.recent.between(self.since.get(folder, 0), self.snapshots[folder].number)

    def is_small(self, folder: str) -> bool:
        rows = self.new_rows(folder)
        return rows is not None and rows.num_rows <= SMALL_ROWS

    def rows_in_files(self, folder: str) -> Snapshot:
        """The files that hold the new rows, which may hold older ones, too."""
        table = self.tables.table(self.entries[folder])
        return table.newer(self.snapshots[folder], self.since.get(folder, 0))


def _state(table: DatasetTable, at: datetime | None, since: int) -> Snapshot:
    if at is None:
        return table.snapshot()
    found = table.settled_at(at)
    # An execution of an earlier tick may have read further, where the state of its own instant was no longer kept.
    return found if found.number >= since else table.as_of_commit(since)


def entry_of(one: Scan | WatchedDataset) -> DatasetEntry:
    assert isinstance(one.dataset, DatasetEntry)
    return one.dataset


def folder_of(one: Scan | WatchedDataset) -> str:
    return entry_of(one).folder
