"""Decides which commits are new to one execution of a channel, and holds the snapshots that it reads.

New are the commits after those that the previous execution read. The store has that vector together with the results,
so that no commit is read twice or left out after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.language.channels.compiler import Scan, SharedQuery, WatchedDataset
from tocsin.language.translate.spark_text import render
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.columns import AT, COMMIT, physical
from tocsin.wire.errors import CapacityError

Vector = dict[str, int]  # dataset folder → commit number
_SMALL_ROWS: Final = 200_000  # at most this many new rows in memory count as small
# One task reads up to this much quickly.
_ONE_TASK_BYTES: Final = 8 << 20
_ONE_TASK_FILES: Final = 256


@dataclass(slots=True)
class CommitRange:
    """Every dataset as of one commit, held until the execution is over. `since` has the commits that the previous
    execution read; later rows are new."""

    tables: DatasetTables
    engine: Engine
    query: SharedQuery
    since: Vector
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    entries: dict[str, DatasetEntry] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, tables: DatasetTables, engine: Engine, query: SharedQuery, since: Vector, at: datetime | None = None
    ) -> CommitRange:
        """Takes a snapshot of every dataset, as of this instant or as of now. Raises PastStateError if a dataset no
        longer has that state."""
        execution = cls(tables, engine, query, since)
        for scan in query.scans:
            entry = entry_of(scan)
            if entry.folder not in execution.snapshots:
                execution.snapshots[entry.folder] = _state(tables.table(entry), at, since.get(entry.folder, 0))
                execution.entries[entry.folder] = entry
        return execution

    @property
    def vector(self) -> Vector:
        """The commit that this execution reads, per watched dataset."""
        return {folder: self.snapshots[folder].number for folder in self.watched_folders}

    @property
    def watched_folders(self) -> list[str]:
        return [folder_of(watched) for watched in self.query.watched]

    def is_empty(self) -> bool:
        """Returns whether there can be no results: every part of the query needs new rows, and there are none."""
        new_commits = [self.snapshots[folder].number - self.since.get(folder, 0) for folder in self.watched_folders]
        return self.query.needs_new and max(new_commits, default=0) <= 0

    def new_rows_in_memory(self, folder: str) -> pa.Table | None:
        """Returns the new rows if memory still has them, else None."""
        table = self.tables.table(self.entries[folder])
        return table.recent.between(self.since.get(folder, 0), self.snapshots[folder].number)

    def old_row(self, folder: str) -> pa.Table:
        """Returns one row without values that is not new. Spark plans a query over it as over new rows; over no row at
        all it would plan nothing."""
        schema = layout.record_schema(self.entries[folder].type)
        row = pa.table({field.name: pa.nulls(1, field.type) for field in schema})
        commit = pa.array([self.since.get(folder, 0)], pa.int64())
        return row.append_column(COMMIT, commit).append_column(AT, pa.nulls(1, pa.timestamp("us", tz="UTC")))

    def is_small(self, folder: str) -> bool:
        rows = self.new_rows_in_memory(folder)
        return rows is not None and rows.num_rows <= _SMALL_ROWS

    def fits_one_task(self) -> bool:
        """Returns whether one task reads all the data quickly, in memory and in files."""
        paths: set[str] = set()
        for scan in self.query.scans:
            if not scan.new or not self.is_small(folder_of(scan)):
                paths.update(self.snapshots[folder_of(scan)].files)
        return len(paths) <= _ONE_TASK_FILES and sum(Path(path).stat().st_size for path in paths) <= _ONE_TASK_BYTES

    def collect_new_rows(self, folder: str) -> pa.Table:
        """Returns the new rows, from memory or else from the files. Runs on an engine thread."""
        rows = self.new_rows_in_memory(folder)
        if rows is None:
            view = self.engine.views.of_part(self.rows_in_files(folder), self.entries[folder].type)
            try:
                newer = exp.GT(this=exp.column(COMMIT), expression=exp.Literal.number(self.since.get(folder, 0)))
                sql = render(exp.select("*").from_(view).where(newer))
                try:
                    rows = self.engine.rows(sql)
                except CapacityError:
                    # The rows exceed the size limit of one answer.
                    files = self.engine.result_files()
                    try:
                        self.engine.write_rows(sql, files)
                        rows = pa.Table.from_batches(files.batches())
                    finally:
                        files.remove()
            finally:
                self.engine.views.drop(view)
        return rows

    def identity_of(self, folder: str, rows: pa.Table, index: int) -> tuple[str, list[str]]:
        """Returns the full name of the dataset and the key of one of its records."""

        def value(row: Any, path: Sequence[str]) -> str:
            for name in path:
                row = row.get(physical(name)) if isinstance(row, dict) else None
            return str(row)

        (row,) = rows.slice(index, 1).to_pylist()
        entry = self.entries[folder]
        return full_name(entry), [value(row, path) for path in entry.keys]

    def rows_in_files(self, folder: str) -> Snapshot:
        """Returns the files that hold the new rows. They may also hold older rows."""
        table = self.tables.table(self.entries[folder])
        return table.newer(self.snapshots[folder], self.since.get(folder, 0))


def _state(table: DatasetTable, at: datetime | None, since: int) -> Snapshot:
    if at is None:
        return table.snapshot()
    snapshot = table.settled_at(at)
    # Never read behind `since`: an earlier tick reads the current state if the state of its own instant is gone, and
    # then it is ahead of this instant.
    return snapshot if snapshot.number >= since else table.as_of_commit(since)


def entry_of(one: Scan | WatchedDataset) -> DatasetEntry:
    assert isinstance(one.dataset, DatasetEntry)
    return one.dataset


def folder_of(one: Scan | WatchedDataset) -> str:
    return entry_of(one).folder
