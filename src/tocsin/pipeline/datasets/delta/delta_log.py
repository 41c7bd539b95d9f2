"""The Delta log of one dataset: its current state in memory, and the only way to change it.

A change is completely durable when `commit` returns, or not made at all. Data files are durable before the log entry
that names them is put; the entry is durable before the new state is shown. An entry that was put is never taken back:
others may have read it. If a put fails, the log decides: an entry with our transaction is a change that was made, and
another's is a conflict. Our commits are numbered 1, 2, 3 …; upkeep (compaction, retention) makes Delta versions without
a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn
from uuid import uuid4

import pyarrow as pa
import structlog
from deltalake.exceptions import DeltaError

from tocsin import faults
from tocsin.clock import from_us, now_us
from tocsin.durable_files import is_full_disk
from tocsin.pipeline.datasets import history
from tocsin.pipeline.datasets.data_files import DataFile, from_add_actions
from tocsin.pipeline.datasets.delta.log_entries import AT_KEY, mark_checkpoint
from tocsin.pipeline.datasets.delta.log_files import entry_name, log_of, log_versions, open_delta
from tocsin.pipeline.datasets.delta.log_recovery import list_files_set_aside, recover_log
from tocsin.pipeline.datasets.delta.log_writers import TRANSACTION_KEY, LogWriter, log_writer, read_transaction
from tocsin.pipeline.datasets.delta.table_properties import table_properties, with_properties
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.history import HistoryEntry
from tocsin.storage.interface import StorageFolder, is_remote_failure
from tocsin.wire.errors import ConflictError, NotFoundError, StorageFullError, StoreError, TocsinError, UnavailableError

# App transactions are part of the table's state, so that opening it needs no look at old log entries.
_NUMBER_TXN: Final = "tocsin.commit"
_AT_TXN: Final = "tocsin.at"
_REWRITE_TXN: Final = "tocsin.rewrite"
_REWRITE_AT_TXN: Final = "tocsin.rewrite-at"
_POSITION_TXN: Final = "tocsin.position."

_log = structlog.get_logger("tocsin.datasets")

_NAMED_BY_CHECK: Final = "nothing was changed; tocsin check names what is damaged, and what helps"


@contextmanager
def explained_failures(folder: StorageFolder) -> Iterator[None]:
    """Turns failures of an object store into an error that says what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TocsinError) or not is_remote_failure(error):
            raise
        raise UnavailableError(
            f"the storage of the dataset in {folder} does not answer: {str(error).splitlines()[0]}",
            hint="nothing was changed; try again, and look at the object store if it stays so",
        ) from error


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


class ForeignCommitError(UnavailableError):
    """Another program has changed the table. Nothing of this change was made; the state is read again at the next."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    """An entry whose put failed and that may be in the log, or come into it, and the data files that it adds."""

    version: int
    transaction: str
    files: frozenset[str]


class DeltaLog:
    """Not thread-safe: the caller holds the write lock. `state` may be read at any time."""

    def __init__(
        self, folder: StorageFolder, properties: Mapping[str, str], clock: TableClock, writer: LogWriter | None = None
    ) -> None:
        self.folder = folder
        self.clock = clock
        self._writer = writer or log_writer(folder)
        self._properties = properties
        self._positions: dict[str, int | None] = {}
        self._stale = False
        self._settled_us = 0
        self._said: dict[str, str] = {}
        self._undecided: tuple[_Undecided, ...] = ()  # tries for one version
        self._checkpoint_mark: Mapping[str, str] = {}
        self.checkpoint_version = -1
        self.state: TableState
        self._reload()

    @classmethod
    def create(
        cls, folder: StorageFolder, schema: pa.Schema, outside_readers: OutsideReaders, clock: TableClock
    ) -> DeltaLog:
        """Creates an empty table, which is durable when this returns."""
        with explained_failures(folder):
            recover_log(folder, created=False)
            if log_versions(folder)[0]:
                raise ConflictError(f"there is a dataset in {folder} already")
            try:
                folder.make()
                properties = table_properties(schema, outside_readers)
                writer = log_writer(folder)
                writer.create(schema, properties)
                faults.reach("dataset.create.written")
                log_of(folder).sync()
                folder.sync()
            except Exception as error:
                if is_full_disk(error):
                    raise StorageFullError("the disk is full: the dataset was not created") from error
                raise
            return cls(folder, properties, clock, writer)

    @classmethod
    def open(
        cls, folder: StorageFolder, schema: pa.Schema, outside_readers: OutsideReaders, clock: TableClock
    ) -> DeltaLog:
        """Raises StoreError if the log is damaged, UnavailableError if it cannot be read now (a retry may help)."""
        try:
            with explained_failures(folder):
                recover_log(folder, created=True)
            if not any(log_versions(folder)):
                raise NotFoundError(f"there is no dataset in {folder}")
            with explained_failures(folder):
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

    def refresh_if_stale(self) -> bool:
        """Reads the log again after an error that left the state in doubt, or after another program's commit. Returns
        whether the state is another one now.
        """
        if self._undecided:
            if self._find_outcome(self._undecided[-1].version) is not None:
                self._stale = True
            elif self._writer.is_prompt:
                self._undecided = ()
        if not self._stale:
            return False
        before = self.state
        self._reload()
        if self._undecided and self.state.version >= self._undecided[-1].version:
            self._undecided = ()
        return self.state != before

    def find_foreign_commit(self) -> bool:
        """Whether the log has an entry after the state. The next `refresh_if_stale` reads it."""
        if log_of(self.folder).size_of(entry_name(self.state.version + 1)) is None:
            return False
        self._stale = True
        if not self._undecided:
            self._tell_foreign(self.state.version + 1)
        return True

    def has_other_properties(self) -> bool:
        """Whether the table's properties differ from the settings."""
        return not self._properties.items() <= self._said.items()

    @property
    def is_undecided(self) -> bool:
        """Whether it is unknown if an entry was put: it may be in the log, or come into it, with the files that it
        names.
        """
        return bool(self._undecided)

    def list_files_to_leave(self) -> set[str]:
        """Data files that no state needs but that stay: those of an undecided entry, and those in `_lost`."""
        return list_files_set_aside(self.folder).union(*(entry.files for entry in self._undecided))

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
            AT_KEY: from_us(at_us).isoformat(timespec="microseconds"),
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
        at = from_us(at_us).isoformat(timespec="microseconds")
        self._write(actions, {"tocsin.upkeep": step, AT_KEY: at}, at_us, step=step)
        return self._changed(entry, added, removed), entry

    def _write(self, actions: Sequence[Mapping[str, Any]], info: Mapping[str, Any], at_us: int, *, step: str) -> None:
        version = self.state.version + 1
        adds = frozenset(action["add"]["path"] for action in actions if "add" in action)
        entry = _Undecided(version, uuid4().hex, adds)
        try:
            if adds:
                self.folder.sync()
            faults.reach(f"dataset.{step}.before")
        except Exception as error:
            _raise_explained(error)
        self._undecided = (*self._undecided, entry)
        try:
            info = {**info, TRANSACTION_KEY: entry.transaction, **self._checkpoint_mark}
            self._writer.put(version, actions, info, at_us)
            faults.reach(f"dataset.{step}.written")
            log_of(self.folder).sync()
        except Exception as error:
            self._settle(entry, error)
        except BaseException:
            self._stale = True  # the next change finds out whether this one was made
            raise
        # The version has an entry now, so no earlier try for it can succeed any more.
        self._undecided = ()
        self._checkpoint_mark = {}
        faults.reach(f"dataset.{step}.synced")

    def _settle(self, entry: _Undecided, cause: Exception) -> None:
        """Finds out whether the entry was put although the put failed. Returns if it was; raises an error if not.

        While that cannot be found out, the data files that the entry names stay, and the next change begins with it.
        """
        self._stale = True
        outcome = self._find_outcome(entry.version, cause)
        if outcome == entry.transaction:
            self._stale = False
            return
        if outcome is None:
            if not self._writer.is_prompt:
                raise _unknown(self.folder, entry.version, cause) from cause
            self._undecided, self._stale = (), False
            _raise_explained(cause)
        is_ours = any(outcome == earlier.transaction for earlier in self._undecided)
        self._undecided = ()
        if is_ours:
            raise UnavailableError(
                f"an earlier change of the dataset in {self.folder}, whose outcome was unknown, was made meanwhile",
                hint="look at the dataset, then try again; nothing of this change was made",
            ) from cause
        self._tell_foreign(entry.version)
        raise ForeignCommitError(
            f"another program changed the dataset in {self.folder} meanwhile: nothing of this change was made",
            hint="try again",
        ) from cause

    def _find_outcome(self, version: int, cause: Exception | None = None) -> str | None:
        """The transaction of the entry that the log has for this version, "" if it has none; None without an entry.

        An entry that is found is durable when this returns.
        """
        try:
            outcome = read_transaction(self.folder, version)
            log_of(self.folder).sync()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unknown(self.folder, version, error) from (cause or error)
        return outcome or ""

    def _tell_foreign(self, version: int) -> None:
        _log.warning(
            "another program changed a dataset: its commit stays, and the dataset is read again",
            dataset=self.folder.url, version=version,
            hint="only Tocsin may write to its tables; rows of others have no commit number, so no channel sees them",
        )  # fmt: skip

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
        delta = open_delta(self.folder)
        self.listed = pa.table(delta.get_add_actions(flatten=True))
        files = from_add_actions(self.listed, self.folder)

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
        self._writer.refreshed(delta)
        self._said = dict(delta.metadata().configuration)
        self._positions = {}
        self.checkpoint_version = max(log_versions(self.folder)[1], default=-1)
        self._stale = False


def _raise_explained(error: Exception) -> NoReturn:
    if is_full_disk(error):
        raise StorageFullError("the disk is full: nothing was changed") from error
    raise error


def _unknown(folder: StorageFolder, version: int, error: Exception) -> StoreError:
    reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
    return StoreError(
        f"it is not known whether a change was made: its log entry {log_of(folder).locate(entry_name(version))} could "
        f"not be settled: {reason}",
        hint="look at the storage; the next change of the dataset finds out first",
    )


def _exchanged(
    added: Sequence[DataFile], removed: Sequence[DataFile], at_us: int, *, data_change: bool
) -> list[dict[str, Any]]:
    return [
        *(file.add_action(data_change=data_change) for file in added),
        *(file.remove_action(at_us, data_change=data_change) for file in removed),
    ]
