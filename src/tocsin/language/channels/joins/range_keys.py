"""Values meet by order: two bounds as intervals, in cells of a line, and one alone by buckets. Some of `ways`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tocsin.language.channels.joins.grid_keys import by_cells
from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.functions import temporal
from tocsin.language.functions.calls import is_made_once
from tocsin.language.functions.grid import Near
from tocsin.language.translate.predicate_notes import COMPARED, ORDERS
from tocsin.language.translate.scope import column
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Type

# How many borders are not above the value, in whatever order they are.
_PLACE: Final = "CAST(size(filter(_borders, __b -> __b <= _v)) AS BIGINT)"
# `pipeline.channels.interests` makes the same number of a duration.
_NUMBER_OF: Final[dict[Type, str]] = {
    t.DATETIME: "CAST(unix_micros(_v) AS DOUBLE) / 1E6",
    t.DATE: "CAST(unix_date(_v) AS DOUBLE)",
    t.TIME: "CAST(_v AS DOUBLE) / 1E6",
    t.DURATION: "_v.days * 86400E0 + _v.micros / 1E6",
}
_ORDERED: Final = frozenset((*t.NUMBERS, t.STRING, t.UUID, t.BOOLEAN, t.DATE, t.TIME, t.DATETIME, t.DURATION))


@dataclass(frozen=True, slots=True)
class _Bound:
    """The left side's value is at least, or at most, what the right side has."""

    value: TypedSql
    bound: TypedSql
    at_least: bool


def by_range(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: JoinSides) -> KeyStrategy | None:
    """The way of a comparison by order: with another of the conditions that bounds the same, or by itself."""
    first = _bound(condition, sides)
    if first is None:
        return None
    for other in conditions:
        second = _bound(other, sides) if other is not condition else None
        if second is None or second.at_least == first.at_least:
            continue
        low, high = (first, second) if first.at_least else (second, first)
        way = None
        if low.value == high.value:
            way = _interval(low.value, low.bound, high.bound, sides)
        elif low.bound == high.bound:
            way = _interval(low.bound, high.value, low.value, sides)
        if way is not None:
            return way
    if not _is_plain(first, sides):
        others = (_bound(one, sides) for one in conditions if one is not condition)
        if any(one is not None and _is_plain(one, sides) and _is_ordered(one) for one in others):
            return None  # that one is kept with the interests
    return _half(first, sides)


def _bound(condition: exp.Expr, sides: JoinSides) -> _Bound | None:
    compared = condition.meta.get(COMPARED)
    greater = ORDERS.get(type(condition.this if isinstance(condition, exp.Paren) else condition))
    if greater is None or compared is None:
        return None
    a, b = compared
    at = sides.of(a.sql), sides.of(b.sql)
    if at == (sides.left, sides.right):
        return _Bound(a, b, greater)
    return _Bound(b, a, not greater) if at == (sides.right, sides.left) else None


def _interval(value: TypedSql, low: TypedSql, high: TypedSql, sides: JoinSides) -> KeyStrategy | None:
    types = {one.type for one in (value, low, high)}
    numbers = [_as_number(one) for one in (value, low, high)]
    if any(one is None for one in numbers) or not (len(types) == 1 or types <= set(t.NUMBERS)):
        return None
    x, x1, x2 = (one for one in numbers if one is not None)
    parts = {"_z": exp.Literal.number("0E0"), "_x": x, "_a": x1, "_b": x2}
    point = build("if(_x IS NULL, NULL, named_struct('x', _x, 'y', _z))", **parts)
    span = build("if(_a <= _b, named_struct('x1', _a, 'y1', _z, 'x2', _b, 'y2', _z), NULL)", **parts)
    way = by_cells(Near(TypedSql(point, t.POINT), TypedSql(span, t.RECTANGLE), globe=False), sides)
    return None if way is None else KeyStrategy("a grid of ranges", way.left, way.right)


def _as_number(value: TypedSql) -> exp.Expr | None:
    """A number that is not less for a greater value."""
    if value.type in t.NUMBERS:
        return exp.cast(value.sql.copy(), "DOUBLE")
    made = _NUMBER_OF.get(value.type)
    return None if made is None else build(made, _v=temporal.order_key(value) or value.sql)


def _half(bound: _Bound, sides: JoinSides) -> KeyStrategy | None:
    """Buckets between some of the parameter's values: a value meets its own bucket and all below it (or above it)."""
    if not _is_ordered(bound):
        return None
    # A whole number and a fraction are compared as doubles, which may be equal where the numbers are not.
    mixed = (bound.value.type in t.INTEGERS) != (bound.bound.type in t.INTEGERS)
    mine, theirs = (
        _as_number(one) if one.type == t.DURATION or mixed else one.sql for one in (bound.value, bound.bound)
    )
    if mine is None or theirs is None:
        return None
    if is_made_once(mine):
        mine = sides.beside(sides.left)(mine)  # Spark makes no such call for each item of an array
    if _is_plain(bound, sides) and not mixed:
        name = sides.matches.borders_of(bound.bound.sql.name)
        borders: exp.Expr = exp.Placeholder(this=name)
        what, own = "buckets of a range", values.call("array", column(sides.right, name))
    else:
        theirs = sides.beside(sides.right)(theirs)
        borders = sides.some_of(sides.right, theirs)
        what = "buckets of a computed range"
        own = build(f"if(_v IS NULL, NULL, array({_PLACE}))", _borders=borders, _v=theirs)
    whole = f"sequence(0L, {_PLACE})" if bound.at_least else f"sequence({_PLACE}, CAST(size(_borders) AS BIGINT))"
    return KeyStrategy(what, build(f"if(_v IS NULL, NULL, {whole})", _borders=borders, _v=mine), own)


def _is_plain(bound: _Bound, sides: JoinSides) -> bool:
    """Whether it is a parameter, whose values are known without Spark."""
    sql = bound.bound.sql
    return isinstance(sql, exp.Column) and sql.table == sides.matches.interests and sql.name.startswith("p")


def _is_ordered(bound: _Bound) -> bool:
    return bound.bound.type in _ORDERED and bound.value.type != t.ANY
