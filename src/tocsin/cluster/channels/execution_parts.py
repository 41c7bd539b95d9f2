"""An execution that the engine has no room, memory or time for, run in parts: ranges of interests, then of records.

A part that fails is cut along its interests, and one interest by itself along the records. What cannot be cut, one
interest with one record, is tried twice more while no other execution runs, and then set aside. So every execution
ends. With `p` parts that pass and `a` that are set aside, of `i` interests and `r` records, the runner is asked at most
`2 p + log2 i + log2 r + a (4 + WAYS_IN_TIME log2 r)` times.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

A = TypeVar("A")

LACKS: Final = (CapacityError, StorageFullError)
WAYS: Final = 4
# A part that overruns has cost its whole deadline: fewer such tries are worth more parts that pass.
WAYS_IN_TIME: Final = 32
TRIES_ALONE: Final = 2
# After so many records on which one interest overran by themselves, what is left of it is tried once, in one part.
MOST_OVERRUNS: Final = 3
_PATIENCE: Final = 8
# Results that many interests have leave Spark once from so many bytes on: below, the exchange for it costs more.
GROUPED_FROM_BYTES: Final = 8 << 20
_LONGEST_PAUSE: Final = 1_024


@dataclass(frozen=True, slots=True)
class ExecutionPart:
    """Interests and records by their places."""

    interests: range
    records: range

    @property
    def pairs(self) -> int:
        return len(self.interests) * len(self.records)


@dataclass(slots=True)
class ExecutionSize:
    """What a channel's executions have shown: how large a part passes (None: there was no need for parts yet), and
    whether payloads are to leave Spark once per record."""

    pairs: int | None = None
    is_grouped: bool = False
    grouped_from_bytes: int = GROUPED_FROM_BYTES
    slow: set[int] = field(default_factory=set)  # interests of which something was set aside
    parts: int = 0  # since the channel was started, those that failed, too
    _pause: int = 0  # executions until a larger size is tried
    _longest_pause: int = 1

    def learn(self, made: PartedExecution[Any]) -> None:
        """After an execution in parts. Larger ones are tried after a while, which is longer each time that fails."""
        if made.has_unexplained_failure():
            self.pairs = made.largest_passed
            self._longest_pause = min(2 * self._longest_pause, _LONGEST_PAUSE)
            self._pause = self._longest_pause
        elif self.pairs is not None:
            self._longest_pause = self._longest_pause if self._pause else 1
            self._pause = max(0, self._pause - 1)
            self.pairs *= 1 if self._pause else 2

    def fits(self, pairs: int) -> bool:
        return self.pairs is None or pairs <= self.pairs


@dataclass(slots=True)
class _Limit:
    """How much of one dimension a part has; it grows with what passes, and stays below what failed for a while."""

    size: int
    patience: float  # so many parts pass before a size that failed is tried again
    most: float = math.inf
    failed: int | None = None
    passes: int = 0

    def shrink(self, size: int, ways: int, least: int = 1) -> None:
        self.size, self.failed, self.passes = max(least, size // ways, 1), size, 0

    def grow(self) -> bool:
        self.passes += 1
        if 2 * self.size > self.most:
            return False
        if self.failed is not None and 2 * self.size >= self.failed:
            if self.passes < self.patience:
                return False
            self.failed = None
        self.size *= 2
        self.passes = 0
        return True


@dataclass(slots=True)
class PartedExecution(Generic[A]):
    """The answers of the parts that passed; those set aside, and what they lacked."""

    passed: list[tuple[ExecutionPart, A]] = field(default_factory=list)
    aside: list[tuple[ExecutionPart, CapacityError | StorageFullError]] = field(default_factory=list)
    failed: list[ExecutionPart] = field(default_factory=list)

    @property
    def largest_passed(self) -> int:
        return max((part.pairs for part, _ in self.passed), default=1)

    def has_unexplained_failure(self) -> bool:
        """Whether a part failed in which nothing was set aside: it was too large."""
        aside = [part.interests.start for part, _ in self.aside]
        return any(not any(interest in part.interests for interest in aside) for part in self.failed)


RunPart = Callable[[ExecutionPart, bool], A]
"""Answers for a part, maybe while no other execution runs; raises what it lacks."""


class PartedRun(Generic[A]):
    """One execution in parts. The last `apart` interests are each run by themselves. `probe` raises where the engine
    lacks what even the smallest question needs: then nobody is to blame."""

    def __init__(
        self,
        interests: int,
        records: int,
        run: RunPart[A],
        *,
        splits_records: bool,
        apart: int = 0,
        pairs: int | None = None,
        probe: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._splits_records = splits_records
        self._probe = probe
        self._records = range(records)
        together = max(0, interests - apart)
        first = together if pairs is None else max(1, pairs // max(1, records))
        # Within an execution parts grow to the size that is known, and beyond it from one execution to another.
        self._most_interests = _Limit(max(1, min(together, first)), _PATIENCE, math.inf if pairs is None else first)
        few = splits_records and pairs is not None and pairs < records
        self._most_records = _Limit(pairs if few and pairs else records, math.inf)
        self._queue = deque([ExecutionPart(range(together), self._records)] if together else [])
        self._queue.extend(ExecutionPart(range(at, at + 1), self._records) for at in range(together, interests))
        self._passed_records = 0  # the most with which some part passed
        self._heavy: list[tuple[ExecutionPart, CapacityError | StorageFullError]] = []
        self._overruns: Counter[int] = Counter()
        self._made: PartedExecution[A] = PartedExecution()

    def run_parts(self, failed: CapacityError | StorageFullError | None = None) -> PartedExecution[A]:
        """All parts. `failed`: what the whole, which was tried, has lacked."""
        if failed is not None and self._queue:
            self._made.failed.append(self._queue[0])
            self._fail(self._queue.popleft(), failed)
        while self._queue:
            part = self._cut(self._queue.popleft())
            error = self._failure(part)
            if error is not None:
                self._fail(part, error)
                continue
            self._passed_records = max(self._passed_records, len(part.records))
            is_full = len(part.records) >= self._most_records.size and self._most_records.size < len(self._records)
            if not (is_full and self._most_records.grow()) and len(part.interests) >= self._most_interests.size:
                self._most_interests.grow()
        for part, error in self._heavy:
            self._part_records(part, error)
        return self._made

    def _cut(self, part: ExecutionPart) -> ExecutionPart:
        """As much of it as is thought to pass; the rest comes next."""
        for interests, records in (
            (part.interests[self._most_interests.size :], part.records),
            (part.interests[: self._most_interests.size], part.records[self._most_records.size :]),
        ):
            if interests and records:
                self._queue.appendleft(ExecutionPart(interests, records))
        return ExecutionPart(part.interests[: self._most_interests.size], part.records[: self._most_records.size])

    def _fail(self, part: ExecutionPart, error: CapacityError | StorageFullError) -> None:
        interests, records, ways = len(part.interests), len(part.records), ways_for(error)
        if self._splits_records and records > self._passed_records > 0:
            # Fewer records have passed: it is not known yet whether so many do, with whichever interests.
            self._most_records.shrink(records, ways, self._passed_records)
            self._queue.appendleft(part)
        elif interests > 1:
            self._most_interests.shrink(interests, ways)
            pieces = [ExecutionPart(piece, part.records) for piece in pieces_of(part.interests, ways)]
            self._queue.extendleft(reversed(pieces))
        elif self._splits_records and records > 1 and not self._passed_records and self._others_wait(part):
            # Nothing has passed: the records may be too many for whichever interest, and the others are tried first.
            self._most_records.shrink(records, ways)
            self._queue = deque(_joined([*self._queue, part]))
        else:
            self._heavy.append((part, error))

    def _others_wait(self, part: ExecutionPart) -> bool:
        return any(other.interests != part.interests for other in self._queue)

    # ------------------------------------------------------------ one interest

    def _part_records(self, part: ExecutionPart, error: CapacityError | StorageFullError) -> None:
        """An interest that fails by itself with these records."""
        if not self._splits_records or len(part.records) == 1:
            self._set_aside_alone(part, error)
            return
        waiting = [part.records]  # the first of them has failed
        (interest,) = part.interests
        failed: CapacityError | StorageFullError | None = error
        while waiting:
            records = waiting.pop()
            if self._overruns[interest] >= MOST_OVERRUNS:
                rest = ExecutionPart(part.interests, range(records.start, part.records.stop))
                left = self._failure(rest, alone=True)
                if left is not None:
                    self._made.aside.append((rest, left))
                return
            piece = ExecutionPart(part.interests, records)
            failed = failed or self._failure(piece)
            if failed is None:
                continue
            if len(records) > 1:
                waiting.extend(reversed(list(pieces_of(records, ways_for(failed)))))
            elif self._set_aside_alone(piece, failed):
                self._overruns[interest] += isinstance(failed, DeadlineError)
            failed = None

    def _set_aside_alone(self, part: ExecutionPart, error: CapacityError | StorageFullError) -> bool:
        """Whether it fails also while no other execution runs: then it is set aside."""
        for _ in range(TRIES_ALONE):
            again = self._failure(part, alone=True)
            if again is None:
                return False
            error = again
        if isinstance(error, StorageFullError):
            raise error  # a full disk is nobody's fault, and says nothing about this part
        self._probe()
        self._made.aside.append((part, error))
        return True

    def _failure(self, part: ExecutionPart, *, alone: bool = False) -> CapacityError | StorageFullError | None:
        try:
            self._made.passed.append((part, self._run(part, alone)))
        except LACKS as error:
            self._made.failed.append(part)
            return error
        return None


def _joined(parts: Sequence[ExecutionPart]) -> Iterator[ExecutionPart]:
    """The same, with neighbours that have the same records as one part."""
    last = parts[0]
    for part in parts[1:]:
        if part.records == last.records and part.interests.start == last.interests.stop:
            last = ExecutionPart(range(last.interests.start, part.interests.stop), last.records)
        else:
            yield last
            last = part
    yield last


def ways_for(error: Exception) -> int:
    return WAYS_IN_TIME if isinstance(error, DeadlineError) else WAYS


def pieces_of(whole: range, ways: int) -> Iterator[range]:
    size = -(-len(whole) // ways)
    return (whole[at : at + size] for at in range(0, len(whole), size))
