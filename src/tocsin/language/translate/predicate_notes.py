"""Annotates conditions during translation, so that `channels/joins` can later choose join keys for them.

Join keys are chosen after translation. By then the SQL no longer shows what a condition means: that two shapes must
meet, or which types were compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from tocsin.language.functions.grid import Near
from tocsin.language.syntax import nodes
from tocsin.language.translate.scope import free_tables
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.rules.model import types as t

# Keys in the `meta` of an expression.
NEAR: Final = "near"  # on a condition: it holds only if these two shapes meet
DISTANCE: Final = "distance"  # on a distance: the two points
COMPARED: Final = "compared"  # on a comparison: the two values, with their types
MADE_OF: Final = "made_of"  # on a number: the untyped values from which it is computed
ORDERS: Final[dict[type[exp.Expr], bool]] = {exp.LT: False, exp.LTE: False, exp.GT: True, exp.GTE: True}


# A condition in one of these has the same effect whether it is false or NULL.
_MONOTONE: Final = (exp.And, exp.Or, exp.Paren, nodes.Quantified)


def is_filter(node: exp.Expr) -> bool:
    """Whether a condition only decides which rows a query has: then false and NULL have the same effect."""
    parent = node.parent
    while isinstance(parent, _MONOTONE):
        parent = parent.parent
    return parent is None or isinstance(parent, exp.Where | exp.Having | exp.Join)


def operands(*values: TypedSql) -> tuple[TypedSql, ...]:
    """Returns the untyped values among these, and the untyped values from which the others are computed."""
    untyped: list[TypedSql] = []
    for value in values:
        untyped += value.sql.meta.get(MADE_OF) or ((TypedSql(value.sql, value.type),) if value.type == t.ANY else ())
    return tuple(untyped)


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the conditions that AND connects."""
    return _split_condition(condition, exp.And)


def disjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the conditions that OR connects."""
    return _split_condition(condition, exp.Or)


def _split_condition(condition: exp.Expr, connector: type[exp.Connector]) -> Iterator[exp.Expr]:
    # Remove parentheses, unless they carry an annotation.
    while isinstance(condition, exp.Paren) and not (condition._meta and condition._meta.keys() & {NEAR, COMPARED}):
        condition = condition.this
    if isinstance(condition, connector):
        yield from _split_condition(condition.left, connector)
        yield from _split_condition(condition.right, connector)
    else:
        yield condition


def condition_near(condition: exp.Expr) -> Near | None:
    near = condition.meta.get(NEAR)
    return near if isinstance(near, Near) else None


def as_circle(distance: Near, bound: TypedSql) -> Near | None:
    """Turns "two points are at most `bound` apart" into "one point lies in a circle around the other"."""
    for centre, other in ((distance.a, distance.b), (distance.b, distance.a)):
        if free_tables(bound.sql) <= free_tables(centre.sql):
            radius = exp.cast(bound.sql.copy(), "DOUBLE")
            parts = {"_c": centre.sql, "_r": radius}
            circle = build("if(_r >= 0E0, named_struct('x', _c.x, 'y', _c.y, 'radius', _r), NULL)", **parts)
            return Near(TypedSql(circle, t.CIRCLE), other, distance.globe)
    return None
