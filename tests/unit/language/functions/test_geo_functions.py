"""Great-circle functions as Spark computes them, beside unit vectors in space."""

from __future__ import annotations

import math
from random import Random

import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from tests.support.reference import geodesy as reference
from tests.support.reference.asking import ask, ask_one
from tocsin.language.functions.geo_functions import EARTH_RADIUS_M, FUNCTIONS
from tocsin.language.types import typed_sql
from tocsin.language.types.typed_sql import SPARK_TYPES, FunctionError, TypedSql, literal
from tocsin.rules.model import types as t
from tocsin.rules.model import values
from tocsin.rules.model.values import Circle, Point, Rectangle

HALF_TURN_M = math.pi * EARTH_RADIUS_M


def call(name: str, *arguments: TypedSql) -> TypedSql:
    return FUNCTIONS[name](arguments)


def column(name: str, type_: t.Type) -> TypedSql:
    return TypedSql(exp.column(name), type_)


def random_place(rng: Random) -> Point:
    """Anywhere, with a liking for the poles and the antimeridian, and longitudes off by whole turns."""
    lat = rng.choice([rng.uniform(-90, 90), rng.choice([-1, 1]) * (90 - 10 ** rng.uniform(-8, 1)), 90.0, -90.0])
    lon = rng.choice([rng.uniform(-180, 180), rng.choice([-1, 1]) * (180 - 10 ** rng.uniform(-8, 1)), 180.0, 0.0])
    return Point(lat, lon + 360.0 * rng.choice([0, 0, 0, 1, -1, 2]))


def random_box(rng: Random) -> Rectangle:
    low, high = sorted((random_place(rng).x, random_place(rng).x))
    west = rng.uniform(-180, 180)
    return Rectangle(Point(low, west), Point(high, west + rng.choice([0.0, 0.01, 5, 40, 170, 200, 355, 360])))


def test_distances_agree_with_unit_vectors_near_and_far(spark: SparkSession) -> None:
    rng = Random(11)
    pairs = []
    for _ in range(300):
        p = random_place(rng)
        near = Point(max(-90.0, min(90.0, p.x + 10 ** rng.uniform(-9, 0))), p.y + 10 ** rng.uniform(-9, 0))
        opposite = Point(-near.x, near.y + 180)
        pairs += [(p, random_place(rng)), (p, near), (p, opposite), (p, p)]
    schema = f"p {SPARK_TYPES[t.POINT]}, q {SPARK_TYPES[t.POINT]}"
    rows = [((p.x, p.y), (q.x, q.y)) for p, q in pairs]
    spark.createDataFrame(rows, schema).createOrReplaceTempView("places")
    answers = ask(spark, [call("geo_distance", column("p", t.POINT), column("q", t.POINT))], "places")
    for (p, q), (metres,) in zip(pairs, answers, strict=True):
        # The vectors themselves are only good to some 1e-16 of the radius.
        assert metres == pytest.approx(reference.distance_m(p, q), rel=1e-12, abs=1e-8), (p, q)
        assert metres >= 0


def test_known_distances_hold_to_the_last_digits(spark: SparkSession) -> None:
    degree = math.radians(1) * EARTH_RADIUS_M
    cases = [
        (Point(0, 0), Point(0, 1), degree),
        (Point(0, 179.5), Point(0, -179.5), degree),
        (Point(10, 3), Point(10, 3 + 720), 0.0),
        (Point(89.5, 0), Point(89.5, 180), degree),
        (Point(90, 12), Point(90, -77), 0.0),
        (Point(90, 0), Point(-90, 0), HALF_TURN_M),
        (Point(0, 0), Point(0, 180), HALF_TURN_M),
        (Point(37, 20), Point(-37, 200), HALF_TURN_M),
        (Point(0, 0), Point(1e-9, 0), degree * 1e-9),
        (Point(37, 20), Point(-37 + 1e-7, 200), HALF_TURN_M - degree * 1e-7),
    ]
    answers = ask_one(spark, [call("geo_distance", literal(p), literal(q)) for p, q, _ in cases])
    for answer, (p, q, expected) in zip(answers, cases, strict=True):
        # Where latitudes are not powers of two their own last bit is worth a nanometre.
        assert answer == pytest.approx(expected, rel=2e-15, abs=2e-9), (p, q)


def test_a_circle_meets_a_box_when_a_densely_sampled_side_is_in_reach(spark: SparkSession) -> None:
    rng = Random(5)
    cases, rows = [], []
    while len(cases) < 250:
        p, box = random_place(rng), random_box(rng)
        nearest, slack = reference.distance_to_box_m(p, box)
        radius = rng.choice([nearest * rng.uniform(0.5, 1.5), 10 ** rng.uniform(0, 7), nearest * 1.001])
        if nearest - slack - 1e-3 <= radius < nearest and nearest:
            continue  # within the sampling's own uncertainty
        cases.append((p, box, radius, radius >= nearest))
        rows.append(((p.x, p.y, radius), (box.low.x, box.low.y, box.high.x, box.high.y)))
    schema = f"c {SPARK_TYPES[t.CIRCLE]}, b {SPARK_TYPES[t.RECTANGLE]}"
    spark.createDataFrame(rows, schema).createOrReplaceTempView("boxes")
    center = TypedSql(typed_sql.struct(x=exp.column("x", "c"), y=exp.column("y", "c")), t.POINT)
    c, b = column("c", t.CIRCLE), column("b", t.RECTANGLE)
    asked = [call("geo_intersect", c, b), call("geo_intersect", b, c), call("geo_intersect", center, b),
             call("geo_intersect", b, center)]  # fmt: skip
    for (p, box, radius, meets), answers in zip(cases, ask(spark, asked, "boxes"), strict=True):
        inside = reference.in_box(p, box)
        assert answers == [meets, meets, inside, inside], (p, box, radius)
    assert 0.2 < sum(meets for *_, meets in cases) / len(cases) < 0.95


def test_boundaries_the_antimeridian_and_the_poles_are_right(spark: SparkSession) -> None:
    degree = math.radians(1) * EARTH_RADIUS_M
    fiji, arctic = values.parse_rectangle("-20,170 -10,190"), values.parse_rectangle("80,10 90,20")
    cases: list[tuple[Point | Circle | Rectangle, Point | Circle | Rectangle, bool]] = [
        (Point(0, 179.999), Circle(Point(0, -179.999), 300), True),
        (Point(0, 179.999), Circle(Point(0, -179.999), 200), False),
        (Point(5, 5), Circle(Point(5, 5), 0), True),
        (Point(5, 5 + 360), Circle(Point(5, 5), 0), True),
        (Point(90, 5), Circle(Point(90, -50), 0), True),
        (Circle(Point(0, 179), degree), Circle(Point(0, -179), 1.0001 * degree), True),
        (Circle(Point(0, 179), degree), Circle(Point(0, -179), 0.9999 * degree), False),
        (Point(-15, -175), fiji, True),
        (Point(-15, 175), fiji, True),
        (Point(-15, -170), fiji, True),
        (Point(-15, -169.9), fiji, False),
        (Point(90, -100), arctic, True),
        (Point(89.9, -100), arctic, False),
        (Circle(Point(89.9, -100), 0.2 * degree), arctic, True),
        (Circle(Point(89.9, -165), 0.05 * degree), arctic, False),
        (Circle(Point(89, 0), 1.5 * degree), values.parse_rectangle("89.6,150 89.7,200"), True),
        (Circle(Point(0, 0), HALF_TURN_M), values.parse_rectangle("-1,179 1,181"), True),
        (Circle(Point(-15, 195), 4 * degree), fiji, False),
        (Circle(Point(-15, -165), 5 * degree), fiji, True),
        (fiji, values.parse_rectangle("-12,-175 0,-160"), True),
        (fiji, values.parse_rectangle("-12,-169 0,-160"), False),
        (arctic, values.parse_rectangle("85,100 90,120"), True),
        (arctic, values.parse_rectangle("85,-341 86,-340"), True),
    ]
    both = [call("geo_intersect", literal(x), literal(y)) for a, b, _ in cases for x, y in ((a, b), (b, a))]
    answers = ask_one(spark, both)
    assert [(a, b, *answers[2 * i : 2 * i + 2]) for i, (a, b, _) in enumerate(cases)] == [
        (a, b, meets, meets) for a, b, meets in cases
    ]


def test_the_area_of_a_circle_is_that_of_its_cap(spark: SparkSession) -> None:
    circles = [Circle(Point(0, 0), radius) for radius in (1.0, 1e3, 1e6, HALF_TURN_M / 2, HALF_TURN_M, 1e9)]
    answers = ask_one(spark, [call("geo_area", literal(circle)) for circle in circles])
    assert answers[1:] == [pytest.approx(reference.cap_area_m2(circle), rel=1e-7) for circle in circles[1:]]
    # A small cap is flat: where 1 - cos has no digits left, the formula still has.
    assert answers[0] == pytest.approx(math.pi, rel=1e-12)


def test_null_in_gives_null_out(spark: SparkSession) -> None:
    point, circle = literal(Point(0, 0)), literal(Circle(Point(0, 0), 1))
    box = literal(values.parse_rectangle("0,0 1,1"))
    no = {type_: literal(None, type_) for type_ in (t.POINT, t.CIRCLE, t.RECTANGLE)}
    asked = [
        call("geo_distance", no[t.POINT], point), call("geo_distance", point, literal(None)),
        call("geo_area", no[t.CIRCLE]),
        *(call("geo_intersect", no[a], b) for a in (t.CIRCLE, t.RECTANGLE) for b in (point, circle, box)),
        *(call("geo_intersect", no[t.POINT], b) for b in (circle, box)),
    ]  # fmt: skip
    assert ask_one(spark, asked) == [None] * len(asked)


def test_wrong_arguments_are_told_what_was_expected() -> None:
    with pytest.raises(FunctionError, match=r"geo_distance expects \(point, point\), got \(point, circle\)"):
        call("geo_distance", literal(Point(0, 0)), literal(Circle(Point(0, 0), 1)))
    with pytest.raises(FunctionError, match=r"geo_intersect expects \(point, circle\) or .*, got \(point, point\)"):
        call("geo_intersect", literal(Point(0, 0)), literal(Point(0, 0)))
