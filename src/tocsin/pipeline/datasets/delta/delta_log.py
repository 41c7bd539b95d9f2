"""The Delta log of one dataset: its current state in memory, and the only way to change it.

A change is completely on the disk when `commit` returns, or not at all. Data files are synced before the log entry
that names them is written; the entry is synced before the new state is shown; an entry that could not be synced is
taken back. Our commits are numbered 1, 2, 3 …; upkeep (compaction, retention) makes Delta versions without a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError

from tocsin import faults
from tocsin.clock import from_us, now_us
from tocsin.durable_files import is_full_disk, sync_file, sync_folder
from tocsin.pipeline.datasets import history
from tocsin.pipeline.datasets.data_files import DataFile, from_add_actions
from tocsin.pipeline.datasets.delta.log_entries import add_checksum, mark_actions, mark_checkpoint
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, entry_path, log_versions
from tocsin.pipeline.datasets.delta.log_recovery import list_files_set_aside, recover_log
from tocsin.pipeline.datasets.delta.log_writer import sign_first_entry, table_properties, with_properties, write_draft
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.history import HistoryEntry
from tocsin.wire.errors import ConflictError, NotFoundError, StorageFullError, StoreError, UnavailableError

# App transactions are part of the table's state, so that opening it needs no look at old log entries.
_NUMBER_TXN: Final = "tocsin.commit"
_AT_TXN: Final = "tocsin.at"
_REWRITE_TXN: Final = "tocsin.rewrite"
_REWRITE_AT_TXN: Final = "tocsin.rewrite-at"
_POSITION_TXN: Final = "tocsin.position."

_NAMED_BY_CHECK: Final = "nothing was changed; tocsin check names what is damaged, and what helps"


@dataclass(frozen=True, slots=True)
class TableClock:
    """`now_us` is the time of a commit. `age_us` is the time for computing ages; it may stand still."""

    now_us: Callable[[], int] = now_us
    age_us: Callable[[], int] = now_us


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    at: datetime
    rows: int


@dataclass(frozen=True, slots=True)
class TableState:
    """One state of the table. It never changes: a commit makes a new state."""

    version: int
    number: int
    at_us: int
    last_rewrite: int
    last_rewrite_at_us: int
    files: Mapping[str, DataFile]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Undecided:
    """An entry whose write failed and that may still be on the disk, and the data files that it adds."""

    version: int
    files: frozenset[str]


class DeltaLog:
    """Not thread-safe: the caller holds the write lock. `state` may be read at any time.

    Entries are written here, not by delta-rs, which would list the whole log for each of them.
    """

    def __init__(self, folder: Path, properties: Mapping[str, str], clock: TableClock) -> None:
        self.folder = folder
        self.clock = clock
        self._properties = properties
        self._positions: dict[str, int | None] = {}
        self._stale = False
        self._settled_us = 0
        self._said: dict[str, str] = {}
        self._undecided: _Undecided | None = None
        self._checkpoint_mark: Mapping[str, str] = {}
        self.checkpoint_version = -1
        self.state: TableState
        self._reload()

    @classmethod
    def create(cls, folder: Path, schema: pa.Schema, outside_readers: OutsideReaders, clock: TableClock) -> DeltaLog:
        """Creates an empty table, which is on the disk when this returns."""
        folder.mkdir(parents=True, exist_ok=True)
        recover_log(folder, created=False)
        if log_versions(folder)[0]:
            raise ConflictError(f"there is a dataset in {folder} already")
        try:
            stored = DeltaSchema.from_arrow(schema)
            properties = table_properties(schema, outside_readers)
            DeltaTable.create(str(folder), schema=stored, mode="error", configuration=properties)
            faults.reach("dataset.create.written")
            sign_first_entry(folder)
            for parent in (folder / LOG_FOLDER, folder, folder.parent):
                sync_folder(parent)
        except Exception as error:
            if is_full_disk(error):
                raise StorageFullError("the disk is full: the dataset was not created") from error
            raise
        return cls(folder, properties, clock)

    @classmethod
    def open(cls, folder: Path, schema: pa.Schema, outside_readers: OutsideReaders, clock: TableClock) -> DeltaLog:
        """Raises StoreError if the log is damaged, UnavailableError if it cannot be read now (a retry may help)."""
        try:
            recover_log(folder, created=True)
            if not (log_versions(folder)[0] or log_versions(folder)[1]):
                raise NotFoundError(f"there is no dataset in {folder}")
            return cls(folder, table_properties(schema, outside_readers), clock)
        except FileNotFoundError as error:
            raise StoreError(
                f"the dataset in {folder} has lost a file: {error.filename or error}", hint=_NAMED_BY_CHECK
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"the dataset's log in {folder} cannot be read: {error.strerror or error}",
                hint="nothing was changed; try again, and look at the disk if it stays so",
            ) from error
        except (DeltaError, pa.ArrowException) as error:
            raise StoreError(
                f"the dataset in {folder} cannot be opened: {str(error).splitlines()[0]}", hint=_NAMED_BY_CHECK
            ) from error

    def next_number(self) -> int:
        return self.state.number + 1

    def next_at_us(self) -> int:
        """The present time, but later than every earlier commit and every settled time.

        Times therefore have the order of numbers, even if the clock moves back.
        """
        return max(self.clock.now_us(), self.state.at_us + 1, self._settled_us + 1)

    def settle(self, at_us: int) -> None:
        """Ensures that every later commit has a later time. A future time is not settled: it would stop the clock."""
        self._settled_us = max(self._settled_us, min(at_us, self.clock.now_us()))

    def position(self, name: str) -> int | None:
        if name not in self._positions:
            self._positions[name] = self._delta.transaction_version(_POSITION_TXN + name)
        return self._positions[name]

    def refresh_if_stale(self) -> None:
        """Reads the disk again after an error that left the state in doubt."""
        if self._undecided is not None:
            self._take_back(self._undecided)
        elif self._stale:
            self._reload()

    def has_other_properties(self) -> bool:
        """Whether the table's properties differ from the settings."""
        return not self._properties.items() <= self._said.items()

    @property
    def is_undecided(self) -> bool:
        """Whether a failed entry could not be taken back: it may still be on the disk, with the files that it names."""
        return self._undecided is not None

    def list_files_to_leave(self) -> set[str]:
        """Data files that no state needs but that stay: those of an undecided entry, and those in `_lost`."""
        undecided = self._undecided.files if self._undecided is not None else frozenset()
        return list_files_set_aside(self.folder) | undecided

    def checkpointed(self, version: int, digest: str) -> None:
        """Records a checkpoint of this version, which is synced; the next entry contains its digest."""
        self.checkpoint_version = version
        self._checkpoint_mark = mark_checkpoint(version, digest)

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *,
        number: int,
        at_us: int,
        rewrite: bool,
        positions: Mapping[str, int],
    ) -> tuple[TableState, HistoryEntry]:
        """Makes a numbered commit durable; the caller shows the new state."""
        before = self.state
        marks = {_NUMBER_TXN: number, _AT_TXN: at_us}
        if rewrite:
            marks |= {_REWRITE_TXN: number, _REWRITE_AT_TXN: at_us}
        marks |= {_POSITION_TXN + name: position for name, position in positions.items()}
        info = {
            history.NUMBER_KEY: number,
            history.AT_KEY: from_us(at_us).isoformat(timespec="microseconds"),
            history.REWRITE_KEY: rewrite,
            history.REWRITTEN_KEY: before.last_rewrite,
        }
        transactions = [{"txn": {"appId": name, "version": mark}} for name, mark in marks.items()]
        entry = HistoryEntry(
            version=before.version + 1,
            number=number,
            at_us=at_us,
            rewrite=rewrite,
            rewritten=before.last_rewrite,
            added=tuple(file.name for file in added),
            removed=tuple(file.name for file in removed),
        )
        actions = [*_exchanged(added, removed, at_us, data_change=True), *transactions]
        self._write(actions, info, at_us, step="commit")
        self._positions.update(positions)
        return self._changed(entry, added, removed), entry

    def maintain(
        self, added: Sequence[DataFile], removed: Sequence[DataFile], *, step: str
    ) -> tuple[TableState, HistoryEntry]:
        """Exchanges files without a commit number: the same rows in other files, or rows removed by retention."""
        data_change = step == "retention"
        at_us = self.clock.now_us()
        actions = _exchanged(added, removed, at_us, data_change=data_change)
        return self._maintain(actions, added, removed, at_us, step)

    def describe(self) -> tuple[TableState, HistoryEntry]:
        """Writes the configured properties into the table."""
        properties = {**self._said, **self._properties}
        change = self._maintain([with_properties(self._delta, properties)], (), (), self.clock.now_us(), "properties")
        self._said = properties
        return change

    def _maintain(
        self,
        actions: Sequence[Mapping[str, Any]],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        at_us: int,
        step: str,
    ) -> tuple[TableState, HistoryEntry]:
        names = tuple(file.name for file in added), tuple(file.name for file in removed)
        entry = HistoryEntry(self.state.version + 1, None, at_us, False, self.state.last_rewrite, *names)
        self._write(actions, {"tocsin.upkeep": step}, at_us, step=step)
        return self._changed(entry, added, removed), entry

    def _write(self, actions: Sequence[Mapping[str, Any]], info: Mapping[str, Any], at_us: int, *, step: str) -> None:
        version = self.state.version + 1
        entry = entry_path(self.folder, version)
        if entry.exists():
            self._stale = True
            raise ConflictError(f"another process wrote version {version} of the dataset in {self.folder}")
        info = add_checksum({**info, **self._checkpoint_mark}, mark_actions(actions))
        draft: Path | None = None
        try:
            if any("add" in action for action in actions):
                sync_folder(self.folder)
            faults.reach(f"dataset.{step}.before")
            draft = write_draft(self.folder, actions, {"timestamp": at_us // 1000, "operation": "WRITE", **info})
            sync_file(draft)
            draft.rename(entry)
            faults.reach(f"dataset.{step}.written")
            sync_folder(self.folder / LOG_FOLDER)
        except BaseException as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            adds = frozenset(action["add"]["path"] for action in actions if "add" in action)
            self._take_back(_Undecided(version, adds), error)
            if is_full_disk(error):
                raise StorageFullError("the disk is full: nothing was changed") from error
            raise
        self._checkpoint_mark = {}
        faults.reach(f"dataset.{step}.synced")

    def _take_back(self, entry: _Undecided, cause: BaseException | None = None) -> None:
        """Removes the entry, which no caller has seen yet, and reloads the state from the disk.

        If that fails, nothing more is written until it succeeds, and the data files that the entry names stay.
        """
        self._stale = True
        self._undecided = entry
        path = entry_path(self.folder, entry.version)
        try:
            path.unlink(missing_ok=True)
            sync_folder(self.folder / LOG_FOLDER)
        except OSError as error:
            raise StoreError(
                f"a change could not be made, and its log entry {path} could not be taken back: "
                f"{error.strerror or error}",
                hint="it is not known whether the change was made; look at the disk, then try again",
            ) from (cause or error)
        self._undecided = None
        self._reload()

    def _changed(self, entry: HistoryEntry, added: Sequence[DataFile], removed: Sequence[DataFile]) -> TableState:
        before = self.state
        files = dict(before.files)
        for file in removed:
            del files[file.name]
        files.update((file.name, file) for file in added)
        number = before.number if entry.number is None else entry.number
        self.state = TableState(
            version=entry.version,
            number=number,
            at_us=before.at_us if entry.number is None else entry.at_us,
            last_rewrite=number if entry.rewrite else before.last_rewrite,
            last_rewrite_at_us=entry.at_us if entry.rewrite else before.last_rewrite_at_us,
            files=files,
            rows=before.rows + sum(file.rows for file in added) - sum(file.rows for file in removed),
            size_bytes=before.size_bytes
            + sum(file.size_bytes for file in added)
            - sum(file.size_bytes for file in removed),
        )
        return self.state

    def _reload(self) -> None:
        delta = DeltaTable(str(self.folder))
        files = from_add_actions(delta.get_add_actions(flatten=True), self.folder)

        def mark(name: str) -> int:
            return delta.transaction_version(name) or 0

        self.state = TableState(
            version=delta.version(),
            number=mark(_NUMBER_TXN),
            at_us=mark(_AT_TXN),
            last_rewrite=mark(_REWRITE_TXN),
            last_rewrite_at_us=mark(_REWRITE_AT_TXN),
            files=files,
            rows=sum(file.rows for file in files.values()),
            size_bytes=sum(file.size_bytes for file in files.values()),
        )
        self._delta = delta  # the table as of now; later values of positions are in `_positions`
        self._said = dict(delta.metadata().configuration)
        self._positions = {}
        self.checkpoint_version = max(log_versions(self.folder)[1], default=-1)
        self._stale = False


def _exchanged(
    added: Sequence[DataFile], removed: Sequence[DataFile], at_us: int, *, data_change: bool
) -> list[dict[str, Any]]:
    return [
        *(file.add_action(data_change=data_change) for file in added),
        *(file.remove_action(at_us, data_change=data_change) for file in removed),
    ]
