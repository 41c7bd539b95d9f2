"""What a result cache holds, and what it answers.

A range of results is half open, `(after, to]`, and so are the runs that an answer splits it into: they follow each
other without a gap or an overlap, so that nothing can be skipped or served twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tocsin.rules.model.cursors import Cursor


class BrokerResult(NamedTuple):
    """One result of an interest. The payload is never looked at; the lab leaves it out."""

    cursor: Cursor
    size_bytes: int
    payload: Any = None


_SIZE: Final = itemgetter(1)


def size_bytes(results: Iterable[BrokerResult]) -> int:
    return sum(map(_SIZE, results))


class CacheEntry:
    """A result that is kept, or a hole: results known to be there whose bytes are not.

    A hole stands for all results after the entry before it and up to its cursor; neighbouring holes are one.
    `reached` counts the subscribers whose marker is at this entry or between it and the next. `needed` counts those who
    still need it, and `worth` is what it is ranked by, where the eviction policy looks at every result.
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
        # Its cache, and a number of its own, once the policy was told of it.
        self.owner: Any = None
        self.order = 0

    def __repr__(self) -> str:
        return f"{'Entry' if self.resident else 'Hole'}({tuple(self.cursor)}, {self.size_bytes} B, {self.reached})"


@dataclass(slots=True, unsafe_hash=True)
class CachedRun:
    """Everything that there is in this range; maybe nothing."""

    after: Cursor
    to: Cursor
    results: tuple[BrokerResult, ...]


@dataclass(slots=True, unsafe_hash=True)
class MissingRun:
    """A range that has to be fetched. `size_bytes`: at most so much of it, where it is of holes and that is known."""

    after: Cursor
    to: Cursor
    size_bytes: int = field(default=0, compare=False)


Run = CachedRun | MissingRun
