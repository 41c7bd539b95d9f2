"""Expressions that are NULL where Spark would fail the whole query: a sum too large, a text that is no number.

One subscriber's value must not fail the query of all. What has no such form here fails, and whoever runs the query
finds the interest that is to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values

Concerned = Callable[[exp.Expr], bool]
"""Whether an expression has to do with values that may be anything."""

_TRIED: Final[dict[type[exp.Expr], str]] = {exp.Add: "try_add", exp.Sub: "try_subtract", exp.Mul: "try_multiply"}
# Casts that Spark writes as functions.
_CASTS: Final = frozenset("boolean tinyint smallint int bigint float double decimal date timestamp".split())
_FAILING: Final = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE",
                   "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")  # fmt: skip


def tried(sql: exp.Expr, is_concerned: Concerned) -> exp.Expr:
    """The same, with NULL where a sum, a difference or a product is too large for its type."""
    for one in reversed(list(sql.find_all(*_TRIED))):  # the innermost first
        if is_concerned(one):
            sql = _put(sql, one, values.call(_TRIED[type(one)], one.this, one.expression))
    return sql


def try_cast(sql: exp.Expr, is_concerned: Concerned) -> exp.Expr:
    """The same, with NULL where a value cannot be cast."""
    for one in reversed(list(sql.find_all(exp.Cast, exp.Anonymous))):
        made: exp.Expr | None = None
        if type(one) is exp.Cast and one.args["to"].is_type(*_FAILING):
            made = exp.TryCast(**{**one.copy().args, "safe": True})
        elif isinstance(one, exp.Anonymous) and str(one.this).lower() in _CASTS and len(one.expressions) == 1:
            kind = exp.DataType.build(str(one.this), dialect="spark")
            made = exp.TryCast(this=one.expressions[0].copy(), to=kind, safe=True)
        if made is not None and is_concerned(one):
            sql = _put(sql, one, made)
    return sql


def without_sign(value: exp.Expr) -> exp.Expr:
    """abs(value) of a whole number, of which the least has none."""
    return build("if(_v < 0, _n, _v)", _v=value, _n=negated(value))


def negated(value: exp.Expr) -> exp.Expr:
    """-value of a whole number, of which the least has none."""
    return build("try_subtract(_v - _v, _v)", _v=value)


def _put(root: exp.Expr, old: exp.Expr, new: exp.Expr) -> exp.Expr:
    new.meta.update(old.meta)
    if old is root:
        return new
    old.replace(new)
    return root
