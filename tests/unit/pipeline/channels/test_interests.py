"""Interests as Spark has them: whatever fails or comes back, all that are there take part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tocsin.pipeline.channels.interests import Ids, InterestLimits, InterestTable
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
        on_count, self.spark.on_count = self.spark.on_count, None
        if on_count is not None:
            on_count()
        if self.spark.fails:
            raise OSError("no room")
        return len(self.ids)

    def unionAll(self, other: Frame) -> Frame:
        return Frame(self.spark, self.ids + other.ids)

    def where(self, condition: str) -> Frame:
        self.spark.conditions.append(condition)
        return self

    def selectExpr(self, *_expressions: str) -> Frame:
        self.spark.keyed.append(self.ids)
        return self

    def drop(self, *_names: str) -> Frame:
        return self

    def createOrReplaceTempView(self, name: str) -> None:
        self.spark.views[name] = self


class FakeSpark:
    def __init__(self) -> None:
        self.views: dict[str, Frame] = {}
        self.conditions: list[str] = []
        self.keyed: list[list[int]] = []
        self.cached = 0
        self.fails = False
        self.on_count: Callable[[], object] | None = None
        self.catalog = SimpleNamespace(dropTempView=lambda name: self.views.pop(name, None))
        self.conf = SimpleNamespace(set=lambda *_: None, unset=lambda _: None)

    def createDataFrame(self, rows: pa.Table) -> Frame:
        return Frame(self, rows.column(0).to_pylist())

    def table(self, name: str) -> Frame:
        return self.views[name]


@pytest.fixture
def spark() -> FakeSpark:
    return FakeSpark()


LIMITS = InterestLimits(cached_from=10)


@dataclass
class Engine:
    """Has a session, or refuses it to a thread that was given up."""

    spark: FakeSpark
    gives_up: bool = False

    def session(self) -> Any:
        if self.gives_up:
            raise UnavailableError("the work was given up")
        return self.spark


@pytest.fixture
def engine(spark: FakeSpark) -> Engine:
    return Engine(spark)


@pytest.fixture
def interests(engine: Engine) -> InterestTable:
    return table(engine)


def table(engine: Engine, *keys: str) -> InterestTable:
    query: Any = SimpleNamespace(parameters=(t.BIGINT,), quantiles=(), keys=keys, sql="", levels=())
    made = InterestTable(engine.session, query, LIMITS)
    made.checked.add(", ".join(f"{key} AS k{i}" for i, key in enumerate(keys)))
    return made


def seen(interests: InterestTable, spark: FakeSpark) -> list[int]:
    """Returns the interests of an execution: those of the view, without those that its reader leaves out."""
    shown = [identity for identity in spark.views[interests.prepared()].ids if identity not in interests.gone]
    assert len(set(shown)) == len(shown), "one takes part twice"
    return sorted(shown)


def add(interests: InterestTable, *ids: int) -> None:
    interests.change([(identity, (identity,)) for identity in ids], ())


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
    interests.change([(number, (number,)) for number in range(20, 60)], [3])
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            interests.prepared()
    spark.fails = False
    assert seen(interests, spark) == [number for number in range(60) if number != 3]


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
    assert sorted(shown) == [number for number in (*range(20), 30) if number != 7]


def test_what_the_engine_cannot_take_at_once_is_handed_over_with_less_each_time(
    engine: Engine, spark: FakeSpark
) -> None:
    interests = table(engine, "p0")
    add(interests, *range(20))
    spark.fails = True
    for failures in range(1, 2 * LIMITS.most_failures + 1):
        spark.keyed.clear()
        with pytest.raises(OSError, match="no room"):
            interests.prepared()
        interests.count_handover_failure()
        assert bool(spark.keyed) == (failures <= LIMITS.most_failures), "then without keys that are made beforehand"
    assert interests.is_split
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
            interests.count_failure_of(3, "no number")
        else:
            assert left == {3: "no number"}
            interests.mark_succeeded(left)
    assert tried == [0, 1, 6, 15, 32]
    assert [interests.has_succeeded(number) for number in (2, 3, 4, 5)] == [True, False, True, False]


def test_one_that_works_again_is_left_out_no_more_and_few_are_tried_at_once(interests: InterestTable) -> None:
    add(interests, *range(50))
    for number in range(20):
        interests.count_failure_of(number, "no number")
    interests.mark_suspect(30)
    assert list(interests.left_out()) == [16, 17, 18, 19]
    interests.mark_succeeded(interests.left_out())
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


def test_with_a_new_session_all_take_part_again(interests: InterestTable, engine: Engine, spark: FakeSpark) -> None:
    add(interests, *range(20))
    seen(interests, spark)
    interests.change([(30, (30,))], [4])
    interests.remembered["levels"] = "of the session before"
    after = engine.spark = FakeSpark()
    assert seen(interests, after) == [*range(4), *range(5, 20), 30]
    assert (interests.remembered, interests.gone) == ({}, set())
    add(interests, 31)
    assert seen(interests, after)[-1] == 31
    assert (spark.cached, after.cached) == (1, 1), "while the session is the same, a change costs what it changes"


def test_a_thread_that_was_given_up_over_handing_them_over_changes_nothing(
    interests: InterestTable, engine: Engine, spark: FakeSpark
) -> None:
    add(interests, *range(20))

    def try_again() -> None:
        add(interests, 30)
        assert seen(interests, spark)[-1] == 30  # the next attempt
        add(interests, 31)
        engine.gives_up = True

    spark.on_count = try_again  # the first attempt is late
    with pytest.raises(UnavailableError):
        interests.prepared()
    engine.gives_up = False
    assert seen(interests, spark) == [*range(20), 30, 31]
