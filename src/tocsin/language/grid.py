"""A grid that finds pairs of shapes that may meet by equality of numbers, so that Spark joins them by hashing.

    level 0 … 20    cells of 4⁻⁸ … 4¹² in both directions; a shape's own level is the first with cells as large as it
    level 21        one cell that holds everything

A shape lies in a few cells of its own level, whatever its size; a point is in one cell of every level. So a point meets
a region in the one cell of the region's level where the point is. Two regions meet at the coarser one's level; of all
cells they share there, the one where the lower left corner of what their boxes share lies counts.

Great-circle shapes have boxes of latitudes and longitudes: one that reaches a pole or crosses the antimeridian takes in
all longitudes. Boxes are a little too large, never too small: whoever uses the grid checks the pairs it finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tocsin.language.geodesy import EARTH_RADIUS_M
from tocsin.language.typed import Typed, build
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Type

EVERYTHING: Final = 21
ALL_LEVELS: Final = tuple(range(EVERYTHING + 1))
_SMALLEST: Final = 8  # the finest cells are 4^-8 wide
_WRAP: Final = 1 << 29  # cells far apart may share a number; the neighbours that one shape covers never do
_LEVEL: Final = 1 << 58
_DEGREES_PER_METRE: Final = f"{1 / (math.radians(1) * EARTH_RADIUS_M):.17E}"
_RADIUS: Final = repr(EARTH_RADIUS_M) + "E0"


@dataclass(frozen=True, slots=True)
class Near:
    """A condition that can only hold where two shapes meet: of the plane, or of the globe."""

    a: Typed
    b: Typed
    globe: bool


def known(type_: Type, *, globe: bool) -> bool:
    return type_ in (_GLOBE_BOXES if globe else _PLANE_BOXES)


def point_cells(shape: Typed, levels: exp.Expr, *, globe: bool) -> exp.Expr:
    """The cell of a point at each of these levels."""
    x, y = ("_p.x", _longitude("_p.y")) if globe else ("_p.x", "_p.y")
    cells = f"transform(_levels, __l -> {_cell('__l', _index(x, '__l'), _index(y, '__l'))})"
    return build(f"if(_p.x + _p.y IS NULL, NULL, {cells})", _p=shape.sql, _levels=levels)


def box(shape: Typed, *, globe: bool) -> exp.Expr:
    """STRUCT<x1, y1, x2, y2> around the shape."""
    return build((_GLOBE_BOXES if globe else _PLANE_BOXES)[shape.type], _a=shape.sql)


def own_level(shape: Typed, *, globe: bool) -> exp.Expr:
    return build(_bound("_box", _OWN), _box=box(shape, globe=globe))


def own_cells(shape: Typed, *, globe: bool) -> exp.Expr:
    """The cells of a region's own level that its box touches: at most nine."""
    return build(_bound("_box", _bound(_OWN, _cells("__v1", "__v0"), "__v1")), _box=box(shape, globe=globe))


def coarser_cells(shape: Typed, levels: exp.Expr, *, globe: bool) -> exp.Expr:
    """Its cells at those of the levels that are coarser than its own."""
    each = f"flatten(transform(filter(_levels, __l -> __l > __v1), __l -> {_cells('__l', '__v0')}))"
    return build(_bound("_box", _bound(_OWN, each, "__v1")), _box=box(shape, globe=globe), _levels=levels)


def is_first_shared(cell: exp.Expr, a: Typed, b: Typed, *, globe: bool) -> exp.Expr:
    """Whether this cell is the one where a pair of regions counts."""
    level = f"(_cell div {_LEVEL}L)"
    x, y = "greatest(_a.x1, _b.x1)", "greatest(_a.y1, _b.y1)"
    return build(
        f"_cell = {_cell(level, _index(x, level), _index(y, level))}",
        _cell=cell, _a=box(a, globe=globe), _b=box(b, globe=globe),
    )  # fmt: skip


def array_of(levels: tuple[int, ...]) -> exp.Expr:
    return exp.cast(exp.Anonymous(this="array", expressions=[exp.Literal.number(one) for one in levels]),
                    "ARRAY<BIGINT>", dialect="spark")  # fmt: skip


LEVELS_TYPE: Final = ArrayType(t.BIGINT)

# ---------------------------------------------------------------- numbers of cells


def _bound(value: str, then: str, name: str = "__v0") -> str:
    """`then` with `value` computed once, under the name; NULL where it is."""
    return f"get(transform(array({value}), {name} -> {then}), 0)"


def _size(level: str) -> str:
    return f"pow(4E0, CAST({level} - {_SMALLEST} AS DOUBLE))"


def _index(coordinate: str, level: str, border: str = "") -> str:
    """Which cell of a row; with a border (+ or -) as far as rounding may take it that way."""
    within = f"greatest(least({coordinate} / {_size(level)}, 9E17), -9E17)"
    if border:
        within = _bound(within, f"__v2 {border} (1E-6 + 1E-14 * abs(__v2))", "__v2")
    return f"if({level} >= {EVERYTHING}, 0L, CAST(floor({within}) AS BIGINT))"


def _cell(level: str, column: str, row: str) -> str:
    return f"({level} * {_LEVEL}L + pmod({column}, {_WRAP}L) * {_WRAP}L + pmod({row}, {_WRAP}L))"


_EXTENT: Final = "greatest(__v0.x2 - __v0.x1, __v0.y2 - __v0.y1)"
_OWN: Final = (
    f"if(__v0 IS NULL, NULL, CAST(CASE WHEN {_EXTENT} <= {4.0**-_SMALLEST:.20E} THEN 0"
    f" WHEN {_EXTENT} > {4 ** (EVERYTHING - 1 - _SMALLEST)}E0 THEN {EVERYTHING}"
    f" ELSE ceil(log2({_EXTENT}) / 2E0) + {_SMALLEST} END AS BIGINT))"
)


def _cells(level: str, box_: str) -> str:
    def span(low: str, high: str) -> str:
        return f"sequence({_index(f'{box_}.{low}', level, '-')}, {_index(f'{box_}.{high}', level, '+')})"

    row = f"transform({span('y1', 'y2')}, __r -> {_cell(level, '__c', '__r')})"
    return f"if({level} IS NULL, NULL, flatten(transform({span('x1', 'x2')}, __c -> {row})))"


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
    """Latitudes `low` to `high` and longitudes from `west` on, or all longitudes where that crosses a border."""
    begin = _longitude(west)
    whole = f"({north_south} OR {width} >= 360E0 OR {begin} + {width} >= 180E0)"
    return (
        f"if({low} + {high} + {west} + {width} IS NULL, NULL, named_struct('x1', {low}, 'y1', if({whole}, -180E0,"
        f" {begin}), 'x2', {high}, 'y2', if({whole}, 180E0, {begin} + {width})))"
    )


_ARC: Final = f"(_a.radius * {_DEGREES_PER_METRE} * 1.000000001E0 + 1E-9)"  # degrees, a little more than needed
_POLAR: Final = f"(abs(_a.x) + {_ARC} >= 89.9999E0)"
_WIDTH: Final = (
    f"if({_POLAR}, 360E0, degrees(asin(least(sin(radians({_ARC})) / cos(radians(_a.x)), 1E0))) * 1.000000001E0 + 1E-9)"
)
_GLOBE_BOXES: Final[dict[Type, str]] = {
    t.POINT: _around("abs(_a.x) >= 90E0", "_a.x", "_a.x", "_a.y", "0E0"),
    t.CIRCLE: _around(_POLAR, f"_a.x - {_ARC}", f"_a.x + {_ARC}", f"_a.y - {_WIDTH}", f"2E0 * {_WIDTH}"),
    t.RECTANGLE: _around(
        "(_a.x2 >= 90E0 OR _a.x1 <= -90E0)", "_a.x1 - 1E-9", "_a.x2 + 1E-9", "_a.y1 - 1E-9", "_a.y2 - _a.y1 + 2E-9"
    ),
}
