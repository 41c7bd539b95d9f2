"""One execution of a channel: from one commit vector to the next, over all interests, and only then on the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import DatasetEntry
from tocsin.cluster.tables import Tables
from tocsin.language.channels import Called, Scan, SharedQuery
from tocsin.pipeline.channels import running
from tocsin.pipeline.channels.interests import Interests
from tocsin.pipeline.channels.running import Found, Moment
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.rules.model.columns import COMMIT
from tocsin.wire.errors import StatementError

Vector = dict[str, int]
SMALL_ROWS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Culprit:
    """A record on which the channel's query fails: it is set aside, and the others have their results."""

    dataset: str
    key: Any
    reason: str


@dataclass(slots=True)
class Reading:
    """The states that one execution reads: every dataset as of one commit, held until it is over."""

    tables: Tables
    engine: Engine
    query: SharedQuery
    since: Vector
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    entries: dict[str, DatasetEntry] = field(default_factory=dict)

    @classmethod
    def begun(cls, tables: Tables, engine: Engine, query: SharedQuery, since: Vector) -> Reading:
        made = cls(tables, engine, query, since)
        for scan in query.scans:
            entry = scan.dataset
            assert isinstance(entry, DatasetEntry)
            if entry.folder not in made.snapshots:
                made.snapshots[entry.folder] = tables.table(entry).snapshot()
                made.entries[entry.folder] = entry
        return made

    @property
    def vector(self) -> Vector:
        """How far it reads, per watched dataset."""
        return {folder: self.snapshots[folder].number for folder in self.watched}

    @property
    def watched(self) -> list[str]:
        return [_folder(one.dataset) for one in self.query.watched]

    def is_empty(self) -> bool:
        """Whether there can be no answer: every branch of the query wants new rows, and there are none."""
        return bool(self.query.watched) and all(
            self.snapshots[one].number <= self.since.get(one, 0) for one in self.watched
        )

    def new_rows(self, folder: str) -> pa.Table | None:
        """The new rows as they are in memory; None where they are not."""
        table = self.tables.table(self.entries[folder])
        return table.recent.between(self.since.get(folder, 0), self.snapshots[folder].number)

    def is_small(self, folder: str) -> bool:
        rows = self.new_rows(folder)
        return rows is not None and rows.num_rows <= SMALL_ROWS

    def rows_in_files(self, folder: str) -> Snapshot:
        table = self.tables.table(self.entries[folder])
        return table.newer(self.snapshots[folder], self.since.get(folder, 0))


def _folder(dataset: Any) -> str:
    assert isinstance(dataset, DatasetEntry)
    return dataset.folder


class NewRows:
    """New rows that several channels read in the same moment are handed to Spark once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[tuple[str, int, int], str] = {}

    def view(self, reading: Reading, folder: str) -> str:
        key = (folder, reading.since.get(folder, 0), reading.snapshots[folder].number)
        found = self._kept.get(key)
        if found is None:
            rows = reading.new_rows(folder)
            if rows is not None:
                found = self._engine.views.of_rows(rows)
            else:
                found = self._engine.views.of_part(reading.rows_in_files(folder), reading.entries[folder].type)
            self._kept[key] = found
            while len(self._kept) > 64:
                self._engine.views.drop(self._kept.pop(next(iter(self._kept))))
        return found


def executed(
    reading: Reading, interests: Interests, new_rows: NewRows, *, now: datetime, previous: datetime
) -> tuple[Found, list[Culprit]]:
    """The results of every interest. A record that makes the query fail is found by halving, and left out."""
    query, engine = reading.query, reading.engine
    since = {one.since: reading.since.get(_folder(one.dataset), 0) for one in query.watched}
    few = bool(reading.watched) and all(reading.is_small(folder) for folder in reading.watched)
    moment = Moment(now, previous, since, many=not few)

    def run(views: Mapping[str, str]) -> Found:
        def name_of(scan: Scan | Called) -> str:
            if isinstance(scan, Called):
                return engine.python.called(scan.function, scan.arguments)
            folder = _folder(scan.dataset)
            if scan.new:
                return views.get(folder) or new_rows.view(reading, folder)
            return engine.views.of_snapshot(folder, reading.snapshots[folder], reading.entries[folder].type)

        return running.run(engine.spark, query, interests, name_of, moment)

    try:
        return engine.asked(lambda: run({})), []
    except StatementError as error:
        if not any(scan.new for scan in query.scans):
            raise
        return _halved(reading, run, error)


def _halved(
    reading: Reading, run: Callable[[Mapping[str, str]], Found], first: StatementError
) -> tuple[Found, list[Culprit]]:
    """The results without the records on which the query fails."""
    engine = reading.engine
    folders = list(dict.fromkeys(_folder(scan.dataset) for scan in reading.query.scans if scan.new))
    rows = {folder: _collected(reading, folder) for folder in folders}
    culprits: list[Culprit] = []
    found: list[Found] = []

    def attempt(part: Mapping[str, pa.Table]) -> None:
        if not any(one.num_rows for one in part.values()):
            return
        views = {folder: engine.views.of_rows(one) for folder, one in part.items()}
        try:
            found.append(engine.asked(lambda: run(views)))
            return
        except StatementError as error:
            largest = max(part, key=lambda folder: part[folder].num_rows)
            if part[largest].num_rows <= 1:
                for folder, one in part.items():
                    culprits.extend(_named(reading.entries[folder], one, error))
                return
        finally:
            for view in views.values():
                engine.views.drop(view)
        middle = part[largest].num_rows // 2
        attempt({**part, largest: part[largest].slice(0, middle)})
        attempt({**part, largest: part[largest].slice(middle)})

    attempt(rows)
    if len(culprits) == sum(one.num_rows for one in rows.values()) and len(culprits) > 1:
        raise first  # it fails whatever the record: the query is at fault
    return _together(found), culprits


def _collected(reading: Reading, folder: str) -> pa.Table:
    rows = reading.new_rows(folder)
    if rows is None:
        entry = reading.entries[folder]
        view = reading.engine.views.of_part(reading.rows_in_files(folder), entry.type)
        try:
            newer = exp.GT(this=exp.column(COMMIT), expression=exp.Literal.number(reading.since.get(folder, 0)))
            rows = reading.engine.rows(exp.select("*").from_(view).where(newer).sql(dialect="spark"))
        finally:
            reading.engine.views.drop(view)
    return rows


def _named(entry: DatasetEntry, rows: pa.Table, error: StatementError) -> list[Culprit]:
    def value(row: Any, path: Sequence[str]) -> Any:
        for name in path:
            row = row.get(name) if isinstance(row, dict) else None
        return str(row)

    return [
        Culprit(f"{entry.dataverse}.{entry.name}", [value(row, path) for path in entry.keys], error.message)
        for row in rows.to_pylist()
    ]


def _together(parts: Sequence[Found]) -> Found:
    texts: list[bytes] = []
    payloads = []
    for part in parts:
        payloads.append(part.payloads + len(texts))
        texts.extend(part.texts)
    none = np.array([], np.int64)
    interests = np.concatenate([none, *(part.interests for part in parts)])
    order = np.argsort(interests, kind="stable")
    return Found(interests[order], np.concatenate([none, *payloads])[order], texts)
