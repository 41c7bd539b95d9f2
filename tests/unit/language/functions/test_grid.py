"""The grid alone: it brings every pair together that its users would find, each once, through few cells."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from sqlglot import exp

from tests.support.reference import geodesy, geometry
from tocsin.language.functions import grid
from tocsin.language.functions.grid import Region
from tocsin.language.types.typed_sql import TypedSql
from tocsin.pipeline.datasets import layout
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType, Type
from tocsin.rules.model.values import Circle, Line, Point, Polygon, Rectangle, rectangle

tried = settings(max_examples=2, phases=(Phase.explicit, Phase.reuse, Phase.generate), print_blob=True)
seeds = st.integers(0, 2**32 - 1)

Cells = list[list[int]]


def _shown(spark: SparkSession, kind: Type, shapes: Sequence[Any], name: str) -> None:
    record = ObjectType((Field("n", t.BIGINT), Field("shape", kind, True)), open=False)
    rows = [{"n": i, "shape": shape} for i, shape in enumerate(shapes)]
    spark.createDataFrame(layout.to_arrow(rows, record)).createOrReplaceTempView(name)


def _asked(spark: SparkSession, view: str, **columns: exp.Expr) -> list[Any]:
    listed = ", ".join(f"{column.sql(dialect='spark')} AS {name}" for name, column in columns.items())
    return spark.sql(f"SELECT n, {listed} FROM {view} ORDER BY n").collect()


def _region(spark: SparkSession, view: str, kind: Type, *, globe: bool) -> Region:
    """The region of each row, whose parts the view shows in columns from then on."""
    parts: list[str] = []

    def beside(sql: exp.Expr) -> exp.Expr:
        parts.append(sql.sql(dialect="spark"))
        return exp.column(f"{view}_part{len(parts)}")

    region = Region.of(TypedSql(exp.column("shape"), kind), beside, globe=globe)
    listed = ", ".join(f"{sql} AS {view}_part{i}" for i, sql in enumerate(parts, 1))
    spark.sql(f"SELECT *, {listed} FROM {view}").createOrReplaceTempView(view)
    return region


def _levels(found: set[int]) -> exp.Expr:
    return grid.array_of(tuple(sorted(found)) or (-1,))


def points_and_regions(
    spark: SparkSession, points: Sequence[Point], kind: Type, regions: Sequence[Any], *, globe: bool
) -> Counter[tuple[int, int]]:
    """How often the grid brings each point and each region together."""
    _shown(spark, t.POINT, points, "grid_points")
    _shown(spark, kind, regions, "grid_regions")
    region = _region(spark, "grid_regions", kind, globe=globe)
    theirs = _asked(spark, "grid_regions", level=region.level, cells=region.cells)
    levels = _levels({item.level for item in theirs if item.level is not None})
    mine = _asked(
        spark, "grid_points", cells=grid.point_cells(TypedSql(exp.column("shape"), t.POINT), levels, globe=globe)
    )
    assert all(len(row.cells or ()) <= 9 for row in theirs), "a region of its own level lies in a few cells"
    at: dict[int, list[int]] = defaultdict(list)
    for row in theirs:
        for cell in row.cells or ():
            at[cell].append(row.n)
    return Counter((row.n, n) for row in mine for cell in row.cells or () for n in at[cell])


def regions_and_regions(
    spark: SparkSession, a: tuple[Type, Sequence[Any]], b: tuple[Type, Sequence[Any]], *, globe: bool
) -> Counter[tuple[int, int]]:
    """The same for two kinds of regions, by the rule that own cells meet own and coarser ones."""
    sides = []
    for kind, shapes in (a, b):
        _shown(spark, kind, shapes, f"grid_{len(sides)}")
        region = _region(spark, f"grid_{len(sides)}", kind, globe=globe)
        sides.append((region, _asked(spark, f"grid_{len(sides)}", level=region.level)))
    levels = [_levels({row.level for row in rows if row.level is not None}) for _, rows in sides]
    listed = []
    for i, (region, _) in enumerate(sides):
        coarser = region.coarser_cells(levels[1 - i])
        listed.append(_asked(spark, f"grid_{i}", own=region.cells, coarser=coarser))
        assert all(len(item.own or ()) <= 9 for item in listed[-1])
        assert all(len(item.coarser or ()) <= 9 * (grid.EVERYTHING + 1) for item in listed[-1])
    pairs: list[tuple[int, int, int]] = []
    for way in (("own", "own"), ("own", "coarser"), ("coarser", "own")):
        at: dict[int, list[int]] = defaultdict(list)
        for item in listed[1]:
            for cell in item[way[1]] or ():
                at[cell].append(item.n)
        pairs += [(item.n, n, cell) for item in listed[0] for cell in item[way[0]] or () for n in at[cell]]
    spark.createDataFrame(pairs or [(-1, -1, 0)], "a BIGINT, b BIGINT, cell BIGINT").createOrReplaceTempView(
        "grid_pairs"
    )
    counts = grid.is_first_shared(exp.column("cell"), sides[0][0], sides[1][0]).sql(dialect="spark")
    joined = "grid_pairs JOIN grid_0 ON a = grid_0.n JOIN grid_1 ON b = grid_1.n"
    found = spark.sql(f"SELECT a, b FROM {joined} WHERE {counts}").collect()
    return Counter((item.a, item.b) for item in found)


# ---------------------------------------------------------------- shapes of every size, everywhere


def _number(rng: Random) -> float:
    """In 64ths, some at the borders of cells, some far away."""
    return rng.choice(
        (rng.randint(-640, 640) / 64, float(rng.choice((0, 1, -1, 4, 16, 64, -256))), rng.randint(-9, 9) * 2.0**13)
    )


def _point(rng: Random) -> Point:
    return Point(_number(rng), _number(rng))


def _size(rng: Random) -> float:
    return rng.choice((0, 1, 16, 64, 65, 256, 1024, 64 * 64, 64 << 12)) / 64


def _triangle(rng: Random) -> Polygon:
    at, size = _point(rng), _size(rng) + 1
    return Polygon((at, Point(at.x + size, at.y), Point(at.x, at.y + size)))


def _box(rng: Random) -> Rectangle:
    at = _point(rng)
    return rectangle(at, Point(at.x + _size(rng), at.y + _size(rng)))


def _line(rng: Random) -> Line:
    at = _point(rng)
    return Line(at, Point(at.x - _size(rng), at.y + _size(rng)))


SHAPES: dict[Type, Callable[[Random], Any]] = {
    t.CIRCLE: lambda rng: Circle(_point(rng), _size(rng)),
    t.RECTANGLE: _box,
    t.POLYGON: _triangle,
    t.LINE: _line,
}


@pytest.mark.parametrize("kind", SHAPES, ids=str)
@tried
@given(seed=seeds)
def test_a_point_and_a_region_meet_in_one_cell(spark: SparkSession, kind: Type, seed: int) -> None:
    rng = Random(seed)
    points, regions = [_point(rng) for _ in range(80)], [SHAPES[kind](rng) for _ in range(80)] + [None]
    found = points_and_regions(spark, points, kind, regions, globe=False)
    meeting = [(i, j) for i, p in enumerate(points) for j, r in enumerate(regions[:-1]) if geometry.intersect(p, r)]
    assert [pair for pair in meeting if found[pair] != 1] == [], f"seed {seed}"
    assert set(found.values()) <= {1}


@pytest.mark.parametrize(("a", "b"), [(t.CIRCLE, t.CIRCLE), (t.CIRCLE, t.RECTANGLE), (t.POLYGON, t.LINE)], ids=str)
@tried
@given(seed=seeds)
def test_two_regions_meet_in_one_cell(spark: SparkSession, a: Type, b: Type, seed: int) -> None:
    rng = Random(seed)
    mine, theirs = [SHAPES[a](rng) for _ in range(60)] + [None], [SHAPES[b](rng) for _ in range(60)]
    found = regions_and_regions(spark, (a, mine), (b, theirs), globe=False)
    meeting = [(i, j) for i, p in enumerate(mine[:-1]) for j, q in enumerate(theirs) if geometry.intersect(p, q)]
    assert [pair for pair in meeting if found[pair] != 1] == [], f"seed {seed}"
    assert set(found.values()) <= {1}


@tried
@given(seed=seeds)
def test_on_the_globe_points_and_circles_meet_across_every_border(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)

    def spot() -> Point:
        lat = rng.choice((90.0, -90.0, 89.99999, 0.0, rng.uniform(-90, 90)))
        return Point(lat, rng.choice((180.0, -180.0, 179.9999, -179.9999, 540.0, rng.uniform(-180, 180))))

    points = [spot() for _ in range(80)]
    circles = [Circle(spot(), rng.choice((0.0, 20.0, 1e4, 1e6, 1e7, 1.99e7, 2.1e7)) * rng.random()) for _ in range(80)]
    # On the border of a circle, as nearly as doubles allow.
    circles += [Circle(p, geodesy.distance_m(p, q)) for p, q in zip(points[:30], points[30:60], strict=True)]
    found = points_and_regions(spark, points, t.CIRCLE, circles, globe=True)
    near = [
        (i, j) for i, p in enumerate(points) for j, c in enumerate(circles)
        if geodesy.distance_m(p, c.center) <= c.radius * (1 + 1e-12) + 1e-6
    ]  # fmt: skip
    assert [pair for pair in near if found[pair] != 1] == [], f"seed {seed}"
    assert set(found.values()) <= {1}
    mine = circles[:60]
    pairs = regions_and_regions(spark, (t.CIRCLE, mine), (t.CIRCLE, mine), globe=True)
    touching = [
        (i, j) for i, p in enumerate(mine) for j, q in enumerate(mine)
        if geodesy.distance_m(p.center, q.center) <= p.radius + q.radius
    ]  # fmt: skip
    assert [pair for pair in touching if pairs[pair] != 1] == [], f"seed {seed}"
    assert set(pairs.values()) <= {1}


# ---------------------------------------------------------------- few cells, whatever is asked

_EXTREME = [
    Circle(Point(x, y), r)
    for x in (0.0, -0.0, 1e-300, 1e12, -3e17, 1e300, 1.7976931348623157e308)
    for y in (0.0, 1e15, -1e-9)
    for r in (0.0, 5e-324, 1e-12, 1.0, 1e9, 1e300, 1.7976931348623157e308, math.inf, math.nan)
]


@pytest.mark.parametrize("globe", [False, True], ids=["plane", "globe"])
def test_no_shape_however_odd_lies_in_many_cells(spark: SparkSession, globe: bool) -> None:
    shapes = [case for case in _EXTREME if not globe or abs(case.center.x) <= 90]
    _shown(spark, t.CIRCLE, shapes, "grid_odd")
    region = _region(spark, "grid_odd", t.CIRCLE, globe=globe)
    found = _asked(spark, "grid_odd", level=region.level, cells=region.cells)
    assert [shapes[row.n] for row in found if row.cells is None or not 1 <= len(row.cells) <= 9] == []


def test_a_shape_meets_its_own_centre_wherever_it_is(spark: SparkSession) -> None:
    shapes = [case for case in _EXTREME if not math.isnan(case.radius)]
    found = points_and_regions(spark, [shape.center for shape in shapes], t.CIRCLE, shapes, globe=False)
    assert [shapes[i] for i in range(len(shapes)) if found[i, i] != 1] == []


def test_shapes_that_are_not_there_have_no_cells(spark: SparkSession) -> None:
    levels = grid.array_of((0, 21))
    _shown(spark, t.POINT, [None], "grid_none")
    none = grid.point_cells(TypedSql(exp.column("shape"), t.POINT), levels, globe=False)
    assert [row.cells for row in _asked(spark, "grid_none", cells=none)] == [None]
    for kind in SHAPES:
        _shown(spark, kind, [None], "grid_none")
        region = _region(spark, "grid_none", kind, globe=False)
        (found,) = _asked(spark, "grid_none", cells=region.cells, coarser=region.coarser_cells(levels))
        assert found.cells is None
        assert not found.coarser
