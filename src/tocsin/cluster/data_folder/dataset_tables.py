"""Opens, maintains and removes the Delta tables of the datasets in one data folder.

A table opens at its first use. A background task compacts open tables and removes dropped ones when readers outside of
Tocsin had time to finish.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import uuid4

import structlog

from tocsin import faults
from tocsin.clock import from_us
from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.data_folder.lost_folder import DATASET, LostFolder
from tocsin.cluster.data_folder.removals import Removals
from tocsin.pipeline.datasets import layout, upkeep
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.columns import physical
from tocsin.settings import DatasetSettings
from tocsin.storage.interface import StorageFolder
from tocsin.store.cluster.interface import Removal
from tocsin.wire.errors import NotFoundError, StorageFullError

_log = structlog.get_logger()
_LOOK_FOR_OTHERS_EVERY_S: Final = 30.0


class DatasetTables:
    """Thread-safe. Each dataset's folder has a unique name, so a new dataset never sees an old one's files."""

    def __init__(self, folder: StorageFolder, settings: DatasetSettings, clock: TableClock | None = None) -> None:
        self.folder = folder
        """The folder that holds each dataset's table as a subfolder."""
        self.clock = clock or TableClock()
        """The clock for times on record and for ages."""
        self._settings = settings
        self._outside_readers = OutsideReaders(settings.outside_readers_s, settings.outside_readers_bytes)
        self._open: dict[str, DatasetTable] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._dropped: set[str] = set()
        self._lock = threading.RLock()
        self._upkeep: asyncio.Task[None] | None = None
        self._removals: Removals | None = None
        self._told_early: set[str] = set()

    def kept_for_readers(self) -> tuple[int, int, int]:
        """Returns what is kept for readers outside: removed data files, their bytes, and entries of logs."""
        with self._lock:
            tables = list(self._open.values())
        tombstone_lists = [table.past.tombstones for table in tables]
        entries = sum(len(table.log_files.entries) for table in tables if table.log_files is not None)
        return (
            sum(len(tombstones) for tombstones in tombstone_lists),
            sum(tombstones.size_bytes for tombstones in tombstone_lists),
            entries,
        )

    # ------------------------------------------------------------ start, end and upkeep

    async def start(self, known: set[str], removals: Removals, lost: LostFolder) -> None:
        """Removes what a crash left of a CREATE or a DROP, and moves unexplained folders to the lost folder."""
        await asyncio.to_thread(self.folder.make)
        self._removals = removals
        await removals.carry_out(
            DATASET, self.folder, lambda removal: removal.name not in known and self._is_due(removal)
        )
        unexplained = await removals.find_unexplained(DATASET, self.folder, known)
        await asyncio.to_thread(lost.set_aside, unexplained, DATASET)
        self._upkeep = asyncio.create_task(self._look_after(), name="upkeep")

    async def close(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        with self._lock:
            tables = list(self._open.values())
            self._open.clear()
        for table in tables:
            await asyncio.to_thread(table.close)

    async def _look_after(self) -> None:
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(self._settings.upkeep_period_s)
            if time.monotonic() - looked_s >= _LOOK_FOR_OTHERS_EVERY_S:
                await asyncio.to_thread(self._look_for_others)
                looked_s = time.monotonic()
            with self._lock:
                due = [(name, table) for name, table in self._open.items() if upkeep.is_upkeep_due(table)]
            for name, table in due:
                # A failure, even one in logging, must not stop the upkeep of the other tables.
                with suppress(Exception):
                    await self._run_upkeep(name, table)
            try:
                await self._remove_dropped()
            except Exception as error:
                _log.warning("dropped datasets could not be deleted; retrying", reason=str(error))

    def _look_for_others(self) -> None:
        """Notices what other programs committed to open tables, and shows it."""
        with self._lock:
            tables = list(self._open.values())
        for table in tables:
            with suppress(Exception):  # the next commit meets the same trouble, and tells it
                table.notice_foreign_commits()

    async def _run_upkeep(self, name: str, table: DatasetTable) -> None:
        try:
            self._tell_early(name, await asyncio.to_thread(upkeep.upkeep, table))
        except StorageFullError as error:
            _log.warning("upkeep of a dataset failed; retrying", dataset=name, reason=error.message)
        except Exception:
            if name not in self._dropped:
                _log.exception("upkeep of a dataset failed unexpectedly; retrying", dataset=name)

    def _tell_early(self, name: str, done: upkeep.UpkeepRound) -> None:
        if done.removed_early and name not in self._told_early:
            self._told_early.add(name)
            _log.warning(
                "old versions of a dataset go before readers outside had their time",
                dataset=name, files=done.removed_early,
                hint="they took more than cluster.datasets.outside_readers_bytes, or the log had too many entries",
            )  # fmt: skip
        elif done.removed_data_files and not done.removed_early:
            self._told_early.discard(name)

    # ------------------------------------------------------------ tables

    def create(self, entry: DatasetEntry) -> None:
        """Creates the table. An intent must name its folder first. If this fails, or the catalog does not get the
        entry, call `discard`."""
        faults.reach("create-dataset.intended")
        table = self._make(DatasetTable.create, entry)
        with self._lock:
            self._open[entry.folder] = table
        faults.reach("create-dataset.folder-made")

    def table(self, entry: DatasetEntry) -> DatasetTable:
        table = self._find(entry)
        if table is not None:
            return table
        with self._lock:
            opening = self._opening.setdefault(entry.folder, threading.Lock())
        # Opening takes long if the storage is far away: the other tables do not wait for it.
        with opening:
            table = self._find(entry)
            if table is None:
                table = self._make(DatasetTable.open, entry)
                with self._lock:
                    self._open[entry.folder] = table
                self._find(entry)
            return table

    def _find(self, entry: DatasetEntry) -> DatasetTable | None:
        with self._lock:
            if entry.folder in self._dropped:
                table = self._open.pop(entry.folder, None)
                if table is not None:
                    table.close()
                raise NotFoundError(f"the dataset {full_name(entry)} was dropped meanwhile")
            return self._open.get(entry.folder)

    def _make(self, make: Callable[..., DatasetTable], entry: DatasetEntry) -> DatasetTable:
        keys = tuple(tuple(physical(name) for name in path) for path in entry.keys)
        return make(
            self.folder.child(entry.folder), layout.record_schema(entry.type), keys, history=entry.history,
            retention_s=entry.retention_s, indexed_keys_max=self._settings.key_index_limit,
            outside_readers=self._outside_readers, clock=self.clock,
        )  # fmt: skip

    def by_folder(self, entries: Iterable[DatasetEntry]) -> dict[str, DatasetTable]:
        return {entry.folder: self.table(entry) for entry in entries}

    async def drop(self, *folders: str) -> None:
        """Closes tables that the catalog dropped. Their files go when readers outside had time to finish."""
        if folders:
            faults.reach("drop-dataset.catalog-done")
            await asyncio.to_thread(self._close, folders)
            await self._remove_dropped()

    async def discard(self, folder: str) -> None:
        """Removes the table of a CREATE that failed, at once: nobody has seen it."""
        await asyncio.to_thread(self._close, (folder,))
        assert self._removals is not None, "the tables are not started"
        await self._removals.carry_out(DATASET, self.folder, lambda removal: removal.name == folder)

    def _close(self, folders: Sequence[str]) -> None:
        for folder in folders:
            with self._lock:
                self._dropped.add(folder)
                self._opening.pop(folder, None)
                table = self._open.pop(folder, None)
            if table is not None:
                table.close()

    async def _remove_dropped(self) -> None:
        """Removes dropped tables that are due, but not a table that a CREATE is making: that has an intent, too."""
        assert self._removals is not None, "the tables are not started"
        with self._lock:
            open_folders = set(self._open)

        def is_due(removal: Removal) -> bool:
            return removal.dropped_at is not None and removal.name not in open_folders and self._is_due(removal)

        await self._removals.carry_out(DATASET, self.folder, is_due)

    def _is_due(self, removal: Removal) -> bool:
        assert self._removals is not None, "the tables are not started"
        if removal.dropped_at is None:
            return True
        # the age clock stands still while the wall clock is suspect
        now = min(self._removals.clock(), from_us(self.clock.age_us()))
        return removal.dropped_at + timedelta(seconds=self._outside_readers.keep_s) <= now


def new_folder() -> str:
    return uuid4().hex
