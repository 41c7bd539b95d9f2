"""A cluster without Spark and HTTP: what needs neither runs as in the real one, and starts in a second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from tocsin import compose
from tocsin.cluster.catalog import CatalogStore
from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import DatasetEntry
from tocsin.cluster.statements import ScriptRunner
from tocsin.cluster.tables import Tables
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.settings import Settings
from tocsin.store.store import ClusterStore

T = TypeVar("T")


class Sparkless(Engine):
    """Runs what Python does itself: definitions, constants, loads, commits."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="statement")
        self.oracle: Any = None

    def _grouped(self, group: str, what: str, work: Callable[[], T]) -> T:
        return work()


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    store: ClusterStore
    catalog: CatalogStore
    tables: Tables
    statements: ScriptRunner

    async def run(self, script: str) -> list[dict[str, Any]]:
        return [{"kind": one.kind, **one.summary} async for one in self.statements.run(script, stream=False)]

    def table(self, name: str, dataverse: str = "v") -> DatasetTable:
        return self.tables.table(self.catalog.catalog.dataset(dataverse, name))

    def rows(self, entry: DatasetEntry) -> list[dict[str, Any]]:
        """What the dataset holds, read from its files."""
        files = self.tables.table(entry).snapshot().files
        return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


@asynccontextmanager
async def opened(data: Path) -> AsyncIterator[Parts]:
    """What a cluster has when it has started. Upkeep is left to the caller, who wants to know when it happens."""
    settings = Settings.load(None, {}, {"data": data, "cluster.datasets.upkeep_period_s": 86_400})
    async with compose.opened_store(settings) as store:
        catalog = CatalogStore(store)
        known = await catalog.load()
        tables = compose.tables_of(settings)
        tables.start({entry.folder for entry in known.datasets})
        statements = ScriptRunner(catalog, tables, Sparkless(), settings.cluster)
        try:
            yield Parts(settings, store, catalog, tables, statements)
        finally:
            await statements.close()
            await tables.close()
