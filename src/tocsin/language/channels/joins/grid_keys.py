"""Builds join keys for shapes: two shapes that meet share a cell of a grid.

Spark would test every shape against every other. An equality of cells is a condition by which Spark can join; the exact
test follows for the pairs that share a cell.
"""

from __future__ import annotations

from sqlglot import exp

from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.functions import grid
from tocsin.language.functions.grid import Near
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.rules.model import types as t


def by_cells(near: Near, sides: JoinSides) -> KeyStrategy | None:
    """Returns the strategy for two shapes that must meet; None if a shape's type has no bounding box."""
    a, b = (near.a, near.b) if sides.of(near.a.sql) == sides.left else (near.b, near.a)
    if sides.of(a.sql) != sides.left or sides.of(b.sql) != sides.right:
        return None
    if not all(grid.has_cells(shape.type, globe=near.globe) for shape in (a, b)):
        return None
    what = "a grid on the globe" if near.globe else "a grid in the plane"

    def region(shape: TypedSql, side: str) -> grid.Region:
        return grid.Region.of(shape, sides.per_row(side), globe=near.globe)

    def points(shape: TypedSql, levels: exp.Expr) -> exp.Expr:
        return grid.point_cells(shape, levels, globe=near.globe)

    if a.type == t.POINT and b.type == t.POINT:
        finest = grid.array_of((0,))
        return KeyStrategy(what, points(a, finest), points(b, finest))
    if b.type == t.POINT:
        first = region(a, sides.left)
        return KeyStrategy(what, first.cells, points(b, sides.levels(sides.left, first)))
    if a.type == t.POINT:
        second = region(b, sides.right)
        return KeyStrategy(what, points(a, sides.levels(sides.right, second)), second.cells)
    first, second = region(a, sides.left), region(b, sides.right)
    left_levels, right_levels = sides.levels(sides.left, first), sides.levels(sides.right, second)
    # A left cell matches the right side's own and coarser cells by its number. A coarser left cell matches the right
    # side's own cells by its negative number, so two coarser cells never match.
    left = build("concat(_own, transform(_more, __n -> -__n - 1L))", _own=first.cells,
                 _more=first.coarser_cells(right_levels))  # fmt: skip
    right = build("concat(_own, _more, transform(_own, __n -> -__n - 1L))", _own=sides.per_row(sides.right)(
        second.cells), _more=second.coarser_cells(left_levels))  # fmt: skip

    def counts(key: exp.Expr) -> exp.Expr:
        return grid.is_first_shared(build("if(_k < 0L, -_k - 1L, _k)", _k=key), first, second)

    return KeyStrategy(what, left, right, counts)
