"""Those that fail among many are found in few tries."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.channels.executions.record_search import find_failing, spread


class Tried:
    def __init__(self, bad: Collection[int]) -> None:
        self.bad = bad
        self.calls = 0

    def __call__(self, begin: int, end: int) -> ValueError | None:
        self.calls += 1
        return ValueError(str(begin)) if any(number in self.bad for number in range(begin, end)) else None


@given(st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)))))
def test_exactly_those_that_fail_are_found_in_their_order(drawn: tuple[int, set[int]]) -> None:
    count, bad = drawn
    found = find_failing(count, Tried(bad), count)
    assert list(found) == sorted(bad)
    assert all(str(error) == str(at) for at, error in found.items())


def test_one_of_a_million_takes_few_tries_and_sixteen_of_120_at_most_as_many_as_there_are() -> None:
    tried = Tried({777_777})
    assert list(find_failing(1_000_000, tried, 16)) == [777_777]
    assert tried.calls <= 4 * 10
    tried = Tried(set(range(3, 120, 8)))
    assert len(find_failing(120, tried, 120)) == 15
    assert tried.calls <= 120


def test_where_there_are_more_than_wanted_the_search_ends() -> None:
    tried = Tried(range(1_000_000))
    assert 16 < len(find_failing(1_000_000, tried, 16)) <= 16 + 4
    assert tried.calls < 100


def test_what_fails_only_together_is_found_nowhere() -> None:
    assert find_failing(9, lambda begin, end: ValueError() if end - begin == 9 else None, 9) == {}
    assert find_failing(0, lambda _begin, _end: ValueError(), 9) == {}


def test_a_sample_comes_from_everywhere_and_is_all_where_there_are_few() -> None:
    assert spread(range(100), 4) == [0, 25, 50, 75]
    assert spread("abc", 8) == ["a", "b", "c"]
    assert spread([], 8) == []
