"""What the translator notes on the conditions it makes, for those who look for better ways to meet them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from tocsin.language.functions.grid import Near
from tocsin.language.translate.scope import free_tables
from tocsin.language.types.typed_sql import TypedSql, build
from tocsin.rules.model import types as t

# What the translator leaves on the conditions it makes.
NEAR: Final = "near"  # it can only hold where two shapes meet
APART: Final = "apart"  # on a distance: between these
COMPARED: Final = "compared"  # the two values, with their types
MADE_OF: Final = "made_of"  # on a number: the untyped values it was computed from
ORDERS: Final[dict[type[exp.Expr], bool]] = {exp.LT: False, exp.LTE: False, exp.GT: True, exp.GTE: True}


def operands(*values: TypedSql) -> tuple[TypedSql, ...]:
    """The untyped values among these, and what those were computed from."""
    found: list[TypedSql] = []
    for one in values:
        found += one.sql.meta.get(MADE_OF) or ((TypedSql(one.sql, one.type),) if one.type == t.ANY else ())
    return tuple(found)


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    inner = bare(condition)
    if isinstance(inner, exp.And):
        yield from conjuncts(inner.left)
        yield from conjuncts(inner.right)
    else:
        yield inner


def disjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    inner = bare(condition)
    if isinstance(inner, exp.Or):
        yield from disjuncts(inner.left)
        yield from disjuncts(inner.right)
    else:
        yield inner


def bare(condition: exp.Expr) -> exp.Expr:
    """Without parentheses, unless something is noted on them."""
    while isinstance(condition, exp.Paren) and not (condition._meta and condition._meta.keys() & {NEAR, COMPARED}):
        condition = condition.this
    return condition


def condition_near(condition: exp.Expr) -> Near | None:
    found = condition.meta.get(NEAR)
    return found if isinstance(found, Near) else None


def within(apart: Near, bound: TypedSql) -> Near | None:
    """That two points are at most so far apart: one lies in a circle around the other."""
    for centre, other in ((apart.a, apart.b), (apart.b, apart.a)):
        if free_tables(bound.sql) <= free_tables(centre.sql):
            radius = exp.cast(bound.sql.copy(), "DOUBLE")
            parts = {"_c": centre.sql, "_r": radius}
            circle = build("if(_r >= 0E0, named_struct('x', _c.x, 'y', _c.y, 'radius', _r), NULL)", **parts)
            return Near(TypedSql(circle, t.CIRCLE), other, apart.globe)
    return None
