"""Handles untyped values, whose type is known only at run time. In a query they are Spark VARIANTs of the open form:

    MISSING is SQL NULL · NULL is the variant null · {"$point": [x, y]}, {"$datetime": "…"}, … are what JSON cannot say

A comparison with a typed value converts the untyped value to that type. If this fails, the result is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import SPARK_TYPES, FunctionError, TypedSql, build, string
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.open_form import field_key
from tocsin.rules.model.types import ArrayType, MultisetType, ObjectType, Primitive, Type

BIND_ABOVE: Final = 20  # an expression with more nodes is bound to a variable instead of repeated
VOID: Final = Primitive("void")  # the type of a NULL literal


def spark_type(type_: Type) -> str:
    """Returns the Spark type that a value has while a query runs."""
    match type_:
        case t.AnyType():
            return "VARIANT"
        case ArrayType(item) | MultisetType(item):
            return f"ARRAY<{spark_type(item)}>"
        case ObjectType():
            columns = [f"`{physical(field.name)}`: {spark_type(field.type)}" for field in type_.fields]
            columns += [f"`{OPEN}`: STRING"] if keeps_open(type_) else []
            return f"STRUCT<{', '.join(columns)}>"
    # Inside of a collection a NULL has no type of its own: Spark gives it the type of its neighbours.
    return "VARIANT" if type_ == VOID else SPARK_TYPES.get(type_, type_.name)


def null(type_: Type) -> exp.Expr:
    if type_ == VOID:
        return exp.null()
    return exp.cast(exp.null(), spark_type(type_), dialect="spark")


def void_as(sql: exp.Expr, type_: Type) -> exp.Expr:
    """Casts an expression that is always NULL. The expression stays, because it may fail, as raise_error('…') does."""
    if isinstance(sql, exp.Null) or type_ == VOID:
        return null(type_) if isinstance(sql, exp.Null) else sql
    evaluated = exp.cast(sql.copy(), "STRING") if type_ == t.ANY else sql.copy()
    return exp.cast(evaluated, spark_type(type_), dialect="spark")


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def record(fields: Sequence[tuple[str, exp.Expr]]) -> exp.Expr:
    """Builds a struct. Its field names need no quoting."""
    return call("named_struct", *(part for name, sql in fields for part in (exp.Literal.string(name), sql)))


def parenthesize(sql: exp.Expr) -> exp.Expr:
    """Adds parentheses, so that `.field` may follow."""
    return sql.copy() if isinstance(sql, exp.Paren) else exp.Paren(this=sql.copy())


def once(value: exp.Expr, name: str, make: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Binds a value to a variable and builds `make(variable)`, so that Spark computes the value only once."""
    body = exp.Lambda(this=make(exp.column(name)), expressions=[exp.to_identifier(name)])
    computed = exp.Anonymous(this="transform", expressions=[call("array", value), body])
    return call("get", computed, exp.Literal.number(0))


def bind(value: exp.Expr, name: str, make: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Builds `make(value)`, with a variable in place of a long expression, which would be repeated."""
    return make(value) if is_short(value) else once(value, name, make)


def is_short(value: exp.Expr) -> bool:
    return sum(1 for _ in itertools.islice(value.walk(), BIND_ABOVE + 1)) <= BIND_ABOVE


def when(present: exp.Expr, then: exp.Expr) -> exp.Expr:
    """Returns `then`, or NULL if `present` is NULL."""
    return exp.If(
        this=exp.Not(this=exp.Is(this=exp.Paren(this=present.copy()), expression=exp.null())),
        true=then,
        false=exp.null(),
    )


def contains_any(type_: Type) -> bool:
    """Whether a type contains untyped values."""
    match type_:
        case t.AnyType():
            return True
        case ArrayType(item) | MultisetType(item):
            return contains_any(item)
        case ObjectType(fields):
            return any(contains_any(field.type) for field in fields)
    return False


def step(value: exp.Expr, key: str | int) -> exp.Expr:
    """Returns a field or an element of an untyped value; MISSING if there is none."""
    if isinstance(key, str):
        key = field_key(key)
        quote = "'" if '"' in key else '"'
        if quote in key:
            raise FunctionError(f"a field name with both kinds of quotes cannot be asked for: {key}")
        path = f"[{quote}{key}{quote}]"
    else:
        path = f"[{key}]"
    if isinstance(value, exp.Anonymous) and value.this == "try_variant_get" and len(value.expressions) == 3:
        inner, outer_path, kind = value.expressions
        if kind.name == "variant" and isinstance(outer_path, exp.Literal):
            return call("try_variant_get", inner, string(str(outer_path.this) + path), kind)
    return call("try_variant_get", value, string(f"${path}"), exp.Literal.string("variant"))


NULL: Final = call("parse_json", exp.Literal.string("null"))


def is_explicit_null(value: exp.Expr) -> exp.Expr:
    return call("is_variant_null", value)


def get(value: exp.Expr, path: str, kind: str) -> exp.Expr:
    """Returns the value at a path of an untyped value as a Spark type; SQL NULL if it has another type."""
    return call("try_variant_get", value, string(f"${path}"), exp.Literal.string(kind))


_PLAIN_TEXT: Final = {t.DATETIME: ("datetime", "timestamp"), t.DATE: ("date", "date"), t.UUID: ("uuid", "string")}
_CORNERS: Final = ("x1", "y1", "x2", "y2")


def as_type(value: exp.Expr, type_: Type) -> exp.Expr:
    """Converts an untyped value to a type; SQL NULL if the value does not have that type."""
    if type_ in (t.ANY, VOID):
        return value
    if type_ in _PLAIN_TEXT:
        tag, kind = _PLAIN_TEXT[type_]
        return call("coalesce", get(value, f'["${tag}"]', kind), _if_kind("STRING", value, get(value, "", kind)))
    match type_:
        case t.TIME:
            text = call("coalesce", get(value, '["$time"]', "string"), get(value, "", "string"))
            return build("unix_micros(try_cast(concat('1970-01-01 ', _text) AS TIMESTAMP))", _text=text)
        case t.DURATION:
            return when(
                get(value, '["$duration"][0]', "int"),
                record(
                    (
                        ("months", get(value, '["$duration"][0]', "int")),
                        ("micros", get(value, '["$duration"][1]', "bigint")),
                    )
                ),
            )
        case t.POINT:
            return _either(value, ("x", "y"), ('["$point"][0]', '["$point"][1]'), ("[0]", "[1]"))
        case t.CIRCLE:
            tagged = tuple(f'["$circle"][{i}]' for i in range(3))
            return _either(value, ("x", "y", "radius"), tagged, ('["center"][0]', '["center"][1]', '["radius"]'))
        case t.LINE | t.RECTANGLE:
            tagged = tuple(f'["${type_}"][{i}][{j}]' for i in (0, 1) for j in (0, 1))
            return _either(value, _CORNERS, tagged, tuple(f"[{i}][{j}]" for i in (0, 1) for j in (0, 1)))
        case t.POLYGON:
            points = call(
                "coalesce", get(value, '["$polygon"]', "array<array<double>>"), get(value, "", "array<array<double>>")
            )
            return build("transform(_points, __p -> named_struct('x', get(__p, 0), 'y', get(__p, 1)))", _points=points)
        case ArrayType(item) | MultisetType(item):
            items = call("coalesce", get(value, '["$multiset"]', "array<variant>"), get(value, "", "array<variant>"))
            if item == t.ANY:
                return items
            inner = as_type(exp.column("__item"), item)
            return build("transform(_items, __item -> _inner)", _items=items, _inner=inner)
        case ObjectType():
            raise FunctionError(f"an untyped value cannot be taken as {type_}")
    return get(value, "", spark_type(type_).lower())


def exactly(value: exp.Expr, type_: Type) -> exp.Expr:
    """Like `as_type`, but never converts between text, numbers and booleans."""
    if type_ in (t.FLOAT, t.DOUBLE):
        doubled = number(value)
        return doubled if type_ == t.DOUBLE else exp.cast(doubled, "FLOAT")
    kind = (
        "BOOLEAN" if type_ == t.BOOLEAN else "STRING" if type_ == t.STRING else _NUMBER if type_ in t.NUMBERS else None
    )
    converted = as_type(value, type_)
    return converted if kind is None else _if_kind(kind, value, converted)


_NUMBER: Final = "a number"


def _if_kind(kind: str, value: exp.Expr, then: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Expr:
    schema = call("schema_of_variant", value)
    if kind == _NUMBER:
        # BIGINT, DOUBLE, FLOAT, DECIMAL(…): no other type begins with these letters.
        test = build("substring(_s, 1, 3) IN ('BIG', 'DOU', 'FLO', 'DEC')", _s=schema)
    else:
        test = exp.EQ(this=schema, expression=string(kind))
    return exp.If(this=test, true=then.copy(), false=exp.null() if otherwise is None else otherwise)


def number_as(value: exp.Expr, kind: str) -> exp.Expr:
    """Converts an untyped finite number to a Spark type; SQL NULL if the value is no number."""
    return _if_kind(_NUMBER, value, get(value, "", kind))


def number(value: exp.Expr) -> exp.Expr:
    """Converts any untyped number to a double, also NaN and the infinities; SQL NULL if the value is no number."""
    special = build("try_cast(_text AS DOUBLE)", _text=get(value, '["$double"]', "string"))
    return _if_kind(_NUMBER, value, get(value, "", "double"), special)


def whole(value: exp.Expr) -> exp.Expr:
    """Converts an untyped integer to BIGINT; SQL NULL if the value is no integer."""
    return _if_kind("BIGINT", value, get(value, "", "bigint"))


def items(value: TypedSql) -> TypedSql:
    """Returns a collection as a Spark array."""
    if isinstance(value.type, ArrayType | MultisetType):
        return TypedSql(value.sql, ArrayType(value.type.item))
    if value.type == t.ANY:
        return TypedSql(as_type(value.sql, ArrayType(t.ANY)), ArrayType(t.ANY))
    raise FunctionError(f"expected an array, got {value.type}")


# Writes 7.0 inside of an array or object as 7, and moments without a zero fraction, which data of earlier versions may
# have, so that equal values have equal texts. Strings stay as they are.
_REDUNDANT_ZEROS: Final = (
    r"""("\$(?:date)?time":"[^".]*+)\.000000(?=Z?")|("[^"\\]*+(?:\\.[^"\\]*+)*+")"""
    r"""|(?<![0-9.])(-?[0-9]+)\.0(?=[,\]}])"""
)


def key(value: exp.Expr) -> exp.Expr:
    """Returns a text that is equal for equal untyped values, so that Spark can join, group and compare them."""
    return bind(value, "__keyed", _key)


def _key(value: exp.Expr) -> exp.Expr:
    # 1 and 1.0 are equal; 1 and "1" are not. No rounding may make different numbers equal.
    return build(
        "CASE schema_of_variant(_v) WHEN 'BIGINT' THEN concat('n', try_variant_get(_v, '$', 'bigint'))"
        " WHEN 'STRING' THEN to_json(_v) WHEN 'BOOLEAN' THEN to_json(_v) ELSE"
        " CASE WHEN _d = floor(_d) AND abs(_d) < 9.2E18 THEN concat('n', CAST(_d AS BIGINT))"
        " WHEN _d IS NOT NULL THEN concat('d', _d) ELSE nullif(_text, 'null') END END",
        _v=value,
        _d=number_as(value, "double"),
        _text=call("regexp_replace", call("to_json", value), string(_REDUNDANT_ZEROS), string("$1$2$3")),
    )


def _either(value: exp.Expr, names: Sequence[str], tagged: Sequence[str], bare: Sequence[str]) -> exp.Expr:
    """Builds a struct of doubles from the tagged form or from the plain JSON form."""
    numbers = [
        call("coalesce", get(value, a, "double"), get(value, b, "double")) for a, b in zip(tagged, bare, strict=True)
    ]
    return when(numbers[0], record(tuple(zip(names, numbers, strict=True))))
