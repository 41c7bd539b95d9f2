"""Decides which types can be compared. A comparison of other types is NULL, declared or not, as in SQL++.

No value is converted: the number 1 and the text "1" are not equal, and neither is less than the other.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import SPARK_TYPES, TypedSql, build
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

_STRUCTURED: Final = (ArrayType, MultisetType, ObjectType)


def is_comparable(left: Type, right: Type, *, by_order: bool) -> bool:
    """Whether values of these types can be equal or, `by_order`, less than each other. Any type compares with untyped
    values and NULL, and types that only Spark has are left to Spark."""
    if t.ANY in (left, right) or VOID in (left, right):
        return True
    if is_structured(left) or is_structured(right):
        return not by_order and is_structured(left) and is_structured(right) and type(left) is type(right)
    if left not in SPARK_TYPES or right not in SPARK_TYPES:
        return True
    if by_order and left in t.SPATIAL:
        return False
    return left == right or {left, right} <= set(t.NUMBERS)


def is_structured(type_: Type) -> bool:
    return isinstance(type_, _STRUCTURED)


def never(operator: type[exp.Expr], left: TypedSql, right: TypedSql) -> TypedSql:
    """Returns the comparison of two values that cannot be compared: NULL, or what `<=>` says of NULLs."""
    if operator in (exp.NullSafeEQ, exp.NullSafeNEQ):
        both_null = build("(_l IS NULL AND _r IS NULL)", _l=left.sql, _r=right.sql)
        return TypedSql(both_null if operator is exp.NullSafeEQ else exp.Not(this=both_null), t.BOOLEAN)
    return TypedSql(exp.cast(exp.null(), "BOOLEAN"), t.BOOLEAN)
