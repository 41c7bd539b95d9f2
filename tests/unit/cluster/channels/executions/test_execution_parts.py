"""Executions in parts, over a runner whose capacity is drawn: everything is found once, and every execution ends."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tocsin.cluster.channels.executions import execution_parts
from tocsin.cluster.channels.executions.execution_parts import PartedExecution, PartedRun
from tocsin.cluster.channels.executions.limits import PartLimits
from tocsin.cluster.channels.executions.part_sizes import ExecutionPart, ExecutionSize
from tocsin.cluster.engine.engine_session import EngineLostError, WorkerLostError, engine_lost
from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

LIMITS = PartLimits()
Weight = Callable[[int, int], int]
"""Of an interest with a record."""


class Runner:
    """Fails with whatever is heavier than its capacity."""

    def __init__(self, capacity: int, weight: Weight, error: type[CapacityError] = CapacityError) -> None:
        self.capacity = capacity
        self.weight = weight
        self.error = error
        self.tries = 0
        self.alone: Counter[ExecutionPart] = Counter()
        self.deadlines: dict[ExecutionPart, float | None] = {}  # of the last try
        self.seen: list[tuple[ExecutionPart, bool]] = []  # whether it passed

    def __call__(self, part: ExecutionPart, *, alone: bool, deadline_s: float | None = None) -> list[tuple[int, int]]:
        self.tries += 1
        self.deadlines[part] = deadline_s
        self.alone[part] += alone
        pairs = [(interest, record) for interest in part.interests for record in part.records]
        assert pairs
        is_too_heavy = sum(self.weight(*pair) for pair in pairs) > self.capacity
        self.seen.append((part, not is_too_heavy))
        if is_too_heavy:
            raise self.error("too heavy")
        return pairs

    def parted(
        self, interests: int, records: int, *, apart: int = 0, size: ExecutionSize | None = None
    ) -> PartedExecution[list[tuple[int, int]]]:
        return PartedRun(interests, records, self, size or ExecutionSize(), apart=apart).run_parts()


def losing() -> ExecutionSize:
    """The execution has lost too many engines as a whole for a coincidence."""
    return ExecutionSize(losses=LIMITS.losses)


def found(made: PartedExecution[list[tuple[int, int]]]) -> Counter[tuple[int, int]]:
    return Counter(pair for _, pairs in made.passed for pair in pairs)


def pairs_of(part: ExecutionPart) -> set[tuple[int, int]]:
    return {(interest, record) for interest in part.interests for record in part.records}


def bound(made: PartedExecution[list[tuple[int, int]]], interests: int, records: int) -> float:
    """As the module says it."""
    deep = math.log2(records) if records else 0
    return (
        2 * len(made.passed) + math.log2(interests) + deep + len(made.aside) * (4 + LIMITS.pieces_after_deadline * deep)
    )


@given(
    interests=some.integers(1, 60), records=some.integers(1, 12), capacity=some.integers(1, 400),
    heavy=some.dictionaries(some.tuples(some.integers(0, 59), some.integers(0, 11)), some.integers(2, 500), max_size=6),
    error=some.sampled_from([CapacityError, DeadlineError]), apart=some.integers(0, 3),
    pairs=some.none() | some.integers(1, 700),
)  # fmt: skip
def test_everything_is_found_once_and_only_what_is_impossible_is_set_aside(
    interests: int, records: int, capacity: int, heavy: dict[tuple[int, int], int], error: type[CapacityError],
    apart: int, pairs: int | None,
) -> None:  # fmt: skip
    runner = Runner(capacity, lambda interest, record: heavy.get((interest, record), 1), error)
    made = runner.parted(interests, records, apart=min(apart, interests), size=ExecutionSize(pairs=pairs))
    everything = {(interest, record) for interest in range(interests) for record in range(records)}
    impossible = {pair for pair in everything if heavy.get(pair, 1) > capacity}
    told = found(made)
    assert set(told.values()) <= {1}
    aside = set().union(*(pairs_of(part) for part, _ in made.aside))
    assert set(told) | aside == everything
    assert not set(told) & aside
    assert aside == impossible
    for part, _ in made.aside:
        assert part.pairs == 1
        assert runner.alone[part] == LIMITS.tries_alone
    assert runner.tries <= bound(made, interests, records)


class ByteRunner:
    """Fails with whatever has more bytes of results than its capacity; `results` holds them by interest and record."""

    def __init__(self, capacity: float, results: npt.NDArray[np.int64]) -> None:
        self.capacity = capacity
        self.results = results
        self.sums = np.zeros((results.shape[0] + 1, results.shape[1] + 1), np.int64)
        self.sums[1:, 1:] = results.cumsum(0).cumsum(1)
        self.tries = 0

    def __call__(self, part: ExecutionPart, *, alone: bool, deadline_s: float | None = None) -> int:
        self.tries += 1
        (first, last), (since, until) = ((span.start, span.stop) for span in (part.interests, part.records))
        sums = self.sums
        size_bytes = int(sums[last, until] - sums[first, until] - sums[last, since] + sums[first, since])
        if size_bytes > self.capacity:
            raise CapacityError("too many bytes")
        return size_bytes

    def execute(self, size: ExecutionSize) -> int:
        """Runs one execution as a channel does, and returns the number of its parts."""
        (interests, records), before, failed = self.results.shape, self.tries, None
        if size.fits(interests * records):
            try:
                whole = ExecutionPart(range(interests), range(records))
                size.learn_whole(self(whole, alone=False), whole.pairs)
                return 1
            except CapacityError as error:
                failed = error
        run = PartedRun(interests, records, self, size, measure=lambda _part, size_bytes: size_bytes)
        made = run.run_parts(failed)
        assert not made.aside
        assert made.size_bytes == self.results.sum()
        assert sum(part.pairs for part, _ in made.passed) == interests * records
        size.learn(made)
        return self.tries - before

    def most_parts(self, changes: int) -> float:
        """As the module says it, with `changes` between interests that match often and seldom."""
        interests, records = self.results.shape
        needed = self.results.sum() / self.capacity
        return float(3 * needed + (4 + 2 * changes) * math.log2(max(2, interests * records)))


@some.composite
def skewed_results(draw: some.DrawFn) -> tuple[npt.NDArray[np.int64], int]:
    """Bytes of results by interest and record, and how often the share of interests that match changes."""
    rng = np.random.default_rng(draw(some.integers(0, 2**32)))
    blocks = draw(some.lists(some.tuples(some.integers(1, 1_500), some.floats(0.0, 1.0)), min_size=1, max_size=4))
    records = draw(some.sampled_from([1, 3, 20, 100]))
    skew = draw(some.floats(0.0, 1.5))
    share = np.concatenate([np.full(count, share) for count, share in blocks])
    sizes = np.exp(rng.normal(0.0, skew, len(share))) * (rng.random(len(share)) < share)
    matches = rng.random((len(share), records)) < draw(some.floats(0.2, 1.0))
    return (1_000 * sizes[:, None] * matches).astype(np.int64), len(blocks) - 1


@given(some.lists(skewed_results(), min_size=1, max_size=3), some.floats(2.0, 150.0))
def test_parts_are_few_for_their_bytes_however_many_interests_do_not_match(
    executions: list[tuple[npt.NDArray[np.int64], int]], needed: float
) -> None:
    size = ExecutionSize()
    largest = max(int(results.sum(1).max()) for results, _ in executions)
    capacity = max(1.0, 4.0 * largest, max(int(results.sum()) for results, _ in executions) / needed)
    for results, changes in executions:
        runner = ByteRunner(capacity, results)
        assert runner.execute(size) <= runner.most_parts(changes)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["zone after zone", "mixed"])
@pytest.mark.parametrize("capacity", [1_300_000, 2_000_000])
def test_a_report_for_many_says_little_about_a_hundred_reports_for_others(capacity: int, is_mixed: bool) -> None:
    zones = np.array([1] * 10_000 + [2] * 1_000)
    if is_mixed:
        np.random.default_rng(7).shuffle(zones)
    size = ExecutionSize()
    for zone, reports in [(1, 1), (2, 100), (2, 100), (1, 1), (2, 100), (2, 1), (1, 3)]:
        results = np.repeat(1_000 * (zones == zone).astype(np.int64)[:, None], reports, axis=1)
        runner = ByteRunner(capacity, results)
        parts, needed = runner.execute(size), results.sum() / capacity
        assert parts <= max(3 * needed, 15), (zone, reports)
    assert size.pairs is None


@pytest.mark.parametrize("matching", [range(2_000), range(1_000, 2_000)], ids=["all", "the last half"])
def test_records_too_many_for_any_interest_that_they_match_are_parted_for_all(matching: range) -> None:
    """The text of a record leaves the engine once, however many interests it matches."""

    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> int:
        matches = len(range(max(part.interests.start, matching.start), part.interests.stop))
        size_bytes = 1_000 * len(part.records) * (matches > 0) + 16 * matches * len(part.records)
        if size_bytes > 300_000:
            raise CapacityError("too many bytes")
        return size_bytes

    made = PartedRun(2_000, 400, run, ExecutionSize(), measure=lambda _part, size_bytes: size_bytes).run_parts()
    assert not made.aside
    assert sum(part.pairs for part, _ in made.passed) == 2_000 * 400
    assert len(made.passed) + len(made.failed) <= 3 * made.size_bytes / 300_000 < 600


@given(interests=some.integers(1, 200), records=some.integers(1, 8), capacity=some.integers(1, 900),
       bad=some.sets(some.integers(0, 199), max_size=3))  # fmt: skip
def test_where_records_cannot_be_parted_interests_are(
    interests: int, records: int, capacity: int, bad: set[int]
) -> None:
    """All records are then one, which weighs as much as they."""
    runner = Runner(capacity, lambda interest, _record: 1_000 if interest in bad else records)
    made = runner.parted(interests, 1)
    lost = {interest for interest in range(interests) if interest in bad or records > capacity}
    assert {part.interests.start for part, _ in made.aside} == lost
    assert set(found(made)) == {(interest, 0) for interest in range(interests) if interest not in lost}
    assert runner.tries <= bound(made, interests, 1)


def test_an_even_load_takes_about_as_many_parts_as_it_must() -> None:
    runner = Runner(1_000, lambda _interest, _record: 1)
    made = runner.parted(10_000, 3)
    assert len(found(made)) == 30_000
    assert runner.tries <= 3 * 30


def test_one_interest_that_overruns_costs_few_deadlines_among_ten_thousand() -> None:
    runner = Runner(20_000, lambda interest, _record: 50_000 if interest == 6_789 else 1, DeadlineError)
    made = runner.parted(10_000, 1)
    assert [part for part, _ in made.aside] == [ExecutionPart(range(6_789, 6_790), range(1))]
    assert len(found(made)) == 9_999
    assert len(made.failed) <= 3 + 1 + LIMITS.tries_alone


def test_the_example_in_the_docs_is_what_happens() -> None:
    runner = Runner(32, lambda interest, record: 33 if (interest, record) == (5, 2) else 1)
    runner.parted(8, 4)

    def told(places: range) -> str:
        return str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"

    happened = [
        (told(part.interests), told(part.records), "passes" if passed else "fails") for part, passed in runner.seen
    ]
    assert re.findall(r"^ +(\S+) × (\S+) +(passes|fails)\b", execution_parts.__doc__ or "", re.MULTILINE) == happened


def test_an_interest_that_overruns_often_is_hurried_and_each_of_its_records_is_judged_by_itself() -> None:
    bad = set(range(0, 200, 10))
    runner = Runner(10_000, lambda interest, record: 20_000 if interest == 5 and record in bad else 1, DeadlineError)
    made = PartedRun(20, 200, runner, ExecutionSize(), took_s=lambda: 0.5).run_parts()
    assert {(part.interests, part.records) for part, _ in made.aside} == {
        (range(5, 6), range(record, record + 1)) for record in bad
    }
    assert len(found(made)) == 20 * 200 - len(bad)
    deadlines = [runner.deadlines[part] for part, _ in made.aside]
    assert deadlines == [None] * LIMITS.overruns + [2.0] * (len(bad) - LIMITS.overruns)
    assert all(runner.alone[part] == LIMITS.tries_alone for part, _ in made.aside)


@pytest.mark.parametrize("took_s", [0.0, 5.0])
def test_an_interest_that_overruns_on_every_record_is_set_aside_itself_within_bounds(took_s: float) -> None:
    short_s = max(LIMITS.shortest_s, 4 * took_s)
    spent: list[float | None] = []
    runner = Runner(100_000, lambda interest, _record: 200_000 if interest == 5 else 1, DeadlineError)

    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> list[tuple[int, int]]:
        try:
            return runner(part, alone=alone, deadline_s=deadline_s)
        except DeadlineError:
            spent.append(deadline_s)
            raise

    made = PartedRun(20, 1_000, run, ExecutionSize(), took_s=lambda: took_s).run_parts()
    assert {pair for part, _ in made.aside for pair in pairs_of(part)} == {(5, record) for record in range(1_000)}
    *single, (rest, error) = made.aside
    assert all(part.pairs == 1 and runner.alone[part] == LIMITS.tries_alone for part, _ in single)
    assert str(len(single)) in error.message
    assert rest.records.stop == 1_000
    assert len(found(made)) == 19 * 1_000
    assert sum(deadline_s or 0.0 for deadline_s in spent) <= LIMITS.short_tries_s + short_s * LIMITS.tries_alone
    assert spent.count(None) <= 4 + LIMITS.overruns * (1 + LIMITS.tries_alone)


class LosingRunner(Runner):
    """Whatever is too heavy ends the engine; and so does something else, at some tries."""

    def __init__(self, weight: Weight, others: frozenset[int] = frozenset()) -> None:
        super().__init__(1_000_000, weight)
        self.others = others
        self.losses = 0

    def __call__(self, part: ExecutionPart, *, alone: bool, deadline_s: float | None = None) -> list[tuple[int, int]]:
        try:
            answer = super().__call__(part, alone=alone, deadline_s=deadline_s)
        except CapacityError:
            self.losses += 1
            raise engine_lost() from None
        if self.tries in self.others:
            raise engine_lost()
        return answer


KILLS = 10_000_000


def test_a_pair_that_ends_the_engine_each_time_is_set_aside_after_few_engines() -> None:
    runner = LosingRunner(lambda interest, record: KILLS if (interest, record) == (567, 3) else 1)
    made = PartedRun(1_000, 20, runner, losing()).run_parts(engine_lost())
    ((part, error),) = made.aside
    assert pairs_of(part) == {(567, 3)}
    assert isinstance(error, EngineLostError)
    assert runner.alone[part] == LIMITS.tries_alone
    assert len(found(made)) == 1_000 * 20 - 1
    assert runner.losses <= 5


@given(others=some.frozensets(some.integers(1, 30), max_size=4))
def test_an_engine_that_others_have_ended_sets_nothing_aside_unless_a_pair_alone_has_lost_it_twice(
    others: frozenset[int],
) -> None:
    runner = LosingRunner(lambda _interest, _record: 1, others)
    made = PartedRun(8, 4, runner, ExecutionSize(pairs=4)).run_parts()
    assert sum(found(made).values()) + sum(part.pairs for part, _ in made.aside) == 32
    for part, _ in made.aside:
        assert part.pairs == 1
        assert runner.alone[part] == LIMITS.tries_alone


def test_one_engine_lost_sets_nothing_aside_and_cuts_nothing() -> None:
    runner = LosingRunner(lambda _interest, _record: 1, frozenset({3}))
    made = PartedRun(8, 1, runner, ExecutionSize(pairs=2)).run_parts()
    assert not made.aside
    assert not made.failed
    assert runner.tries == 5
    assert len(found(made)) == 8


@pytest.mark.parametrize("records", [20, 1])
def test_a_record_that_ends_the_engine_with_everybody_ends_few(records: int) -> None:
    lethal = 7 % records
    runner = LosingRunner(lambda _interest, record: KILLS if record == lethal else 1)
    made = PartedRun(1_000, records, runner, losing()).run_parts(engine_lost())
    aside = {pair for part, _ in made.aside for pair in pairs_of(part)}
    assert aside == {(interest, lethal) for interest in range(1_000)}
    assert all(part.pairs == 1 for part, _ in made.aside)
    assert len(found(made)) + len(aside) == 1_000 * records
    assert runner.losses <= 4 * LIMITS.lethal_interests + 3


@pytest.mark.parametrize("records", [1, 8, 100])
def test_a_record_that_ends_workers_with_everybody_takes_few_tries(records: int) -> None:
    lethal = 7 % records
    runner = Runner(10**9, lambda _interest, record: 10**10 if record == lethal else 1, WorkerLostError)
    made = runner.parted(1_000, records)
    assert {pair for part, _ in made.aside for pair in pairs_of(part)} == {
        (interest, lethal) for interest in range(1_000)
    }
    assert len(found(made)) == 1_000 * (records - 1)
    assert max(found(made).values(), default=1) == 1
    assert made.lethal == {lethal}
    assert runner.tries < 150


def test_a_record_that_ends_workers_with_some_interests_is_set_aside_for_those_alone() -> None:
    deadly = {(interest, 3) for interest in range(0, 60, 3)}
    runner = Runner(10**9, lambda *pair: 10**10 if pair in deadly else 1, WorkerLostError)
    made = runner.parted(60, 8)
    assert {pair for part, _ in made.aside for pair in pairs_of(part)} == deadly
    assert len(found(made)) == 60 * 8 - len(deadly)


def test_an_interest_that_ends_the_engine_with_every_record_ends_few() -> None:
    runner = LosingRunner(lambda interest, _record: KILLS if interest == 7 else 1)
    made = PartedRun(100, 50, runner, losing()).run_parts(engine_lost())
    assert {pair for part, _ in made.aside for pair in pairs_of(part)} == {(7, record) for record in range(50)}
    assert len(found(made)) == 99 * 50
    assert runner.losses <= 2 * LIMITS.lost_records + 4


def test_records_too_heavy_for_any_interest_are_parted_for_all_and_not_one_by_one() -> None:
    """A record costs the same however many interests there are: only fewer records help."""

    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> int:
        if len(part.records) > 10:
            raise DeadlineError("too slow")
        return part.pairs

    made = PartedRun(1_000, 100, run, ExecutionSize()).run_parts()
    assert sum(pairs for _, pairs in made.passed) == 1_000 * 100
    assert not made.aside
    assert len(made.passed) + len(made.failed) < 600


def test_a_part_that_passes_by_itself_is_not_set_aside() -> None:
    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> int:
        if part.interests.start == 2 and not alone:
            raise CapacityError("others took the memory")
        return part.pairs

    made = PartedRun(4, 1, run, ExecutionSize()).run_parts()
    assert not made.aside
    assert sum(pairs for _, pairs in made.passed) == 4


def test_a_full_disk_sets_nothing_aside() -> None:
    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> int:
        raise StorageFullError("full")

    with pytest.raises(StorageFullError):
        PartedRun(3, 2, run, ExecutionSize()).run_parts()


def test_nothing_is_set_aside_where_the_engine_answers_nothing_at_all() -> None:
    def probe() -> None:
        raise CapacityError("no executor")

    def run(part: ExecutionPart, *, alone: bool, deadline_s: float | None) -> int:
        raise CapacityError("no executor")

    with pytest.raises(CapacityError):
        PartedRun(3, 2, run, ExecutionSize(), probe=probe).run_parts()


def test_the_size_that_passed_is_remembered_and_larger_ones_are_tried_less_and_less_often() -> None:
    size, failures = ExecutionSize(), []
    for _ in range(100):
        runner = Runner(100, lambda _interest, _record: 1)
        made = runner.parted(1_000, 1, size=size)
        size.learn(made)
        failures.append(len(made.failed))
        assert len(found(made)) == 1_000
    assert failures[0]
    assert sum(map(bool, failures)) < 15
    assert 25 <= size.capacity.passed_bytes <= 100
    assert size.pairs is None


def test_an_interest_set_aside_says_nothing_about_the_size() -> None:
    size = ExecutionSize()
    size.learn(Runner(10_000, lambda interest, _record: 20_000 if interest == 3 else 1).parted(100, 1))
    assert not size.has_needed_parts
