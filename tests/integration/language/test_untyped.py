# ruff: noqa: E501 (a query reads best in one line)
"""Undeclared values of every type behave as declared ones do, and NULL and MISSING stay apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.in_process_cluster import LocalCluster
from tocsin.wire.errors import StatementError

_DATA = """
CREATE TYPE WT AS OPEN {id: int};
CREATE DATASET W(WT) PRIMARY KEY id;
INSERT INTO W [
  {"id": 1, "k": "a", "n": 3, "s": "12", "tm": time("10:00:00"), "dt": datetime("2020-01-02T03:04:05Z"),
   "da": date("2020-02-28"), "du": duration("PT2H"), "p": point("1,2"), "big": 9007199254740993,
   "u2": uuid("00000000-0000-0000-0000-000000000001"), "arr": [3, 1, 2, 3], "nest": [[1, 2], [3]]},
  {"id": 2, "k": "b", "n": 2.5, "tm": time("09:00:00"), "dt": datetime("2021-01-02T03:04:05Z"), "big": 9007199254740992,
   "da": date("2019-02-28"), "du": duration("P1M"), "u2": uuid("00000000-0000-0000-0000-000000000002")},
  {"id": 3, "n": 10}];
CREATE TYPE AT AS CLOSED {id: int, o: {x: int, y: string?}?, a: [int]?};
CREATE DATASET A(AT) PRIMARY KEY id;
INSERT INTO A [{"id": 1}, {"id": 2, "o": null, "a": null}, {"id": 3, "o": {"x": 5}, "a": [7]},
               {"id": 4, "o": {"x": 6, "y": null}}];
CREATE FUNCTION f7(a, b) { a + b };
"""


@pytest.fixture(scope="module")
def world(cluster: LocalCluster) -> Iterator[str]:
    name = f"untyped{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}; USE {name}; {_DATA}")
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


_DAY_1, _DAY_2 = "2020-01-02T03:04:05Z", "2021-01-02T03:04:05Z"
_ID_1, _ID_2 = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"

ANSWERS: list[tuple[str, list[Any]]] = [
    # least and greatest
    ("SELECT max(w.dt) AS m FROM W w", [{"m": _DAY_2}]),
    ("SELECT VALUE [min(w.dt), max(w.da), min(w.tm), max(w.du), max(w.u2), min(w.k), max(w.n), max(w.p)] FROM W w",
     [[_DAY_1, "2020-02-28", "09:00:00", "P1M", _ID_2, "a", 10, None]]),
    ("SELECT VALUE [min(w.big), max(w.big)] FROM W w", [[9007199254740992, 9007199254740993]]),
    ("SELECT VALUE m FROM (SELECT max(w.dt) OVER () AS m FROM W w) x LET m = x.m", [_DAY_2] * 3),
    ("SELECT w.id AS i, lag(w.dt) OVER (ORDER BY w.n) AS l FROM W w WHERE w.id < 3 ORDER BY i", [{"i": 1, "l": _DAY_2}, {"i": 2}]),
    ("SELECT w.id AS i, count(w.dt) OVER (PARTITION BY w.k) AS c, sum(w.n) OVER () AS s FROM W w ORDER BY i",
     [{"i": 1, "c": 1, "s": 15.5}, {"i": 2, "c": 1, "s": 15.5}, {"i": 3, "c": 0, "s": 15.5}]),
    # order
    *((f"SELECT VALUE w.id FROM W w ORDER BY w.{name}", order) for name, order in {
        "dt": [3, 1, 2], "da": [3, 2, 1], "tm": [3, 2, 1], "du": [3, 1, 2], "u2": [3, 1, 2], "big": [3, 2, 1],
        "n": [2, 1, 3]}.items()),
    ("SELECT VALUE [v.id, w.id] FROM W v, W w WHERE v.dt < w.dt OR v.tm > w.tm", [[1, 2]]),
    ("SELECT VALUE v.dt < v.n FROM W v WHERE v.id = 1", [None]),
    # text
    ("SELECT VALUE concat(w.k, string(w.u2)) FROM W w WHERE w.id = 1", [f"a{_ID_1}"]),
    ("SELECT VALUE concat_ws(' ', w.dt, w.da, w.tm, w.du) FROM W w WHERE w.id = 1", [f"{_DAY_1} 2020-02-28 10:00:00 PT2H"]),
    ("SELECT VALUE [concat(w.k, w.u2), w.k || w.n, upper(w.n), contains(w.big, '9'), w.n LIKE '3', length(w.dt)] FROM W w WHERE w.id = 1",
     [[None] * 6]),
    ("SELECT VALUE [CAST(w.u2 AS STRING), CAST(w.n AS INT), CAST(w.dt AS DATE)] FROM W w WHERE w.id = 1", [[_ID_1, 3, "2020-01-02"]]),
    # arithmetic
    ('SELECT VALUE w.tm + duration("PT1H") FROM W w WHERE w.id < 3 ORDER BY w.id', ["11:00:00", "10:00:00"]),
    ('SELECT VALUE w.da + duration("P1D") FROM W w WHERE w.id < 3 ORDER BY w.id', ["2020-02-29", "2019-03-01"]),
    ('SELECT VALUE w.du + duration("PT1H") FROM W w WHERE w.id < 3 ORDER BY w.id', ["PT3H", "P1MT1H"]),
    ("SELECT VALUE w.dt + w.du FROM W w WHERE w.id < 3 ORDER BY w.id", ["2020-01-02T05:04:05Z", "2021-02-02T03:04:05Z"]),
    ("SELECT VALUE w.dt - w.dt FROM W w WHERE w.id < 3 ORDER BY w.id", ["PT0S", "PT0S"]),
    ("SELECT VALUE [w.du * 2, 3 * w.du, -w.du] FROM W w WHERE w.id = 1", [["PT4H", "PT6H", "-PT2H"]]),
    ('SELECT VALUE datetime("2021-01-01T00:00:00Z") - w.dt FROM W w WHERE w.id = 2', ["-P1DT3H4M5S"]),
    ('SELECT VALUE w.dt - datetime("2019-01-01T00:00:00Z") FROM W w WHERE w.id = 1', ["P366DT3H4M5S"]),
    ("SELECT VALUE [w.n * 2, w.n - w.n - w.n - w.n + w.n, w.n / 2, w.n + 1] FROM W w ORDER BY w.id",
     [[6, -3, 1.5, 4], [5.0, -2.5, 1.25, 3.5], [20, -10, 5.0, 11]]),
    ("SELECT VALUE [w.s + 1, w.k * 2, w.dt + 1] FROM W w WHERE w.id = 1", [[None, None, None]]),
    ("SELECT VALUE [year(w.dt), month(w.da), hour(w.dt), EXTRACT(YEAR FROM w.da)] FROM W w WHERE w.id = 1", [[2020, 2, 3, 2020]]),
    ('SELECT VALUE [datetime("2020-01-01T00:00:00Z") + INTERVAL 1 DAY, INTERVAL 2 HOUR + datetime("2020-01-01T00:00:00Z")]',
     [["2020-01-02T00:00:00Z", "2020-01-01T02:00:00Z"]]),
    ('SELECT VALUE [date("2024-01-01") + duration("PT1H"), date("2024-01-01") - duration("PT1H")]', [["2024-01-01", "2023-12-31"]]),
    # arrays
    ("SELECT VALUE [array_contains(w.arr, 3), array_contains(w.arr, 4), array_position(w.arr, 1), array_max(w.arr), array_min(w.arr)] FROM W w WHERE w.id = 1",
     [[True, False, 1, 3, 1]]),
    ("SELECT VALUE [sort_array(w.arr), sort_array(w.arr, false), array_distinct(w.arr), flatten(w.nest)] FROM W w WHERE w.id = 1",
     [[[1, 2, 3, 3], [3, 3, 2, 1], [3, 1, 2], [1, 2, 3]]]),
    ("SELECT VALUE [array_remove(w.arr, 3), array_union(w.arr, [9]), array_intersect(w.arr, [1]), array_except(w.arr, [3]), array_append(w.arr, 'x')] FROM W w WHERE w.id = 1",
     [[[1, 2], [3, 1, 2, 9], [1], [1, 2], [3, 1, 2, 3, "x"]]]),
    ("SELECT VALUE [array_join(w.arr, '-'), arrays_overlap(w.arr, [1])] FROM W w WHERE w.id = 1", [["3-1-2-3", True]]),
    ("SELECT VALUE array_sort([3, 1, 2], (l, r) -> r - l)", [[3, 2, 1]]),
    ("SELECT VALUE [{{1, 2}} = {{2, 1}}, {{1, 2}} = {{2, 2}}, {{1, 2}} <> {{2, 1}}, {{1, 'a'}} = {{'a', 1}}]", [[True, False, False, True]]),
    # windows and groups
    ("SELECT d.id, rank() OVER (ORDER BY d.id DESC) AS r FROM W d ORDER BY r", [{"id": 3, "r": 1}, {"id": 2, "r": 2}, {"id": 1, "r": 3}]),
    ("SELECT w.id, rank() OVER (ORDER BY sum(w.id) DESC) AS r FROM W w GROUP BY w.id ORDER BY r DESC",
     [{"id": 1, "r": 3}, {"id": 2, "r": 2}, {"id": 3, "r": 1}]),
    ("SELECT d.id, grouping_id() AS g, count(*) AS n FROM W d GROUP BY ROLLUP(d.id) ORDER BY g DESC, id LIMIT 2",
     [{"id": None, "g": 1, "n": 3}, {"id": 1, "g": 0, "n": 1}]),
    ("SELECT d.k, grouping_id() AS g, count(*) AS n FROM W d WHERE d.k IS VALUED GROUP BY CUBE(d.k) ORDER BY g DESC, k",
     [{"k": None, "g": 1, "n": 2}, {"k": "a", "g": 0, "n": 1}, {"k": "b", "g": 0, "n": 1}]),
    ("SELECT VALUE percentile_cont(0.5) WITHIN GROUP (ORDER BY w.n) FROM W w", [3.0]),
    ("SELECT VALUE [sum(w.n * 2 - w.n - w.n), max(w.n) - min(w.n) + 1, max(w.dt) - min(w.dt)] FROM W w", [[0.0, 8.5, "P366D"]]),
    # NULL and MISSING below optional objects and arrays
    ("SELECT VALUE [a.o.x IS MISSING, a.o.x IS NULL, a.o.y IS MISSING, a.o.y IS NULL] FROM A a ORDER BY a.id",
     [[True, False, True, False], [False, True, False, True], [False, False, True, False], [False, False, False, True]]),
    ("SELECT VALUE [a.a[0] IS MISSING, a.a[0] IS NULL] FROM A a ORDER BY a.id", [[True, False], [False, True], [False, False], [True, False]]),
    ('SELECT VALUE {"v": a.o.x, "w": a.a[0], "u": a.a[4]} FROM A a ORDER BY a.id',
     [{}, {"v": None, "w": None, "u": None}, {"v": 5, "w": 7}, {"v": 6}]),
    ("SELECT VALUE a.id FROM A a WHERE a.o.x + 1 = 6", [3]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), ANSWERS, ids=[query for query, _ in ANSWERS])
def test_the_query_answers_as_if_the_fields_were_declared(
    cluster: LocalCluster, world: str, query: str, expected: list[Any]
) -> None:
    assert cluster.rows(f"USE {world}; {query}") == expected


REFUSALS: list[tuple[str, str, str]] = [
    ("SELECT VALUE @x", "@", "a statement has no parameters"),
    ("SELECT VALUE $1", "$", "a statement has no parameters"),
    ("SELECT VALUE :x", ":", "expected an expression"),
    ("SELECT VALUE f7(1)", "f7", "with 1 parameter"),
    ("SELECT VALUE x FROM f7(1) x", "f7", "f7 takes 2"),
    ("SELECT w.id, r FROM W w LEFT JOIN [1, 2] r ON r = w.id", "1, 2", "UNNEST"),
    ("CREATE FUNCTION f(a, a) { 1 }", "a) {", "a is there twice"),
    ("CREATE FUNCTION count(a) { 1 }", "count", "count is a function of the language"),
    ("CREATE FUNCTION Spatial_Distance(a, b) { 1 }", "Spatial", "is a function of the language"),
    ("SELECT VALUE 1e400", "1e400", "too large"),
]


@pytest.mark.parametrize(("query", "place", "said"), REFUSALS, ids=[query for query, _, _ in REFUSALS])
def test_what_cannot_be_is_refused_at_its_place(
    cluster: LocalCluster, world: str, query: str, place: str, said: str
) -> None:
    script = f"USE {world};\n{query}"
    with pytest.raises(StatementError, match=said) as caught:
        cluster.run(script)
    assert (caught.value.line, caught.value.column) == (2, query.index(place) + 1)


@pytest.mark.parametrize(
    "failing",
    [
        "CASE WHEN w.id = 1 THEN raise_error('boom') ELSE 1 END",
        "CASE WHEN w.id = 1 THEN raise_error('boom') ELSE 'a' END",
        "CASE WHEN w.id = 1 THEN raise_error('boom') ELSE w.n END",
        "CASE WHEN w.id = 1 THEN raise_error('boom') ELSE {'a': 1} END",
        "CASE WHEN w.id = 1 THEN raise_error('boom') ELSE [1, 2] END",
        "if(w.id = 1, raise_error('boom'), 1)",
        "coalesce(raise_error('boom'), 1)",
        "[1, raise_error('boom')]",
        "w.n = raise_error('boom')",
        "w.id = raise_error('boom')",
        "true AND raise_error('boom')",
        "spatial_distance(raise_error('boom'), create_point(1.0, 2.0))",
        "{'id': w.id, 'x': CASE WHEN w.id = 1 THEN raise_error('boom') ELSE 1 END}",
    ],
)
def test_what_raises_an_error_is_never_taken_for_null(cluster: LocalCluster, world: str, failing: str) -> None:
    with pytest.raises(StatementError, match="boom"):
        cluster.rows(f"USE {world}; SELECT VALUE {failing} FROM W w WHERE w.id = 1")


def test_a_dataset_called_dataset_can_be_named_after_into(cluster: LocalCluster, dataverse: str) -> None:
    made = "CREATE TYPE T AS {id: int}; CREATE DATASET Dataset(T) PRIMARY KEY id; INSERT INTO Dataset {'id': 1};"
    cluster.run(
        f"USE {dataverse};"
        + made
        + "INSERT INTO DATASET Dataset [{'id': 2}]; UPSERT INTO Dataset (SELECT VALUE {'id': 3});"
    )
    assert cluster.rows(f"SELECT VALUE d.id FROM {dataverse}.Dataset d ORDER BY d.id") == [1, 2, 3]
