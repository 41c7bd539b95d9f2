"""One statement's view of the world: the catalog as it was when it began, its instant, and the states it reads."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tocsin.cluster.catalog import METADATA, Catalog
from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import DatasetEntry, FunctionEntry, dataset_ref, function_ref
from tocsin.cluster.metadata import DATASETS
from tocsin.cluster.tables import Tables
from tocsin.language.names import Dataset
from tocsin.language.queries import Queries, Translated
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.snapshots import Snapshot


class StatementScope:
    """Names and scans for the translator. It holds the snapshots it gave out until `close`."""

    def __init__(self, catalog: Catalog, tables: Tables, engine: Engine, dataverse: str, now: datetime) -> None:
        self.catalog = catalog
        self.dataverse = dataverse
        self.now = now
        self._tables = tables
        self._engine = engine
        self._held: list[Snapshot] = []
        self._views: list[str] = []

    def close(self) -> None:
        self._held.clear()
        for name in self._views:
            self._engine.views.drop(name)
        self._views.clear()

    def translated(self, node: Any) -> Translated:
        return self.translator().translate(node)

    def translator(self) -> Queries:
        return Queries(self, self._engine.oracle, self, self.dataverse, self.now)

    # ------------------------------------------------------------ Names

    def find_dataset(self, dataverse: str, name: str) -> Dataset | None:
        if dataverse == METADATA:
            return DATASETS.get(name)
        found = self.catalog.find(dataset_ref(dataverse, name))
        return found if isinstance(found, DatasetEntry) else None

    def find_function(self, dataverse: str, name: str, arity: int) -> FunctionEntry | None:
        found = self.catalog.find(function_ref(dataverse, name, arity))
        return found if isinstance(found, FunctionEntry) else None

    def suggestions(self, dataverse: str) -> Sequence[str]:
        if dataverse == METADATA:
            return list(DATASETS)
        return [one.name for one in self.catalog.datasets if one.dataverse == dataverse]

    # ------------------------------------------------------------ Scans

    def scan(self, dataset: Dataset, commit: int | None, at: datetime | None) -> str:
        if not isinstance(dataset, DatasetEntry):
            described = DATASETS[dataset.name]
            rows = layout.to_arrow(described.rows(self.catalog), described.type)
            self._views.append(self._engine.views.of_rows(rows))
            return self._views[-1]
        table = self._tables.table(dataset)
        if commit is not None:
            snapshot = table.as_of_commit(commit)
        elif at is not None:
            snapshot = table.as_of_time(at)
        else:
            snapshot = table.snapshot()
        self._held.append(snapshot)
        return self._engine.views.of_snapshot(dataset.folder, snapshot, dataset.type)


def nearest(name: str, names: Sequence[str]) -> str | None:
    found = difflib.get_close_matches(name, names, 1)
    return found[0] if found else None
