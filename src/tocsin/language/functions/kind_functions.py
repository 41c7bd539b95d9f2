"""Implements SQL++'s functions about the kind of a value: is_array, to_number and the like.

A test is MISSING for MISSING and NULL for NULL. A conversion that is impossible gives NULL; CAST fails instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections.array_arguments import answer, build_missing_test, is_unknown
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Type

KindFunction = Callable[[str, Sequence[TypedSql]], TypedSql]

_TEMPORAL: Final = (t.DATE, t.TIME, t.DATETIME, t.DURATION)
_TAGGED: Final = "startswith(_s, 'OBJECT<`$') AND NOT startswith(_s, 'OBJECT<`$$')"
_NUMBER: Final = "(substring(_s, 1, 3) IN ('BIG', 'DOU', 'FLO', 'DEC') OR startswith(_s, 'OBJECT<`$double`'))"
_ARRAY: Final = "startswith(_s, 'ARRAY<')"
_MULTISET: Final = "startswith(_s, 'OBJECT<`$multiset`')"
_OBJECT: Final = f"(startswith(_s, 'OBJECT<') AND NOT ({_TAGGED}))"


def _of_tags(types: Sequence[Type]) -> str:
    return "(" + " OR ".join(f"startswith(_s, 'OBJECT<`${type_}`')" for type_ in types) + ")"


# The test of an untyped value by its schema `_s`, and of a declared type.
_KINDS: Final[dict[str, tuple[str, Callable[[Type], bool]]]] = {
    "array": (_ARRAY, lambda type_: isinstance(type_, ArrayType)),
    "multiset": (_MULTISET, lambda type_: isinstance(type_, MultisetType)),
    "object": (_OBJECT, lambda type_: isinstance(type_, ObjectType)),
    "string": ("_s = 'STRING'", lambda type_: type_ == t.STRING),
    "boolean": ("_s = 'BOOLEAN'", lambda type_: type_ == t.BOOLEAN),
    "number": (_NUMBER, lambda type_: type_ in t.NUMBERS),
    "atomic": (f"NOT ({_ARRAY} OR {_MULTISET} OR {_OBJECT})",
               lambda type_: not isinstance(type_, ArrayType | MultisetType | ObjectType)),
    "temporal": (_of_tags(_TEMPORAL), lambda type_: type_ in _TEMPORAL),
    "spatial": (_of_tags(t.SPATIAL), lambda type_: type_ in t.SPATIAL),
    **{str(type_): (_of_tags([type_]), lambda found, type_=type_: found == type_)  # type: ignore[misc]
       for type_ in (*_TEMPORAL, t.UUID, *t.SPATIAL)},
}  # fmt: skip
_SHORT: Final = {"bool": "boolean", "num": "number", "str": "string", "obj": "object", "atom": "atomic"}


def _one(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    if len(arguments) != 1:
        raise FunctionError(f"{name} takes 1 argument, got {len(arguments)}")
    return arguments[0]


def _kind_test(kind: str) -> KindFunction:
    by_schema, by_type = _KINDS[kind]

    def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        value = _one(name, arguments)
        if value.type == VOID:
            return TypedSql(values.null(t.BOOLEAN), t.BOOLEAN)
        if value.type != t.ANY:
            known = values.when(value.sql, exp.true() if by_type(value.type) else exp.false())
            return answer(known, t.BOOLEAN, arguments)
        test = build(f"if(_s = 'VOID', NULL, {by_schema})", _s=values.call("schema_of_variant", value.sql))
        return answer(test, t.BOOLEAN, arguments)

    return call


def is_null(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Whether a value is NULL; MISSING for MISSING."""
    value = _one(name, arguments)
    if value.type == VOID:
        return TypedSql(exp.true(), t.BOOLEAN)
    missing = build_missing_test(value)
    test = is_unknown(value.sql, value.type)
    return answer(test if missing is None else exp.If(this=missing, true=exp.null(), false=test), t.BOOLEAN, arguments)


# ---------------------------------------------------------------- conversions


def _to_number(kind: Type | None) -> KindFunction:
    """Converts numbers, booleans and texts of numbers: to this type, or to an integer or a double as they are."""

    def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        value = _one(name, arguments)
        if value.type in t.NUMBERS:
            if kind is None:
                return value
            whole = "try_cast(_v AS BIGINT)" if kind == t.BIGINT else "CAST(_v AS DOUBLE)"
            return answer(build(whole, _v=value.sql), kind, arguments)
        if kind is None:
            return answer(_any_number(encoder.to_any(value)), t.ANY, arguments)
        real = build("try_cast(_v AS DOUBLE)", _v=_scalar_text(value))
        if kind == t.DOUBLE:
            return answer(real, kind, arguments)
        exact = build("coalesce(try_cast(_v AS BIGINT), try_cast(_d AS BIGINT))", _v=_scalar_text(value), _d=real)
        return answer(exact, kind, arguments)

    return call


def _scalar_text(value: TypedSql) -> exp.Expr:
    """Returns the text of a number, of a boolean as 0 or 1, or a text itself; SQL NULL for any other value."""
    if value.type == t.STRING:
        return build("trim(_v)", _v=value.sql)
    if value.type == t.BOOLEAN:
        return build("string(CAST(_v AS INT))", _v=value.sql)
    if value.type != t.ANY:
        return values.void_as(value.sql, t.STRING) if value.type == VOID else values.null(t.STRING)
    return build(
        "CASE WHEN _s = 'STRING' THEN trim(_t) WHEN _s = 'BOOLEAN' THEN if(_t = 'true', '1', '0')"
        " WHEN substring(_s, 1, 3) IN ('BIG', 'DOU', 'FLO', 'DEC') THEN _t ELSE _odd END",
        _s=values.call("schema_of_variant", value.sql), _t=values.get(value.sql, "", "string"),
        _odd=values.get(value.sql, '["$double"]', "string"),
    )  # fmt: skip


def _any_number(value: exp.Expr) -> exp.Expr:
    text = _scalar_text(TypedSql(value, t.ANY))
    whole = build(r"if(_t RLIKE '^[+-]?[0-9]{1,18}$', CAST(_t AS BIGINT), NULL)", _t=text)
    real = build("try_cast(_t AS DOUBLE)", _t=text)
    made = values.call(
        "coalesce",
        exp.cast(whole, "VARIANT", dialect="spark"),
        values.once(real, "__d", lambda number: encoder.to_any(TypedSql(number, t.DOUBLE))),
    )
    return exp.If(this=_is_number(value), true=value.copy(), false=made)


def _is_number(value: exp.Expr) -> exp.Expr:
    return build(_NUMBER, _s=values.call("schema_of_variant", value))


def _to_boolean(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """0, NaN and empty values are false; moments, shapes and uuids are neither true nor false."""
    value = _one(name, arguments)
    if value.type == t.BOOLEAN:
        return value
    if value.type == t.STRING:
        return answer(build("_v <> ''", _v=value.sql), t.BOOLEAN, arguments)
    untyped = encoder.to_any(value)
    truth = build(
        "CASE WHEN _s = 'BOOLEAN' THEN _b WHEN _s = 'STRING' THEN _t <> ''"
        f" WHEN {_NUMBER} THEN NOT (_n = 0 OR isnan(_n))"
        f" WHEN {_ARRAY} THEN size(_a) > 0 WHEN {_MULTISET} THEN size(_m) > 0"
        f" WHEN {_OBJECT} THEN _s <> 'OBJECT<>' END",
        _s=values.call("schema_of_variant", untyped), _b=values.get(untyped, "", "boolean"),
        _t=values.get(untyped, "", "string"), _n=values.number(untyped), _a=values.get(untyped, "", "array<variant>"),
        _m=values.get(untyped, '["$multiset"]', "array<variant>"),
    )  # fmt: skip
    return answer(truth, t.BOOLEAN, arguments)


def _to_array(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Returns an array as it is, the items of a multiset, or an array of any other value."""
    value = _one(name, arguments)
    if isinstance(value.type, ArrayType | MultisetType):
        return answer(value.sql, ArrayType(value.type.item), arguments)
    if value.type == VOID:
        return TypedSql(values.null(ArrayType(t.ANY)), ArrayType(t.ANY))
    if value.type != t.ANY:
        return answer(values.when(value.sql, values.call("array", value.sql)), ArrayType(value.type), arguments)
    items = values.as_type(value.sql, ArrayType(t.ANY))
    made = values.call("coalesce", items, values.call("array", value.sql))
    return answer(exp.If(this=is_unknown(value.sql, t.ANY), true=exp.null(), false=made), ArrayType(t.ANY), arguments)


def if_special(is_special: str) -> Callable[[Sequence[exp.Expr], Type], exp.Expr]:
    """Returns the first of several numbers that is not special; `is_special` tests a double `_d`."""

    def choose(sqls: Sequence[exp.Expr], type_: Type) -> exp.Expr:
        *tried, chosen = sqls
        for sql in reversed(tried):
            number = values.number(sql) if type_ == t.ANY else sql
            chosen = exp.If(this=build(is_special, _d=number), true=chosen, false=sql)
        return chosen.copy()

    return choose


IF_SPECIAL: Final = {
    "if_nan": if_special("isnan(_d)"),
    "if_inf": if_special("abs(_d) = double('Infinity')"),
    "if_nan_or_inf": if_special("isnan(_d) OR abs(_d) = double('Infinity')"),
}
FUNCTIONS: Final[dict[str, KindFunction]] = {
    **{f"is_{kind}": _kind_test(kind) for kind in _KINDS},
    **{f"is{kind}": _kind_test(kind) for kind in ("array", "object", "string", "number", "boolean", "atomic")},
    **{f"is{short}": _kind_test(kind) for short, kind in _SHORT.items()},
    "is_null": is_null,
    "isnull": is_null,
    "to_array": _to_array,
    "to_bigint": _to_number(t.BIGINT),
    "to_boolean": _to_boolean,
    "to_double": _to_number(t.DOUBLE),
    "to_number": _to_number(None),
}
# Tests that the operators IS MISSING, IS UNKNOWN and IS VALUED make.
IS_OPERATORS: Final = {
    "is_missing": "MISSING", "ismissing": "MISSING", "is_unknown": "UNKNOWN", "isunknown": "UNKNOWN",
    "is_known": "VALUED", "isknown": "VALUED", "is_valued": "VALUED", "isvalued": "VALUED",
}  # fmt: skip
