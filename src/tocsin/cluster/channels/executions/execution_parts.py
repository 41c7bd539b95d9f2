"""An execution that the engine lacks room, memory or time for, or is lost over, run in parts: ranges of interests, then
of records.

A part that fails is cut along its interests into four (into 32 where each further failure would cost a deadline, or an
engine), and one interest by itself along the records. What cannot be cut, one interest with one record, is tried until
it has failed twice while no other execution runs, and then set aside. So every execution ends.

An example: the interests 0–7 and the records 0–3, where interest 5 with record 2 needs more memory than there is. Each
line is a part that the engine is asked for, as interests × records.

    0–7 × 0–3   fails: it is cut into parts of two interests
    0–1 × 0–3   passes
    2–3 × 0–3   passes
    4–5 × 0–3   fails: it is cut into single interests, and so are those that follow
    4 × 0–3     passes
    5 × 0–3     fails: an interest that fails by itself waits until the others are done
    6 × 0–3     passes
    7 × 0–3     passes
    5 × 0       passes: it is cut along its records, of which there are just four
    5 × 1       passes
    5 × 2       fails
    5 × 2       fails: by itself, while no other execution runs
    5 × 2       fails: for the second time, and is set aside
    5 × 3       passes

Where not even one interest passes with all records, as when any record takes a minute, it is the records that are too
many: from then on each part has fewer of them.

An interest that overruns its time again and again would cost deadlines for each record. After `MOST_OVERRUNS` of its
records were set aside for that, the others have a short deadline, a multiple of what parts that pass take. When tries
with that have failed for `LONGEST_SHORT_S` in all, the interest itself is set aside, with what is left of its records.

An engine may be lost over a part (it took all memory, or crashed the JVM), or beside it. The first loss proves nothing,
and the part is tried again; from then on each part runs while no other execution does. Each loss holds up the whole
cluster: so an interest that was set aside over `MOST_LOST_RECORDS` records is set aside as a whole, and a record over
which `LETHAL_INTERESTS` were is so for all others, unless it has passed with one of them.

With `p` parts that pass and `a` that are set aside, of `i` interests and `r` records, the engine is asked at most
`2 p + log2 i + log2 r + a (4 + WAYS_IN_TIME log2 r)` times, and once more for a lost engine.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from tocsin.cluster.engine.engine_session import EngineLostError
from tocsin.pipeline.channels.run_query import UNGROUPED, Grouping
from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

Lack: TypeAlias = CapacityError | StorageFullError | EngineLostError
LACKS: Final = (CapacityError, StorageFullError, EngineLostError)
WAYS: Final = 4
# A part that overruns has cost its whole deadline: fewer such tries are worth more parts that pass.
WAYS_IN_TIME: Final = 32
TRIES_ALONE: Final = 2
# After so many records on which one interest overran by themselves, its others have a short deadline.
MOST_OVERRUNS: Final = 3
SHORTEST_S: Final = 1.0
# After so much time in tries with the short deadline that failed, the interest is set aside as a whole.
LONGEST_SHORT_S: Final = 120.0
_SLOWER: Final = 4  # so many times as long as the slowest part that passed may a part take that is to be short
_PATIENCE: Final = 8
MOST_LOST_RECORDS: Final = 2
LETHAL_INTERESTS: Final = 3
# An execution that has lost so many engines as a whole is run in parts; the first may have been lost to something else.
MOST_LOSSES: Final = 2
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
    """What a channel's executions have shown: how large a part passes (None: there was no need for parts yet), and how
    results should leave Spark."""

    pairs: int | None = None
    grouping: Grouping = UNGROUPED
    losses: int = 0  # of the engine, over this execution as a whole
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
    aside: list[tuple[ExecutionPart, Lack]] = field(default_factory=list)
    failed: list[ExecutionPart] = field(default_factory=list)

    @property
    def largest_passed(self) -> int:
        return max((part.pairs for part, _ in self.passed), default=1)

    def has_unexplained_failure(self) -> bool:
        """Whether a part failed in which nothing was set aside: it was too large."""
        aside = [part.interests.start for part, _ in self.aside]
        return any(not any(interest in part.interests for interest in aside) for part in self.failed)


class RunPart(Protocol[A_co]):
    """Answers for a part, maybe while no other execution runs, and maybe with a deadline shorter than usual; raises
    what it lacks."""

    def __call__(self, part: ExecutionPart, /, *, alone: bool, deadline_s: float | None) -> A_co: ...


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
        took_s: Callable[[], float] = lambda: 0.0,
        has_lost_engine: bool = False,
    ) -> None:
        """`took_s`: how long the last part that passed was at work."""
        self._run = run
        self._took_s = took_s
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
        self._heavy: list[tuple[ExecutionPart, Lack]] = []
        self._overruns: Counter[int] = Counter()  # records of an interest that were set aside for that
        self._short_s: defaultdict[int, float] = defaultdict(float)  # in tries with a short deadline that failed
        self._failures_alone: Counter[ExecutionPart] = Counter()
        self._slowest_s = 0.0  # of the parts that passed
        self._has_lost_engine = has_lost_engine
        self._lost_records: Counter[int] = Counter()  # of an interest: they were set aside over a lost engine
        self._lost_interests: Counter[int] = Counter()  # of a record, by its place
        self._made: PartedExecution[A] = PartedExecution()

    def run_parts(self, failed: Lack | None = None) -> PartedExecution[A]:
        """All parts. `failed`: what the whole, which was tried, has lacked."""
        if failed is not None and self._queue:
            self._made.failed.append(self._queue[0])
            self._fail(self._queue.popleft(), failed)
        while self._queue:
            part = self._cut(self._without_lethal(self._queue.popleft()))
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
        """As much of it as is thought to pass; the rest comes next."""
        for interests, records in (
            (part.interests[self._most_interests.size :], part.records),
            (part.interests[: self._most_interests.size], part.records[self._most_records.size :]),
        ):
            if interests and records:
                self._queue.appendleft(ExecutionPart(interests, records))
        return ExecutionPart(part.interests[: self._most_interests.size], part.records[: self._most_records.size])

    def _fail(self, part: ExecutionPart, error: Lack) -> None:
        interests, records, ways = len(part.interests), len(part.records), ways_for(error)
        if self._splits_records and records > self._passed_records > 0:
            # Fewer records have passed: it is not known yet whether so many do, with whichever interests.
            self._most_records.shrink(records, ways, self._passed_records)
            self._queue.appendleft(part)
        elif interests > 1:
            self._most_interests.shrink(interests, ways)
            pieces = [ExecutionPart(piece, part.records) for piece in pieces_of(part.interests, ways)]
            self._queue.extendleft(reversed(pieces))
        elif isinstance(error, EngineLostError):
            self._part_records(part, error)  # at once: others may be lost over the same record
        elif self._splits_records and records > 1 and not self._passed_records and self._others_wait(part):
            # Nothing has passed: the records may be too many for whichever interest, and the others are tried first.
            self._most_records.shrink(records, ways)
            self._queue = deque(_joined([*self._queue, part]))
        else:
            self._heavy.append((part, error))

    def _without_lethal(self, part: ExecutionPart) -> ExecutionPart:
        """Its records before the first one that is lost with whichever interest; those after it come next."""
        for place in part.records if self._lost_interests else ():
            if self._is_lethal(place):
                stop = place + 1 if self._splits_records else part.records.stop
                for interest in part.interests:
                    pair = ExecutionPart(range(interest, interest + 1), range(place, stop))
                    self._made.aside.append((pair, EngineLostError(LETHAL)))
                if stop < part.records.stop:
                    self._queue.appendleft(ExecutionPart(part.interests, range(stop, part.records.stop)))
                return ExecutionPart(part.interests, range(part.records.start, place))
        return part

    def _is_lethal(self, place: int) -> bool:
        return self._lost_interests[place] >= LETHAL_INTERESTS and not any(
            place in part.records for part, _ in self._made.passed
        )

    def _others_wait(self, part: ExecutionPart) -> bool:
        return any(other.interests != part.interests for other in self._queue)

    # ------------------------------------------------------------ one interest

    def _part_records(self, part: ExecutionPart, error: Lack) -> None:
        """An interest that fails by itself with these records."""
        if not self._splits_records or len(part.records) == 1:
            self._set_aside_alone(part, error)
            return
        (interest,) = part.interests
        waiting = list(reversed(list(pieces_of(part.records, ways_for(error)))))
        while waiting:
            records = waiting.pop()
            rest = ExecutionPart(part.interests, range(records.start, part.records.stop))
            if self._short_s[interest] >= LONGEST_SHORT_S and rest.pairs > 1:
                self._made.aside.append((rest, _too_slow(self._overruns[interest])))
                return
            if self._lost_records[interest] >= MOST_LOST_RECORDS and rest.pairs > 1:
                self._made.aside.append((rest, EngineLostError(LOST)))
                return
            piece = ExecutionPart(part.interests, records)
            is_hurried = self._short_deadline_s(piece) is not None
            failed = self._failure(piece, alone=is_hurried and len(records) == 1)
            if failed is None:
                continue
            if len(records) > 1:
                waiting.extend(reversed(list(pieces_of(records, ways_for(failed)))))
            elif self._set_aside_alone(piece, failed):
                self._overruns[interest] += isinstance(failed, DeadlineError)

    def _set_aside_alone(self, part: ExecutionPart, error: Lack) -> bool:
        """Whether it fails also while no other execution runs: then it is set aside."""
        while self._failures_alone[part] < TRIES_ALONE:
            again = self._failure(part, alone=True)
            if again is None:
                return False
            error = again
        if isinstance(error, StorageFullError):
            raise error  # a full disk is nobody's fault, and says nothing about this part
        self._probe()
        is_lost = isinstance(error, EngineLostError)
        self._made.aside.append((part, EngineLostError(LOST) if is_lost else error))
        if is_lost:
            self._lost_records[part.interests.start] += 1
            self._lost_interests[part.records.start] += 1
        return True

    # ------------------------------------------------------------ one try

    def _failure(self, part: ExecutionPart, *, alone: bool = False) -> Lack | None:
        deadline_s = self._short_deadline_s(part)
        while True:
            alone = alone or self._has_lost_engine
            try:
                self._made.passed.append((part, self._run(part, alone=alone, deadline_s=deadline_s)))
            except LACKS as error:
                if isinstance(error, EngineLostError) and not self._has_lost_engine:
                    # Something else may have ended it, and what it was comes again: so from now on nothing runs beside.
                    self._has_lost_engine = True
                    continue
                self._made.failed.append(part)
                self._failures_alone[part] += alone
                self._short_s[part.interests.start] += deadline_s or 0.0
                return error
            self._slowest_s = max(self._slowest_s, self._took_s())
            return None

    def _short_deadline_s(self, part: ExecutionPart) -> float | None:
        """For an interest that has overrun often enough; None: the usual one."""
        if self._overruns[part.interests.start] < MOST_OVERRUNS:
            return None
        return max(SHORTEST_S, _SLOWER * self._slowest_s)


LOST: Final = "the engine was lost whenever this was run"
LETHAL: Final = "the engine was lost whenever this record was run, with other interests"


def _too_slow(records: int) -> DeadlineError:
    return DeadlineError(
        f"it overran its time on {records} records, each by itself; the ones after them were not tried"
    )


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
    return WAYS_IN_TIME if isinstance(error, DeadlineError | EngineLostError) else WAYS


def pieces_of(whole: range, ways: int) -> Iterator[range]:
    size = -(-len(whole) // ways)
    return (whole[at : at + size] for at in range(0, len(whole), size))
