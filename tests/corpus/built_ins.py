# ruff: noqa: E501 (an expression reads best in one line)
"""Expressions of constants for each function that docs/language.md describes, and mixes of declared and undeclared."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, date, datetime, time
from typing import Any, Final

from tests.corpus.data import PEOPLE as P
from tests.corpus.data import VISITS as V
from tests.corpus.entry import Entry, get, known, q
from tests.support.literals import literal
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Point, Polygon, Rectangle

_MOMENT: Final = datetime(2026, 11, 15, 8, 30, 5, 250_000, tzinfo=UTC)
_AT: Final = 'datetime("2026-11-15T08:30:05.250Z")'
_DAY: Final = 'date("2026-11-15")'
_TIME: Final = 'time("08:30:05.250")'
_EPOCH_MS: Final = int(_MOMENT.timestamp() * 1_000)
_EPOCH_DAYS: Final = (_MOMENT.date() - date(1970, 1, 1)).days
_DURATION: Final = 'duration("P1Y2M3DT4H5M6.789S")'
_NUMBERS: Final = [1, 2, 4, 9]
_MEAN: Final = sum(_NUMBERS) / 4


def _moment(power: int) -> float:
    return sum((number - _MEAN) ** power for number in _NUMBERS) / 4


def _geo_distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    (la, lo), (mb, mo) = (tuple(map(math.radians, place)) for place in (a, b))
    h = math.sin((mb - la) / 2) ** 2 + math.cos(la) * math.cos(mb) * math.sin((mo - lo) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(math.sqrt(h))


CONSTANTS: Final[list[tuple[str, Any]]] = [
    # parts of moments
    (f"get_year({_AT})", 2026), (f"get_year({_DAY})", 2026), (f"get_month({_AT})", 11), (f"get_day({_DAY})", 15),
    (f"get_hour({_AT})", 8), (f"get_minute({_TIME})", 30), (f"get_second({_AT})", 5), (f"get_millisecond({_TIME})", 250),
    (f"get_year({_DURATION})", 1), (f"get_month({_DURATION})", 2), (f"get_day({_DURATION})", 3), (f"get_hour({_DURATION})", 4),
    (f"get_minute({_DURATION})", 5), (f"get_second({_DURATION})", 6), (f"get_millisecond({_DURATION})", 789),
    (f"day_of_week({_DAY})", _MOMENT.isoweekday()),
    (f"datetime_from_unix_time_in_ms({_EPOCH_MS})", _MOMENT), (f"datetime_from_unix_time_in_secs({_EPOCH_MS // 1000})", _MOMENT.replace(microsecond=0)),
    (f"date_from_unix_time_in_days({_EPOCH_DAYS})", _MOMENT.date()), ("time_from_unix_time_in_ms(30605250)", time(8, 30, 5, 250_000)),
    (f"unix_time_from_datetime_in_ms({_AT})", _EPOCH_MS), (f"unix_time_from_datetime_in_secs({_AT})", _EPOCH_MS // 1000),
    (f"unix_time_from_date_in_days({_DAY})", _EPOCH_DAYS), (f"unix_time_from_time_in_ms({_TIME})", 30_605_250),
    (f"datetime_from_date_time({_DAY}, {_TIME})", _MOMENT), (f"date_from_datetime({_AT})", _MOMENT.date()),
    (f"get_date_from_datetime({_AT})", _MOMENT.date()), (f"time_from_datetime({_AT})", _MOMENT.time()), (f"get_time_from_datetime({_AT})", _MOMENT.time()),
    ("duration_from_ms(1500)", Duration(0, 1_500_000)), ("duration_from_months(14)", Duration(14, 0)),
    ("ms_from_day_time_duration(duration('PT1.5S'))", 1500), ("months_from_year_month_duration(year_month_duration('P1Y2M'))", 14),
    (f"get_day_time_duration({_DURATION})", Duration(0, ((3 * 24 + 4) * 60 + 5) * 60_000_000 + 6_789_000)), (f"get_year_month_duration({_DURATION})", Duration(14, 0)),
    ("parse_datetime('15.11.2026 08:30', 'dd.MM.yyyy HH:mm')", _MOMENT.replace(second=0, microsecond=0)), ("parse_date('05/Feb/2021', 'DD/MMM/YYYY')", date(2021, 2, 5)),
    ("parse_time('15-04', 'hh-mm')", time(15, 4)), (f"print_datetime({_AT}, 'yyyy-MM-dd HH:mm:ss')", "2026-11-15 08:30:05"),
    ("print_datetime(datetime('2020-01-01T15:04:05.120Z'), 'hh:mm:ss.nnn')", "15:04:05.120"), ("print_datetime(datetime('2020-01-01T15:04:05Z'), 'hh:mm a')", "03:04 PM"),
    (f"print_date({_DAY}, 'YYYY/MM/DD')", "2026/11/15"), (f"print_date({_DAY}, \"DDD 'Day' yyyy\")", f"{_MOMENT.timetuple().tm_yday} Day 2026"), (f"print_time({_TIME}, 'HH.mm')", "08.30"),
    (f"datetime({_DAY})", datetime(2026, 11, 15, tzinfo=UTC)), (f"duration({_DURATION}) = {_DURATION}", True),
    # shapes
    ("point(point('1,2'))", Point(1.0, 2.0)), ("get_points(line('0,0 1,2'))", [Point(0.0, 0.0), Point(1.0, 2.0)]), ("line(line('0,0 1,2'))", Line(Point(0.0, 0.0), Point(1.0, 2.0))),
    ("spatial_cell(point('2.5,1'), point('0,0'), 2, 3)", Rectangle(Point(2.0, 0.0), Point(4.0, 3.0))),
    ("geo_distance(point('52.52,13.40'), point('48.86,2.35'))", _geo_distance((52.52, 13.40), (48.86, 2.35))),
    ("geo_intersect(circle('52.52,13.40 1000'), point('52.521,13.401'))", True), ("geo_intersect(circle('52.52,13.40 1000'), point('52.6,13.4'))", False),
    ("geo_area(circle('0,0 1000'))", 4 * math.pi * 6_371_008.8**2 * math.sin(500 / 6_371_008.8) ** 2),
    # numbers are never made of texts
    ("-'5'", None), ("abs('5')", None), ("sqrt('4')", None), ("round('5.5')", None), ("ceil('1.5')", None), ("power('2', 3)", None), ("try_add('1', 2)", None),
    ("abs(true)", None), ("abs([1])", None), ("[1] + 1", None), ("abs(-5)", 5), ("abs(null)", None), ("substr('abc', '1')", None), ("element_at([1], '1')", None),
    ("log(1000)", math.log10(1000)), ("ln(10)", math.log(10)), ("trunc(2.59, 1)", 2.5), ("trunc(-2.59)", -2.0), ("trunc('2.59')", None), ("trunc(date('2026-11-15'), 'YEAR')", date(2026, 1, 1)),
    ("equal_null(1, '1')", False), ("equal_null(null, null)", True), ("decode(1, '1', 'wrong', 'right')", "right"), ("decode(null, 1, 'a', null, 'b')", "b"),
    ("nullif(1, '1')", 1), ("nullif(1, 1.0)", None), ("null_if('a', 'b')", "a"), ("missing_if(1, 1)", MISSING), ("missing_if(1, 2)", 1), ("missing_if(1, null)", None),
    ("greatest(1, '2')", None), ("greatest(1, 2.5)", 2.5), ("greatest('a', 'b')", "b"), ("least(3, 1, 2)", 1), ("least(1, null)", 1), ("if(1 = 1, 'a', 2)", "a"),
    ("if_nan(double('NaN'), 2)", 2.0), ("if_nan(1.5, 2)", 1.5), ("if_inf(double('Infinity'), 3)", 3.0), ("if_nan_or_inf(double('NaN'), double('-Infinity'), 4)", 4.0),
    ("switch_case(2, 1, 'a', 2, 'b', 'c')", "b"), ("switch_case('2', 2, 'b', 'c')", "c"), ("deep_equal([1], ['1'])", False), ("deep_equal({'a': [1]}, {'a': [1.0]})", True), ("deep_equal(1, '1')", False),
    # kinds
    ("is_array([1])", True), ("is_array('a')", False), ("is_array(null)", None), ("is_array(missing)", MISSING), ("is_array({{1}})", False), ("is_multiset({{1}})", True),
    ("is_object({})", True), ("is_object([{}][0])", True), ("is_object(point('1,2'))", False), ("is_object([point('1,2'), 1][0])", False), ("isobj({'a': 1})", True),
    ("is_string('a')", True), ("isstr([1, 'a'][1])", True), ("is_number(1.5)", True), ("isnum([1, 'a'][0])", True), ("is_number([double('NaN'), 'a'][0])", True), ("is_boolean(true)", True), ("isbool(1)", False),
    ("is_atomic('a')", True), ("is_atomic([1])", False), ("is_atomic([date('2026-01-01'), 1][0])", True), (f"is_date({_DAY})", True), (f"is_time({_DAY})", False), (f"is_datetime([{_AT}, 1][0])", True),
    ("is_duration(duration('PT1S'))", True), (f"is_temporal([{_TIME}, 'a'][0])", True), ("is_uuid(uuid('5C848E5C-6B6A-498F-8452-8847A2957421'))", True), ("is_point([point('1,2'), 'a'][0])", True),
    ("is_line(line('0,0 1,1'))", True), ("is_rectangle(rectangle('0,0 1,1'))", True), ("is_circle(circle('0,0 1'))", True), ("is_polygon(polygon('0,0 1,0 1,1'))", True), ("is_spatial(circle('0,0 1'))", True), ("is_spatial('a')", False),
    ("is_null(null)", True), ("is_null(1)", False), ("is_null(missing)", MISSING), ("isnull(missing)", MISSING), ("is_missing(missing)", True), ("is_missing(null)", False), ("is_unknown(null)", True), ("is_known(1)", True), ("is_valued(null)", False),
    ("to_array(1)", [1]), ("to_array([1, 2])", [1, 2]), ("to_array(null)", None), ("to_array(missing)", MISSING), ("to_boolean(0)", False), ("to_boolean('a')", True), ("to_boolean('')", False), ("to_boolean([])", False), ("to_boolean({'a': 1})", True),
    ("to_bigint('12')", 12), ("to_bigint('x')", None), ("to_bigint(2.9)", 2), ("to_bigint(true)", 1), ("to_double('1e2')", 100.0), ("to_double('x')", None), ("to_number('1')", 1), ("to_number('1.5')", 1.5), ("to_number('x')", None), ("to_number([1])", None),
    ("int8('5')", 5), ("int64('7')", 7), ("length(string(create_uuid()))", 36),
    # objects
    ("object_names({'b': 1, 'a': 2, '$c': 3})", ["$c", "a", "b"]), ("object_names(5)", None), ("object_names(missing)", MISSING), ("object_values({'a': 1, 'b': 'x'})", [1, "x"]), ("object_length({'a': 1, 'b': null})", 2),
    ("object_pairs({'a': 1})", [{"name": "a", "value": 1}]), ("object_add({'a': 1}, 'b', point('1,2'))", {"a": 1, "b": Point(1.0, 2.0)}), ("object_add({'a': 1}, 'a', 2)", {"a": 1}),
    ("object_put({'a': 1}, 'a', 2)", {"a": 2}), ("object_put({'a': 1, 'b': 2}, 'a', missing)", {"b": 2}), ("object_remove({'a': 1, 'b': 2}, 'a')", {"b": 2}), ("object_rename({'a': 1, 'b': 2}, 'a', 'c')", {"b": 2, "c": 1}),
    ("object_merge({'a': 1}, {'b': 2})", {"a": 1, "b": 2}), ("object_concat({'a': 1}, {'a': 2}, {'c': 3})", {"a": 2, "c": 3}), ("object_merge({'a': 1}, 5)", None), ("object_merge({'a': 1}, missing)", MISSING),
    # texts
    ("trim('xxaxx', 'x')", "a"), ("ltrim('xxaxx', 'x')", "axx"), ("rtrim('xxaxx', 'x')", "xxa"), ("trim(BOTH 'x' FROM 'xxaxx')", "a"), ("trim(5)", None),
    ("replace('abcbcb', 'b', 'X', 1)", "aXcbcb"), ("replace('abcbcb', 'b', 'X', 2)", "aXcXcb"), ("replace('abcbcb', 'b', 'X', 9)", "aXcXcX"), ("replace('abc', 'b', 'X', 0)", "abc"),
    ("string_join(['a', 'b'], '-')", "a-b"), ("string_join([1], '-')", None), ("string_concat(['a', 'b'])", "ab"), ("substring_before('a-b-c', '-')", "a"), ("substring_before('abc', 'x')", ""),
    ("substring_after('a-b-c', '-')", "b-c"), ("substring_after('abc', 'x')", ""), ("string_to_codepoint('aé😀')", [ord(letter) for letter in "aé😀"]), ("codepoint_to_string([97, 233, 128512])", "aé😀"), ("codepoint_to_string([55296])", None),
    ("regexp_split('a1b22c', '[0-9]+')", ["a", "b", "c"]), ("regexp_matches('a1b22', '[0-9]+')", ["1", "22"]), ("regexp_position('abc', 'c')", 2), ("regexp_position('abc', 'x')", -1),
    ("word_tokens('The River, rising!')", ["the", "river", "rising"]), ("edit_distance('kitten', 'sitting')", 3),
    ("to_json({'p': point('1,2'), 'c': circle('1,2 3')})", '{"c":{"center":[1.0,2.0],"radius":3.0},"p":[1.0,2.0]}'), ("to_json([duration('P1D'), 'say \\'$$5\\''])", '["P1D","say \'$$5\'"]'), ("to_json({'$x': {{1, 2}}})", '{"$x":[1,2]}'),
    # collections
    ("array_stddev_samp([1, 2, 4, 9])", statistics.stdev(_NUMBERS)), ("array_stddev_pop([1, 2, 4, 9])", statistics.pstdev(_NUMBERS)), ("array_var_samp([1, 2, 4, 9])", statistics.variance(_NUMBERS)),
    ("array_var_pop([1, 'a', 2, 4, 9])", statistics.pvariance(_NUMBERS)), ("strict_var_pop([1, null])", None), ("array_var_samp([1])", None), ("array_skewness([1, 2, 4, 9])", _moment(3) / _moment(2) ** 1.5),
    ("array_kurtosis([1, 2, 4, 9])", _moment(4) / _moment(2) ** 2 - 3), ("array_skewness([1, 1])", None), ("size([1, 2])", 2), ("similarity_jaccard([1, 2, 2], [2.0, 3])", 1 / 3),
    ("aggregate([1, 'a', 2], 0, (a, x) -> if_null(a + x, a))", 3), ("aggregate([1, 2], 0, (a, x) -> a + x / 2)", 1.5),
]  # fmt: skip

# Objects of different shapes are untyped, as undeclared fields are.
_SHAPES: Final[dict[str, Any]] = {
    "at": datetime(2026, 1, 1, tzinfo=UTC), "d": date(2026, 1, 1), "t": time(8), "du": Duration(0, 1_000_000),
    "p": Point(1.0, 2.0), "c": Circle(Point(1.0, 2.0), 3.0), "g": Polygon((Point(0.0, 0.0), Point(1.0, 0.0), Point(0.0, 1.0))),
    "n": 5, "s": "5",
}  # fmt: skip
_FROM: Final = f"FROM {literal([_SHAPES, {'id': 2}])} r WHERE r.n = 5"

ENTRIES: Final[list[Entry]] = [
    # A constructor takes a value of its own type, and a function of text never shows how a value is stored.
    q(f"SELECT VALUE [datetime(r.at), date(r.d), time(r.t), duration(r.du), point(r.p), circle(r.c), polygon(r.g)] {_FROM}",
      lambda: [[_SHAPES[name] for name in ("at", "d", "t", "du", "p", "c", "g")]]),
    q(f"SELECT VALUE [string(r.p), to_string([r.p]), lpad(r.c, 3), array_join([r.p, 'a'], ','), string(r.at), string(r.n)] {_FROM}",
      lambda: [[None, None, None, "a", "2026-01-01T00:00:00Z", "5"]]),
    q(f"SELECT max_by(r.p, r.n) AS p, string_agg(r.p, ',') AS t {_FROM}", lambda: [{"p": Point(1.0, 2.0), "t": None}]),
    q(f"SELECT VALUE [-r.s, abs(r.s), power(r.s, 2), cot(r.s), greatest(r.n, r.s), nullif(r.n, '5'), nullif(r.n, 5)] {_FROM}",
      lambda: [[None, None, None, None, None, 5, None]]),
    q("SELECT VALUE -p.name FROM People p", lambda: [None for _ in P]),
    q("SELECT stddev(p.name) AS a, stddev_pop(p.id) AS b FROM People p", lambda: [{"a": None, "b": statistics.pstdev(p["id"] for p in P)}]),
    # A moment without a fraction is one value, declared or not.
    q(f"SELECT VALUE [array_position([v.at], r.at), array_contains([r.at, 'a'], v.at), [r.at] = [v.at], {{'a': r.at}} = {{'a': v.at}}] FROM Visits v, {literal([{'at': V[0]['at']}, {'id': 2}])} r WHERE v.id = 1 AND r.at IS KNOWN",
      lambda: [[0, True, True, True]]),
    q(f"SELECT count(*) AS n FROM (SELECT v.at AS k FROM Visits v WHERE v.id = 1 UNION ALL SELECT r.at AS k FROM {literal([{'at': V[0]['at']}, {'id': 2}])} r WHERE r.at IS KNOWN) x GROUP BY x.k",
      lambda: [{"n": 2}]),
    q("SELECT VALUE object_add(object_remove(v, 'items'), 'seen', true).seen FROM Visits v", lambda: [True for _ in V]),
    q("SELECT VALUE object_names(p.address) FROM People p", lambda: [sorted(p["address"]) for p in P]),
    q("SELECT VALUE {'a': is_null(p.age), 'm': is_missing(p.nick)} FROM People p",
      lambda: [{**({} if get(p, "age") is MISSING else {"a": not known(p["age"])}), "m": "nick" not in p} for p in P]),
    # DISTINCT compares undeclared values as `=` does, and only numbers have a sum.
    q("SELECT sum(DISTINCT x.v) AS s, avg(DISTINCT x.v) AS a, min(DISTINCT x.v) AS m, array_count(array_agg(DISTINCT x.v)) AS n, count(DISTINCT x.v) AS c FROM [{'v': 1}, {'v': 1.0}, {'v': '7'}, {'v': 3}, {'u': 1}] x",
      lambda: [{"s": 4, "a": 2.0, "m": None, "n": 3, "c": 3}]),
    q("SELECT array_agg(DISTINCT x.v) AS a, x.k AS k FROM [{'k': 1, 'v': point('1,2')}, {'k': 1, 'v': point('1,2')}, {'k': 2, 'v': [1]}] x GROUP BY x.k",
      lambda: [{"a": [Point(1.0, 2.0)], "k": 1}, {"a": [[1]], "k": 2}]),
]  # fmt: skip
