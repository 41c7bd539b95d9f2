"""Finds pairs of shapes that may meet, by equality of cell numbers, so that Spark can use a hash join.

    level 0 … 20    cells of 4⁻⁸ … 4¹² in both directions
    level 21        one cell that holds everything

A shape's own level is the first level whose cells are at least as large as the shape, and large enough for doubles to
tell neighbouring cells apart. At its own level a shape covers only a few cells, whatever its size. A point lies in one
cell of every level. So a point meets a region in one cell of the region's level. Two regions meet at the coarser of
their levels. If they share several cells there, the pair counts in the cell that contains the lower left corner of
the intersection of their boxes.

Shapes on the globe have boxes of latitudes and longitudes. A box that reaches a pole or crosses the antimeridian covers
all longitudes. Boxes are slightly too large and never too small, so the caller must test the pairs exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlglot import exp

from tocsin.language.functions.geo_functions import EARTH_RADIUS_M
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Type

EVERYTHING: Final = 21
ALL_LEVELS: Final = tuple(range(EVERYTHING + 1))
_SMALLEST: Final = 8  # the finest cells are 4^-8 wide
_WRAP: Final = 1 << 29  # distant cells may share a number; the neighbouring cells that a shape covers never do
_LEVEL: Final = 1 << 58
_DEGREES_PER_METRE: Final = f"{1 / (math.radians(1) * EARTH_RADIUS_M):.17E}"


@dataclass(frozen=True, slots=True)
class Near:
    """A condition that holds only if two shapes meet, in the plane or on the globe."""

    a: TypedSql
    b: TypedSql
    globe: bool


def has_cells(type_: Type, *, globe: bool) -> bool:
    return type_ in (_GLOBE_BOXES if globe else _PLANE_BOXES)


PerRow: TypeAlias = Callable[[exp.Expr], exp.Expr]
"""Computes an expression once per row; returns the name of its value."""


def point_cells(shape: TypedSql, levels: exp.Expr, *, globe: bool) -> exp.Expr:
    """Returns the cell of a point at each of these levels."""
    x, y = ("_p.x", _longitude("_p.y")) if globe else ("_p.x", "_p.y")
    cells = f"transform(_levels, __l -> {_cell('__l', _index(x, '__l'), _index(y, '__l'))})"
    return build(f"if(_p.x + _p.y IS NULL, NULL, {cells})", _p=shape.sql, _levels=levels)


@dataclass(frozen=True, slots=True)
class Region:
    """A shape that covers cells: its bounding box, STRUCT<x1, y1, x2, y2>, and its own level."""

    box: exp.Expr
    level: exp.Expr
    cells: exp.Expr  # the cells at the shape's own level

    @classmethod
    def of(cls, shape: TypedSql, per_row: PerRow, *, globe: bool) -> Region:
        """Computes box, level and cells of a shape, each once per row."""
        parts = {"_a": per_row(shape.sql)}
        if globe and shape.type == t.CIRCLE:
            parts["_arc"] = per_row(build(_ARC, **parts))
            parts["_width"] = per_row(build(_WIDTH, **parts))
        box = per_row(build((_GLOBE_BOXES if globe else _PLANE_BOXES)[shape.type], **parts))
        level = per_row(build(_OWN, _b=box))
        span = per_row(build(_span("_l"), _b=box, _l=level))
        return cls(box, level, build(_cells("_l", "_s"), _l=level, _s=span))

    def coarser_cells(self, levels: exp.Expr) -> exp.Expr:
        """Returns the region's cells at those of the levels that are coarser than its own."""
        spans = f"transform(filter(_levels, __l -> __l > _l), __l -> {_span('__l')})"
        cells = f"flatten(transform({spans}, __s -> {_cells('__s.level', '__s')}))"
        return build(cells, _b=self.box, _l=self.level, _levels=levels)


def is_first_shared(cell: exp.Expr, a: Region, b: Region) -> exp.Expr:
    """Whether this cell is the cell in which a pair of regions counts."""
    level = f"(_cell div {_LEVEL}L)"
    x, y = "greatest(_a.x1, _b.x1)", "greatest(_a.y1, _b.y1)"
    test = f"_cell = {_cell(level, _index(x, level), _index(y, level))}"
    return build(test, _cell=cell, _a=a.box, _b=b.box)


def array_of(levels: tuple[int, ...]) -> exp.Expr:
    return exp.cast(exp.Anonymous(this="array", expressions=[exp.Literal.number(level) for level in levels]),
                    "ARRAY<BIGINT>", dialect="spark")  # fmt: skip


# ---------------------------------------------------------------- cell numbers


def _size(level: str) -> str:
    return f"pow(4E0, CAST({level} - {_SMALLEST} AS DOUBLE))"


def _index(coordinate: str, level: str, border: str = "") -> str:
    """Returns the index of a cell in a row or column; `border` (+ or -) moves it outwards by the rounding error."""
    scaled = f"{coordinate} / {_size(level)}"
    if border:
        scaled = f"({coordinate} {border} 1E-14 * abs({coordinate})) / {_size(level)} {border} 1E-6"
    return f"if({level} >= {EVERYTHING}, 0L, CAST(floor(greatest(least({scaled}, 9E17), -9E17)) AS BIGINT))"


def _cell(level: str, column: str, row: str) -> str:
    return f"({level} * {_LEVEL}L + pmod({column}, {_WRAP}L) * {_WRAP}L + pmod({row}, {_WRAP}L))"


_LARGEST: Final = ", ".join(f"abs(_b.{name})" for name in ("x1", "y1", "x2", "y2"))
_EXTENT: Final = (
    f"greatest(_b.x2 - _b.x1, _b.y2 - _b.y1, greatest({_LARGEST}) * {2.0**-40:.20E}, {4.0**-_SMALLEST:.20E})"
)
# NaN is above all numbers in Spark, so a shape without a size lies in the cell that holds everything.
_OWN: Final = f"if(_b IS NULL, NULL, CAST(ceil(least(log2({_EXTENT}) / 2E0 + {_SMALLEST}, {EVERYTHING}E0)) AS BIGINT))"


def _span(level: str) -> str:
    """Returns the range of cells that a box touches: the lower left cell, and the number of rows and columns."""
    x1, y1, x2, y2 = (
        _index(f"_b.{name}", level, border) for name, border in (("x1", "-"), ("y1", "-"), ("x2", "+"), ("y2", "+"))
    )
    members = f"'level', {level}, 'x', {x1}, 'y', {y1}, 'height', {y2} - {y1} + 1L, 'width', {x2} - {x1} + 1L"
    return f"if({level} IS NULL, NULL, named_struct({members}))"


def _cells(level: str, span: str) -> str:
    """Returns the cells of a span, column by column from the lower left; at most nine at the region's own level."""
    cell = _cell(level, f"({span}.x + __n div {span}.height)", f"({span}.y + __n % {span}.height)")
    return f"transform(sequence(0L, {span}.width * {span}.height - 1L), __n -> {cell})"


# ---------------------------------------------------------------- boxes


def _box(known: str, x1: str, y1: str, x2: str, y2: str) -> str:
    return f"if({known} IS NULL, NULL, named_struct('x1', {x1}, 'y1', {y1}, 'x2', {x2}, 'y2', {y2}))"


_CORNERS: Final = ("least(_a.x1, _a.x2)", "least(_a.y1, _a.y2)", "greatest(_a.x1, _a.x2)", "greatest(_a.y1, _a.y2)")
_PLANE_BOXES: Final[dict[Type, str]] = {
    t.POINT: _box("_a.x + _a.y", "_a.x", "_a.y", "_a.x", "_a.y"),
    t.CIRCLE: _box(
        "_a.x + _a.y + _a.radius", "_a.x - _a.radius", "_a.y - _a.radius", "_a.x + _a.radius", "_a.y + _a.radius"
    ),
    t.LINE: _box("_a.x1 + _a.y1 + _a.x2 + _a.y2", *_CORNERS),
    t.RECTANGLE: _box("_a.x1 + _a.y1 + _a.x2 + _a.y2", *_CORNERS),
    t.POLYGON: _box(
        "_a", *(f"array_{end}(transform(_a, __p -> __p.{axis}))" for end in ("min", "max") for axis in ("x", "y"))
    ),
}


def _longitude(y: str) -> str:
    return f"(pmod({y} + 180E0, 360E0) - 180E0)"


def _around(north_south: str, low: str, high: str, west: str, width: str) -> str:
    """Returns the box from latitude `low` to `high` and from longitude `west` on; all longitudes if it wraps around."""
    begin = _longitude(west)
    all_around = f"({north_south} OR {width} >= 360E0 OR {begin} + {width} >= 180E0)"
    return (
        f"if({low} + {high} + {west} + {width} IS NULL, NULL, named_struct('x1', {low}, 'y1', if({all_around}, -180E0,"
        f" {begin}), 'x2', {high}, 'y2', if({all_around}, 180E0, {begin} + {width})))"
    )


_ARC: Final = f"(_a.radius * {_DEGREES_PER_METRE} * 1.000000001E0 + 1E-9)"  # in degrees, rounded up a little
_POLAR: Final = "(abs(_a.x) + _arc >= 89.9999E0)"
_WIDTH: Final = (
    f"if({_POLAR}, 360E0, degrees(asin(least(sin(radians(_arc)) / cos(radians(_a.x)), 1E0))) * 1.000000001E0 + 1E-9)"
)
_GLOBE_BOXES: Final[dict[Type, str]] = {
    t.POINT: _around("abs(_a.x) >= 90E0", "_a.x", "_a.x", "_a.y", "0E0"),
    t.CIRCLE: _around(_POLAR, "_a.x - _arc", "_a.x + _arc", "_a.y - _width", "2E0 * _width"),
    t.RECTANGLE: _around(
        "(_a.x2 >= 90E0 OR _a.x1 <= -90E0)", "_a.x1 - 1E-9", "_a.x2 + 1E-9", "_a.y1 - 1E-9", "_a.y2 - _a.y1 + 2E-9"
    ),
}
