"""A type of ours stays itself through Spark's functions, and how Spark holds a value is never seen."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.support.in_process_cluster import LocalCluster
from tocsin.wire.errors import InputError

# How a value is written, and how it is answered; of each type a smaller and a larger one.
VALUES: Final[dict[str, tuple[tuple[str, Any], tuple[str, Any]]]] = {
    "time": (('time("01:02:03")', "01:02:03"), ('time("10:00:00.5")', "10:00:00.500000")),
    "duration": (('duration("PT1H")', "PT1H"), ('duration("P1M")', "P1M")),
    "uuid": (
        ('uuid("123e4567-e89b-12d3-a456-426614174000")', "123e4567-e89b-12d3-a456-426614174000"),
        ('uuid("223e4567-e89b-12d3-a456-426614174000")', "223e4567-e89b-12d3-a456-426614174000"),
    ),
    "point": (('point("1,2")', [1.0, 2.0]), ('point("3,4")', [3.0, 4.0])),
    "line": (('line("1,2 3,4")', [[1.0, 2.0], [3.0, 4.0]]), ('line("5,6 7,8")', [[5.0, 6.0], [7.0, 8.0]])),
    "rectangle": (
        ('rectangle("1,2 3,4")', [[1.0, 2.0], [3.0, 4.0]]),
        ('rectangle("5,6 7,8")', [[5.0, 6.0], [7.0, 8.0]]),
    ),
    "circle": (
        ('circle("1,2 3")', {"center": [1.0, 2.0], "radius": 3.0}),
        ('circle("4,5 6")', {"center": [4.0, 5.0], "radius": 6.0}),
    ),
    "polygon": (
        ('polygon("0,0 1,0 1,1")', [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]),
        ('polygon("2,2 3,2 3,3")', [[2.0, 2.0], [3.0, 2.0], [3.0, 3.0]]),
    ),
    "object": (
        ('{"a b": 1, "at": time("01:02:03")}', {"a b": 1, "at": "01:02:03"}),
        ('{"a b": 2, "at": time("01:02:03")}', {"a b": 2, "at": "01:02:03"}),
    ),
}

# An expression over the values A and B; what it yields of their answers a and b.
EXPRESSIONS: Final[list[tuple[str, Any]]] = [
    ("transform([A, B], x -> x)", lambda a, b: [a, b]),
    ("filter([A, B], x -> x = B)", lambda _, b: [b]),
    ("aggregate([A, B], A, (s, x) -> x)", lambda _, b: b),
    ("zip_with([A], [B], (x, y) -> y)", lambda _, b: [b]),
    ("element_at([A, B], 2)", lambda _, b: b),
    ("try_element_at([A, B], 9)", lambda *_: None),
    ("get([A, B], 0)", lambda a, _: a),
    ("[A, B][1]", lambda _, b: b),
    ("[A, B][7]", lambda *_: None),
    ("[A, B][0:1]", lambda a, _: [a]),
    ("slice([A, B], 2, 1)", lambda _, b: [b]),
    ("array_distinct([A, A])", lambda a, _: [a]),
    ("sort_array([B, A])", lambda a, b: [a, b]),
    ("array_repeat(A, 2)", lambda a, _: [a, a]),
    ("array_append([A], B)", lambda a, b: [a, b]),
    ("array_remove([A, B], A)", lambda _, b: [b]),
    ("array_union([A], [A, B])", lambda a, b: [a, b]),
    ("array_except([A, B], [A])", lambda _, b: [b]),
    ("array_intersect([A, B], [A])", lambda a, _: [a]),
    ("array_contains([A, B], A)", lambda *_: True),
    ("array_position([A, B], B)", lambda *_: 1),
    ("arrays_zip([A], [B])", lambda a, b: [{"0": a, "1": b}]),
    ("reverse([A, B])", lambda a, b: [b, a]),
    ("concat([A], [B])", lambda a, b: [a, b]),
    ("flatten([[A], [B]])", lambda a, b: [a, b]),
    ("map('k', A)", lambda a, _: {"k": a}),
    ("map('k', A)['k']", lambda a, _: a),
    ("map_values(map('k', A))", lambda a, _: [a]),
    ("transform_values(map('k', A), (k, v) -> B)", lambda _, b: {"k": b}),
    ("struct(A)", lambda a, _: {"col1": a}),
    ("struct(A AS x, B AS y)", lambda a, b: {"x": a, "y": b}),
    ("named_struct('f', [A])", lambda a, _: {"f": [a]}),
    ("{'m': map('k', A)}", lambda a, _: {"m": {"k": a}}),
    ("nullif(A, B)", lambda a, _: a),
    ("nullif(A, A)", lambda *_: None),
    ("coalesce(NULL, B)", lambda _, b: b),
    ("nvl2(A, B, A)", lambda _, b: b),
    ("if(false, A, NULL)", lambda *_: None),
    ("CASE WHEN false THEN A END", lambda *_: None),
    ("CASE WHEN true THEN [A] ELSE [B] END", lambda a, _: [a]),
]  # fmt: skip

# Over rows x: {n: 1, v: A} and {n: 2, v: B}.
AGGREGATES: Final[list[tuple[str, Any]]] = [
    ("max_by(x.v, x.n)", lambda _, b: b),
    ("min_by(x.v, x.n)", lambda a, _: a),
    ("sort_array(collect_list(x.v))", lambda a, b: [a, b]),
    ("sort_array(array_agg(x.v))", lambda a, b: [a, b]),
    ("sort_array(collect_set(x.v))", lambda a, b: [a, b]),
    ("sort_array(collect_list(DISTINCT x.v))", lambda a, b: [a, b]),
    ("first(x.v) FILTER (WHERE x.n = 2)", lambda _, b: b),
    ("last(x.v) FILTER (WHERE x.n = 1)", lambda a, _: a),
    ("any_value(x.v) FILTER (WHERE x.n = 1)", lambda a, _: a),
    ("mode(x.v) FILTER (WHERE x.n = 1)", lambda a, _: a),
    ("count(DISTINCT x.v)", lambda *_: 2),
]  # fmt: skip
WINDOWS: Final[list[tuple[str, Any]]] = [
    ("lag(x.v)", lambda a, _: [None, a]),
    ("lead(x.v)", lambda _, b: [b, None]),
    ("first_value(x.v)", lambda a, _: [a, a]),
    ("last_value(x.v)", lambda a, b: [a, b]),
    ("nth_value(x.v, 2)", lambda _, b: [None, b]),
    ("collect_list(x.v)", lambda a, b: [[a], [a, b]]),
]  # fmt: skip


def _written(text: str, kind: str) -> str:
    (a, _), (b, _) = VALUES[kind]
    return re.sub(r"\b[AB]\b", lambda found: a if found[0] == "A" else b, text)


def _answers(kind: str) -> tuple[Any, Any]:
    (_, a), (_, b) = VALUES[kind]
    return a, b


def _rows(kind: str) -> str:
    return _written("[{'n': 1, 'v': A}, {'n': 2, 'v': B}] x", kind)


def _named(texts: list[str], kind: str) -> str:
    return ", ".join(f"{_written(text, kind)} AS c{i}" for i, text in enumerate(texts))


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_comes_out_of_a_function_as_it_went_in(cluster: LocalCluster, kind: str) -> None:
    (row,) = cluster.rows("SELECT " + _named([text for text, _ in EXPRESSIONS], kind))
    found = {text: row.get(f"c{i}") for i, (text, _) in enumerate(EXPRESSIONS)}
    assert found == {text: expected(*_answers(kind)) for text, expected in EXPRESSIONS}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_comes_out_of_an_aggregate_as_it_went_in(cluster: LocalCluster, kind: str) -> None:
    asked = _named([text for text, _ in AGGREGATES], kind)
    (row,) = cluster.rows(f"SELECT {asked} FROM {_rows(kind)}")
    found = {text: row.get(f"c{i}") for i, (text, _) in enumerate(AGGREGATES)}
    assert found == {text: expected(*_answers(kind)) for text, expected in AGGREGATES}


@pytest.mark.parametrize("kind", VALUES)
def test_an_aggregate_of_nothing_is_null(cluster: LocalCluster, kind: str) -> None:
    asked = ", ".join(f"{name}(x.v) AS {name}" for name in ("max", "min", "first", "any_value", "collect_list"))
    assert cluster.rows(f"SELECT {asked} FROM {_rows(kind)} WHERE x.n > 9") == [
        {"max": None, "min": None, "first": None, "any_value": None, "collect_list": []}
    ]


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_comes_out_of_a_window_as_it_went_in(cluster: LocalCluster, kind: str) -> None:
    asked = ", ".join(f"{text} OVER (ORDER BY x.n) AS c{i}" for i, (text, _) in enumerate(WINDOWS))
    rows = cluster.rows(f"SELECT x.n, {asked} FROM {_rows(kind)} ORDER BY n")
    found = {text: [row.get(f"c{i}") for row in rows] for i, (text, _) in enumerate(WINDOWS)}
    assert found == {text: expected(*_answers(kind)) for text, expected in WINDOWS}


@pytest.mark.parametrize("kind", VALUES)
def test_only_values_with_an_order_have_a_least_and_a_greatest(cluster: LocalCluster, kind: str) -> None:
    a, b = _answers(kind) if kind in ("time", "duration", "uuid") else (None, None)
    lists = "array_min([A, B]) AS c, array_max([A, B]) AS d"
    (row,) = cluster.rows(f"SELECT min(x.v) AS a, max(x.v) AS b, {_written(lists, kind)} FROM {_rows(kind)}")
    assert row == {"a": a, "b": b, "c": a, "d": b}
    assert cluster.rows(f"SELECT max(x.v) FILTER (WHERE x.n < 2) AS a FROM {_rows(kind)}") == [{"a": a}]
    assert cluster.rows(f"SELECT min(x.v) OVER () AS b FROM {_rows(kind)}") == [{"b": a}] * 2


def test_what_a_function_yields_can_be_stored_and_used_as_what_it_is(cluster: LocalCluster, dataverse: str) -> None:
    cluster.run(
        f"USE {dataverse}; CREATE TYPE D AS CLOSED {{ id: int, at: time, d: duration, p: point, c: circle? }};"
        " CREATE DATASET Ds(D) PRIMARY KEY id;"
        ' INSERT INTO Ds ([{"id": 1, "at": time("01:02:03"), "d": duration("PT1H"), "p": point("1,2")}]);'
        " INSERT INTO Ds (SELECT 2 AS id, max(x.at) AS at, max(x.d) AS d, first(x.p) AS p FROM Ds x);"
    )
    assert cluster.rows(f"USE {dataverse}; SELECT VALUE x FROM Ds x WHERE x.id = 2") == [
        {"id": 2, "at": "01:02:03", "d": "PT1H", "p": [1.0, 2.0]}
    ]
    assert cluster.rows(
        f"USE {dataverse}; SELECT max(x.at) + duration('PT1H') AS t, get_x(first(x.p)) AS x,"
        " sort_array(collect_list(x.id)) AS ids FROM Ds x"
    ) == [{"t": "02:02:03", "x": 1.0, "ids": [1, 2]}]
    # A whole record, with what only its type knows: that c may be missing.
    assert cluster.rows(f"USE {dataverse}; SELECT VALUE collect_list(x) FROM Ds x WHERE x.id = 1") == [
        [{"id": 1, "at": "01:02:03", "d": "PT1H", "p": [1.0, 2.0]}]
    ]


def test_durations_are_ordered_by_their_length_wherever_they_are_ordered(cluster: LocalCluster) -> None:
    all_ = '[duration("P1M"), duration("P40D"), duration("PT1H")]'
    assert cluster.rows(
        f"SELECT array_max({all_}) AS a, array_min({all_}) AS b, sort_array({all_}) AS c,"
        f" sort_array({all_}, false) AS d, array_sort({all_}) AS g,"
        ' greatest(duration("P1M"), duration("P40D")) AS e, least(duration("P1M"), duration("P20D")) AS f'
    ) == [
        {
            "a": "P40D",
            "b": "PT1H",
            "c": ["PT1H", "P1M", "P40D"],
            "d": ["P40D", "P1M", "PT1H"],
            "e": "P40D",
            "f": "P20D",
            "g": ["PT1H", "P1M", "P40D"],
        }
    ]
    assert cluster.rows(f"SELECT max(x) OVER (PARTITION BY 1) AS m FROM {all_} x") == [{"m": "P40D"}] * 3
    assert cluster.rows(f"SELECT max(x) FILTER (WHERE true) AS m, min(x) AS n FROM {all_} x") == [
        {"m": "P40D", "n": "PT1H"}
    ]


TEXTS: Final = [
    ('string(time("01:02:03")) || "!"', "01:02:03!"),
    ('concat("at ", string(time("01:02:03.25")))', "at 01:02:03.250000"),
    ('concat("at ", time("01:02:03.25"))', None),
    ('to_string(time("01:02:03"))', "01:02:03"),
    ('CAST(time("01:02:03") AS STRING)', "01:02:03"),
    ('length(time("01:02:03"))', None),
    ('to_string(duration("PT1H"))', "PT1H"),
    ('to_string(duration("-P1Y2M3DT4H5M6.07S"))', "-P1Y2M3DT4H5M6.07S"),
    ('to_string(duration("PT0S"))', "PT0S"),
    ('to_string(duration("P1M") - duration("PT36H"))', "P1M-1DT-12H"),
    ('to_string(duration_from_ms(-1500))', "-PT1.5S"),
    ('format_string("%s and %d", duration("P14M"), 5)', "P1Y2M and 5"),
    ('upper(string(uuid("123e4567-e89b-12d3-a456-426614174000")))', "123E4567-E89B-12D3-A456-426614174000"),
    ('sum(time("01:02:03"))', None),
    ('array_sum([time("01:02:03")])', None),
    ('time("01:02:03") = 5', None),
    ('size(polygon("0,0 1,0 1,1"))', None),
    ('to_string(nullif(duration("PT1H"), duration("PT1H")))', None),
    ('typeof(point("1,2"))', "point"),
    ('to_json({"a b": 1})', '{"a b":1}'),
    ('to_json({"p": point("1,2"), "d": duration("P1D")})', '{"d":"P1D","p":[1.0,2.0]}'),
    ('-duration("PT1H")', "-PT1H"),
    ("size({{1, 2}})", 2),
]  # fmt: skip


def test_where_text_is_wanted_a_value_is_what_people_write_for_it(cluster: LocalCluster) -> None:
    asked = ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(TEXTS))
    (row,) = cluster.rows(f"SELECT {asked}")
    assert {text: row.get(f"c{i}") for i, (text, _) in enumerate(TEXTS)} == dict(TEXTS)


REFUSED: Final = [
    ('-time("01:02:03")', "cannot compute -time"),
    ('abs(time("01:02:03"))', "abs cannot take a value of type time; use print_time"),
    ('abs(time("00:00:00.001"))', "abs cannot take a value of type time"),
    ('hour(time("01:02:03"))', "hour cannot take a value of type time; use print_time, get_hour"),
    ('median(duration("PT1H"))', "median cannot take a value of type duration; use ms_from_day_time_duration"),
    ('CAST(time("01:02:03") AS BIGINT)', "CAST AS BIGINT cannot take a value of type time"),
    ('CAST({"d": duration("PT1H")} AS STRING)', "CAST AS STRING cannot take a value of type duration"),
    ('to_string(point("1,2"))', "to_string cannot take a value of type point; use get_x and get_y"),
    ('map(point("1,2"), 1)', "a map with keys of type point cannot leave a query"),
    ('nowhere(time("01:02:03"))', "nowhere cannot be called here"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_spark_would_compute_with_its_own_form_is_refused(cluster: LocalCluster, text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        cluster.rows(f"SELECT VALUE {text}")
