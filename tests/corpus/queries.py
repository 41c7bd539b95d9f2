# ruff: noqa: E501 (a query reads best in one line)
"""The whole corpus: queries over its data, and expressions of constants."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from typing import Any, Final

from tests.corpus import built_ins, clause_orders, computing, original_rules, selecting
from tests.corpus.entry import Entry
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Multiset, Point, Polygon, Rectangle

ENTRIES: Final[list[Entry]] = [
    *selecting.ENTRIES,
    *computing.ENTRIES,
    *clause_orders.ENTRIES,
    *original_rules.ENTRIES,
    *built_ins.ENTRIES,
]
CONDITIONS: Final = selecting.CONDITIONS

CONSTANTS: Final[list[tuple[str, Any]]] = [
    # arithmetic and comparison
    ("7 / 2", 3.5), ("7 div 2", 3), ("7 % 3", 1), ("-7 % 3", -1), ("2 * 3.5", 7.0), ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9),
    ("10 - 3 - 2", 5), ("2 - -2", 4), ("1 = 1.0", True), ("'a' < 'b'", True), ("null = null", None), ("1 + null", None),
    ("missing IS MISSING", True), ("null IS MISSING", False), ("null IS UNKNOWN", True), ("null IS VALUED", False),
    ("true AND null", None), ("false AND null", False), ("true OR null", True), ("NOT null", None), ("missing", MISSING),
    ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("1e3", 1000.0), ("0.1 + 0.2", 0.1 + 0.2),
    ("1.5 = 3 / 2", True), ("5 BETWEEN 1 AND 5", True), ("5 NOT BETWEEN 1 AND 5", False), ("1 IN [1, 2]", True),
    ("3 IN [1, 2]", False), ("'a' IN {{'a'}}", True), ("[1, 2] = [1, 2]", True), ("[1, 2] = [2, 1]", False),
    ("{'a': 1} = {'a': 1}", True), ("CASE WHEN null THEN 1 ELSE 2 END", 2), ("1 <=> null", False), ("null <=> null", True),
    ("1 = '1'", None), ("1 < 'a'", None), ("true = 1", None), ("'5' + 1", None), ("1 + {'a': 1}", None), ("1 <=> '1'", False), ("[1] = ['1']", False),
    ("[1, 2] = [1.0, 2.0]", True), ("{'a': [1]} = {'a': [1.0]}", True), ("[1] < [2]", None), ("point('1,2') < point('3,4')", None),
    ("date('2026-01-01') = datetime('2026-01-01T00:00:00Z')", None), ("date('2026-01-01') = '2026-01-01'", None),
    ("datetime('2026-01-01T00:00:00Z') > 'soon'", None), ("CASE 1 WHEN '1' THEN 'a' ELSE 'b' END", "b"), ("1 IN ['1']", None),
    # text
    ("'a' || 'b'", "ab"), ("length('Köln')", 4), ("upper('straße')", "STRASSE"), ("substr('abc', 2, 1)", "b"),
    ("string_length('名前')", 2), ("lowercase('AB')", "ab"), ("contains('abc', 'b')", True), ("split('a,b', ',')", ["a", "b"]),
    ("replace('aXa', 'X', 'b')", "aba"), ("trim('  a ')", "a"), ("starts_with('abc', 'ab')", True), ("'ab' LIKE 'a_'", True),
    ("'ab' NOT LIKE 'a_'", False), ("'ab' NOT LIKE 'b%'", True), ("'AB' NOT ILIKE 'a!_' ESCAPE '!'", True),
    ("ftcontains('The River, rising', 'river')", True), ("ftcontains('The River', 'riv')", False),
    ("ftcontains('a b c', ['c', 'A'])", True), ("ftcontains('a b c', ['a', 'd'])", False),
    ("ftcontains('a b c', ['a', 'd'], {'mode': 'any'})", True), ("ftcontains('a b', '')", False),
    ("ftcontains('a b c', 'c a', {'mode': 'all'})", True), ("ftcontains(12, '12')", None),
    ("ftcontains('a', null)", None),
    ("'a\\'b'", "a'b"), ('"say \\"hi\\""', 'say "hi"'), ("'tab\\there'", "tab\there"), ("'${x}'", "${x}"), ("'a\\\\b'", "a\\b"),
    ("regexp_replace('a1b22', '[0-9]+', '#')", "a#b#"), ("repeat('ab', 2)", "abab"), ("concat('a', string(1))", "a1"),
    ("concat('a', 1)", None), ("'a' || 1", None), ("contains(108, '0')", None), ("length(12)", None), ("108 LIKE '1%'", None),
    ("string_contains('108', '0')", True), ("upper(null)", None),
    # collections
    ("[1, 2, 3][0]", 1), ("[1, 2, 3][-1]", 3), ("[1, 2, 3][5]", None), ("[1, 2, 3, 4][1:3]", [2, 3]), ("[1, 2, 3][-2:]", [2, 3]),
    ("[3, 1, 2][:2]", [3, 1]), ("[[1], [2, 3]][1][0]", 2), ("{'a': {'b': [5]}}.a.b[0]", 5), ("[]", []), ("{}", {}), ("{{}}", []),
    ("{{1, 1}}", Multiset([1, 1])), ("[1, 'a', null, true]", [1, "a", None, True]), ("array_length([1, 2])", 2),
    ("array_distinct([1, 1, 2])", [1, 2]), ("sort_array([2, 1])", [1, 2]), ("array_sum([1, 2, 3])", 6), ("array_avg([1, 2])", 1.5),
    ("array_concat([1], [2])", [1, 2]), ("flatten([[1], [2]])", [1, 2]), ("{'a': missing, 'b': null}", {"b": None}),
    ("transform([1, 2], x -> x * 2)", [2, 4]), ("filter([1, 2, 3], x -> x % 2 = 1)", [1, 3]),
    ("zip_with([1, 2], [3, 4], (a, b) -> a + b)", [4, 6]), ("SOME x IN [1, 2] SATISFIES x = 2", True),
    ("EVERY x IN [] SATISFIES false", True), ("EXISTS []", False), ("SOME x IN [1], y IN [2] SATISFIES x < y", True),
    ("array_max([1.5, 2])", 2.0), ("array_min([1, 'a'])", None), ("array_sum(['a', 1, 2.5])", 3.5), ("array_sum([])", None),
    ("array_sum(['a'])", None), ("array_count(7)", 0), ("strict_sum([1, null])", None), ("strict_count([1, null])", 2),
    ("array_append([1], 'a', null)", [1, "a", None]), ("array_prepend('x', 2, [1])", ["x", 2, 1]), ("array_insert([5, 6], -1, 7)", [5, 7, 6]),
    ("array_insert([5, 6], 3, 7)", None), ("array_put([2, 3], 2, 2, 9, 9)", [2, 3, 9, 9]), ("array_remove([1, 2, 1], 1)", [2]),
    ("array_replace([2, 3, 3, 3, 1], 3, 8, 2)", [2, 8, 8, 3, 1]), ("array_position([3, 8], 8)", 1), ("array_position([3], 8)", -1),
    ("array_contains([1, null], 2)", False), ("array_contains([[1, 2.0]], [1.0, 2])", True), ("array_union([1, 2], [2.0, null])", [1, 2, None]),
    ("array_intersect([1, null, 2], [2, null, 3])", [2]), ("array_except([1, 1, 2], [2])", [1, 1]), ("array_symdiff([1, 2], [2, 3])", [1, 3]),
    ("array_symdiffn([1], [1], [1, 5])", [1, 5]), ("array_slice([1, 2, 3, 4], 1, 3)", [2, 3]), ("array_slice([1], 1)", None),
    ("array_flatten([2, [8, [12]]], 1)", [2, 8, [12]]), ("array_flatten([2, [8, [12]]], -1)", [2, 8, 12]), ("array_reverse([1, 2])", [2, 1]),
    ("array_range(0, 3)", [0, 1, 2]), ("array_range(5, 0, -2)", [5, 3, 1]), ("array_range(0, 1, 0.5)", [0.0, 0.5]),
    ("array_repeat('a', 2)", ["a", "a"]), ("array_repeat('a', -1)", None), ("array_ifnull([null, 3])", 3), ("array_sort(['b', 2, null, 1])", [None, 1, 2, "b"]),
    ("array_star([{'a': 1, 'c': 5}, {'a': 9, 'b': 4}])", {"a": [1, 9], "b": [None, 4], "c": [5, None]}), ("len('abc')", None),
    ("[1, 'a', double('NaN') + 1]", [1, "a", math.nan]), ("array_sort(missing) IS MISSING", True), ("array_sort(null) IS NULL", True), ("array_contains([1], missing)", MISSING), ("reverse('abc')", "cba"),
    ("(SELECT VALUE x FROM [1, 2, 3] x WHERE x > 1)", [2, 3]),
    # moments
    ("date('2026-01-31') + duration('P1M')", date(2026, 2, 28)), ("datetime('2026-01-01T00:00:00Z') - duration('PT1S')",
     datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)), ("datetime('2026-01-01T00:00:00+02:00')", datetime(2025, 12, 31, 22, tzinfo=UTC)),
    ("time('10:00:00') + duration('PT90M')", time(11, 30)), ("duration('P1Y2M')", Duration(14, 0)),
    ("duration('-PT1.5S')", Duration(0, -1_500_000)), ("datetime('2026-01-02T00:00:00Z') > datetime('2026-01-01T23:59:59.999999Z')", True),
    ("datetime('2026-01-02T00:00:00Z') - datetime('2026-01-01T00:00:00Z') = day_time_duration('P1D')", True),
    ("day_time_duration('PT60S') = day_time_duration('PT1M')", True), ("year(date('2026-05-06'))", 2026),
    ("date('2026-05-06') BETWEEN date('2026-01-01') AND date('2026-12-31')", True),
    ("uuid('5C848E5C-6B6A-498F-8452-8847A2957421') = uuid('5c848e5c-6b6a-498f-8452-8847a2957421')", True),
    # space
    ("create_point(1, 2.5)", Point(1.0, 2.5)), ("create_circle(create_point(0, 0), 2)", Circle(Point(0.0, 0.0), 2.0)),
    ("create_rectangle(create_point(3, 3), create_point(1, 2))", Rectangle(Point(1.0, 2.0), Point(3.0, 3.0))),
    ("create_line(create_point(0, 0), create_point(1, 1))", Line(Point(0.0, 0.0), Point(1.0, 1.0))),
    ("create_polygon([0, 0, 1, 0, 0, 1])", Polygon((Point(0.0, 0.0), Point(1.0, 0.0), Point(0.0, 1.0)))),
    ("spatial_distance(point('0,0'), point('3,4'))", 5.0), ("get_x(point('1.5,2'))", 1.5), ("get_y(point('1.5,2'))", 2.0),
    ("get_radius(circle('1,2 3'))", 3.0), ("get_center(circle('1,2 3'))", Point(1.0, 2.0)),
    ("spatial_area(rectangle('0,0 2,3'))", 6.0), ("spatial_area(circle('0,0 2'))", 4 * math.pi),
    ("spatial_area(polygon('0,0 4,0 4,4 0,4'))", 16.0), ("spatial_intersect(point('2,0'), circle('0,0 2'))", True),
    ("spatial_intersect(point('2.1,0'), circle('0,0 2'))", False), ("spatial_intersect(circle('0,0 1'), circle('2,0 1'))", True),
    ("spatial_intersect(rectangle('0,0 1,1'), rectangle('2,2 3,3'))", False),
    ("spatial_intersect(line('0,0 2,2'), line('0,2 2,0'))", True), ("spatial_intersect(point('1,1'), polygon('0,0 4,0 4,4 0,4'))", True),
    ("spatial_intersect(line('5,5 6,6'), polygon('0,0 4,0 4,4 0,4'))", False),
    ("spatial_intersect(circle('5,2 1'), rectangle('0,0 4,4'))", True),
    *built_ins.CONSTANTS,
]  # fmt: skip
