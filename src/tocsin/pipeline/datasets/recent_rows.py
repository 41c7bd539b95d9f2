"""The rows of a dataset's last commits, kept in memory for those who read what is new."""

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
    rewrite: bool  # it replaced or removed rows of earlier commits


class RecentRows:
    """Thread-safe. Keeps nothing while nobody wants it; commits are recorded in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self._wanted = 0
        self._commits: deque[_Commit] = deque()
        self._bytes = 0

    def want(self) -> None:
        """From now on somebody reads here; `let_go` ends it."""
        with self._lock:
            self._wanted += 1

    def let_go(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                self._clear()

    def record(self, number: int, rows: pa.Table | None, *, rewrite: bool) -> None:
        """`rows` with our columns; None where they are too many to be held, which ends what is known."""
        with self._lock:
            if not self._wanted or rows is None or rows.nbytes > KEPT_BYTES:
                self._clear()
                return
            self._commits.append(_Commit(number, rows, rewrite))
            self._bytes += rows.nbytes
            while self._bytes > KEPT_BYTES or len(self._commits) > KEPT_COMMITS:
                self._bytes -= self._commits.popleft().rows.nbytes

    def between(self, since: int, until: int) -> pa.Table | None:
        """The row versions of the commits after `since` up to and with `until` that are current then; None where
        memory does not tell."""
        if since >= until:
            return self._schema.empty_table()
        with self._lock:
            found = [one for one in self._commits if since < one.number <= until]
        if len(found) != until - since or any(one.rewrite for one in found[1:]):
            return None
        return pa.concat_tables([one.rows for one in found])

    def _clear(self) -> None:
        self._commits.clear()
        self._bytes = 0
