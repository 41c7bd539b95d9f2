"""The table of one dataset: numbered atomic commits, unique keys, time travel.

Promises. A commit is durable when its call returns. A crash anywhere leaves it done completely or not at all; a
refused or failed commit changes nothing. Commit numbers run 1, 2, 3 … without gaps. No two rows of a state have the
same key. Readers never wait for writers; writers of one table run one at a time. The folder is an ordinary Delta table
with two columns of ours: `_commit`, the number of the commit that wrote a row version, and `_at`, its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from tocsin import faults
from tocsin.clock import from_us, to_us
from tocsin.durable_files import is_full_disk
from tocsin.pipeline.datasets import bulk
from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.data_files import AT_TYPE, LARGEST_FILE_BYTES, DataFile, DataFolder, stored_schema
from tocsin.pipeline.datasets.delta.delta_log import (
    Commit,
    DeltaLog,
    ForeignCommitError,
    TableClock,
    TableState,
    explained_failures,
)
from tocsin.pipeline.datasets.delta.tombstones import LogFiles, OutsideReaders
from tocsin.pipeline.datasets.file_bounds import FileBounds, WantedValues
from tocsin.pipeline.datasets.history import HistoryEntry
from tocsin.pipeline.datasets.keys import Hashes, KeyPath
from tocsin.pipeline.datasets.lookup import INDEXED_KEYS_MAX, KeyLookup, Located, Move
from tocsin.pipeline.datasets.readable_states import ReadableStates
from tocsin.pipeline.datasets.recent_rows import RecentRows
from tocsin.pipeline.datasets.snapshots import Snapshot, SnapshotHolds
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import InputError, StorageFullError, UnavailableError

__all__ = ["Commit", "DatasetTable", "Snapshot"]

_OWN_REWRITE_BYTES: Final = 2 << 20  # smaller files that a rewrite touches are joined with the new rows
_NO_POSITIONS: Final[Mapping[str, int]] = {}
_OVERTAKEN_MAX: Final = 5
_PRUNED_FILES_MIN: Final = 4
_Arguments = ParamSpec("_Arguments")


class TableOptions(TypedDict, total=False):
    history: int  # how many commits back a state can be read (1,000)
    retention_s: float | None  # rows are removed at this age (None: never)
    indexed_keys_max: int
    largest_file_bytes: int
    clock: TableClock  # the source of the time (the wall clock)
    outside_readers: OutsideReaders  # what is kept for other engines that read the table (nothing)


def _again_if_overtaken(
    change: Callable[Concatenate[DatasetTable, _Arguments], Commit],
) -> Callable[Concatenate[DatasetTable, _Arguments], Commit]:
    """Makes the change again, on the state that is then current, if another program's commit came first."""

    @wraps(change)
    def attempt(table: DatasetTable, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> Commit:
        for _ in range(_OVERTAKEN_MAX):
            with suppress(ForeignCommitError):
                return change(table, *args, **options)
        return change(table, *args, **options)

    return attempt


class DatasetTable:
    """See the promises of the module. Thread-safe; one process at a time has a dataset open."""

    def __init__(
        self, log: DeltaLog, schema: pa.Schema, keys: Sequence[KeyPath], *, new: bool, **options: Unpack[TableOptions]
    ) -> None:
        self.schema = schema
        self.keys = tuple(tuple(path) for path in keys)
        self.retention_s = options.get("retention_s")
        self.clock = log.clock
        self.log = log
        largest_bytes = options.get("largest_file_bytes", LARGEST_FILE_BYTES)
        self.data = DataFolder(log.folder, stored_schema(schema), self.keys, largest_bytes)
        self.held = SnapshotHolds()
        self.writing = threading.RLock()
        self.upkeeping = threading.Lock()
        self.outside_readers = options.get("outside_readers", OutsideReaders())
        self.past = ReadableStates(
            self.data, self.held, log.state, history=options.get("history", 1000), new=new,
            outside_readers=self.outside_readers,
        )  # fmt: skip
        self.log_files: LogFiles | None = None  # listed when upkeep first needs them
        self.lookup = KeyLookup(
            log, self.data, self.keys, new=new, indexed_keys_max=options.get("indexed_keys_max", INDEXED_KEYS_MAX)
        )
        self._bounds = FileBounds(self.data.schema, log.listed)
        self.is_closed = False
        self.recent = RecentRows(self.data.schema)
        self._listening = threading.Lock()  # separate from `writing`, so that no writer waits for it
        self._listeners: tuple[Callable[[int], None], ...] = ()
        self.cleaned_at_version = log.state.version
        # A crash may have left files that no log entry names; upkeep removes them.
        self.leftovers = not new and self.data.names() != set(log.state.files)

    @classmethod
    def create(
        cls, folder: StorageFolder, schema: pa.Schema, keys: Sequence[KeyPath], **options: Unpack[TableOptions]
    ) -> DatasetTable:
        """Creates an empty table. `keys`: the columns (paths into structs) that together identify a row."""
        log = DeltaLog.create(folder, stored_schema(schema), *_logged(options))
        return cls(log, schema, keys, new=True, **options)

    @classmethod
    def open(
        cls, folder: StorageFolder, schema: pa.Schema, keys: Sequence[KeyPath], **options: Unpack[TableOptions]
    ) -> DatasetTable:
        """Opens an existing table in the state of its last durable commit."""
        log = DeltaLog.open(folder, stored_schema(schema), *_logged(options))
        return cls(log, schema, keys, new=False, **options)

    # ---- reading

    @property
    def number(self) -> int:
        return self.past.state.number

    @property
    def size_bytes(self) -> int:
        """The size of the current state; past states take more."""
        return self.past.state.size_bytes

    def snapshot(self) -> Snapshot:
        return self.past.snapshot()

    def as_of_commit(self, number: int) -> Snapshot:
        """The state right after this commit (0: before the first)."""
        return self.past.as_of_commit(number)

    def as_of_time(self, at: datetime) -> Snapshot:
        """The state right after the last commit at or before this time."""
        return self.past.as_of_time(at)

    def settled_at(self, at: datetime) -> Snapshot:
        """Like `as_of_time`, but final.

        A commit that has its time but is not visible yet is waited for, and every later commit gets a later time.
        """
        with self._turn():
            self.log.settle(to_us(at))
        return self.past.as_of_time(at)

    def newer(self, snapshot: Snapshot, since: int) -> Snapshot:
        """The same state without files that contain only rows of commits up to `since`."""
        older = {self.data.full_path(file.name) for file in self.past.state.files.values() if file.last_commit <= since}
        newer_files = tuple(path for path in snapshot.files if path not in older)
        return self.held.issued(Snapshot(newer_files, snapshot.number, snapshot.version, snapshot.rows_up_to))

    def prune(self, snapshot: Snapshot, wanted: Sequence[WantedValues]) -> Snapshot:
        """The same state without files in which no row can have all the wanted values. If that would leave out only a
        few files, the snapshot itself: then it is not worth another view.
        """
        if len(snapshot.files) < _PRUNED_FILES_MIN:
            return snapshot
        bounds = self._bounds
        excluded = {
            self.data.full_path(file.name) for file in self.past.state.files.values() if bounds.excludes(file, wanted)
        }
        kept = tuple(path for path in snapshot.files if path not in excluded)
        if len(snapshot.files) - len(kept) < _PRUNED_FILES_MIN:
            return snapshot
        return self.held.issued(Snapshot(kept, snapshot.number, snapshot.version, snapshot.rows_up_to))

    def needed_log_version(self) -> int:
        """The first log version that a readable state needs; older versions stay only for outside readers."""
        return self.past.keep_log_from()

    def pin(self, snapshot: Snapshot) -> AbstractContextManager[Snapshot]:
        """Keeps the snapshot's files while the context lasts. They also stay while a reference to the snapshot
        exists.
        """
        return self.held.pin(snapshot)

    def position(self, name: str) -> int | None:
        """The value that the last commit with this position gave it."""
        with self._turn():
            return self.log.position(name)

    def close(self) -> None:
        """Waits for a running commit and closes the table."""
        with self.writing:
            self.is_closed = True
            self.lookup.forget()

    def notice_foreign_commits(self) -> None:
        """Shows the commits of other programs, if there are any."""
        with self.writing:
            if not self.is_closed and self.log.find_foreign_commit():
                self.refresh()

    # ---- listeners

    def listen(self, listener: Callable[[int], None]) -> None:
        """Calls the listener with the number of each commit, on the committing thread. It must not block or raise."""
        with self._listening:
            self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Callable[[int], None]) -> None:
        with self._listening:
            self._listeners = tuple(registered for registered in self._listeners if registered != listener)

    # ---- changes

    @_again_if_overtaken
    def insert(
        self, rows: pa.Table, *, keys_are_new: bool = False, positions: Mapping[str, int] = _NO_POSITIONS
    ) -> Commit:
        """Adds rows. Adds none if a key exists already, or occurs twice in `rows` (ConflictError).

        `keys_are_new`: the caller generated the keys, so they need no look-up.
        """
        rows = self.fitting(rows)
        with self._turn():
            if rows.num_rows == 0 and not positions:
                return self._unchanged()
            if keys_are_new and self.lookup.loaded is None:
                return self._append(rows, None, positions)
            keys = keyed.of_rows(rows, self.keys)
            hashed = keyed.hashes(keys)
            if not keys_are_new:
                self.lookup.refuse_repeated(keys, hashed)
                self.lookup.refuse_present(keys, hashed)
            return self._append(rows, hashed, positions)

    def taken_keys(self, rows: pa.Table) -> list[int]:
        """The positions of rows that cannot be inserted, because their key exists or an earlier row has it."""
        rows = self.fitting(rows)
        with self._turn():
            keys = keyed.of_rows(rows, self.keys)
            hashed = keyed.hashes(keys)
            first = keyed.first_of_each(keys, hashed)
            if first is None:
                first = np.arange(len(hashed))
            located = self.lookup.locate(keys.take(first), hashed[first])
            taken = np.ones(len(hashed), bool)
            taken[first] = False
            for positions, _ in located.values():
                taken[first[positions]] = True
            return [int(position) for position in np.flatnonzero(taken)]

    @_again_if_overtaken
    def upsert(self, rows: pa.Table, *, positions: Mapping[str, int] = _NO_POSITIONS) -> Commit:
        """Adds rows and replaces rows with the same key; of several rows with one key in `rows` the last wins."""
        rows = self.fitting(rows)
        with self._turn():
            if rows.num_rows == 0 and not positions:
                return self._unchanged()
            keys = keyed.of_rows(rows, self.keys)
            hashed = keyed.hashes(keys)
            winners = keyed.last_of_each(keys, hashed)
            if winners is not None:
                rows, keys, hashed = rows.take(pa.array(winners)), keys.take(winners), hashed[winners]
            located = self.lookup.locate(keys, hashed)
            if not located:
                return self._append(rows, hashed, positions)
            return self._rewrite(located, hashed, rows, positions)

    @_again_if_overtaken
    def delete(self, keys: pa.Table, *, positions: Mapping[str, int] = _NO_POSITIONS) -> Commit:
        """Removes the rows whose key is listed (only the key columns of `keys` count).

        If no listed row exists, nothing is committed; the returned commit is the last commit, with no rows.
        """
        with self._turn():
            listed = keyed.of_rows(keys, self.keys)
            hashed = keyed.hashes(listed)
            distinct = keyed.last_of_each(listed, hashed)
            if distinct is not None:
                listed, hashed = listed.take(distinct), hashed[distinct]
            located = self.lookup.locate(listed, hashed)
            return self._rewrite(located, hashed, None, positions) if located else self._unchanged()

    @_again_if_overtaken
    def delete_all(self, *, positions: Mapping[str, int] = _NO_POSITIONS) -> Commit:
        """Removes every row without reading any. If there are no rows, nothing is committed."""
        with self._turn():
            state = self.log.state
            if not state.files:
                return self._unchanged()
            commit = self._commit([], list(state.files.values()), state.rows, rewrite=True, positions=positions)
            self.lookup.emptied()
            return commit

    def load(
        self,
        batches: Iterator[pa.RecordBatch],
        *,
        keys_are_new: bool = False,
        positions: Mapping[str, int] = _NO_POSITIONS,
    ) -> Commit:
        """Adds all rows of a stream in one commit. Only the hashes of their keys are in memory. Refuses duplicates.

        Writers of this table wait meanwhile.
        """
        with self._turn():
            number, at_us = self.log.next_number(), self.log.next_at_us()
            stamped = bulk.BulkLoad(self, batches, number, at_us, keys_are_new=keys_are_new)
            files = self.write_files(stamped)
            try:
                hashed = stamped.checked(files)
                if not files and not positions:
                    return self._unchanged()
                rows = sum(file.rows for file in files)
                commit = self._commit(files, [], rows, rewrite=False, positions=positions, at_us=at_us)
            except BaseException:
                self._discard(files)
                raise
            self.lookup.appended(hashed, files)
            return commit

    # ---- making changes; the caller holds the write lock

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self.writing:
            if self.is_closed:
                raise UnavailableError("the dataset is closed")
            with explained_failures(self.log.folder):
                self.refresh()
                yield

    def refresh(self) -> None:
        """Shows what the log has, if the state in memory is in doubt or another program changed the table. The caller
        holds the write lock.
        """
        if not self.log.refresh_if_stale():
            return
        state, shown = self.log.state, self.past.state.number
        self.past.reload(state)
        self.lookup.forget()
        self._bounds = FileBounds(self.data.schema, self.log.listed)
        self.log_files = None
        self.leftovers = True
        self.recent.record(state.number, None, rewrite=True)
        for listener in self._listeners if state.number > shown else ():
            listener(state.number)

    def fitting(self, rows: pa.Table) -> pa.Table:
        if rows.schema.equals(self.schema):
            return rows
        try:
            return rows.select(self.schema.names).cast(self.schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise InputError(f"the rows do not fit the dataset: {error}") from error

    def stamp(self, rows: pa.Table, number: int, at_us: int) -> pa.Table:
        """The rows with our two columns, as they are stored."""
        commits = pa.array(np.full(rows.num_rows, number, np.int64))
        ats = pa.array(np.full(rows.num_rows, at_us, np.int64)).view(AT_TYPE)
        return pa.Table.from_arrays([*rows.columns, commits, ats], schema=self.data.schema)

    def write_files(self, tables: Iterable[pa.Table], *, as_one: bool = False) -> list[DataFile]:
        """Writes data files and syncs them; no log entry names them yet. Leaves no file if the disk is full."""
        try:
            files = self.data.write(tables, as_one=as_one)
        except Exception as error:
            if is_full_disk(error):
                raise StorageFullError("the disk is full: nothing was changed") from error
            raise
        faults.reach("dataset.data.written")
        return files

    def _append(self, rows: pa.Table, hashed: Hashes | None, positions: Mapping[str, int]) -> Commit:
        at_us = self.log.next_at_us()
        stamped = self.stamp(rows, self.log.next_number(), at_us)
        files = self.write_files([stamped])
        commit = self._commit(files, [], rows.num_rows, rewrite=False, positions=positions, at_us=at_us, recent=stamped)
        self.lookup.appended(hashed, files)
        return commit

    def _rewrite(self, located: Located, hashed: Hashes, rows: pa.Table | None, positions: Mapping[str, int]) -> Commit:
        """Replaces the touched files by files without the replaced or deleted rows, and adds the new rows."""
        at_us = self.log.next_at_us()
        touched = [self.log.state.files[name] for name in located]
        large = [file for file in touched if file.size_bytes >= _OWN_REWRITE_BYTES]
        small = [file for file in touched if file.size_bytes < _OWN_REWRITE_BYTES]
        stamped = [] if rows is None else [self.stamp(rows, self.log.next_number(), at_us)]
        groups: list[tuple[list[DataFile], list[pa.Table]]] = [([file], []) for file in large]
        if small or stamped:
            groups.append((small, stamped))
        written: list[DataFile] = []
        moves: list[Move] = []
        try:
            for sources, more in groups:
                files = self.write_files(self._remaining(sources, located, more), as_one=True)
                written += files
                moves.append((sources, files[0] if files else None))
        except BaseException:
            self.data.remove(file.name for file in written)
            raise
        removed_rows = sum(len(file_positions) for _, file_positions in located.values())
        count = removed_rows if rows is None else rows.num_rows
        recent = stamped[0] if stamped else self.data.schema.empty_table()
        commit = self._commit(written, touched, count, rewrite=True, positions=positions, at_us=at_us, recent=recent)
        self.lookup.rewritten(located, hashed, moves, moves[-1][1] if rows is not None else None)
        return commit

    def _remaining(self, sources: Sequence[DataFile], located: Located, more: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """The rows of these files that stay, then the new rows."""
        for source in sources:
            stays = np.ones(source.rows, bool)
            stays[located[source.name][1]] = False
            begin = 0
            for piece in self.data.read(source.name):
                yield piece.filter(pa.array(stays[begin : begin + piece.num_rows]))
                begin += piece.num_rows
        yield from more

    def _commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        rows: int,
        *,
        rewrite: bool,
        positions: Mapping[str, int],
        at_us: int | None = None,
        recent: pa.Table | None = None,
    ) -> Commit:
        number = self.log.next_number()
        at_us = self.log.next_at_us() if at_us is None else at_us
        self.exchange(
            lambda: self.log.commit(added, removed, number=number, at_us=at_us, rewrite=rewrite, positions=positions),
            added,
        )
        self.recent.record(number, recent, rewrite=rewrite)
        for listener in self._listeners:
            listener(number)
        return Commit(number, from_us(at_us), rows)

    def exchange(self, change: Callable[[], tuple[TableState, HistoryEntry]], added: Sequence[DataFile]) -> None:
        """Makes a change of the log durable, then shows it; if that fails, removes the added files."""
        try:
            state, entry = change()
        except BaseException:
            self._discard(added)
            raise
        self.past.show(state, entry)

    def _discard(self, added: Sequence[DataFile]) -> None:
        """Removes the files of a change that was not made; files that an undecided log entry may name stay."""
        if self.log.is_undecided:
            self.leftovers = True
        else:
            self.data.remove(file.name for file in added)

    def _unchanged(self) -> Commit:
        state = self.log.state
        return Commit(state.number, from_us(state.at_us), 0)


def _logged(options: TableOptions) -> tuple[OutsideReaders, TableClock]:
    return options.get("outside_readers", OutsideReaders()), options.get("clock", TableClock())
