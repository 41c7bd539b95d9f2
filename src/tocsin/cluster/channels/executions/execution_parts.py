"""Runs an execution in parts when the engine lacks memory, disk space or time for the whole, or crashes over it.

A part is a range of interests combined with a range of records. A part that fails is cut along its interests into four,
or into 32 if each further failure would cost a deadline or an engine. A part with one interest is cut along its
records. The smallest part, one interest with one record, is retried until it has failed twice while nothing else
runs on the engine; then it is set aside. So every execution ends.

An example: the interests 0–7 and the records 0–3, where interest 5 with record 2 needs too much memory. Each line is a
part that the engine runs, as interests × records.

    0–7 × 0–3   fails: it is cut into parts of two interests
    0–1 × 0–3   passes
    2–3 × 0–3   passes
    4–5 × 0–3   fails: it is cut into single interests, and so are the parts that follow
    4 × 0–3     passes
    5 × 0–3     fails: an interest that fails by itself waits until the others are done
    6 × 0–3     passes
    7 × 0–3     passes
    5 × 0       passes: interest 5 is cut along its four records
    5 × 1       passes
    5 × 2       fails
    5 × 2       fails again, now while nothing else runs
    5 × 2       fails for the second time while nothing else runs, and is set aside
    5 × 3       passes

If not even one interest passes with all records (for example because each record takes a minute), there are too many
records: from then on each part has fewer of them.

An interest that exceeds its deadline again and again would cost a deadline for each record. After `overruns` of its
records were set aside for that, its other records get a short deadline, a multiple of what parts that pass take. When
tries with the short deadline have failed for `short_tries_s` in all, the interest's remaining records are set aside,
for it alone.

The engine may be lost because of a part (it took all memory, or crashed the JVM), or by coincidence. The first loss
proves nothing, so the part is tried again; from then on each part runs while nothing else does. Each loss stops the
whole cluster for a while. So after an interest has lost the engine over `lost_records` records, its remaining ones are
set aside, for it alone. A record that lost the engine with `lethal_interests` interests is set aside for all others,
unless it has passed with one of them.

A Python worker may die because of a record, too. That costs no more than another failure, so more interests are tried
before a record counts as lethal (`lethal_interests_to_workers`). Such a record then runs apart from the others.

With `p` parts that pass and `a` that are set aside, of `i` interests and `r` records, the engine runs at most `2 p +
log2 i + log2 r + a (4 + pieces_after_deadline log2 r)` queries, and one more for a lost engine.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from tocsin.cluster.channels.executions.limits import PartLimits
from tocsin.cluster.engine.engine_session import EngineLostError, WorkerLostError
from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

ResourceError: TypeAlias = CapacityError | StorageFullError | EngineLostError
RESOURCE_ERRORS: Final = (CapacityError, StorageFullError, EngineLostError)


@dataclass(frozen=True, slots=True)
class ExecutionPart:
    """A range of interests and a range of records, both by position."""

    interests: range
    records: range

    @property
    def pairs(self) -> int:
        return len(self.interests) * len(self.records)


@dataclass(slots=True)
class ExecutionSize:
    """What earlier executions of a channel have shown: how large a part passes (None: no execution needed parts yet),
    and whether one task finds all matches quickly."""

    limits: PartLimits = field(default_factory=PartLimits)
    pairs: int | None = None
    fits_one_task: bool = True
    losses: int = 0  # lost engines while this execution ran as a whole
    slow: set[int] = field(default_factory=set)  # interests that have been set aside, wholly or for some records
    parts: int = 0  # parts run since the channel was started, including failed parts
    _pause: int = 0  # executions until a larger part is tried
    _longest_pause: int = 1

    def learn(self, made: PartedExecution[Any]) -> None:
        """Adapts the part size after an execution in parts. Larger parts are tried again after a pause, which doubles
        each time that they fail."""
        if made.has_unexplained_failure():
            self.pairs = made.largest_passed
            self._longest_pause = min(2 * self._longest_pause, self.limits.longest_pause)
            self._pause = self._longest_pause
        elif self.pairs is not None:
            self._longest_pause = self._longest_pause if self._pause else 1
            self._pause = max(0, self._pause - 1)
            self.pairs *= 1 if self._pause else 2

    def fits(self, pairs: int) -> bool:
        return self.pairs is None or pairs <= self.pairs

    @property
    def loses_engines(self) -> bool:
        """Whether the execution as a whole has lost too many engines for a coincidence."""
        return self.losses >= self.limits.losses


@dataclass(slots=True)
class _Limit:
    """The size of a part in one dimension. It grows when parts pass, and stays below a size that failed for a while."""

    size: int
    patience: float  # this many parts must pass before a failed size is tried again
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
class PartedExecution(Generic[_T]):
    """The outcome of an execution in parts: the results of the parts that passed, and the parts that were set aside
    with their errors."""

    passed: list[tuple[ExecutionPart, _T]] = field(default_factory=list)
    aside: list[tuple[ExecutionPart, ResourceError]] = field(default_factory=list)
    failed: list[ExecutionPart] = field(default_factory=list)
    # Positions of records that were set aside for every interest with which they had not been tried.
    lethal: set[int] = field(default_factory=set)

    @property
    def largest_passed(self) -> int:
        return max((part.pairs for part, _ in self.passed), default=1)

    def has_unexplained_failure(self) -> bool:
        """Returns whether a part failed although nothing in it was set aside: that part was too large."""
        aside = [part.interests.start for part, _ in self.aside]
        return any(not any(interest in part.interests for interest in aside) for part in self.failed)


class _RunPart(Protocol[_T_co]):
    """Runs one part and returns its results, or raises an error of `RESOURCE_ERRORS`. With `alone`, nothing else
    runs meanwhile; `deadline_s` shortens the usual deadline."""

    def __call__(self, part: ExecutionPart, /, *, alone: bool, deadline_s: float | None) -> _T_co: ...


class PartedRun(Generic[_T]):
    """Runs one execution in parts. Each of the last `apart` interests runs by itself. `probe` raises if the engine
    cannot run even the smallest query: then no part is to blame."""

    def __init__(
        self,
        interests: int,
        records: int,
        run: _RunPart[_T],
        size: ExecutionSize,
        *,
        apart: int = 0,
        probe: Callable[[], None] = lambda: None,
        took_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`took_s` returns the duration of the last part that passed."""
        self._run = run
        self._took_s = took_s
        self._probe = probe
        self._limits = size.limits
        self._records = range(records)
        together = max(0, interests - apart)
        first_size = together if size.pairs is None else max(1, size.pairs // max(1, records))
        # Within one execution, parts grow only up to the size that is known to pass. Larger sizes are tried from one
        # execution to the next.
        self._most_interests = _Limit(
            max(1, min(together, first_size)),
            self._limits.passes_before_growth,
            math.inf if size.pairs is None else first_size,
        )
        self._most_records = _Limit(records if size.pairs is None else min(size.pairs, records), math.inf)
        self._queue = deque([ExecutionPart(range(together), self._records)] if together else [])
        self._queue.extend(
            ExecutionPart(range(position, position + 1), self._records) for position in range(together, interests)
        )
        self._passed_records = 0  # the largest number of records in a part that passed
        # Single interests that failed with all records; they are split after all other parts.
        self._heavy: list[tuple[ExecutionPart, ResourceError]] = []
        self._overruns: Counter[int] = Counter()  # by interest: records that were set aside after a deadline
        # By interest: time spent in failed tries with a short deadline.
        self._short_s: defaultdict[int, float] = defaultdict(float)
        self._failures_alone: Counter[ExecutionPart] = Counter()
        self._slowest_s = 0.0  # duration of the slowest part that passed
        self._has_lost_engine = size.loses_engines
        self._lost_records: Counter[int] = Counter()  # by interest: records that were set aside after a lost engine
        # By position of a record: interests that lost the engine over it, or a Python worker.
        self._lost_interests: Counter[int] = Counter()
        self._lost_worker_interests: Counter[int] = Counter()
        self._made: PartedExecution[_T] = PartedExecution()

    def run_parts(self, failed: ResourceError | None = None) -> PartedExecution[_T]:
        """Runs all parts. `failed` is the error of the whole execution, if that was tried before."""
        if failed is not None and self._queue:
            self._made.failed.append(self._queue[0])
            self._fail(self._queue.popleft(), failed)
        while self._queue:
            part = self._cut(self._before_dangerous(self._queue.popleft()))
            if not part.pairs:
                continue
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
        """Returns as much of the part as should pass, and puts the rest at the front of the queue."""
        for interests, records in (
            (part.interests[self._most_interests.size :], part.records),
            (part.interests[: self._most_interests.size], part.records[self._most_records.size :]),
        ):
            if interests and records:
                self._queue.appendleft(ExecutionPart(interests, records))
        return ExecutionPart(part.interests[: self._most_interests.size], part.records[: self._most_records.size])

    def _fail(self, part: ExecutionPart, error: ResourceError) -> None:
        interests, records, ways = len(part.interests), len(part.records), self._ways(error)
        if records > self._passed_records > 0:
            # Only smaller numbers of records have passed so far, so this part may have too many records for any
            # interest.
            self._most_records.shrink(records, ways, self._passed_records)
            self._queue.appendleft(part)
        elif interests > 1:
            self._most_interests.shrink(interests, ways)
            pieces = [ExecutionPart(piece, part.records) for piece in _pieces_of(part.interests, ways)]
            self._queue.extendleft(reversed(pieces))
        elif isinstance(error, EngineLostError | WorkerLostError):
            self._part_records(part, error)  # at once: other interests may crash it over the same record
        elif records > 1 and not self._passed_records and self._others_wait(part):
            # No part has passed yet. There may be too many records for any interest, so try the other interests first.
            self._most_records.shrink(records, ways)
            self._queue = deque(_join([*self._queue, part]))
        else:
            self._heavy.append((part, error))

    def _before_dangerous(self, part: ExecutionPart) -> ExecutionPart:
        """Returns the part's records before the first dangerous record, one that has crashed the engine or a worker
        with other interests. Sets that record aside if it is lethal, one that crashes them with any interest. Else
        queues it as a part of its own. Queues the records after it."""
        for index in part.records if self._lost_interests or self._lost_worker_interests else ():
            lethal_error = self._lethal_error(index)
            if lethal_error is None and (len(part.records) == 1 or not self._lost_worker_interests[index]):
                continue
            before, after = range(part.records.start, index), range(index + 1, part.records.stop)
            if after:
                self._queue.appendleft(ExecutionPart(part.interests, after))
            if lethal_error is None:
                itself = ExecutionPart(part.interests, range(index, index + 1))
                if not before:
                    return itself
                self._queue.appendleft(itself)
            else:
                self._made.lethal.add(index)
                for interest in part.interests:
                    pair = ExecutionPart(range(interest, interest + 1), range(index, index + 1))
                    self._made.aside.append((pair, lethal_error))
            return ExecutionPart(part.interests, before)
        return part

    def _lethal_error(self, index: int) -> ResourceError | None:
        """Returns the error for a lethal record; None for other records."""
        error: ResourceError
        if self._lost_interests[index] >= self._limits.lethal_interests:
            error = EngineLostError(_LETHAL)
        elif self._lost_worker_interests[index] >= self._limits.lethal_interests_to_workers:
            error = WorkerLostError(_LETHAL_TO_WORKERS)
        else:
            return None
        return None if any(index in passed.records for passed, _ in self._made.passed) else error

    def _others_wait(self, part: ExecutionPart) -> bool:
        return any(other.interests != part.interests for other in self._queue)

    # ------------------------------------------------------------ one interest

    def _part_records(self, part: ExecutionPart, error: ResourceError) -> None:
        """Splits the records of an interest that fails by itself, until the failing records are set aside."""
        if len(part.records) == 1:
            self._set_aside_alone(part, error)
            return
        (interest,) = part.interests
        pending = _pieces_of(part.records, self._ways(error))[::-1]
        while pending:
            records = pending.pop()
            rest = ExecutionPart(part.interests, range(records.start, part.records.stop))
            if self._short_s[interest] >= self._limits.short_tries_s and rest.pairs > 1:
                self._made.aside.append((rest, _too_slow(self._overruns[interest])))
                return
            if self._lost_records[interest] >= self._limits.lost_records and rest.pairs > 1:
                self._made.aside.append((rest, EngineLostError(_LOST)))
                return
            piece = ExecutionPart(part.interests, records)
            is_hurried = self._short_deadline_s(piece) is not None
            piece_error = self._failure(piece, alone=is_hurried and len(records) == 1)
            if piece_error is None:
                continue
            if len(records) > 1:
                pending.extend(reversed(_pieces_of(records, self._ways(piece_error))))
            elif self._set_aside_alone(piece, piece_error):
                self._overruns[interest] += isinstance(piece_error, DeadlineError)

    def _set_aside_alone(self, part: ExecutionPart, error: ResourceError) -> bool:
        """Sets the part aside if it also fails while nothing else runs. Returns whether it did."""
        while self._failures_alone[part] < self._limits.tries_alone:
            repeated_error = self._failure(part, alone=True)
            if repeated_error is None:
                return False
            error = repeated_error
        if isinstance(error, StorageFullError):
            raise error  # a full disk says nothing about this part
        self._probe()
        is_lost = isinstance(error, EngineLostError)
        self._made.aside.append((part, EngineLostError(_LOST) if is_lost else error))
        if is_lost:
            self._lost_records[part.interests.start] += 1
            self._lost_interests[part.records.start] += 1
        elif isinstance(error, WorkerLostError):
            self._lost_worker_interests[part.records.start] += 1
        return True

    # ------------------------------------------------------------ one try

    def _failure(self, part: ExecutionPart, *, alone: bool = False) -> ResourceError | None:
        deadline_s = self._short_deadline_s(part)
        while True:
            alone = alone or self._has_lost_engine
            try:
                self._made.passed.append((part, self._run(part, alone=alone, deadline_s=deadline_s)))
            except RESOURCE_ERRORS as error:
                if isinstance(error, EngineLostError) and not self._has_lost_engine:
                    # The loss may have another cause. If this part is the cause, the engine is lost again. From now on
                    # nothing else runs beside a part.
                    self._has_lost_engine = True
                    continue
                self._made.failed.append(part)
                self._failures_alone[part] += alone
                self._short_s[part.interests.start] += deadline_s or 0.0
                return error
            self._slowest_s = max(self._slowest_s, self._took_s())
            return None

    def _short_deadline_s(self, part: ExecutionPart) -> float | None:
        """Returns the short deadline for an interest that has exceeded its deadline too often, else None for the usual
        deadline."""
        if self._overruns[part.interests.start] < self._limits.overruns:
            return None
        return max(self._limits.shortest_s, self._limits.slower * self._slowest_s)

    def _ways(self, error: ResourceError) -> int:
        is_costly = isinstance(error, DeadlineError | EngineLostError)
        return self._limits.pieces_after_deadline if is_costly else self._limits.pieces


_LOST: Final = "the engine was lost whenever this was run"
_LETHAL: Final = "the engine was lost whenever this record was run, with other interests"

_LETHAL_TO_WORKERS: Final = "a function in Python ended its process whenever this record was run, with other interests"


def _too_slow(records: int) -> DeadlineError:
    return DeadlineError(
        f"it overran its time on {records} records, each by itself; the ones after them were not tried"
    )


def _join(parts: Sequence[ExecutionPart]) -> Iterator[ExecutionPart]:
    """Merges neighbouring parts that have the same records."""
    last = parts[0]
    for part in parts[1:]:
        if part.records == last.records and part.interests.start == last.interests.stop:
            last = ExecutionPart(range(last.interests.start, part.interests.stop), last.records)
        else:
            yield last
            last = part
    yield last


def _pieces_of(whole: range, ways: int) -> list[range]:
    size = -(-len(whole) // ways)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
