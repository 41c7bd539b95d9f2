"""Rewrites expressions so that they yield NULL where Spark would fail the query, for example on overflow or a bad cast.

A subscriber's value must not fail the shared query. An expression that has no such form still fails; then the caller of
the query searches for the interest that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values

_Concerned = Callable[[exp.Expr], bool]
"""Whether an expression depends on values that a subscriber chose."""

_TRIED: Final[dict[type[exp.Expr], str]] = {exp.Add: "try_add", exp.Sub: "try_subtract", exp.Mul: "try_multiply"}
# Spark also accepts these casts as function calls: `bigint(x)`.
_CASTS: Final = frozenset("boolean tinyint smallint int bigint float double decimal date timestamp".split())
_FAILING: Final = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE",
                   "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")  # fmt: skip


def null_on_overflow(sql: exp.Expr, is_concerned: _Concerned) -> exp.Expr:
    """Returns the expression with NULL where a sum, a difference or a product overflows its type."""
    for operation in reversed(list(sql.find_all(*_TRIED))):  # the innermost first
        if is_concerned(operation):
            sql = _put(sql, operation, values.call(_TRIED[type(operation)], operation.this, operation.expression))
    return sql


def try_cast(sql: exp.Expr, is_concerned: _Concerned) -> exp.Expr:
    """Returns the expression with NULL where a cast fails."""
    for call in reversed(list(sql.find_all(exp.Cast, exp.Anonymous))):
        safe: exp.Expr | None = None
        if type(call) is exp.Cast and call.args["to"].is_type(*_FAILING):
            safe = exp.TryCast(**{**call.copy().args, "safe": True})
        elif isinstance(call, exp.Anonymous) and str(call.this).lower() in _CASTS and len(call.expressions) == 1:
            kind = exp.DataType.build(str(call.this), dialect="spark")
            safe = exp.TryCast(this=call.expressions[0].copy(), to=kind, safe=True)
        if safe is not None and is_concerned(call):
            sql = _put(sql, call, safe)
    return sql


def without_sign(value: exp.Expr) -> exp.Expr:
    """Returns abs(value) of an integer, or NULL for the least integer, whose absolute value overflows."""
    return build("if(_v < 0, _n, _v)", _v=value, _n=negate_or_null(value))


def negate_or_null(value: exp.Expr) -> exp.Expr:
    """Returns -value of an integer, or NULL for the least integer, whose negative overflows."""
    return build("try_subtract(_v - _v, _v)", _v=value)


def _put(root: exp.Expr, old: exp.Expr, new: exp.Expr) -> exp.Expr:
    new.meta.update(old.meta)
    if old is root:
        return new
    old.replace(new)
    return root
