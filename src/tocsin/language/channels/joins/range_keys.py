"""Builds join keys for comparisons by order: cells of a line for an interval, buckets for a single bound.

Spark would test every pair for a comparison by order. An equality of cells or buckets is a condition by which Spark can
join; the exact comparison follows for the pairs that share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tocsin.language.channels.joins.grid_keys import by_cells
from tocsin.language.channels.joins.sides import JoinSides, KeyStrategy
from tocsin.language.functions import temporal
from tocsin.language.functions.function_registry import is_computed_once
from tocsin.language.functions.grid import Near
from tocsin.language.translate.predicate_notes import COMPARED, ORDERS
from tocsin.language.translate.scope import column
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Type

# The number of borders that are not above the value. The borders need no order.
_PLACE: Final = "CAST(size(filter(_borders, __b -> __b <= _v)) AS BIGINT)"
# `pipeline.channels.interests` computes the same number for a duration.
_NUMBER_OF: Final[dict[Type, str]] = {
    t.DATETIME: "CAST(unix_micros(_v) AS DOUBLE) / 1E6",
    t.DATE: "CAST(unix_date(_v) AS DOUBLE)",
    t.TIME: "CAST(_v AS DOUBLE) / 1E6",
    t.DURATION: "_v.days * 86400E0 + _v.micros / 1E6",
}
_ORDERED: Final = frozenset((*t.NUMBERS, t.STRING, t.UUID, t.BOOLEAN, t.DATE, t.TIME, t.DATETIME, t.DURATION))


@dataclass(frozen=True, slots=True)
class _Bound:
    """The value of the left side is at least, or at most, the bound of the right side."""

    value: TypedSql
    bound: TypedSql
    at_least: bool


def by_range(condition: exp.Expr, conditions: Sequence[exp.Expr], sides: JoinSides) -> KeyStrategy | None:
    """Returns the strategy for a comparison by order: with a second condition that closes the interval, or alone."""
    first = _bound(condition, sides)
    if first is None:
        return None
    for other in conditions:
        second = _bound(other, sides) if other is not condition else None
        if second is None or second.at_least == first.at_least:
            continue
        low, high = (first, second) if first.at_least else (second, first)
        strategy = None
        if low.value == high.value:
            strategy = _interval(low.value, low.bound, high.bound, sides)
        elif low.bound == high.bound:
            strategy = _interval(low.bound, high.value, low.value, sides)
        if strategy is not None:
            return strategy
    parameter_of = sides.matches.parameter_of
    if parameter_of(first.bound.sql) is None:
        others = filter(None, (_bound(other, sides) for other in conditions if other is not condition))
        if any(parameter_of(bound.bound.sql) is not None and _is_ordered(bound) for bound in others):
            return None  # prefer the other condition: its key is stored with the interests
    return _half(first, sides)


def _bound(condition: exp.Expr, sides: JoinSides) -> _Bound | None:
    """Reads a condition as a bound of the left side by the right side; None if it is no such comparison."""
    compared = condition.meta.get(COMPARED)
    greater = ORDERS.get(type(condition.this if isinstance(condition, exp.Paren) else condition))
    if greater is None or compared is None:
        return None
    a, b = compared
    tables = sides.of(a.sql), sides.of(b.sql)
    if tables == (sides.left, sides.right):
        return _Bound(a, b, greater)
    return _Bound(b, a, not greater) if tables == (sides.right, sides.left) else None


def _interval(value: TypedSql, low: TypedSql, high: TypedSql, sides: JoinSides) -> KeyStrategy | None:
    """Joins a value and an interval: in one dimension, the value is a point and the interval is a box."""
    types = {operand.type for operand in (value, low, high)}
    numbers = [_as_number(operand) for operand in (value, low, high)]
    if any(number is None for number in numbers) or not (len(types) == 1 or types <= set(t.NUMBERS)):
        return None
    x, x1, x2 = (number for number in numbers if number is not None)
    parts = {"_z": exp.Literal.number("0E0"), "_x": x, "_a": x1, "_b": x2}
    point = build("if(_x IS NULL, NULL, named_struct('x', _x, 'y', _z))", **parts)
    span = build("if(_a <= _b, named_struct('x1', _a, 'y1', _z, 'x2', _b, 'y2', _z), NULL)", **parts)
    strategy = by_cells(Near(TypedSql(point, t.POINT), TypedSql(span, t.RECTANGLE), globe=False), sides)
    return None if strategy is None else KeyStrategy("a grid of ranges", strategy.left, strategy.right)


def _as_number(value: TypedSql) -> exp.Expr | None:
    """Returns a number that preserves the order of the values (it may merge neighbours), or None."""
    if value.type in t.NUMBERS:
        return exp.cast(value.sql.copy(), "DOUBLE")
    template = _NUMBER_OF.get(value.type)
    return None if template is None else build(template, _v=temporal.order_key(value) or value.sql)


def _half(bound: _Bound, sides: JoinSides) -> KeyStrategy | None:
    """Joins by buckets between values of the right side: a value matches its own bucket and all below (or above) it."""
    if not _is_ordered(bound):
        return None
    # An integer and a fraction are compared as doubles, which may be equal where the numbers differ.
    mixed = (bound.value.type in t.INTEGERS) != (bound.bound.type in t.INTEGERS)
    left_value, right_value = (
        _as_number(operand) if operand.type == t.DURATION or mixed else operand.sql
        for operand in (bound.value, bound.bound)
    )
    if left_value is None or right_value is None:
        return None
    if is_computed_once(left_value):
        left_value = sides.per_row(sides.left)(left_value)  # Spark allows no such call inside a lambda over an array
    parameter = sides.matches.parameter_of(bound.bound.sql)
    if parameter is not None and not mixed:
        # A plain parameter: its values are known without a Spark query.
        name = sides.matches.quantiles_of(parameter)
        borders: exp.Expr = exp.Placeholder(this=name)
        what, right_keys = "buckets of a range", values.call("array", column(sides.right, name))
    else:
        right_value = sides.per_row(sides.right)(right_value)
        borders = sides.sample_of(sides.right, right_value)
        what = "buckets of a computed range"
        right_keys = build(f"if(_v IS NULL, NULL, array({_PLACE}))", _borders=borders, _v=right_value)
    buckets = f"sequence(0L, {_PLACE})" if bound.at_least else f"sequence({_PLACE}, CAST(size(_borders) AS BIGINT))"
    return KeyStrategy(what, build(f"if(_v IS NULL, NULL, {buckets})", _borders=borders, _v=left_value), right_keys)


def _is_ordered(bound: _Bound) -> bool:
    return bound.bound.type in _ORDERED and bound.value.type != t.ANY
