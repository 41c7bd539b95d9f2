"""Implements sum, avg, min and max over rows as SQL++ does, where Spark would cast a value or cannot order it.

They follow the rules of `array_aggregates.py`: only numbers count for sums and averages, and values without a common
order have no minimum. The functions get `over`, which puts an aggregate call into its FILTER and OVER clauses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections.array_aggregates import promote
from tocsin.language.functions.collections.array_arguments import is_absent
from tocsin.language.types.typed_sql import SPARK_TYPES, TypedSql, build
from tocsin.language.types.variant import encoder, operators, values
from tocsin.language.types.variant.values import once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

_Over = Callable[[exp.Expr], exp.Expr]
NAMES: Final = frozenset(("avg", "max", "mean", "min", "sum"))


def needs_own_sql(name: str, type_: Type) -> bool:
    """Whether Spark's aggregate would not answer as SQL++ for values of this type."""
    if name not in NAMES:
        return False
    is_structured = isinstance(type_, ArrayType | MultisetType | ObjectType)
    if name in ("min", "max"):
        return type_ == t.ANY or is_structured or type_ in t.SPATIAL
    return is_structured or (type_ in SPARK_TYPES and type_ not in t.NUMBERS) or (type_ == t.ANY and name == "sum")


def call(name: str, value: TypedSql, over: _Over) -> TypedSql:
    if value.type != t.ANY:
        # No value of this type has a sum or an order, so the answer is NULL: as an aggregate, max of NULLs.
        return TypedSql(over(values.call("max", values.null(t.DOUBLE))), t.DOUBLE)
    return TypedSql(_sum(value.sql, over) if name == "sum" else _extreme(name, value.sql, over), t.ANY)


def _sum(value: exp.Expr, over: _Over) -> exp.Expr:
    whole, real = (values.bind(value, "__n", number) for number in (values.whole, values.number))
    is_whole = values.bind(value, "__n", lambda v: exp.Or(this=is_absent(values.number(v)), expression=_is_whole(v)))
    total = once(over(values.call("sum", real)), "__d", lambda sum_: encoder.to_any(TypedSql(sum_, t.DOUBLE)))
    found = exp.If(
        this=over(values.call("bool_and", is_whole)),
        true=exp.cast(over(values.call("sum", whole)), "VARIANT", dialect="spark"),
        false=total,
    )
    return values.call("coalesce", found, values.NULL)


def _is_whole(value: exp.Expr) -> exp.Expr:
    return build("schema_of_variant(_v) = 'BIGINT'", _v=value)


def _extreme(name: str, value: exp.Expr, over: _Over) -> exp.Expr:
    def kind_of(v: exp.Expr) -> exp.Expr:
        sql = "if(_n IS NOT NULL, 'number', nullif(schema_of_variant(_v), 'VOID'))"
        return build(sql, _v=v, _n=values.number(v))

    def is_real(v: exp.Expr) -> exp.Expr:
        return exp.and_(exp.Not(this=is_absent(values.number(v))), exp.Not(this=_is_whole(v)))

    # Compare kinds, which are short; compute the sort key only once.
    kind = values.bind(value, "__n", kind_of)
    one_kind = exp.EQ(this=over(values.call("min", kind)), expression=over(values.call("max", kind)))
    best = over(values.call(f"{name}_by", value, operators.sort_key(value)))
    any_real = over(values.call("bool_or", values.bind(value, "__n", is_real)))
    found = values.call("coalesce", promote(best, any_real), values.NULL)
    return exp.If(this=one_kind, true=found, false=values.NULL.copy())
