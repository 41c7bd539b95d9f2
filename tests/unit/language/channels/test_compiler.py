"""Which bodies a channel takes, what it finds out about them, and what it says of those it refuses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.channel_compiler import (
    NOW,
    PREVIOUS,
    REPORTS,
    FakeDatasets,
    FunctionOf,
    Names,
    Version,
    answers,
    compiled,
    executed,
    planned,
    shown,
    text,
)
from tocsin.language.channels.compiler import CalledFunction, Scan
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.translator import QueryHooks, Translator
from tocsin.pipeline.analysis import SparkTypeAnalyser
from tocsin.pipeline.channels import run_query
from tocsin.pipeline.channels.interests import Ids, InterestLimits, InterestTable
from tocsin.pipeline.channels.record_payloads import read_matches
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Type
from tocsin.rules.model.values import Circle, Point, Polygon
from tocsin.wire.errors import StatementError

FUNCTIONS = (
    FunctionOf("ofKind", ("k",), "select value r from Reports r where r.kind = k"),
    FunctionOf("fresh", (), "select value r from Reports r where is_new(r)"),
    FunctionOf("twice", ("n",), "2 * n"),
)


@dataclass(frozen=True, slots=True)
class Refused:
    body: str
    reason: str
    remedy: str
    parameters: tuple[str, ...] = ("k",)
    continuous: bool = True
    declared: dict[str, Type] = field(default_factory=dict)


_PAIRS = "every interest against every record"
_EVERY_PAIR = (_PAIRS, "compare a parameter with a field by =")
REFUSED = [
    # What Spark would run as a cross product.
    Refused("select value k from Reports r", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where r.kind <> k", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where not (r.kind = k)", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where r.kind = k or r.severity > 5", _PAIRS, "every alternative of OR"),
    Refused("select value r.id from Reports r where contains(k, r.kind)", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where k = 'x'", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where length(r.kind || k) > 9", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where exists (select value u from Users u where u.kind = k)",
            *_EVERY_PAIR),
    Refused("select value r.id from Reports r where not exists (select value u from Users u where u.name = k)",
            *_EVERY_PAIR),
    Refused("select value r.id from Reports r where r.kind not in k", *_EVERY_PAIR),
    Refused("select value r.id from Reports r where r.extra > k", _PAIRS, "declare a type"),
    Refused("select value r.id from Reports r where r.extra > k", _PAIRS, "declare a type", declared={"k": t.DOUBLE}),
    Refused("select value r.id from Reports r where r.kind not like k", *_EVERY_PAIR),
    # What has no answer per interest, or not the one that was meant.
    Refused("select count(*) as n from Reports r where r.kind = k", "aggregate without GROUP BY", "GROUP BY k"),
    Refused("select value r.id from Reports r where r.kind = k having r.severity > 1", "HAVING needs", "WHERE"),
    Refused("select value row_number() over (order by r.id) from Reports r where r.kind = k", "window function",
            "ORDER BY and LIMIT"),
    Refused("select count(*) as n from Reports r where r.kind = k group by r.severity with rollup", "WITH ROLLUP",
            "ROLLUP("),
    Refused("select value r.id from Reports r where r.kind = k limit k", "LIMIT in a channel is a number", "LIMIT 10"),
    Refused("select value r.id from Reports r where r.kind = k limit 1 + 1", "LIMIT in a channel is a number",
            "LIMIT 10"),
    Refused("select value r.id from Reports r where r.kind = k limit 1 offset k", "OFFSET in a channel is a number",
            "LIMIT 10"),
    Refused("select distinct value r.kind from Reports r where r.kind = k order by r.id", "DISTINCT", "SELECT list"),
    Refused("select value r.id from Reports r where r.kind = k union select value r.id from Reports r", "UNION ALL",
            "two channels"),
    Refused("with recursive x as (select 1) select value r.id from Reports r where r.kind = k", "RECURSIVE",
            "with itself"),
    Refused("with x as (select value u.name from Users u order by u.name) "
            "select value x[0] from x r where r = k", "in FROM", "where its name stands"),
    Refused("select value r.id from Reports r left join Users u on u.name = k", "outer join", "WHERE"),
    Refused("select value u.name from Reports r, ofKind(k) x full join Users u on u.kind = r.kind", "FULL JOIN",
            "another order"),
    Refused("select value r.id from Reports r where exists (select value count(*) from Users u where u.name = k)",
            "sources and conditions", "in its FROM"),
    Refused("select r.kind, count(*) as n from Reports r where exists (select value u from Users u where u.name = k"
            " and u.kind = r.kind) group by r.kind", "EXISTS", "join"),
    Refused("select value r.id from Reports r, ofKind(k) x where x.severity = r.severity and exists ("
            "select value u from Users u where u.name = k and u.kind = r.kind)", "EXISTS", "join"),
    # What is watched.
    Refused("select value s.name from Shelters s where s.kind = k",
            "a continuous channel needs an active dataset, and Shelters is not", "REPETITIVE"),
    Refused("select value s.name from Shelters s where s.kind = k and is_new(s)",
            "is_new needs an active dataset, and Shelters is not", "ACTIVE", continuous=False),
    Refused("select value x.id from (select value r from Reports r) x where x.kind = k and is_new(x)",
            "ranges over a dataset", "where FROM names"),
    Refused("select value r.id from Reports r where r.kind = k and is_new(r.kind)", "ranges over a dataset", "FROM"),
    Refused("select value r.id from Reports r where r.kind = k and is_new(k)", "ranges over a dataset", "FROM"),
    Refused("select value r.id from Reports r where r.kind = k and is_new()", "ranges over a dataset", "FROM"),
    Refused("select value x.id from fresh() x where x.kind = k", "dataset to watch", "ACTIVE"),
    Refused("select value 1", "dataset to watch", "ACTIVE"),
    Refused("1 + k", "a channel's body is a query", "SELECT", continuous=False),
    Refused("select value r.id from Reports version as of 3 r where r.kind = k", "as they are", "AS OF"),
    Refused("select value r.id from Reports r where r.kind = k and current_channel_time(1, 2) > r.at", "one argument",
            "current_channel_time(v)"),
    # What is said of the parameters.
    Refused("select value r.id from Reports r where r.note = k and r.kind rlike k", "regular expression", "LIKE"),
    Refused("select value r.id from Reports r where r.note = k and regexp_extract(r.kind, k, 0) = 'x'",
            "regular expression", "LIKE"),
    Refused("select value r.id from Reports r where r.kind = k and r.severity = k", "string and as integer",
            "two parameters"),
    Refused("select value x.id from ofKind(k) x", "depends on a parameter", "USING", continuous=False),
    Refused("select value k", "depends on a parameter", "FROM", continuous=False),
]  # fmt: skip


@pytest.fixture
def adaptive(spark: SparkSession) -> Iterator[None]:
    """Spark may change a plan while it runs, as it does on clusters."""
    usual = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield
    spark.conf.set("spark.sql.adaptive.enabled", usual)


@pytest.mark.usefixtures("adaptive")
def test_a_plan_that_may_change_while_it_runs_is_reviewed_as_well(spark: SparkSession) -> None:
    test_a_shape_without_a_shared_query_is_refused_with_reason_and_remedy(
        spark, next(case for case in REFUSED if case.reason == _PAIRS)
    )


@pytest.mark.parametrize("case", REFUSED, ids=[case.body for case in REFUSED])
def test_a_shape_without_a_shared_query_is_refused_with_reason_and_remedy(spark: SparkSession, case: Refused) -> None:
    with pytest.raises((TranslationError, StatementError)) as refused:
        planned(spark, compiled(spark, case.parameters, case.body, continuous=case.continuous, functions=FUNCTIONS,
                                declared=case.declared))  # fmt: skip
    error = refused.value
    assert case.reason in error.message
    assert error.hint is not None
    assert case.remedy in error.hint


# ---------------------------------------------------------------- what is found out

_P = "select value r.id from Reports r where "
MATCHED: list[tuple[str, str, list[Type], str]] = [
    ("k", _P + "r.kind = k", [t.STRING], "equality"),
    ("k", _P + "k = r.severity", [t.INTEGER], "equality"),
    ("k", _P + "r.big = k and r.severity = k", [t.BIGINT], "equality"),
    ("k", _P + "r.level = k and r.severity >= k", [t.DOUBLE], "equality"),
    ("k", _P + "r.extra = k", [t.ANY], "equality"),
    ("a b", _P + "r.kind = a and r.severity = b", [t.STRING, t.INTEGER], "equality"),
    ("k", _P + "r.severity = twice(k)", [t.BIGINT], "equality"),
    ("k", _P + "r.big = k + 1", [t.BIGINT], "equality"),
    ("k", _P + "r.big = -k", [t.BIGINT], "equality"),
    ("k", _P + "abs(r.big) = abs(k)", [t.BIGINT], "equality"),
    ("k", _P + "r.level = k + 1", [t.DOUBLE], "equality"),
    ("k", _P + "r.big = 100 div k", [t.BIGINT], "equality"),
    ("k", _P + "r.level >= k", [t.DOUBLE], "buckets of a range"),
    ("k", _P + "r.at < k", [t.DATETIME], "buckets of a range"),
    ("a b", _P + "r.level between a and b", [t.DOUBLE, t.DOUBLE], "a grid of ranges"),
    ("k", _P + "r.low <= k and k < r.high", [t.DOUBLE], "a grid of ranges"),
    ("k", _P + "r.level between k - 0.5 and k + 0.5", [t.DOUBLE], "a grid of ranges"),
    ("a b", _P + "r.kind between a and b", [t.STRING, t.STRING], "buckets of a range"),
    ("a b", _P + "r.kind > upper(a) and r.kind < b", [t.STRING, t.STRING], "buckets of a range"),
    ("k", _P + "r.level >= double(k)", [t.STRING], "buckets of a computed range"),
    ("k", _P + "r.severity >= 2 * k", [t.BIGINT], "buckets of a computed range"),
    ("k", _P + "r.kind between lower(k) and upper(k)", [t.STRING], "buckets of a computed range"),
    ("k m", _P + "r.severity between k - m and k + m", [t.BIGINT, t.BIGINT], "a grid of ranges"),
    ("a b", _P + "uuid(r.kind) between a and b", [t.UUID, t.UUID], "buckets of a range"),
    ("a b", _P + "date(r.at) between a and b", [t.DATE, t.DATE], "a grid of ranges"),
    ("a b", _P + "time(r.at) between a and b", [t.TIME, t.TIME], "a grid of ranges"),
    ("k", _P + "r.lasts >= k", [t.DURATION], "buckets of a range"),
    ("a b", _P + "r.lasts between a and b", [t.DURATION, t.DURATION], "a grid of ranges"),
    ("k", _P + "r.kind in k", [ArrayType(t.STRING)], "the items of an array"),
    ("k", _P + "k in r.numbers", [t.INTEGER], "the items of an array"),
    ("a b", _P + "r.kind in (a, b, 'fire')", [t.STRING, t.STRING], "the items of an array"),
    ("k", _P + "k in [r.kind, r.note]", [t.STRING], "the items of an array"),
    ("k", _P + "array_contains(r.tags, k)", [t.STRING], "the items of an array"),
    ("k", _P + "some x in r.tags satisfies x = k", [t.STRING], "the items of an array"),
    ("k", _P + "exists (select value x from r.tags x where x = k)", [t.STRING], "the items of an array"),
    ("k", _P + "r.kind like k", [t.STRING], "parts of a text"),
    ("k", _P + "r.kind like concat('%', k, '%')", [t.STRING], "parts of a text"),
    ("k", _P + "contains(r.note, k)", [t.STRING], "parts of a text"),
    ("k", _P + "contains(lower(r.kind), lower(k))", [t.STRING], "parts of a text"),
    ("k", _P + "ends_with(r.kind, k)", [t.STRING], "parts of a text"),
    ("k", _P + "ftcontains(r.kind, k)", [t.STRING], "the words of a text"),
    ("k", _P + 'ftcontains(r.kind, k, {"mode": "any"})', [t.STRING], "the words of a text"),
    ("k", "select value r.id from Reports r", [t.ANY], "nothing: every interest gets every result"),
    ("k m", _P + "contains(r.kind, k) or r.severity = m", [t.STRING, t.INTEGER], "any of: parts of a text, equality"),
    ("k", _P + "starts_with(r.kind, k)", [t.STRING], "the beginning of a text"),
    ("x y", _P + "spatial_intersect(r.zone, create_point(x, y))", [t.DOUBLE, t.DOUBLE], "a grid in the plane"),
    ("x y d", _P + "spatial_distance(r.place, create_point(x, y)) <= d", [t.DOUBLE] * 3, "a grid in the plane"),
    ("x y", _P + "geo_intersect(r.zone, create_point(x, y))", [t.DOUBLE, t.DOUBLE], "a grid on the globe"),
    ("k n", _P + "r.kind = k or r.severity >= n", [t.STRING, t.INTEGER], "any of: equality, buckets of a range"),
    (
        "k n",
        _P + "(r.severity > 0 and (r.kind = k or r.note = k)) or r.severity = n",
        [t.STRING, t.INTEGER],
        "any of: equality, equality, equality",
    ),
    ("k", "select value r.id from Reports r join Users u on u.kind = r.kind and u.name = k", [t.STRING], "equality"),
    ("k", _P + "k in (select value u.name from Users u where u.kind = r.kind)", [t.STRING], "equality"),
]


@pytest.mark.parametrize(("parameters", "body", "types", "how"), MATCHED, ids=[case[1] for case in MATCHED])
def test_types_of_parameters_and_the_way_they_are_matched_are_found_in_the_body(
    spark: SparkSession, parameters: str, body: str, types: list[Type], how: str
) -> None:
    query = compiled(spark, parameters.split(), body, functions=FUNCTIONS)
    planned(spark, query)
    assert list(query.parameters) == types
    assert how in query.matched_by


def test_a_body_is_the_same_query_each_time_and_no_quantifier_hides_anothers_variable(spark: SparkSession) -> None:
    body = _P + "r.kind = k and (some x in r.tags satisfies (every y in r.tags satisfies y = x or y = k))"
    first, again = (compiled(spark, ["k"], body) for _ in range(2))
    assert first.sql == again.sql
    planned(spark, first)
    outer, inner = re.search(r"EXISTS\(.*?, (\w+) ->.*?FORALL\(.*?, (\w+) ->", first.sql, re.IGNORECASE).groups()
    assert outer != inner


def test_a_declared_type_is_kept(spark: SparkSession) -> None:
    query = compiled(spark, ["k"], _P + "r.severity = k", declared={"k": t.DOUBLE})
    assert query.parameters == (t.DOUBLE,)


WATCHED: list[tuple[str, bool, list[str], bool, bool]] = [
    (_P + "r.kind = k", True, ["Reports"], True, False),
    (_P + "r.kind = k", False, [], False, False),
    (_P + "r.kind = k and is_new(r)", False, ["Reports"], True, False),
    (_P + "r.kind = k and (is_new(r) or r.severity > 3)", False, ["Reports"], False, False),
    (_P + "r.kind = k and r.at > current_datetime()", True, ["Reports"], True, True),
    (_P + "r.kind = k and r.at > previous_channel_time()", False, [], False, True),
    ("select r.id, is_new(r) as fresh from Reports r where r.kind = k", False, ["Reports"], False, False),
    ("select value x.id from (select value r from Reports r) x where x.kind = k", True, ["Reports"], True, False),
    ("select value u.name from Users u, Reports r where r.kind = k and u.kind = r.kind and (is_new(r) or is_new(u))",
     False, ["Reports", "Users"], True, False),
    (_P + "r.kind = k and is_new(r) union all select value u.name from Users u where u.name = k", False, ["Reports"],
     False, False),
    ("select value x.id from fresh() x where x.kind = k", False, ["Reports"], False, False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "continuous", "watched", "needs_new", "depends_on_time"), WATCHED)
def test_what_a_channel_watches_and_whether_it_has_an_answer_without_news(
    spark: SparkSession, body: str, continuous: bool, watched: list[str], needs_new: bool, depends_on_time: bool
) -> None:
    query = compiled(spark, ["k"], body, continuous=continuous, functions=FUNCTIONS)
    assert sorted(dataset.dataset.name for dataset in query.watched) == watched
    assert query.needs_new is needs_new
    assert query.depends_on_time is depends_on_time


def test_only_new_rows_are_read_of_a_dataset_that_must_be_new(spark: SparkSession) -> None:
    body = "select value u.name from Users u, Reports r where r.kind = k and u.kind = r.kind and is_new(r)"
    query = compiled(spark, ["k"], body, continuous=False)
    assert {item.dataset.name: item.new for item in query.scans} == {"Users": False, "Reports": True}


# ---------------------------------------------------------------- parts of the new records

PARTED: list[tuple[str, list[str], bool]] = [
    ("select value r.id from Reports r where r.kind = k", ["Reports"], True),
    ("select r.id, k from Reports r where r.kind = k", ["Reports"], False),
    ("select value [r.id, u.name] from Reports r, Users u where r.kind = k and u.name = r.note and is_new(r)",
     ["Reports"], True),
    (("select value [r.id, u.name] from Reports r, Users u "
     "where r.kind = k and u.name = r.note and (is_new(r) or is_new(u))"), ["Reports", "Users"], True),
    (("select value [r.id, u.name] from Reports r, Users u "
     "where r.kind = k and u.name = r.note and is_new(r) and is_new(u)"), ["Reports"], True),
    (("select value [r.id, u.name] from Reports r left join Users u on u.name = r.note "
     "where r.kind = k and is_new(r)"), ["Reports"], True),
    ("select value r.id from (select value q from Reports q where q.severity > 1 and is_new(q)) r where r.kind = k",
     ["Reports"], True),
    (("select value r.id from Reports r where r.kind = k and is_new(r) "
     "union all select value u.name from Users u where u.name = k and is_new(u)"), ["Reports", "Users"], True),
    (("select value r.id from Reports r where r.kind = k and is_new(r) "
     "union all select value [u.name, k] from Users u where u.name = k and is_new(u)"), ["Reports", "Users"], True),
    ("select value r.id from Reports r where exists (select value t from r.tags t where t = k)", ["Reports"], True),
    # What needs all records at once.
    ("select k, count(*) as n from Reports r where r.kind = k group by k", [], False),
    ("select distinct value r.severity from Reports r where r.kind = k", [], False),
    ("select value r.id from Reports r where r.kind = k order by r.id", [], True),
    ("select value r.id from Reports r where r.kind = k limit 2", [], True),
    (("select value r.id from Reports r, (select q.kind as kind, count(*) as n from Reports q where is_new(q) "
     "group by q.kind) c where r.kind = k and c.kind = r.kind and is_new(r)"), [], True),
    # What is told also without new records would be told with every part.
    (("select value r.id from Reports r where r.kind = k and is_new(r) "
     "union all select value s.name from Shelters s where s.kind = k"), [], True),
    (("select value [a.id, b.id] from Reports a, Reports b "
     "where a.kind = k and b.kind = a.kind and is_new(a) and is_new(b)"), [], True),
]  # fmt: skip


@pytest.mark.parametrize(("body", "datasets", "numbered"), PARTED, ids=[case[0] for case in PARTED])
def test_new_records_may_be_parted_where_the_answers_make_up_the_whole(
    spark: SparkSession, body: str, datasets: list[str], numbered: bool
) -> None:
    query = compiled(spark, ["k"], body)
    assert [part.name for part in query.parted_by] == datasets
    assert query.is_numbered is numbered
    users = [Version({"name": item, "place": None}, commit) for item, commit in (("fire", 2), ("x", 2), ("y", 1))]
    reports = [Version({**row.record, "note": "xyxyx"[i]}, row.commit) for i, row in enumerate(ROWS)]
    rows = {REPORTS.name: reports, "Users": users}

    def told(
        rows: dict[str, list[Version]], old: dict[str, list[Version]], *, in_one_task: bool = True
    ) -> Counter[str]:
        with shown(spark, FakeDatasets(old)) as world, shown(spark, FakeDatasets(rows)) as new:
            world.tokens.update({key: view for key, view in new.tokens.items() if key[1]})
            (found,) = answers(spark, query, world, [("fire",)], in_one_task=in_one_task)
            return Counter(found)

    whole = told(rows, rows)
    assert whole
    assert told(rows, rows, in_one_task=False) == whole
    if datasets:
        nothing: dict[str, list[Version]] = {key: [] for key in datasets}
        halves = [(dataset, half) for dataset in datasets for half in (rows[dataset][:2], rows[dataset][2:])]
        parts = [{**rows, **nothing, part: half} for part, half in halves]
        assert sum((told(part, rows) for part in parts), Counter()) == whole


_LONG = 10_000  # characters of a note
SAME_FOR_ALL = "select value r.note from Reports r where r.kind = k and r.severity >= least"
OWN = "select value [r.note, least] from Reports r where r.kind = k and r.severity >= least"
SINGLE: list[tuple[str, bool, int]] = [
    (SAME_FOR_ALL, True, 3),
    (SAME_FOR_ALL, False, 3),
    (f"{SAME_FOR_ALL} order by r.id desc", True, 3),
    (f"{SAME_FOR_ALL} union all {SAME_FOR_ALL}", True, 6),
    # What depends on the interest goes with each match.
    (f"{OWN} and r.id = 1 union all {SAME_FOR_ALL} and r.id = 2", True, 50 + 1),
    (f"{OWN} and r.id = 1 union all {SAME_FOR_ALL} and r.id = 2", False, 50 + 1),
    (f"{OWN} and r.id = 1", True, 50),
]


@pytest.mark.parametrize("in_one_task", [True, False], ids=["in one task", "in several"])
@pytest.mark.parametrize("many", [False, True], ids=["few records", "many"])
@pytest.mark.parametrize(("body", "continuous", "payloads"), SINGLE)
def test_a_result_that_does_not_depend_on_the_interest_leaves_spark_once(
    spark: SparkSession, body: str, continuous: bool, payloads: int, many: bool, in_one_task: bool
) -> None:
    query = compiled(spark, ["k", "least"], body, continuous=continuous)
    interests = InterestTable(spark, query)
    interests.change(enumerate([("fire", -number) for number in range(50)]), [])
    since = {dataset.since: 1 for dataset in query.watched}
    moment = run_query.ExecutionMoment(NOW, PREVIOUS, since, many, in_one_task)
    rows = [Version({**row.record, "note": f"{i}" * _LONG}, row.commit) for i, row in enumerate(ROWS)]
    try:
        with shown(spark, FakeDatasets({REPORTS.name: rows})) as world:

            def view_of(read: Scan | CalledFunction) -> str:
                assert isinstance(read, Scan)
                return world.tokens[read.dataset.name, read.new]

            table = run_query.query_matches(spark, query, interests, view_of, moment)
    finally:
        interests.close()
    matches = read_matches(table)
    assert len(matches.results) == payloads
    assert set(matches.payloads.tolist()) == set(range(payloads))
    assert set(matches.interests.tolist()) == set(range(50))
    assert table.nbytes < (payloads + 1) * _LONG, "there is no room for a payload more"


# ---------------------------------------------------------------- what Spark would get wrong


def _report(identity: int, kind: str, severity: int, **more: Any) -> Version:
    place = Point(float(identity), 0.0)
    record = {
        "id": identity, "kind": kind, "severity": severity, "big": identity, "level": float(severity), "tags": [kind],
        "numbers": [severity], "zone": Circle(place, 1.0), "low": 0.0, "high": 1.0, "at": NOW,
        "area": Polygon((place, Point(place.x + 1, 0.0), Point(place.x, 1.0))),
    }  # fmt: skip
    return Version({**record, **more}, 2, NOW)


ROWS = [
    _report(1, "fire", 5),
    _report(2, "fire", 3),
    _report(3, "flood", 9),
    _report(4, "fire", 5),
    _report(5, "ice", 1),
]
_TIMES = "[active_timestamp(r), previous_channel_time(), current_channel_time()]"
TRAPS: list[tuple[str, str, list[Any]]] = [
    ("kind", "select value r.id from Reports r where r.kind = kind order by r.id", [1, 2, 4]),
    ("k", "select value r.id from Reports r where r.kind = k order by r.severity, r.id limit 2", [2, 1]),
    ("k", "select value r.id from Reports r where r.kind = k order by r.id desc limit 1 offset 1", [2]),
    ("k", "select value r.id from Reports r where r.kind = k order by r.id limit 0", []),
    ("k", "select k, r.severity, count(*) as n from Reports r where r.kind = k group by k, r.severity order by n",
     [{"k": "fire", "severity": 3, "n": 1}, {"k": "fire", "severity": 5, "n": 2}]),
    ("k", "select k as mine, r.id from Reports r where r.kind = k order by r.id limit 1", [{"mine": "fire", "id": 1}]),
    ("k", "select value r.id from Reports r where exists (select value t from r.tags t where t = k) order by r.id",
     [1, 2, 4]),
    ("k", "select value r.id from Reports r where array_contains(r.tags, k) order by r.id", [1, 2, 4]),
    ("k", "select distinct value r.severity from Reports r where r.kind = k order by r.severity", [3, 5]),
    ("k", "select value [is_new(r), k] from Reports r where r.kind = k limit 1", [[True, "fire"]]),
    ("k", f"select value {_TIMES} from Reports r where r.kind = k", [[NOW, PREVIOUS, NOW]] * 3),
    ("k", "select active_timestamp(r) as t, k from Reports r where r.kind = k and r.severity = 3",
     [{"t": NOW, "k": "fire"}]),
    ("interest_id", "select value r.id from Reports r where r.kind = interest_id and r.severity = 3", [2]),
    ("id", "select value {'id': id, 'it': r.id} from Reports r where r.kind = id and r.severity = 3",
     [{"id": "fire", "it": 2}]),
    ("Users", "select value r.id from Reports r where r.kind = Users and r.severity = 3", [2]),
]  # fmt: skip


@pytest.mark.parametrize(("parameter", "body", "told"), TRAPS, ids=[case[1] for case in TRAPS])
def test_what_spark_would_get_wrong_is_right(spark: SparkSession, parameter: str, body: str, told: list[Any]) -> None:
    query = compiled(spark, [parameter], body)
    planned(spark, query)
    with shown(spark, FakeDatasets({REPORTS.name: ROWS})) as world:
        (found,) = answers(spark, query, world, [("fire",)])
    assert found == [text(item) for item in told]


_WORDS = (
    "tocsin_channel_scan_0", "TOCSIN_CHANNEL_INTERESTS", "tocsin_channel_call_0", ":now", ":previous", ":since0",
    ":levels0 :quantiles0", "/*+ BROADCAST(`record_1`) */ ", "`k0`", "${spark.app.name}",
)  # fmt: skip


@pytest.mark.parametrize("many", [False, True])
def test_no_word_of_a_body_is_taken_for_one_of_the_querys_own(spark: SparkSession, many: bool) -> None:
    """Names of views, of functions, of arguments and hints, in texts and as names of fields."""
    fields = ", ".join(f"r.severity as `{word.replace('`', '``')}`" for word in _WORDS)
    body = f"select {list(_WORDS)} as words, {fields} from Reports r where r.kind = k and r.severity = 3"
    first = compiled(spark, ["k"], body)
    planned(spark, first)
    # And as this very query calls them.
    again = body.replace(_WORDS[0], first.scans[0].view).replace(_WORDS[1], first.interests_view)
    for query, words in (
        (first, list(_WORDS)),
        (compiled(spark, ["k"], again), [first.scans[0].view, first.interests_view, *_WORDS[2:]]),
    ):
        with shown(spark, FakeDatasets({REPORTS.name: ROWS})) as world:
            (found,) = answers(spark, query, world, [("fire",)], many=many)
        assert found == [text({"words": words} | dict.fromkeys(words, 3))]


def test_a_pattern_that_means_nothing_spoils_no_other(spark: SparkSession) -> None:
    query = compiled(spark, ["p"], "select value r.id from Reports r where r.kind like p")
    with shown(spark, FakeDatasets({REPORTS.name: ROWS})) as world:
        found = answers(spark, query, world, [("fi\\x%",), ("fl%",), ("\\",)])
    assert found == [[], ["3"], []]


GREATEST = 2**63 - 1
POISON: list[tuple[str, str, list[Any], list[list[str]]]] = [
    ("x r", "spatial_intersect(r.zone, create_circle(create_point(x, 0.0), r2))", [(1.0, -5.0), (3.0, 0.5)],
     [[], ["2", "3", "4"]]),
    ("n", "r.severity / n = 3", [(0,), (3,)], [[], ["3"]]),
    ("n", "r.severity = 10 % n", [(0,), (7,)], [[], ["2"]]),
    ("k", "r.severity = CAST(k AS INT) and length(k) < 5", [("x",), ("9",)], [[], ["3"]]),
    ("k", "spatial_intersect(r.zone, point(k))", [("nowhere",), ("5.5,0",)], [[], ["5"]]),
    ("n", "r.severity between n - 1 and n + 1", [(GREATEST,), (3,)], [[], ["2"]]),
    ("n", "r.severity <= n * 2", [(GREATEST,), (2,)], [[], ["2", "5"]]),
    ("n", "r.severity <= abs(n) and r.severity >= -n", [(-GREATEST - 1,), (3,)], [[], ["2", "5"]]),
    ("k", "r.severity >= double(k)", [("x",), ("8.5",)], [[], ["3"]]),
    ("k", "(r.kind = k or r.severity <= bigint(k))", [("flood",), ("1",)], [["3"], ["5"]]),
    ("k", "spatial_distance(get_center(r.zone), create_point(double(k), 0.0)) <= double(k)", [("x",), ("0.5",)],
     [[], ["1"]]),
    ("k", "r.at >= datetime(k)", [("2026-02-31T00:00:00Z",), ("1999-01-01T00:00:00Z",)],
     [[], ["1", "2", "3", "4", "5"]]),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "condition", "values", "told"), POISON, ids=[case[1] for case in POISON])
def test_a_value_that_cannot_be_computed_with_spoils_no_other_interest(
    spark: SparkSession, parameters: str, condition: str, values: list[Any], told: list[list[str]]
) -> None:
    names = ["x", "r2"] if parameters == "x r" else [parameters]
    query = compiled(spark, names, f"select value r.id from Reports r where {condition}")
    with shown(spark, FakeDatasets({REPORTS.name: ROWS})) as world:
        assert [sorted(answer) for answer in answers(spark, query, world, values)] == told


def test_an_interest_whose_bound_fails_in_spark_is_told_from_the_others(spark: SparkSession) -> None:
    query = compiled(spark, ["k"], "select value r.id from Reports r where r.severity >= to_number(k, '999')")
    interests = InterestTable(spark, query)
    interests.change(enumerate([("x",), ("9",)]), [])
    try:
        with shown(spark, FakeDatasets({REPORTS.name: ROWS})) as world:
            assert executed(spark, query, world, interests, Ids(without=(0,))) == {(1, "3"): 1}
            with pytest.raises(Exception, match="INVALID_FORMAT"):
                executed(spark, query, world, interests, Ids(without=(1,)))
    finally:
        interests.close()


def test_the_rows_of_cached_interests_are_no_part_of_the_plans_that_read_them(spark: SparkSession) -> None:
    query = compiled(spark, ["k"], "select value r.id from Reports r where r.kind = k")
    interests = InterestTable(spark, query, InterestLimits(cached_from=2))
    interests.change(enumerate([("flood",), ("fire",), ("storm",)]), [])
    try:
        read: Any = spark.table(interests.prepared())
        assert "LocalRelation" not in read._jdf.queryExecution().analyzed().toString()
        few: Any = spark.createDataFrame(pa.table({"one": [1]}))
        assert "LocalRelation" in few._jdf.queryExecution().analyzed().toString(), "others are as they were"
    finally:
        interests.close()


# ---------------------------------------------------------------- elsewhere


def test_is_new_is_refused_elsewhere(spark: SparkSession) -> None:
    class Scans:
        def scan(self, *_: object) -> str:
            return "reports"

        def call_name(self, *_: object) -> str:
            raise AssertionError

    hooks = QueryHooks(Scans(), datetime.now().astimezone())
    translator = Translator(Names(), SparkTypeAnalyser(spark), hooks, "d")
    with pytest.raises(TranslationError, match="in a channel only"):
        translator.translate(parse_body("select value is_new(r) from Reports r"))


_SHELTERED = (
    "select r.id, near from Reports r let near = (select value s.name from Shelters s"
    " where geo_intersect(r.zone, s.place) order by s.name limit 3) where r.kind = k"
)
_BOXED = (
    "select value r.id from Reports r where r.kind = k and"
    " not exists (select value g from Globe g where spatial_intersect(g.box, r.area))"
)


@pytest.mark.parametrize("body", [_SHELTERED, _BOXED])
def test_no_plan_tests_each_record_against_each_row_of_a_subquery_with_shapes(spark: SparkSession, body: str) -> None:
    plan = planned(spark, compiled(spark, ["k"], body))
    assert "NestedLoop" not in plan
    assert "CartesianProduct" not in plan


_EITHER = (
    "spatial_intersect(r.zone, u.place) or spatial_intersect(u.place, r.place)",
    "spatial_intersect(r.zone, u.place) or r.kind = u.name",
    "spatial_intersect(r.zone, u.place) or spatial_distance(r.place, u.place) < 1.0",
    "r.kind = u.name or r.note = u.name",
    "r.severity < 3 and geo_intersect(r.zone, u.place) or (geo_distance(u.place, r.place) <= 9 or u.name = r.kind)",
)


@pytest.mark.parametrize("either", _EITHER)
@pytest.mark.parametrize(
    "body",
    [
        "select value [r.id, u.name] from Reports r, Users u where is_new(r) and u.name = k and ({})",
        "select r.id, near from Reports r let near = (select value u.name from Users u where {}) where r.kind = k",
        "select value r.id from Reports r where r.kind = k and exists (select value u from Users u where {})",
    ],
)
def test_no_plan_tests_each_pair_of_records_that_may_meet_in_several_ways(
    spark: SparkSession, body: str, either: str
) -> None:
    plan = planned(spark, compiled(spark, ["k"], body.format(either)))
    assert "NestedLoop" not in plan
    assert "CartesianProduct" not in plan


@pytest.mark.parametrize(
    "either",
    [
        "spatial_intersect(r.zone, u.place) or r.kind < u.name",
        "spatial_intersect(r.zone, u.place) or r.severity = 3",
        "r.kind = u.name or exists (select value s from Shelters s where s.name = u.name and s.kind = r.kind)",
    ],
)
def test_alternatives_without_keys_between_two_records_are_left_to_spark(spark: SparkSession, either: str) -> None:
    body = f"select value [r.id, u.name] from Reports r, Users u where is_new(r) and r.kind = k and ({either})"
    query = compiled(spark, ["k"], body)
    assert not query.levels
    assert "explode" not in query.sql.lower()


def test_alternatives_for_records_that_may_have_no_partner_are_left_to_spark(spark: SparkSession) -> None:
    body = (
        "select value r.id from Users u right join Reports r on u.name = r.note"
        " where r.kind = k and (spatial_intersect(r.zone, u.place) or coalesce(u.name, 'fire') = r.kind)"
    )
    assert "explode" not in compiled(spark, ["k"], body).sql.lower()
