"""The states of a table that can be read: the current one, and those of the past that are kept."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow.compute as pc

from tocsin.pipeline.datasets.commits import State
from tocsin.pipeline.datasets.datafiles import DataFolder, from_us, to_us
from tocsin.pipeline.datasets.history import Entry, History
from tocsin.pipeline.datasets.snapshots import Held, Snapshot
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.wire.errors import NotFoundError, PastStateError


class Past:
    """Readers never wait for a writer: the lock is held only to exchange a state for the next."""

    def __init__(self, data: DataFolder, held: Held, state: State, *, history: int, new: bool) -> None:
        if history < 1:
            raise ValueError("the last commit at least can be asked for")
        self._data = data
        self._held = held
        self._history = history
        self._lock = threading.Lock()
        self._log = History(data.path, state.version, state.last_rewrite, loaded=new)
        self._current: Snapshot | None = None
        self.state = state

    def show(self, state: State, entry: Entry) -> None:
        """From now on this is the current state."""
        with self._lock:
            self._log.record(entry)
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
            self._log.load(self._data.names())
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
        self._log.load(self._data.names())
        number = self._log.commit_at(at_us)
        if number is not None:
            return number
        # Older than the log tells. But the rows do; where they do not, the commit found is too old as well.
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

    def _snapshot_of(self, state: State, number: int) -> Snapshot:
        whole = number == state.number
        paths = tuple(
            self._data.full_path(file.name) for file in state.files.values() if whole or file.first_commit <= number
        )
        return self._held.issued(Snapshot(paths, number, state.version, None if whole else number))

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

    # ---- for upkeep

    def unneeded_files(self) -> list[str]:
        """Removed files that neither a state that can be asked for nor a reader needs."""
        with self._lock:
            self._log.load(self._data.names())
            held = self._held.files()
            unneeded = self._log.unneeded_files(self._oldest())
            return [name for name in unneeded if self._data.full_path(name) not in held]

    def forget(self, names: list[str]) -> None:
        with self._lock:
            self._log.forget(names)

    def kept_files(self) -> set[str]:
        """Every file that some state refers to."""
        with self._lock:
            self._log.load(self._data.names())
            return self._log.removed_files() | set(self.state.files)

    def keep_log_from(self) -> int:
        with self._lock:
            self._log.load(self._data.names())
            return self._log.keep_log_from(self._oldest(), self.state.version)

    def trim(self, first_version: int) -> None:
        with self._lock:
            self._log.trim(first_version)
