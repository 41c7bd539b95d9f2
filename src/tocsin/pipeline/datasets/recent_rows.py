"""Keeps the rows of a dataset's last commits in memory, for readers of new rows."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

KEPT_BYTES: Final = 32 << 20
KEPT_COMMITS: Final = 1_000  # a commit of one row takes far more memory than its bytes


@dataclass(frozen=True, slots=True)
class _Commit:
    number: int
    rows: pa.Table
    rewrite: bool  # the commit replaced or removed rows of earlier commits


class RecentRows:
    """Thread-safe. Keeps nothing while there is no reader; commits are recorded in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self._wanted = 0
        self._commits: deque[_Commit] = deque()
        self._bytes = 0

    def want(self) -> None:
        """Registers a reader; `let_go` unregisters it."""
        with self._lock:
            self._wanted += 1

    def let_go(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                self._clear()

    def record(self, number: int, rows: pa.Table | None, *, rewrite: bool) -> None:
        """Records the rows of a commit, with our columns. None means too many rows: everything kept is dropped."""
        with self._lock:
            if not self._wanted or rows is None or rows.nbytes > KEPT_BYTES:
                self._clear()
                return
            self._commits.append(_Commit(number, rows, rewrite))
            self._bytes += rows.nbytes
            while self._bytes > KEPT_BYTES or len(self._commits) > KEPT_COMMITS:
                self._bytes -= self._commits.popleft().rows.nbytes

    def between(self, since: int, until: int) -> pa.Table | None:
        """The row versions of the commits after `since`, up to and including `until`, that are current at `until`;
        None if memory does not have them all.
        """
        if since >= until:
            return self._schema.empty_table()
        with self._lock:
            commits = [commit for commit in self._commits if since < commit.number <= until]
        if len(commits) != until - since or any(commit.rewrite for commit in commits[1:]):
            return None
        return pa.concat_tables([commit.rows for commit in commits])

    def _clear(self) -> None:
        self._commits.clear()
        self._bytes = 0
