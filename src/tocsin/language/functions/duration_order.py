"""Orders durations in Spark's array and comparison functions. Spark itself would compare the months first."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.types.typed_sql import TypedSql, build, field, guard_nulls
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType


def order_durations(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Returns the call with the order key before each duration; None for any other call."""
    if name in ("greatest", "least") and arguments and all(argument.type == t.DURATION for argument in arguments):
        return TypedSql(field(values.call(name, *(_keyed(argument.sql) for argument in arguments)), "v"), t.DURATION)
    if name not in ("array_max", "array_min", "array_sort", "sort_array") or not arguments:
        return None
    items, *rest = arguments
    if not isinstance(items.type, ArrayType) or items.type.item != t.DURATION:
        return None
    keyed = build("transform(_v, __d -> _keyed)", _v=items.sql, _keyed=_keyed(exp.column("__d")))
    result = values.call(name, keyed, *(argument.sql for argument in rest))
    if name in ("array_max", "array_min"):
        return TypedSql(field(result, "v"), t.DURATION)
    return TypedSql(build("transform(_v, __d -> _d)", _v=result, _d=field(exp.column("__d"), "v")), items.type)


def _keyed(sql: exp.Expr) -> exp.Expr:
    key = temporal.order_key(TypedSql(sql, t.DURATION))
    assert key is not None
    return guard_nulls((sql,), values.record([("k", key), ("v", sql)]))
