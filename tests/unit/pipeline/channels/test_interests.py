"""Interests as Spark has them: whatever fails or comes back, all that are there take part."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.pipeline.channels import interests as interests_module
from tocsin.pipeline.channels.interests import MOST_FAILURES, Ids, InterestTable
from tocsin.rules.model import types as t
from tocsin.wire.errors import UnavailableError


class Frame:
    """The ids that a frame of Spark's shows."""

    def __init__(self, spark: FakeSpark, ids: list[int]) -> None:
        self.spark = spark
        self.ids = ids

    def cache(self) -> Frame:
        self.spark.cached += 1
        return self

    def unpersist(self) -> None:
        self.spark.cached -= 1

    def count(self) -> int:
        if self.spark.fails:
            raise OSError("no room")
        return len(self.ids)

    def unionAll(self, other: Frame) -> Frame:
        return Frame(self.spark, self.ids + other.ids)

    def where(self, condition: str) -> Frame:
        self.spark.conditions.append(condition)
        return self

    def createOrReplaceTempView(self, name: str) -> None:
        self.spark.views[name] = self


class FakeSpark:
    def __init__(self) -> None:
        self.views: dict[str, Frame] = {}
        self.conditions: list[str] = []
        self.cached = 0
        self.fails = False
        self.catalog = SimpleNamespace(dropTempView=lambda name: self.views.pop(name, None))
        self.conf = SimpleNamespace(set=lambda *_: None, unset=lambda _: None)

    def table(self, name: str) -> Frame:
        return self.views[name]


@pytest.fixture
def spark() -> FakeSpark:
    return FakeSpark()


@pytest.fixture
def interests(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> InterestTable:
    monkeypatch.setattr(interests_module, "CACHED_FROM", 10)

    def frame(_self: InterestTable, shown: Mapping[int, Any]) -> Frame:
        return Frame(spark, list(shown))

    monkeypatch.setattr(InterestTable, "_plain", frame)
    query: Any = SimpleNamespace(parameters=(t.BIGINT,), borders=(), keys=())
    session: Any = spark
    return InterestTable(session, query)


def seen(interests: InterestTable, spark: FakeSpark) -> list[int]:
    """Those who take part: what the view shows, without those that whoever reads the answer leaves out."""
    shown = [one for one in spark.views[interests.prepared()].ids if one not in interests.gone]
    assert len(set(shown)) == len(shown), "one takes part twice"
    return sorted(shown)


def add(interests: InterestTable, *ids: int) -> None:
    interests.change([(one, (one,)) for one in ids], ())


def test_interests_come_and_go_beside_the_cached_ones(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(3))
    assert seen(interests, spark) == [0, 1, 2]
    assert spark.cached == 0
    add(interests, *range(3, 20))
    assert seen(interests, spark) == list(range(20))
    assert spark.cached == 1
    interests.change([(30, (30,))], [4, 5])
    assert seen(interests, spark) == [*range(4), *range(6, 20), 30]
    assert len(interests) == 19
    interests.close()
    assert (spark.views, spark.cached) == ({}, 0)


def test_one_that_left_and_is_read_again_takes_part(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    interests.change((), [7])
    assert 7 not in seen(interests, spark)
    add(interests, 7)
    assert seen(interests, spark) == list(range(20))


def test_where_spark_cannot_take_them_in_none_is_lost(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    spark.fails = True
    interests.change([(one, (one,)) for one in range(20, 60)], [3])
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            interests.prepared()
    spark.fails = False
    assert seen(interests, spark) == [one for one in range(60) if one != 3]


def test_where_they_cannot_be_made_anew_parts_show_all_of_theirs(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    interests.change([(30, (30,))], [7])
    seen(interests, spark)
    spark.fails = True
    with pytest.raises(OSError, match="no room"):
        interests.renew()
    spark.fails = False
    assert interests.is_stale
    shown = spark.views[interests.part(Ids())].ids
    assert sorted(shown) == [one for one in (*range(20), 30) if one != 7]


def test_what_the_engine_cannot_take_at_once_is_handed_over_with_less_each_time(
    interests: InterestTable, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed: list[list[int]] = []

    def with_keys(_self: InterestTable, frame: Frame) -> Frame:
        keyed.append(frame.ids)
        return frame

    monkeypatch.setattr(InterestTable, "_keyed", with_keys)
    add(interests, *range(20))
    spark.fails = True
    for failures in range(1, 2 * MOST_FAILURES + 1):
        keyed.clear()
        with pytest.raises(OSError, match="no room"):
            interests.prepared()
        interests.count_failure()
        assert bool(keyed) == (failures <= MOST_FAILURES), "then without keys that are made beforehand"
    assert interests.is_piecemeal
    interests.prepared()
    assert not interests.is_stale
    assert spark.views[interests.part(Ids(3, 5))].ids == [3, 4, 5]
    interests.change([(30, (30,))], [4])
    assert spark.views[interests.part(Ids(only=(3, 4, 5, 30)))].ids == [3, 5, 30]
    assert spark.cached == 0
    assert interests.gone == set()


def test_some_of_them_are_seen_alone(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(3))
    assert interests.part(Ids(2, 5)) != interests.prepared()
    interests.part(Ids(without=(7, 8)))
    assert spark.conditions == [
        "`interest_id` BETWEEN 2 AND 5",
        f"`interest_id` BETWEEN 0 AND {2**63 - 1} AND `interest_id` NOT IN (7, 8)",
    ]


def test_those_on_which_the_query_fails_again_and_again_are_tried_ever_more_rarely(interests: InterestTable) -> None:
    add(interests, *range(5))
    tried = []
    for execution in range(40):
        left = interests.left_out()
        if 3 not in left:
            tried.append(execution)
            interests.strike(3, "no number")
        else:
            assert left == {3: "no number"}
            interests.worked(left)
    assert tried == [0, 1, 6, 15, 32]
    assert [interests.has_worked(one) for one in (2, 3, 4, 5)] == [True, False, True, False]


def test_one_that_works_again_is_left_out_no_more_and_few_are_tried_at_once(interests: InterestTable) -> None:
    add(interests, *range(50))
    for one in range(20):
        interests.strike(one, "no number")
    interests.doubt(30)
    assert list(interests.left_out()) == [16, 17, 18, 19]
    interests.worked(interests.left_out())
    assert list(interests.suspects) == [16, 17, 18, 19]
    assert interests.left_out() == {}
    interests.change((), [16, 17])
    assert list(interests.suspects) == [18, 19]


def test_those_that_left_leave_the_cached_table_when_it_is_renewed(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    interests.change((), [7])
    interests.renew()
    assert interests.gone == set()
    assert 7 not in spark.views[interests.prepared()].ids
    assert spark.cached == 1


def test_with_a_new_session_all_take_part_again(interests: InterestTable, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    interests.change([(30, (30,))], [4])
    interests.remembered["levels"] = "of the session before"
    after = FakeSpark()
    spark.views = after.views  # the frames of this test are made there
    interests._session = lambda: after
    assert seen(interests, after) == [*range(4), *range(5, 20), 30]
    assert (interests.remembered, interests.gone) == ({}, set())
    add(interests, 31)
    assert seen(interests, after)[-1] == 31
    assert spark.cached == 2, "as long as the session is the same, a change costs what it changes"


def test_a_thread_that_was_given_up_over_handing_them_over_changes_nothing(
    interests: InterestTable, spark: FakeSpark
) -> None:
    add(interests, *range(20))
    session, fill = interests._session, interests_module._filled

    def given_up() -> FakeSpark:
        raise UnavailableError("the work was given up")

    def fill_late(frame: Any) -> Any:
        filled = fill(frame)
        interests._session = session
        add(interests, 30)
        assert seen(interests, spark)[-1] == 30  # the next attempt
        add(interests, 31)
        interests._session = given_up
        return filled

    with pytest.MonkeyPatch.context() as patched:
        # The first call is the one that is late.
        patched.setattr(interests_module, "_filled", lambda frame: (patched.undo(), fill_late(frame))[1])
        with pytest.raises(UnavailableError):
            interests.prepared()
    interests._session = session
    assert seen(interests, spark) == [*range(20), 30, 31]
