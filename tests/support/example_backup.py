"""A data folder without a cluster around it, and what is in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.cluster.backup.manifest import CATALOG, Manifest
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.local import LocalFolder
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
KEYS = (("id",),)
STORES: Any = {"open_store": SqliteStore, "open_channels": SqliteChannelStore}


def rows(*numbers: int, word: str = "x") -> pa.Table:
    return pa.table({"id": list(numbers), "word": [word] * len(numbers)}, schema=SCHEMA)


def content(table: DatasetTable, number: int | None = None) -> dict[int, str]:
    snapshot = table.snapshot() if number is None else table.as_of_commit(number)
    found: dict[int, str] = {}
    for path in snapshot.files:
        for row in pq.read_table(path).to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                found[row["id"]] = row["word"]
    return found


class Data:
    """A data folder with a catalog and tables, without a cluster around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder / CATALOG)
        self.tables: dict[str, DatasetTable] = {}

    async def create(self, name: str) -> DatasetTable:
        self.tables[name] = DatasetTable.create(LocalFolder(self.folder / "datasets" / name), SCHEMA, KEYS, history=100)
        async with self.store.transaction() as tx:
            await tx.add_entry("dataset", "Default", name, {"folder": name})
        return self.tables[name]

    async def back_up(self, to: Path, **options: Any) -> Manifest:
        return await write_backup(self.store, lambda: self.tables, to, data=self.folder, **options)

    def reopened(self, name: str, folder: Path) -> DatasetTable:
        return DatasetTable.open(LocalFolder(folder / "datasets" / name), SCHEMA, KEYS, history=100)


async def facts(folder: Path) -> dict[str, Any]:
    store = SqliteStore(folder / CATALOG)
    await store.open()
    try:
        return {**await store.facts(), "entries": [entry.name for entry in await store.entries()]}
    finally:
        await store.close()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name or ".restoring" in path.name)
