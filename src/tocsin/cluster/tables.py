"""The datasets' tables of one data folder: opened when first needed, looked after while open, removed when dropped."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import structlog

from tocsin import faults
from tocsin.cluster.entries import DatasetEntry
from tocsin.pipeline.datasets import layout, upkeep
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.columns import physical
from tocsin.wire.errors import NotFoundError, StorageFullError

log = structlog.get_logger()


class Tables:
    """Thread-safe. A dataset's folder has a name of its own, so a new dataset never meets an old one's files."""

    def __init__(self, folder: Path, *, key_index_limit: int, upkeep_period_s: float) -> None:
        self._folder = folder
        self._key_index_limit = key_index_limit
        self._upkeep_period_s = upkeep_period_s
        self._open: dict[str, DatasetTable] = {}
        self._dropped: set[str] = set()
        self._lock = threading.RLock()
        self._upkeep: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    def start(self, known: set[str], *, upkeep: bool = True) -> None:
        """Folders that no dataset owns are what a crash left of a CREATE or a DROP: they go."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for found in self._folder.iterdir():
            if found.name not in known:
                shutil.rmtree(found, ignore_errors=True)
        if upkeep:
            self._upkeep = asyncio.create_task(self._look_after(), name="upkeep")

    async def close(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        with self._lock:
            for table in self._open.values():
                table.close()
            self._open.clear()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._upkeep_period_s)
            with self._lock:
                due = [(name, table) for name, table in self._open.items() if table.upkeep_due()]
            for name, table in due:
                # The next one has its turn even where this one's failure cannot be told.
                with suppress(Exception):
                    await self._kept_up(name, table)

    async def _kept_up(self, name: str, table: DatasetTable) -> None:
        try:
            await asyncio.to_thread(upkeep.upkeep, table)
        except StorageFullError as error:
            log.warning("upkeep must wait", dataset=name, reason=error.message)
        except Exception:
            if name not in self._dropped:
                log.exception("upkeep failed", dataset=name)

    # ------------------------------------------------------------ tables

    def create(self, entry: DatasetEntry) -> None:
        with self._lock:
            path = self._folder / entry.folder
            try:
                self._open[entry.folder] = DatasetTable.create(
                    path, layout.record_schema(entry.type), _keys(entry), history=entry.history,
                    retention_s=entry.retention_s, indexed_keys_max=self._key_index_limit,
                )  # fmt: skip
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        faults.reach("create-dataset.folder-made")

    def table(self, entry: DatasetEntry) -> DatasetTable:
        with self._lock:
            if entry.folder in self._dropped:
                raise NotFoundError(f"the dataset {entry.dataverse}.{entry.name} was dropped meanwhile")
            found = self._open.get(entry.folder)
            if found is None:
                found = self._open[entry.folder] = DatasetTable.open(
                    self._folder / entry.folder, layout.record_schema(entry.type), _keys(entry), history=entry.history,
                    retention_s=entry.retention_s, indexed_keys_max=self._key_index_limit,
                )  # fmt: skip
            return found

    def drop(self, *folders: str) -> None:
        """After the catalog forgot them. A query that still reads one may fail; nothing else refers to it."""
        for folder in folders:
            faults.reach("drop-dataset.catalog-done")
            with self._lock:
                self._dropped.add(folder)
                table = self._open.pop(folder, None)
                if table is not None:
                    table.close()
            shutil.rmtree(self._folder / folder, ignore_errors=True)


def new_folder() -> str:
    return uuid4().hex


def _keys(entry: DatasetEntry) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(physical(name) for name in path) for path in entry.keys)
