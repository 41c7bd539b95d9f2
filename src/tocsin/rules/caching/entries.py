"""The entries of a result cache, and the runs in which it answers.

A range of results is half open, `(after, to]`, and so are the runs into which an answer splits it. Runs follow each
other without a gap or an overlap, so that no result is skipped or served twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tocsin.rules.model.cursors import Cursor


class BrokerResult(NamedTuple):
    """One result of an interest. The cache never reads the payload; the lab omits it."""

    cursor: Cursor
    size_bytes: int
    payload: Any = None


_SIZE: Final = itemgetter(1)


def size_bytes(results: Iterable[BrokerResult]) -> int:
    return sum(map(_SIZE, results))


class CacheEntry:
    """A cached result, or a hole: results that exist but whose bytes are not cached.

    A hole covers all results after the entry before it, up to its own cursor; neighbouring holes are merged. `reached`
    counts the subscribers whose marker is at this entry or between it and the next. Per-result eviction policies also
    use `needed`, the number of subscribers that still need the entry, and `worth`, its rank.
    """

    __slots__ = (
        "cursor", "inserted_s", "needed", "order", "owner", "reached", "resident", "result", "sequence", "size_bytes",
        "worth",
    )  # fmt: skip

    def __init__(self, result: BrokerResult, *, resident: bool, inserted_s: float, sequence: int) -> None:
        self.cursor = result.cursor
        self.size_bytes = result.size_bytes
        self.result = result if resident else None
        self.resident = resident
        self.inserted_s = inserted_s
        self.sequence = sequence
        self.reached = 0
        self.needed = 0
        self.worth = 0.0
        # The cache of this entry and its arrival number, set when a per-result policy learns of it.
        self.owner: Any = None
        self.order = 0

    def __repr__(self) -> str:
        return f"{'Entry' if self.resident else 'Hole'}({tuple(self.cursor)}, {self.size_bytes} B, {self.reached})"


@dataclass(slots=True, unsafe_hash=True)
class CachedRun:
    """A range whose results are all cached; there may be none."""

    after: Cursor
    to: Cursor
    results: tuple[BrokerResult, ...]


@dataclass(slots=True, unsafe_hash=True)
class MissingRun:
    """A range that has to be fetched. `size_bytes` is an upper bound where the range consists of holes, otherwise 0."""

    after: Cursor
    to: Cursor
    size_bytes: int = field(default=0, compare=False)


CacheRun = CachedRun | MissingRun
