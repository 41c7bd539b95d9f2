"""The readable states of a table: the current state, and the past states that are kept.

Each row has the number of its commit. A state after the last rewrite is therefore the current files without the rows of
later commits, and takes no space; only older states need files that a rewrite has replaced.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow.compute as pc

from tocsin.clock import from_us, to_us
from tocsin.pipeline.datasets.data_files import DataFolder
from tocsin.pipeline.datasets.delta.delta_log import TableClock, TableState
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders, Tombstone, Tombstones, read_tombstones
from tocsin.pipeline.datasets.history import History, HistoryEntry
from tocsin.pipeline.datasets.snapshots import Snapshot, SnapshotHolds
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.wire.errors import NotFoundError, PastStateError


class ReadableStates:
    """Readers never wait for a writer: the lock is held only to exchange a state for the next."""

    def __init__(
        self,
        data: DataFolder,
        held: SnapshotHolds,
        state: TableState,
        *,
        history: int,
        new: bool,
        outside_readers: OutsideReaders | None = None,
    ) -> None:
        if history < 1:
            raise ValueError("the last commit at least can be asked for")
        self._data = data
        self._held = held
        self._history = history
        self._lock = threading.Lock()
        self._log = History(data.folder, state.version, state.last_rewrite, loaded=new)
        self._loaded = new
        self._current: Snapshot | None = None
        self._outside_readers = outside_readers or OutsideReaders()
        self.tombstones = Tombstones()
        self.state = state

    def show(self, state: TableState, entry: HistoryEntry) -> None:
        """Makes this the current state."""
        with self._lock:
            self._log.record(entry)
            self.state = state
            self._current = None

    def reload(self, state: TableState) -> None:
        """Makes this the current state, and reads the past from the log at the next need."""
        with self._lock:
            self._log = History(self._data.folder, state.version, state.last_rewrite, loaded=False)
            self._loaded = False
            self.tombstones = Tombstones()
            self.state = state
            self._current = None

    def snapshot(self) -> Snapshot:
        with self._lock:
            if self._current is None:
                self._current = self._snapshot_of(self.state, self.state.number)
            return self._current

    def as_of_commit(self, number: int) -> Snapshot:
        with self._lock:
            state = self.state
            if number == state.number:
                self._current = self._current or self._snapshot_of(state, number)
                return self._current
            if number > state.number or number < 0:
                raise NotFoundError(
                    f"there is no commit {number} yet" if number > 0 else f"there is no commit {number}",
                    hint=f"the last commit is {state.number}",
                )
            if number >= state.last_rewrite:
                return self._snapshot_of(state, number)
            self._load()
            if number < self._oldest():
                raise self._too_old(f"commit {number}")
            version, shows, files = self._log.files_before_rewrite_after(number, state.files)
            paths = tuple(self._data.full_path(name) for name in files)
            return self._held.issued(Snapshot(paths, number, version, number if shows > number else None))

    def as_of_time(self, at: datetime) -> Snapshot:
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        at_us = to_us(at)
        with self._lock:
            number = self._commit_at(at_us)
            if number < self.state.last_rewrite and number < self._oldest():
                raise self._too_old(at.isoformat())
        return self.as_of_commit(number)

    def _commit_at(self, at_us: int) -> int:
        state = self.state
        if at_us >= state.at_us:
            return state.number
        self._load()
        number = self._log.commit_at(at_us)
        if number is not None:
            return number
        # The log does not go back that far, but the rows may. If not, the commit found here is too old as well.
        number = state.last_rewrite if at_us >= state.last_rewrite_at_us else 0
        for name in self._log.oldest_files(self._oldest(), state.files):
            file = state.files.get(name)
            if file is not None and file.last_at_us <= at_us:
                number = max(number, file.last_commit)
            elif file is None or (file.first_at_us <= at_us and file.last_commit > number):
                rows = self._data.read_columns(name, [COMMIT, AT])
                before = rows.filter(pc.field(AT) <= from_us(at_us))
                number = max(number, pc.max(before.column(COMMIT)).as_py() or 0)
        return number

    def _snapshot_of(self, state: TableState, number: int) -> Snapshot:
        is_current = number == state.number
        paths = tuple(
            self._data.full_path(file.name)
            for file in state.files.values()
            if is_current or file.first_commit <= number
        )
        return self._held.issued(Snapshot(paths, number, state.version, None if is_current else number))

    def _oldest(self) -> int:
        return self._log.oldest(self.state.number, self.state.last_rewrite, self._history)

    def _too_old(self, asked: str) -> PastStateError:
        oldest = self._oldest()
        at_us = self._log.time_of(oldest)
        when = f" of {from_us(at_us).isoformat()}" if at_us is not None else ""
        return PastStateError(
            f"the state as of {asked} is not kept any more; the oldest that can be asked for is commit {oldest}{when}",
            hint="the option `history` of the dataset says how many commits back can be asked for",
            oldest=oldest,
            oldest_at=from_us(at_us).isoformat() if at_us is not None else None,
        )

    # ---- upkeep

    def _load(self) -> None:
        """Reads the log from before the table was opened: our past states, and the tombstones for outside readers."""
        if self._loaded:
            return
        self._loaded = True
        sizes = self._data.sizes()
        self._log.load(sizes, self._history)
        needed = self._log.removed_files() | set(self.state.files)
        for name, removed_at_us in read_tombstones(self._data.folder).items():
            if name not in needed:
                self._bury(name, removed_at_us, sizes.get(name))

    def _bury(self, name: str, removed_at_us: int, size_bytes: int | None) -> None:
        if size_bytes is not None:
            self.tombstones.add(Tombstone(removed_at_us, name, size_bytes))

    def has_expired_files(self, age_us: int) -> bool:
        with self._lock:
            return self.tombstones.has_expired(age_us - self._outside_readers.keep_us)

    def take_unneeded_files(self, clock: TableClock, *, for_room: bool = False) -> tuple[list[str], int]:
        """Takes the removed files that are not needed by a readable state, a snapshot here, or an outside reader.

        Also returns how many of them go early, because they take too much space together or all space is needed.
        """
        with self._lock:
            self._load()
            for name, removed_at_us in self._log.take_unneeded(self._oldest()).items():
                self._bury(name, removed_at_us, self._data.size_of(name))
            self.tombstones.hold_to(clock.now_us())
            expired = self.tombstones.take_expired(clock.age_us() - self._outside_readers.keep_us)
            early = self.tombstones.take_beyond(0 if for_room else self._outside_readers.keep_bytes)
            held = self._held.files()
            unneeded = []
            for tombstone in (*expired, *early):
                if self._data.full_path(tombstone.name) in held:
                    self.tombstones.add(tombstone)
                else:
                    unneeded.append(tombstone.name)
            return unneeded, len(early)

    def kept_files(self) -> set[str]:
        """Every file that a state refers to, or that is kept for outside readers."""
        with self._lock:
            self._load()
            outside = {tombstone.name for tombstone in self.tombstones}
            return self._log.removed_files() | outside | set(self.state.files)

    def keep_log_from(self) -> int:
        with self._lock:
            self._load()
            return self._log.keep_log_from(self._oldest(), self.state.version)

    def trim(self, first_version: int) -> None:
        with self._lock:
            self._log.trim(first_version)
