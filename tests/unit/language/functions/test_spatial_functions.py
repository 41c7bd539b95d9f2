"""Spatial functions as Spark computes them, beside exact fractions in plain Python."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp

from tests.support.reference import geometry
from tests.support.reference.asking import ask, ask_one
from tests.support.reference.geometry import Shape
from tocsin.language.functions.spatial_functions import FUNCTIONS
from tocsin.language.types.typed_sql import SPARK_TYPES, FunctionError, TypedSql, literal
from tocsin.rules.model import types as t
from tocsin.rules.model import values
from tocsin.rules.model.values import Circle, Line, Point, Polygon, Rectangle

# Convex and not, with a hole's worth of bay, straight corners, and one that repeats its first point.
OUTLINES = [
    [(0, 0), (4, 0), (0, 3)],
    [(0, 0), (4, 0), (4, 4), (0, 4)],
    [(0, 0), (2, 0), (4, 0), (4, 4), (2, 4), (0, 4), (0, 2)],
    [(0, 0), (4, 0), (4, 1), (1, 1), (1, 4), (0, 4)],
    [(0, 0), (6, 0), (6, 5), (4, 5), (4, 2), (2, 2), (2, 5), (0, 5)],
    [(0, 0), (7, 0), (7, 4), (6, 1), (5, 4), (4, 1), (3, 4), (2, 1), (0, 4)],
    [(0, 2), (2, 2), (3, 0), (4, 2), (6, 2), (4, 3), (5, 6), (3, 4), (1, 6), (2, 3)],
    [(0, 0), (7, 0), (7, 7), (1, 7), (1, 2), (5, 2), (5, 5), (3, 5), (3, 4), (4, 4), (4, 3), (2, 3), (2, 6), (6, 6),
     (6, 1), (0, 1)],
    [(0, 0), (3, 1), (0, 3), (0, 0)],
]  # fmt: skip


def call(name: str, *arguments: TypedSql) -> TypedSql:
    return FUNCTIONS[name](arguments)


def column(name: str, type_: t.Type) -> TypedSql:
    return TypedSql(exp.column(name), type_)


def array(item: t.Type, *items: TypedSql) -> TypedSql:
    return TypedSql(exp.Array(expressions=[item.sql.copy() for item in items]), t.ArrayType(item))


def random_point(rng: Random) -> Point:
    return Point(rng.randint(-8, 8) / 2, rng.randint(-8, 8) / 2)


def random_polygon(rng: Random) -> Polygon:
    size, flip, swap = rng.choice([0.25, 0.5, 1]), rng.choice([-1, 1]), rng.random() < 0.5
    dx, dy = rng.randint(-8, 4) / 2, rng.randint(-8, 4) / 2
    ring = [Point(flip * size * x + dx, size * y + dy) for x, y in rng.choice(OUTLINES)]
    if swap:
        ring = [Point(p.y, p.x) for p in ring]
    if ring[0] != ring[-1]:
        turn = rng.randrange(len(ring))
        ring = ring[turn:] + ring[:turn]
    return Polygon(tuple(ring[::-1] if rng.random() < 0.5 else ring))


def random_shape(rng: Random, type_: t.Type) -> Shape:
    match str(type_):
        case "point":
            return random_point(rng)
        case "line":
            return Line(random_point(rng), random_point(rng))
        case "rectangle":
            return values.rectangle(random_point(rng), random_point(rng))
        case "circle":
            return Circle(random_point(rng), rng.choice([0, 0.5, 1, 1.5, 2.5]))
    return random_polygon(rng)


def as_row(shape: Shape | None) -> Any:
    match shape:
        case None:
            return None
        case Point():
            return (shape.x, shape.y)
        case Line(a, b) | Rectangle(a, b):
            return (a.x, a.y, b.x, b.y)
        case Circle(center, radius):
            return (center.x, center.y, float(radius))
        case Polygon(points):
            return [as_row(p) for p in points]


NAMES = [(f"{type_}{n}", type_) for type_ in t.SPATIAL for n in (1, 2)]
# Every pair of types once: the first of one with the second of the other, turned round for every other pair.
PAIRS = [
    (i, j) if (i + j) % 4 == 1 else (j, i) for i in range(0, len(NAMES), 2) for j in range(1, len(NAMES), 2) if i < j
]
MEETINGS = [call("spatial_intersect", column(*NAMES[i]), column(*NAMES[j])) for i, j in PAIRS]


def shape_table(spark: SparkSession, rows: list[list[Shape | None]]) -> None:
    schema = ", ".join(f"{name} {SPARK_TYPES[type_]}" for name, type_ in NAMES)
    spark.createDataFrame([tuple(map(as_row, row)) for row in rows], schema).createOrReplaceTempView("shapes")


def test_shapes_of_every_pair_of_types_meet_as_exact_fractions_say(spark: SparkSession) -> None:
    rng = Random(20261115)
    shapes = [[random_shape(rng, type_) for _, type_ in NAMES] for _ in range(200)]
    shape_table(spark, shapes)
    met = 0
    for row, answers in zip(shapes, ask(spark, MEETINGS, "shapes"), strict=True):
        for (i, j), answer in zip(PAIRS, answers, strict=True):
            assert answer == geometry.intersect(row[i], row[j]), (row[i], row[j])
            met += answer
    assert 0.1 < met / (len(shapes) * len(PAIRS)) < 0.9


def test_a_shape_that_is_null_meets_nothing_and_misses_nothing(spark: SparkSession) -> None:
    rng = Random(3)
    rows = [[None if i % 2 == lost else random_shape(rng, NAMES[i][1]) for i in range(10)] for lost in (0, 1)]
    shape_table(spark, rows)
    assert ask(spark, MEETINGS, "shapes") == [[None] * len(MEETINGS)] * 2


def test_areas_of_rectangles_and_polygons_are_exact_on_the_grid(spark: SparkSession) -> None:
    rng = Random(7)
    shapes = [random_shape(rng, type_) for type_ in (t.RECTANGLE, t.POLYGON) for _ in range(20)]
    answers = ask_one(spark, [call("spatial_area", literal(shape)) for shape in shapes])
    assert answers == [float(geometry.area(shape)) for shape in shapes if isinstance(shape, Rectangle | Polygon)]


def test_touching_counts_also_where_decimals_are_not_exact(spark: SparkSession) -> None:
    pairs: list[tuple[Shape, Shape]] = [
        (Point(0.1, 0.3), values.parse_line("0,0 0.3,0.9")),
        (values.parse_line("0.1,0.3 5,0"), values.parse_line("0,0 0.3,0.9")),
        (Point(0.1, 0.3), values.parse_polygon("0,0 0.3,0.9 0,0.9")),
        (Point(1.0, 0.0), Circle(Point(0.0, 0.0), 1.0)),
        (Circle(Point(0.0, 0.0), 0.1), Circle(Point(0.3, 0.0), 0.2)),
        (Circle(Point(1.0, 1.0), 0.0), Point(1.0, 1.0)),
        (Circle(Point(2.0, 2.0), 0.01), values.parse_polygon("0,0 9,0 9,9 0,9")),
    ]
    both = [call("spatial_intersect", literal(x), literal(y)) for a, b in pairs for x, y in ((a, b), (b, a))]
    assert ask_one(spark, both) == [True] * len(both)


def test_a_point_beside_a_circle_stays_plain_arithmetic() -> None:
    circle = call("create_circle", call("create_point", column("lat", t.DOUBLE), column("lon", t.DOUBLE)), literal(0.5))
    sql = call("spatial_intersect", column("place", t.POINT), circle).sql.sql(dialect="spark")
    assert sql == (
        "((place['x'] - lat) * (place['x'] - lat) + (place['y'] - lon) * (place['y'] - lon) <= 0.5E0 * 0.5E0)"
    )


def test_constructors_and_accessors_answer_what_went_in(spark: SparkSession) -> None:
    p, q = literal(Point(1.5, -2.0)), literal(Point(-1.0, 4.0))
    circle, ring = literal(Circle(Point(6.0, 3.0), 1.0)), literal(values.parse_polygon("0,0 1,0 1,1"))
    cases: list[tuple[TypedSql, Any]] = [
        (call("point", literal("1.5,-2")), (1.5, -2.0)),
        (call("line", literal("1,2 3,4")), (1.0, 2.0, 3.0, 4.0)),
        (call("rectangle", literal("3,4 1,2")), (1.0, 2.0, 3.0, 4.0)),
        (call("circle", literal("1,2 0.5")), (1.0, 2.0, 0.5)),
        (call("polygon", literal("0,0 0,1 1e1,0")), [(0.0, 0.0), (0.0, 1.0), (10.0, 0.0)]),
        (call("create_point", literal(3), literal(0.1)), (3.0, 0.1)),
        (call("create_line", p, q), (1.5, -2.0, -1.0, 4.0)),
        (call("create_rectangle", p, q), (-1.0, -2.0, 1.5, 4.0)),
        (call("create_circle", p, literal(2)), (1.5, -2.0, 2.0)),
        (call("create_polygon", array(t.BIGINT, *map(literal, (0, 0, 2, 0, 0, 2)))),
         [(0.0, 0.0), (2.0, 0.0), (0.0, 2.0)]),
        (call("create_polygon", array(t.POINT, p, q, p)), [(1.5, -2.0), (-1.0, 4.0), (1.5, -2.0)]),
        (call("get_x", p), 1.5),
        (call("get_y", p), -2.0),
        (call("get_center", circle), (6.0, 3.0)),
        (call("get_radius", circle), 1.0),
        (call("get_points", p), [(1.5, -2.0)]),
        (call("get_points", call("create_line", p, q)), [(1.5, -2.0), (-1.0, 4.0)]),
        (call("get_points", circle), [(5.0, 2.0), (7.0, 4.0)]),
        (call("get_points", ring), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]),
        (call("spatial_distance", literal(Point(0, 0)), literal(Point(3, 4))), 5.0),
        (call("spatial_area", circle), math.pi),
        (call("spatial_cell", p, literal(Point(0, 0)), literal(1), literal(1.5)), (1.0, -3.0, 2.0, -1.5)),
    ]  # fmt: skip
    assert ask_one(spark, [typed for typed, _ in cases]) == [expected for _, expected in cases]


def test_text_that_is_no_literal_is_read_by_spark_as_values_reads_it(spark: SparkSession) -> None:
    texts = {
        "point": [" 1.0,2.0 ", "-1e-3,+.5", "5.,1E2"],
        "line": ["0,0 1,1", "1,2\t 3,4 "],
        "rectangle": ["5,6 1,9"],
        "circle": ["1,2 0.5", "\n1,2 +3"],
        "polygon": ["0,0 0,1 1,0", "0,0 1,1  2,0 3,7"],
    }
    parse = {"point": values.parse_point, "line": values.parse_line, "rectangle": values.parse_rectangle,
             "circle": values.parse_circle, "polygon": values.parse_polygon}  # fmt: skip
    cases = [(name, text) for name, several in texts.items() for text in several]
    spark.createDataFrame([(text,) for _, text in cases], "s STRING").createOrReplaceTempView("texts")
    for name in texts:
        wanted = [(text, parse[name](text)) for kind, text in cases if kind == name]
        among = ", ".join(literal(text).sql.sql(dialect="spark") for text, _ in wanted)
        rows = ask(spark, [column("s", t.STRING), call(name, column("s", t.STRING))], f"texts WHERE s IN ({among})")
        assert [(s, shape) for s, shape in rows] == [(text, as_row(shape)) for text, shape in wanted]


@pytest.mark.parametrize(
    ("name", "text"),
    [("point", "1.0"), ("point", "1,2 3,4"), ("point", "1e999,0"), ("line", "1,2"), ("circle", "1,2 -1"),
     ("circle", "1,2,3"), ("polygon", "0,0 1,1"), ("rectangle", "nan,0 1,1")],
)  # fmt: skip
def test_bad_text_is_refused_now_when_literal_and_by_the_query_otherwise(
    spark: SparkSession, name: str, text: str
) -> None:
    with pytest.raises(FunctionError, match="expected a"):
        call(name, literal(text))
    hidden = TypedSql(exp.Anonymous(this="reverse", expressions=[literal(text[::-1]).sql]), t.STRING)
    with pytest.raises(PySparkException, match="expected a"):
        ask_one(spark, [call(name, hidden)])


def test_null_in_gives_null_out(spark: SparkSession) -> None:
    absent = {type_: literal(None, type_) for type_ in (*t.SPATIAL, t.DOUBLE, t.STRING)}
    shape = {type_: literal(random_shape(Random(1), type_)) for type_ in t.SPATIAL}
    null = literal(None)
    half = call("create_point", literal(1.0), absent[t.DOUBLE])
    asked = [
        *(call(str(type_), absent[t.STRING]) for type_ in t.SPATIAL),
        *(call("get_points", absent[type_]) for type_ in t.SPATIAL),
        *(call("spatial_area", absent[type_]) for type_ in (t.RECTANGLE, t.CIRCLE, t.POLYGON)),
        half, call("get_x", half), call("get_x", null), call("get_x", absent[t.POINT]),
        call("get_center", absent[t.CIRCLE]), call("create_circle", half, literal(1)),
        call("create_circle", shape[t.POINT], absent[t.DOUBLE]), call("create_line", shape[t.POINT], half),
        call("create_rectangle", null, shape[t.POINT]), call("spatial_distance", half, shape[t.POINT]),
        call("spatial_intersect", half, shape[t.RECTANGLE]), call("spatial_intersect", half, shape[t.POLYGON]),
        call("spatial_cell", shape[t.POINT], shape[t.POINT], absent[t.DOUBLE], literal(1)),
        call("create_polygon", array(t.DOUBLE, *[literal(1.0)] * 5, null)),
    ]  # fmt: skip
    assert ask_one(spark, asked) == [None] * len(asked)


def test_a_name_of_the_query_is_never_taken_for_one_of_ours(spark: SparkSession) -> None:
    # The table has the names that a careless template would bind: a struct column called like the table, e, p, x.
    spark.sql(
        "SELECT struct(1D AS x, 1D AS y) AS e, array(struct(0D AS x, 0D AS y), struct(3D AS x, 0D AS y),"
        " struct(0D AS x, 3D AS y)) AS p, 100D AS x"
    ).createOrReplaceTempView("e")
    e = column("e", t.POINT)
    asked = [call("spatial_intersect", e, column("p", t.POLYGON)), call("get_x", e)]
    assert ask(spark, asked, "e") == [[True, 1.0]]


def test_a_condition_that_a_person_wrote_is_kept(spark: SparkSession) -> None:
    hidden = TypedSql(exp.If(this=exp.true(), true=exp.null(), false=literal(Point(0, 0)).sql), t.POINT)
    assert ask_one(spark, [call("spatial_intersect", hidden, literal(Circle(Point(0, 0), 1)))]) == [None]


def test_a_negative_radius_and_an_empty_cell_are_refused(spark: SparkSession) -> None:
    p = literal(Point(0, 0))
    with pytest.raises(FunctionError, match="radius of at least 0"):
        call("create_circle", p, literal(-1))
    with pytest.raises(FunctionError, match="larger than 0"):
        call("spatial_cell", p, p, literal(0), literal(1))
    computed = TypedSql(exp.Anonymous(this="negative", expressions=[literal(2.0).sql]), t.DOUBLE)
    with pytest.raises(PySparkException, match="radius of at least 0"):
        ask_one(spark, [call("create_circle", p, computed)])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("get_x", [literal(1)], r"get_x expects \(point\), got \(bigint\)"),
        ("spatial_distance", [literal(Point(0, 0))], r"spatial_distance expects \(point, point\), got \(point\)"),
        ("create_point", [literal("1"), literal(2)], r"expects \(number, number\), got \(string, bigint\)"),
        ("create_polygon", [literal(1)], r"create_polygon expects \(\[number\]\) or \(\[point\]\), got \(bigint\)"),
        ("create_polygon", [array(t.BIGINT, literal(1))], "got 1 numbers"),
    ],
)
def test_wrong_arguments_are_told_what_was_expected(name: str, arguments: list[TypedSql], message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        FUNCTIONS[name](arguments)
