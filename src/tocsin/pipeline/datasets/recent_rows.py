"""Keeps the rows of a dataset's last commits in memory, for readers of new rows.

A channel reads each commit once, soon after it was made; from memory this needs no file.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class _Commit:
    number: int
    rows: pa.Table
    rewrite: bool  # the commit replaced or removed rows of earlier commits


class RecentRows:
    """Thread-safe. Keeps nothing while there is no reader; commits are recorded in their order."""

    def __init__(self, schema: pa.Schema, *, most_bytes: int = 32 << 20, most_commits: int = 1_000) -> None:
        """`most_commits`: a commit of one row takes far more memory than its bytes."""
        self._schema = schema
        self._most_bytes = most_bytes
        self._most_commits = most_commits
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
            if not self._wanted or rows is None or rows.nbytes > self._most_bytes:
                self._clear()
                return
            self._commits.append(_Commit(number, rows, rewrite))
            self._bytes += rows.nbytes
            while self._bytes > self._most_bytes or len(self._commits) > self._most_commits:
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
