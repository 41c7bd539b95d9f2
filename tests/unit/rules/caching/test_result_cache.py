"""GET, holes and counts of one result cache, on examples worked by hand."""

from __future__ import annotations

import pytest

from tests.support.caching_model import at, needing
from tocsin.rules.caching.entries import BrokerResult, CachedRun, CacheRun, MissingRun
from tocsin.rules.caching.result_cache import ResultCache


def result(number: int) -> BrokerResult:
    return BrokerResult(at(number), 10 * number, f"r{number}")


def cache_of(*numbers: int, since: int = 0, holes: tuple[int, ...] = (), subscribers: int = 1) -> ResultCache:
    cache = ResultCache("i", at(since), number=1, now_s=0.0, ttl_s=60.0)
    cache.attach(at(since), subscribers)
    for number in sorted({*numbers, *holes}):
        cache.put(result(number), resident=number not in holes, now_s=float(number), sequence=number)
    return cache


def cached(after: int, to: int, *numbers: int) -> CachedRun:
    return CachedRun(at(after), at(to), tuple(result(number) for number in numbers))


def missing(after: int, to: int) -> MissingRun:
    return MissingRun(at(after), at(to))


@pytest.mark.parametrize(
    ("after", "to", "runs"),
    [
        (2, 4, [cached(2, 4, 3, 4)]),  # all of it is here
        (4, 5, [cached(4, 5, 5)]),
        (0, 4, [missing(0, 2), cached(2, 4, 3, 4)]),  # some is
        (0, 2, [missing(0, 2)]),  # none is
        (0, 1, [missing(0, 1)]),
        (5, 5, []),
        (4, 3, []),
        (4, 9, [cached(4, 5, 5), missing(5, 9)]),  # beyond what the broker has
    ],
)
def test_get_tells_what_is_cached_from_what_is_missing(after: int, to: int, runs: list[CacheRun]) -> None:
    cache = cache_of(1, 2, 3, 4, 5)
    cache.drop_tail()
    cache.drop_tail()
    assert cache.get(at(after), at(to)) == runs


def test_of_an_empty_cache_everything_is_missing() -> None:
    assert cache_of(since=3).get(at(1), at(3)) == [missing(1, 3)]
    assert cache_of(since=3).get(at(3), at(3)) == []


def test_get_splits_at_holes() -> None:
    cache = cache_of(1, 2, 5, 6, holes=(3, 4))
    assert cache.get(at(0), at(6)) == [cached(0, 2, 1, 2), missing(2, 4), cached(4, 6, 5, 6)]
    assert cache.get(at(3), at(5)) == [missing(3, 4), cached(4, 5, 5)]
    assert cache.get(at(2), at(3)) == [missing(2, 3)]


def test_neighbouring_holes_are_one_and_those_before_the_tail_are_none() -> None:
    cache = cache_of(3, 6, holes=(1, 2, 4, 5, 7, 8))
    assert [(entry.cursor, entry.resident) for entry in cache] == [
        (at(3), True),
        (at(5), False),
        (at(6), True),
        (at(8), False),
    ]
    assert cache.drop_tail() == 30
    assert [entry.cursor for entry in cache] == [at(6), at(8)]
    assert cache.floor == at(5)


def test_dropping_from_the_middle_leaves_a_hole() -> None:
    cache = cache_of(1, 2, 3, 4, 5)
    assert cache.drop(2) == 30
    assert cache.get(at(0), at(5)) == [cached(0, 2, 1, 2), missing(2, 3), cached(3, 5, 4, 5)]
    cache.drop(1)
    cache.drop(2)
    assert cache.get(at(0), at(5)) == [cached(0, 1, 1), missing(1, 4), cached(4, 5, 5)]
    assert cache.resident_bytes == 60


def test_who_stands_inside_a_hole_is_counted_before_it() -> None:
    cache = cache_of(1, 2, 3, 4, subscribers=3)
    cache.advance(at(0), at(2))
    cache.advance(at(0), at(3))
    cache.drop(1)
    cache.drop(1 + 1)  # 2 and 3 are holes now, and one
    assert needing(cache) == [1, 2, 3]
    assert cache.drop_tail() == 10
    assert [entry.cursor for entry in cache] == [at(4)]
    assert needing(cache) == [3]


def test_a_result_leaves_when_everybody_attached_to_it_has_it() -> None:
    cache = cache_of(1, 2, 3, subscribers=2)
    assert cache.advance(at(0), at(2)) == 0
    assert cache.advance(at(0), at(1)) == 10
    assert [entry.cursor for entry in cache] == [at(2), at(3)]
    assert cache.lowest_marker() == at(1)
    # Somebody who came later is not attached to what was there before.
    cache.attach(at(3))
    assert needing(cache)[0] == 1
    assert cache.detach(at(1)) == 20
    assert cache.get(at(1), at(3)) == [missing(1, 2), cached(2, 3, 3)]


def test_what_nobody_needs_is_not_even_kept() -> None:
    cache = cache_of(1, 2, subscribers=1)
    cache.detach(at(0))
    cache.put(result(3), resident=True, now_s=3.0, sequence=3)
    assert (len(cache), cache.resident_bytes, cache.floor) == (0, 0, at(3))


def test_a_range_that_is_known_to_be_empty_is_not_missing() -> None:
    cache = cache_of(1)
    cache.reach(at(4))
    assert cache.get(at(1), at(4)) == [cached(1, 4)]
    cache.skip(at(6))
    assert cache.get(at(1), at(6)) == [missing(1, 6)], "a hole begins where the entry before it ends"
