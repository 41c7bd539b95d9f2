"""The rows of a dataset's last commits, kept in memory for those who read what is new."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

KEPT_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class _Commit:
    number: int
    rows: pa.Table
    rewrite: bool  # it replaced or removed rows of earlier commits


class Recent:
    """Thread-safe. Keeps nothing until somebody asks it to."""

    def __init__(self) -> None:
        self.wanted = False
        self._lock = threading.Lock()
        self._commits: deque[_Commit] = deque()
        self._bytes = 0

    def record(self, number: int, rows: pa.Table | None, *, rewrite: bool) -> None:
        """`rows` with our columns; None where they are too many to be held, which ends what is known."""
        with self._lock:
            if not self.wanted or rows is None or rows.nbytes > KEPT_BYTES:
                self._commits.clear()
                self._bytes = 0
                return
            self._commits.append(_Commit(number, rows, rewrite))
            self._bytes += rows.nbytes
            while self._bytes > KEPT_BYTES:
                self._bytes -= self._commits.popleft().rows.nbytes

    def between(self, since: int, until: int) -> pa.Table | None:
        """The row versions of the commits after `since` up to and with `until` that are current then; None where
        memory does not tell."""
        with self._lock:
            found = [one for one in self._commits if since < one.number <= until]
        if len(found) != until - since or any(one.rewrite for one in found[1:]):
            return None
        return pa.concat_tables([one.rows for one in found])
