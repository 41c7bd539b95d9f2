"""Past states of a dataset, by commit number or by time, and the old files that they need.

Rows carry the number of their commit. Between two *rewrites* (commits that replaced or removed rows) one set of files
therefore holds every state: take the rows up to the requested commit. A state before a rewrite is read from the files
as they were just before the first rewrite after it. An append-only dataset thus keeps no extra files for its past;
other datasets keep only the files that rewrites within the history replaced.

The log is read at first need; commits made since the table was opened are recorded as they happen.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.clock import to_us
from tocsin.pipeline.datasets.delta.log_entries import AT_KEY, split_lines
from tocsin.pipeline.datasets.delta.log_files import entry_name, log_of, log_versions
from tocsin.storage.interface import StorageFolder

# Keys in the commitInfo of a Delta commit.
NUMBER_KEY: Final = "tocsin.commit"
REWRITE_KEY: Final = "tocsin.rewrite"
REWRITTEN_KEY: Final = "tocsin.rewritten"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One Delta version. `number` is None for upkeep; `rewritten` is the last rewrite before this commit."""

    version: int
    number: int | None
    at_us: int
    rewrite: bool
    rewritten: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Removed:
    """A file that is not in the current state. It was added and removed at these versions (-1: before the log)."""

    name: str
    added: int
    removed: int
    removed_at_us: int


@dataclass(frozen=True, slots=True)
class _Rewrite:
    number: int
    version: int


class History:
    """The past according to the log. The caller holds a lock; versions are recorded in order."""

    def __init__(self, folder: StorageFolder, opened_at_version: int, last_rewrite: int, *, loaded: bool) -> None:
        self._folder = folder
        self._opened_at_version = opened_at_version
        self._opened_with_rewrite = last_rewrite
        self._loaded = loaded
        self._entries: list[HistoryEntry] = []
        self._rewrites: list[_Rewrite] = []
        self._added_at: dict[str, int] = {}
        self._removed: dict[str, _Removed] = {}
        self._lost_up_to = 0

    def record(self, entry: HistoryEntry) -> None:
        self._entries.append(entry)
        if entry.rewrite and entry.number is not None:
            self._rewrites.append(_Rewrite(entry.number, entry.version))
        for name in entry.added:
            self._added_at[name] = entry.version
        for name in entry.removed:
            self._removed[name] = _Removed(name, self._added_at.pop(name, -1), entry.version, entry.at_us)

    def load(self, on_disk: Iterable[str], history: int) -> None:
        """Reads (once) the log of the last `history` commits before the table was opened."""
        if self._loaded:
            return
        later, self._loaded = self._entries, True
        self._entries, self._rewrites, self._added_at, self._removed = [], [], {}, {}
        for entry in reversed(self._read_back(history)):
            self.record(entry)
        # From the last rewrite before the log begins on, the log knows every rewrite that followed a state.
        rewrites_before = (entry.rewritten for entry in self._entries if entry.number is not None)
        self._lost_up_to = next(rewrites_before, self._opened_with_rewrite)
        for entry in later:
            self.record(entry)
        # An earlier, shorter history setting may have removed files, which cannot be restored.
        existing = set(on_disk)
        for name in [name for name in self._removed if name not in existing]:
            last = self._last_rewrite_needing(self._removed.pop(name))
            if last is not None:
                self._lost_up_to = max(self._lost_up_to, last.number)

    def _read_back(self, history: int) -> list[HistoryEntry]:
        """The entries of the last `history` commits, the newest first. The log may go back further."""
        read: list[HistoryEntry] = []
        first: int | None = None
        for version in reversed(log_versions(self._folder)[0]):
            if version > self._opened_at_version:
                continue
            entry = _parsed(version, log_of(self._folder).read(entry_name(version)).decode())
            read.append(entry)
            if entry.number is not None:
                first = entry.number - history + 1 if first is None else first
                if entry.number <= first:
                    break
        return read

    def oldest(self, number: int, last_rewrite: int, history: int) -> int:
        """The oldest commit whose state can be read; all later states can be read."""
        return min(last_rewrite, max(0, number - history + 1, self._lost_up_to))

    def files_before_rewrite_after(self, number: int, current: Iterable[str]) -> tuple[int, int, list[str]]:
        """For a commit before the last rewrite: version, the commit number that it shows, and its files."""
        next_rewrite = self._rewrites[bisect_right([rewrite.number for rewrite in self._rewrites], number)]
        return next_rewrite.version - 1, next_rewrite.number - 1, self._files_before(next_rewrite.version, current)

    def oldest_files(self, oldest: int, current: Iterable[str]) -> list[str]:
        """The files of the oldest readable state: those before the first rewrite after commit `oldest`."""
        next_version = next((rewrite.version for rewrite in self._rewrites if rewrite.number > oldest), None)
        return list(current) if next_version is None else self._files_before(next_version, current)

    def _files_before(self, version: int, current: Iterable[str]) -> list[str]:
        files = dict.fromkeys(current)
        for entry in reversed(self._entries):
            if entry.version < version:
                break
            for name in entry.added:
                files.pop(name, None)
            files.update(dict.fromkeys(entry.removed))
        return list(files)

    def commit_at(self, at_us: int) -> int | None:
        """The last commit at or before this time; None if that is before the beginning of the log."""
        commits = [entry for entry in self._entries if entry.number is not None]
        index = bisect_right([entry.at_us for entry in commits], at_us)
        return commits[index - 1].number if index else None

    def time_of(self, number: int) -> int | None:
        """The time of this commit, if the log has it."""
        for entry in reversed(self._entries):
            if entry.number is not None and entry.number <= number:
                return entry.at_us if entry.number == number else None
        return None

    def take_unneeded(self, oldest: int) -> dict[str, int]:
        """Takes the removed files that no state from commit `oldest` on needs, with their times of removal."""
        unneeded = {}
        for removed in self._removed.values():
            last = self._last_rewrite_needing(removed)
            if last is None or last.number <= oldest:
                unneeded[removed.name] = removed.removed_at_us
        for name in unneeded:
            del self._removed[name]
        return unneeded

    def removed_files(self) -> set[str]:
        """The files of past states that are kept."""
        return set(self._removed)

    def keep_log_from(self, oldest: int, newest_version: int) -> int:
        """The first version whose log entry is needed to read the states from commit `oldest` on."""
        if not any(rewrite.number > oldest for rewrite in self._rewrites):
            return newest_version
        return next(entry.version for entry in self._entries if entry.number is not None and entry.number >= oldest)

    def trim(self, first_version: int) -> None:
        """Forgets everything before this version, with which the log now begins."""
        cut = bisect_left([entry.version for entry in self._entries], first_version)
        del self._entries[:cut]
        self._rewrites = [rewrite for rewrite in self._rewrites if rewrite.version >= first_version]
        self._added_at = {name: version for name, version in self._added_at.items() if version >= first_version}

    def _last_rewrite_needing(self, removed: _Removed) -> _Rewrite | None:
        """The last rewrite before which this file was part of the state: added < rewrite <= removed."""
        index = bisect_right(self._rewrites, removed.removed, key=lambda rewrite: rewrite.version)
        last = self._rewrites[index - 1] if index else None
        return last if last is not None and last.version > removed.added else None


def _parsed(version: int, text: str) -> HistoryEntry:
    """Parses one entry of the log: a JSON object per line, as the Delta protocol defines it."""
    info: dict[str, Any] = {}
    added: list[str] = []
    removed: list[str] = []
    for line in split_lines(text):
        action = json.loads(line)
        info = action.get("commitInfo", info)
        if "add" in action:
            added.append(action["add"]["path"])
        if "remove" in action:
            removed.append(action["remove"]["path"])
    return HistoryEntry(
        version=version,
        number=info.get(NUMBER_KEY),
        at_us=to_us(datetime.fromisoformat(info[AT_KEY])) if AT_KEY in info else info.get("timestamp", 0) * 1000,
        rewrite=info.get(REWRITE_KEY, False),
        rewritten=info.get(REWRITTEN_KEY, 0),
        added=tuple(added),
        removed=tuple(removed),
    )
