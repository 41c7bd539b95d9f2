"""Runs an execution in parts when the engine lacks memory, disk space or time for the whole, or crashes over it.

A part is a range of interests combined with a range of records. The size of parts follows the bytes of their results
(`part_sizes`): after a part that passes, the next one has as many interests as should fit, and at most twice as many.
After a part that fails, the next one has a quarter of its interests; half of them if its results should about have fit;
or one of 32 pieces if each further failure would cost a deadline or an engine. A part with one interest is cut along
its records. The smallest part, one interest with one record, is retried until it has failed twice while nothing else
runs on the engine; then it is set aside. So every execution ends.

An example: the interests 0–7 and the records 0–3, where interest 5 with record 2 needs too much memory. Each line is a
part that the engine runs, as interests × records.

    0–7 × 0–3   fails: the next part has a quarter of its interests
    0–1 × 0–3   passes: the next part may be twice as large
    2–5 × 0–3   fails: twice the results that passed, so the next part is half as large
    2–3 × 0–3   passes
    4–5 × 0–3   fails
    4 × 0–3     passes
    5 × 0–3     fails: an interest that fails by itself waits until the others are done
    6 × 0–3     passes
    7 × 0–3     passes
    5 × 0–1     passes: interest 5 is cut along its four records
    5 × 2–3     fails
    5 × 2       fails
    5 × 2       fails again, now while nothing else runs
    5 × 2       fails for the second time while nothing else runs, and is set aside
    5 × 3       passes

If not even one interest passes with all records (for example because each record takes a minute), there are too many
records: from then on each part has fewer of them. The same holds if `heavy_interests` interests in a row fail by
themselves, and only interests without results pass.

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

If the engine takes `c` bytes of results at once, and no interest has more than a quarter of that, `b` bytes of results
take at most `3 b / c + k log2 (i r)` queries, however many interests do not match. `k` is a small number for each
change between interests that match often and interests that match seldom, because the size has to follow.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from tocsin.cluster.channels.executions.part_sizes import ExecutionPart, ExecutionSize, PartLimit
from tocsin.cluster.engine.engine_session import EngineLostError, WorkerLostError
from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

ResourceError: TypeAlias = CapacityError | StorageFullError | EngineLostError
RESOURCE_ERRORS: Final = (CapacityError, StorageFullError, EngineLostError)


@dataclass(slots=True)
class PartedExecution(Generic[_T]):
    """The outcome of an execution in parts: the results of the parts that passed, and the parts that were set aside
    with their errors."""

    passed: list[tuple[ExecutionPart, _T]] = field(default_factory=list)
    aside: list[tuple[ExecutionPart, ResourceError]] = field(default_factory=list)
    failed: list[ExecutionPart] = field(default_factory=list)
    # Positions of records that were set aside for every interest with which they had not been tried.
    lethal: set[int] = field(default_factory=set)
    pairs: int = 0  # in all parts
    size_bytes: int = 0  # of the results of all parts that passed
    is_overworked: bool = False  # whether a part failed although it had few results

    @property
    def largest_passed(self) -> int:
        return max((part.pairs for part, _ in self.passed), default=1)

    def has_unexplained_failure(self) -> bool:
        """Returns whether a part failed although nothing in it was set aside: that part was too large."""
        aside = [part.interests.start for part, _ in self.aside]
        return any(not any(interest in part.interests for interest in aside) for part in self.failed)


@dataclass(slots=True)
class _FailedPart:
    """A part that failed, until all that it held has passed in smaller parts."""

    part: ExecutionPart
    is_costly: bool
    pairs: int = 0  # of the smaller parts that have passed
    size_bytes: int = 0  # of their results


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
        measure: Callable[[ExecutionPart, _T], int] = lambda part, _results: part.pairs,
    ) -> None:
        """`took_s` returns the duration of the last part that passed, `measure` the bytes of its results."""
        self._run = run
        self._took_s = took_s
        self._probe = probe
        self._limits = size.limits
        self._records = range(records)
        self._together = together = max(0, interests - apart)
        self._measure = measure
        self._capacity = size.capacity
        self._bytes_per_pair = 0.0  # of the last part that passed
        # If results are few, parts grow within one execution only up to the size that is known to pass. Larger sizes
        # are tried from one execution to the next.
        self._most_interests = PartLimit(
            size.first_interests(together, records), self._limits.passes_before_growth, size.most_interests(records)
        )
        self._most_records = PartLimit(size.first_records(records), math.inf)
        self._queue = deque([ExecutionPart(range(together), self._records)] if together else [])
        self._queue.extend(
            ExecutionPart(range(position, position + 1), self._records) for position in range(together, interests)
        )
        self._passed_records = 0  # the largest number of records in a part that passed
        self._matched_records = 0  # the same for parts that had results
        self._unresolved: list[_FailedPart] = []
        # Later executions try larger parts only after a pause (`ExecutionSize.learn`).
        self._was_known = self._capacity.failed_bytes is not None
        self._failed_bytes: float | None = None  # while a larger part is tried: what failed before
        self._passes = 0  # since a part failed for its results
        self._patience = self._limits.passes_before_growth
        # Single interests that failed with all records; they are split after all other parts.
        self._heavy: list[tuple[ExecutionPart, ResourceError]] = []
        self._heavy_in_row = 0  # of them since the last part that passed with results
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
        self._made: PartedExecution[_T] = PartedExecution(pairs=interests * records)

    def run_parts(self, failed: ResourceError | None = None) -> PartedExecution[_T]:
        """Runs all parts. `failed` is the error of the whole execution, if that was tried before."""
        if failed is not None and self._queue:
            self._record_failure(self._queue[0], failed)
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
            self._grow_after(part)
        for part, error in self._heavy:
            self._part_records(part, error)
        if self._capacity.failed_bytes is None and self._failed_bytes is not None:
            self._capacity.failed_bytes = max(self._failed_bytes, self._capacity.passed_bytes)
        return self._made

    def _grow_after(self, part: ExecutionPart) -> None:
        """Adapts the size of the next part to the results of this one."""
        most_interests, most_records, fitting = self._most_interests, self._most_records, self._fitting_pairs()
        is_limited = most_records.size < len(self._records)
        is_full = is_limited and len(part.records) >= most_records.size
        # Prefer all records for few interests to some records for many: the last records would make a small part.
        if is_full and 2 * most_records.size <= fitting and most_records.grow():
            most_interests.size = max(1, int(min(most_interests.size, fitting / most_records.size)))
        else:
            records = most_records.size if is_limited else len(part.records)
            most_interests.adapt(len(part.interests), fitting / records)

    def _fitting_pairs(self) -> float:
        """Returns how many pairs fit into one part if they match as often as those of the last part that passed."""
        return self._capacity.aim_bytes / self._bytes_per_pair if self._bytes_per_pair else math.inf

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
        interests, records, ways = len(part.interests), len(part.records), self._ways(error, part)
        if records > self._passed_records > 0:
            # Only smaller numbers of records have passed so far, so this part may have too many records for any
            # interest.
            self._most_records.shrink(records, ways, self._passed_records)
            self._queue.appendleft(part)
            self._explain(part)
        elif interests > 1:
            self._most_interests.shrink(interests, ways)
            if _is_lack_of_room(error):
                self._queue.appendleft(part)
                self._join_first()
            else:
                pieces = [ExecutionPart(piece, part.records) for piece in _pieces_of(part.interests, ways)]
                self._queue.extendleft(reversed(pieces))
        elif isinstance(error, EngineLostError | WorkerLostError):
            self._part_records(part, error)  # at once: other interests may crash it over the same record
        elif records > 1 and not self._passed_records and self._others_wait(part):
            # No part has passed yet. There may be too many records for any interest, so try the other interests first.
            self._most_records.shrink(records, ways)
            self._queue = deque(self._joined([*self._queue, part]))
        else:
            self._heavy.append((part, error))
            self._heavy_in_row += 1
            self._explain(part)
            self._most_interests.failed = None
            self._share_records(ways)

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

    def _share_records(self, ways: int) -> None:
        """Gives all parts fewer records if several interests have failed by themselves, and since then only interests
        without results have passed: then the records may be too many for any interest that they match."""
        heavy = self._heavy[-self._limits.heavy_interests :]
        records = {part.records for part, _ in heavy}
        if self._heavy_in_row < self._limits.heavy_interests or len(records) > 1 or not self._queue:
            return
        (shared,) = records
        if len(shared) == 1 or (self._matched_records and not all(_is_lack_of_room(error) for _, error in heavy)):
            return
        self._heavy_in_row = 0
        self._most_records.shrink(len(shared), ways)
        self._queue = deque(self._joined([*(part for part, _ in heavy), *self._queue]))
        del self._heavy[-len(heavy) :]

    def _join_first(self) -> None:
        """Joins the first two parts of the queue if they have the same records."""
        first = [self._queue.popleft() for _ in range(min(2, len(self._queue)))]
        self._queue.extendleft(reversed(list(self._joined(first))))

    def _joined(self, parts: Sequence[ExecutionPart]) -> Iterator[ExecutionPart]:
        """Merges neighbouring parts that have the same records, except for the interests that run by themselves."""
        last = parts[0]
        for part in parts[1:]:
            is_neighbour = part.interests.start == last.interests.stop < self._together
            if is_neighbour and part.records == last.records:
                last = ExecutionPart(range(last.interests.start, part.interests.stop), last.records)
            else:
                yield last
                last = part
        yield last

    def _others_wait(self, part: ExecutionPart) -> bool:
        return any(other.interests != part.interests for other in self._queue)

    # ------------------------------------------------------------ one interest

    def _part_records(self, part: ExecutionPart, error: ResourceError) -> None:
        """Splits the records of an interest that fails by itself, until the failing records are set aside."""
        if len(part.records) == 1:
            self._set_aside_alone(part, error)
            return
        (interest,) = part.interests
        fitting = self._fitting_pairs() if self._matched_records else math.inf
        limit = PartLimit(max(1, int(min(len(part.records), fitting))), self._limits.passes_before_growth)
        pending: list[range] = []
        self._cut_records(part, error, limit, pending)
        while pending:
            records = pending.pop()
            rest = ExecutionPart(part.interests, range(records.start, part.records.stop))
            if self._short_s[interest] >= self._limits.short_tries_s and rest.pairs > 1:
                self._made.aside.append((rest, _too_slow(self._overruns[interest])))
                return
            if self._lost_records[interest] >= self._limits.lost_records and rest.pairs > 1:
                self._made.aside.append((rest, EngineLostError(_LOST)))
                return
            if len(records) > limit.size:
                pending.append(records[limit.size :])
            piece = ExecutionPart(part.interests, records[: limit.size])
            is_hurried = self._short_deadline_s(piece) is not None
            piece_error = self._failure(piece, alone=is_hurried and piece.pairs == 1)
            if piece_error is None:
                limit.adapt(piece.pairs, self._fitting_pairs())
            elif piece.pairs > 1:
                self._cut_records(piece, piece_error, limit, pending)
            elif self._set_aside_alone(piece, piece_error):
                self._overruns[interest] += isinstance(piece_error, DeadlineError)

    def _cut_records(self, part: ExecutionPart, error: ResourceError, limit: PartLimit, pending: list[range]) -> None:
        """Puts the records of a part that failed back, to be run in smaller parts."""
        ways = self._ways(error, part)
        if not _is_lack_of_room(error):
            pending.extend(reversed(_pieces_of(part.records, ways)))
            return
        limit.shrink(min(limit.size, len(part.records)), ways)
        is_joined = bool(pending) and pending[-1].start == part.records.stop
        pending.append(range(part.records.start, pending.pop().stop if is_joined else part.records.stop))

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
        self._explain(part)
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
                results = self._run(part, alone=alone, deadline_s=deadline_s)
            except RESOURCE_ERRORS as error:
                if isinstance(error, EngineLostError) and not self._has_lost_engine:
                    # The loss may have another cause. If this part is the cause, the engine is lost again. From now on
                    # nothing else runs beside a part.
                    self._has_lost_engine = True
                    continue
                self._record_failure(part, error)
                self._failures_alone[part] += alone
                self._short_s[part.interests.start] += deadline_s or 0.0
                return error
            self._record_pass(part, results)
            return None

    def _record_failure(self, part: ExecutionPart, error: ResourceError) -> None:
        self._made.failed.append(part)
        self._unresolved.append(_FailedPart(part, _is_costly(error)))

    def _record_pass(self, part: ExecutionPart, results: _T) -> None:
        size_bytes = self._measure(part, results)
        self._slowest_s = max(self._slowest_s, self._took_s())
        self._made.passed.append((part, results))
        self._made.size_bytes += size_bytes
        self._bytes_per_pair = size_bytes / part.pairs
        if size_bytes:
            self._matched_records = max(self._matched_records, len(part.records))
            self._heavy_in_row = 0
        self._capacity.record_pass(size_bytes)
        self._try_larger()
        for failed in self._unresolved:
            if failed.part.contains(part):
                failed.pairs += part.pairs
                failed.size_bytes += size_bytes
                if failed.pairs == failed.part.pairs:
                    self._resolve(failed)
        self._unresolved = [failed for failed in self._unresolved if failed.pairs < failed.part.pairs]

    def _try_larger(self) -> None:
        """Allows a part that is larger than one that failed, after ever more parts have passed: the failure may have
        had another cause than its results."""
        if self._capacity.failed_bytes is None or self._was_known:
            return
        self._passes += 1
        if self._passes >= self._patience:
            self._failed_bytes, self._capacity.failed_bytes = self._capacity.failed_bytes, None
            self._passes, self._patience = 0, 2 * self._patience

    def _resolve(self, failed: _FailedPart) -> None:
        """Learns from a failed part, all of which has passed in smaller parts."""
        if not self._capacity.explains_failure(failed.size_bytes):
            self._made.is_overworked = True
            return
        self._capacity.record_failure(failed.size_bytes, is_costly=failed.is_costly)
        self._passes = 0
        if self._most_interests.failed == len(failed.part.interests):
            self._most_interests.failed = None  # from now on the bytes of the results limit the size

    def _explain(self, part: ExecutionPart) -> None:
        """Drops the larger failed parts that hold this part: it fails by itself, so their size proves nothing."""
        self._unresolved = [
            failed for failed in self._unresolved if failed.part == part or not failed.part.contains(part)
        ]

    def _short_deadline_s(self, part: ExecutionPart) -> float | None:
        """Returns the short deadline for an interest that has exceeded its deadline too often, else None for the usual
        deadline."""
        if self._overruns[part.interests.start] < self._limits.overruns:
            return None
        return max(self._limits.shortest_s, self._limits.slower * self._slowest_s)

    def _ways(self, error: ResourceError, part: ExecutionPart | None = None) -> int:
        """Returns by what to divide the size of a part that failed."""
        if _is_costly(error):
            return self._limits.pieces_after_deadline
        expected_bytes = part.pairs * self._bytes_per_pair if part else 0.0
        return 2 if expected_bytes and expected_bytes <= 2 * self._capacity.passed_bytes else self._limits.pieces


_LOST: Final = "the engine was lost whenever this was run"
_LETHAL: Final = "the engine was lost whenever this record was run, with other interests"

_LETHAL_TO_WORKERS: Final = "a function in Python ended its process whenever this record was run, with other interests"


def _too_slow(records: int) -> DeadlineError:
    return DeadlineError(
        f"it overran its time on {records} records, each by itself; the ones after them were not tried"
    )


def _is_costly(error: ResourceError) -> bool:
    return isinstance(error, DeadlineError | EngineLostError)


def _is_lack_of_room(error: ResourceError) -> bool:
    """Returns whether a smaller part will probably pass. Other failures rather come from one interest or record: they
    are confined to a piece, and the pieces after it stay large."""
    return not (_is_costly(error) or isinstance(error, WorkerLostError))


def _pieces_of(whole: range, ways: int) -> list[range]:
    size = -(-len(whole) // ways)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
