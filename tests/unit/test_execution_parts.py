"""Executions in parts, over a runner whose capacity is drawn: everything is found once, and every execution ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tocsin.cluster.channels.execution_parts import (
    MOST_OVERRUNS,
    TRIES_ALONE,
    WAYS_IN_TIME,
    ExecutionPart,
    ExecutionSize,
    PartedExecution,
    PartedRun,
)
from tocsin.wire.errors import CapacityError, DeadlineError, StorageFullError

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

    def __call__(self, part: ExecutionPart, alone: bool) -> list[tuple[int, int]]:
        self.tries += 1
        self.alone[part] += alone
        pairs = [(interest, record) for interest in part.interests for record in part.records]
        assert pairs
        if sum(self.weight(*pair) for pair in pairs) > self.capacity:
            raise self.error("too heavy")
        return pairs

    def parted(
        self, interests: int, records: int, *, splits_records: bool = True, apart: int = 0, pairs: int | None = None
    ) -> PartedExecution[list[tuple[int, int]]]:
        run = PartedRun(interests, records, self, splits_records=splits_records, apart=apart, pairs=pairs)
        return run.run_parts()


def found(made: PartedExecution[list[tuple[int, int]]]) -> Counter[tuple[int, int]]:
    return Counter(pair for _, pairs in made.passed for pair in pairs)


def pairs_of(part: ExecutionPart) -> set[tuple[int, int]]:
    return {(interest, record) for interest in part.interests for record in part.records}


def bound(made: PartedExecution[list[tuple[int, int]]], interests: int, records: int) -> float:
    """As the module says it."""
    deep = math.log2(records) if records else 0
    return 2 * len(made.passed) + math.log2(interests) + deep + len(made.aside) * (4 + WAYS_IN_TIME * deep)


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
    made = runner.parted(interests, records, apart=min(apart, interests), pairs=pairs)
    everything = {(interest, record) for interest in range(interests) for record in range(records)}
    impossible = {pair for pair in everything if heavy.get(pair, 1) > capacity}
    told = found(made)
    assert set(told.values()) <= {1}
    aside = set().union(*(pairs_of(part) for part, _ in made.aside))
    assert set(told) | aside == everything
    assert not set(told) & aside
    overrun = Counter(interest for interest, _ in impossible)
    spent = {interest for interest, count in overrun.items() if error is DeadlineError and count >= MOST_OVERRUNS}
    assert {pair for pair in aside if pair[0] not in spent} == {pair for pair in impossible if pair[0] not in spent}
    for part, _ in made.aside:
        if part.interests.start not in spent:
            assert part.pairs == 1
            assert runner.alone[part] == TRIES_ALONE
    assert runner.tries <= bound(made, interests, records)


@given(interests=some.integers(1, 200), records=some.integers(1, 8), capacity=some.integers(1, 900),
       bad=some.sets(some.integers(0, 199), max_size=3))  # fmt: skip
def test_where_records_cannot_be_parted_interests_are(
    interests: int, records: int, capacity: int, bad: set[int]
) -> None:
    runner = Runner(capacity, lambda interest, _record: 1_000 if interest in bad else 1)
    made = runner.parted(interests, records, splits_records=False)
    lost = {interest for interest in range(interests) if interest in bad or records > capacity}
    assert {part.interests.start for part, _ in made.aside} == lost
    assert set(found(made)) == {
        (interest, record) for interest in range(interests) if interest not in lost for record in range(records)
    }
    assert all(len(part.records) == records for part, _ in made.passed)
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
    assert len(made.failed) <= 3 + 1 + TRIES_ALONE


def test_an_interest_that_overruns_on_every_record_is_given_up_after_few() -> None:
    runner = Runner(100_000, lambda interest, _record: 200_000 if interest == 5 else 1, DeadlineError)
    made = runner.parted(20, 1_000)
    assert {pair[0] for part, _ in made.aside for pair in pairs_of(part)} == {5}
    assert len(found(made)) == 19 * 1_000
    assert len(made.failed) <= 40


def test_records_too_heavy_for_any_interest_are_parted_for_all_and_not_one_by_one() -> None:
    """A record costs the same however many interests there are: only fewer records help."""

    def run(part: ExecutionPart, _alone: bool) -> int:
        if len(part.records) > 10:
            raise DeadlineError("too slow")
        return part.pairs

    made = PartedRun(1_000, 100, run, splits_records=True).run_parts()
    assert sum(pairs for _, pairs in made.passed) == 1_000 * 100
    assert not made.aside
    assert len(made.passed) + len(made.failed) < 600


def test_a_part_that_passes_by_itself_is_not_set_aside() -> None:
    def run(part: ExecutionPart, alone: bool) -> int:
        if part.interests.start == 2 and not alone:
            raise CapacityError("others took the memory")
        return part.pairs

    made = PartedRun(4, 1, run, splits_records=True).run_parts()
    assert not made.aside
    assert sum(pairs for _, pairs in made.passed) == 4


def test_a_full_disk_sets_nothing_aside() -> None:
    def run(_part: ExecutionPart, _alone: bool) -> int:
        raise StorageFullError("full")

    with pytest.raises(StorageFullError):
        PartedRun(3, 2, run, splits_records=True).run_parts()


def test_nothing_is_set_aside_where_the_engine_answers_nothing_at_all() -> None:
    def probe() -> None:
        raise CapacityError("no executor")

    def run(_part: ExecutionPart, _alone: bool) -> int:
        raise CapacityError("no executor")

    with pytest.raises(CapacityError):
        PartedRun(3, 2, run, splits_records=True, probe=probe).run_parts()


def test_the_size_that_passed_is_remembered_and_larger_ones_are_tried_less_and_less_often() -> None:
    size, failures = ExecutionSize(), []
    for _ in range(100):
        runner = Runner(100, lambda _interest, _record: 1)
        made = runner.parted(1_000, 1, pairs=size.pairs)
        size.learn(made)
        failures.append(len(made.failed))
        assert len(found(made)) == 1_000
    assert failures[0]
    assert sum(map(bool, failures)) < 15
    assert 25 <= (size.pairs or 0) <= 200


def test_an_interest_set_aside_says_nothing_about_the_size() -> None:
    size = ExecutionSize()
    size.learn(Runner(10_000, lambda interest, _record: 20_000 if interest == 3 else 1).parted(100, 1))
    assert size.pairs is None
