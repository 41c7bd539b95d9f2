"""Defines Spark SQL expressions with a known type, and the small tools that build them.

Spark holds our types as follows:

    datetime TIMESTAMP (session zone UTC) · date DATE · time BIGINT microseconds of the day · uuid STRING
    duration STRUCT<months INT, micros BIGINT> · point STRUCT<x, y> · circle STRUCT<x, y, radius>
    line, rectangle STRUCT<x1, y1, x2, y2> (a rectangle's corner 1 is the lower left) · polygon ARRAY<STRUCT<x, y>>

Every function here is strict: SQL NULL in, NULL out.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import sqlglot
from sqlglot import exp

from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, Primitive, Type
from tocsin.rules.model.values import Circle, Duration, Line, Point, Polygon, Rectangle, micros_of_day


@dataclass(frozen=True, slots=True)
class TypedSql:
    """An expression of Spark SQL, and its type as far as we know it."""

    sql: exp.Expr
    type: Type


@dataclass(frozen=True, slots=True)
class MapType(Primitive):
    """A Spark map, which no declaration can name. Its name is Spark's name for it."""

    key: Type
    value: Type


class FunctionError(ValueError):
    """The arguments of a function or operator do not fit. The message says what it expects."""


SPARK_TYPES: Final[dict[Type, str]] = {
    t.BOOLEAN: "BOOLEAN", t.TINYINT: "TINYINT", t.SMALLINT: "SMALLINT", t.INTEGER: "INT", t.BIGINT: "BIGINT",
    t.FLOAT: "FLOAT", t.DOUBLE: "DOUBLE", t.STRING: "STRING", t.UUID: "STRING",
    t.DATE: "DATE", t.TIME: "BIGINT", t.DATETIME: "TIMESTAMP", t.DURATION: "STRUCT<months: INT, micros: BIGINT>",
    t.POINT: "STRUCT<x: DOUBLE, y: DOUBLE>", t.CIRCLE: "STRUCT<x: DOUBLE, y: DOUBLE, radius: DOUBLE>",
    t.LINE: "STRUCT<x1: DOUBLE, y1: DOUBLE, x2: DOUBLE, y2: DOUBLE>",
    t.RECTANGLE: "STRUCT<x1: DOUBLE, y1: DOUBLE, x2: DOUBLE, y2: DOUBLE>",
    t.POLYGON: "ARRAY<STRUCT<x: DOUBLE, y: DOUBLE>>",
}  # fmt: skip

# ---------------------------------------------------------------- overloads

_ArgumentType: TypeAlias = Type | tuple[Type, ...]
_SqlFunction: TypeAlias = Callable[[Sequence[TypedSql]], TypedSql]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function: the types of its parameters and its result, and a builder of its SQL."""

    parameters: tuple[_ArgumentType, ...]
    result: Type
    make: Callable[..., exp.Expr]


def _choose_overload(name: str, *overloads: Overload) -> _SqlFunction:
    """Returns a function that applies the first overload that fits, or raises an error that lists all overloads."""

    def call(arguments: Sequence[TypedSql]) -> TypedSql:
        for overload in overloads:
            if fits(arguments, overload.parameters):
                if any(is_null(argument.sql) for argument in arguments):
                    return TypedSql(null_of(overload.result), overload.result)
                return TypedSql(overload.make(*arguments), overload.result)
        expected = " or ".join(f"({', '.join(map(_kind_text, overload.parameters))})" for overload in overloads)
        got = ", ".join(str(argument.type) for argument in arguments)
        raise FunctionError(f"{name} expects {expected}, got ({got})")

    return call


def table(overloads: Mapping[str, Sequence[Overload]]) -> dict[str, _SqlFunction]:
    return {name: _choose_overload(name, *signatures) for name, signatures in overloads.items()}


def fits(arguments: Sequence[TypedSql], parameters: Sequence[_ArgumentType]) -> bool:
    """Whether the arguments fit the parameters. A NULL literal fits everywhere."""
    return len(arguments) == len(parameters) and all(
        is_null(argument.sql) or argument.type in (kind if isinstance(kind, tuple) else (kind,))
        for argument, kind in zip(arguments, parameters, strict=True)
    )


def _kind_text(kind: _ArgumentType) -> str:
    if kind == t.NUMBERS:
        return "number"
    if kind == t.INTEGERS:
        return "integer"
    if isinstance(kind, tuple):
        return "|".join(dict.fromkeys(_kind_text(alternative) for alternative in kind))
    if isinstance(kind, ArrayType):
        return "[number]" if kind.item in t.NUMBERS else f"[{kind.item}]"
    return str(kind)


# ---------------------------------------------------------------- building SQL


@cache
def _parse_template(template: str) -> exp.Expr:
    # sqlglot's Spark dialect parses CAST as TRY_CAST, which may yield NULL. Our casts must fail (ANSI).
    tree = sqlglot.parse_one(template, dialect="spark")
    return tree.transform(
        lambda node: exp.Cast(**node.args) if type(node) is exp.TryCast and not node.args.get("safe") else node
    )


def build(template: str, **parts: exp.Expr) -> exp.Expr:
    """Replaces each column `name` of the template by that part, and each `name.field` by a field of it.

    If a part is a struct constructor, `build` takes the field's expression out of it, so `circle.x` of a new circle is
    plain arithmetic. That drops the struct's NULL check: use all fields of such a part, or `guard_nulls`. Variables of
    lambdas begin with two underscores, so they never clash with a query's names.
    """

    def replace_part(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            path = [part.name for part in node.parts]
            if path[0] in parts:
                part = parts[path[0]]
                return part_field(part, path[1]) if len(path) > 1 else enclose(part)
        return node

    return _parse_template(template).transform(replace_part)


_CLOSED: Final = (exp.Column, exp.Literal, exp.Paren, exp.Anonymous, exp.Struct, exp.Array, exp.Cast, exp.Dot, exp.If,
                  exp.Identifier, exp.Null, exp.Boolean)  # fmt: skip


def enclose(part: exp.Expr) -> exp.Expr:
    """Returns a copy that binds tighter than any operator beside it."""
    copied = part.copy()
    return copied if isinstance(part, _CLOSED) else exp.Paren(this=copied)


def field(part: exp.Expr, name: str) -> exp.Expr:
    """Returns a field of a struct."""
    # `place.x` could mean the column x of a table `place`, even in parentheses, so use brackets.
    return exp.Bracket(this=enclose(part), expressions=[exp.Literal.string(name)])


def part_field(part: exp.Expr, name: str) -> exp.Expr:
    """Returns a field of a struct; takes it out of a struct constructor."""
    inside = _remove_guard(part)
    if isinstance(inside, exp.Struct):
        for entry in inside.expressions:
            if isinstance(entry, exp.PropertyEQ) and entry.name == name:
                return enclose(entry.expression)
    return field(part, name)


def struct(**fields: exp.Expr) -> exp.Expr:
    entries = [exp.PropertyEQ(this=exp.to_identifier(name), expression=sql.copy()) for name, sql in fields.items()]
    return exp.Struct(expressions=entries)


def guard_nulls(needed: Iterable[exp.Expr], then: exp.Expr) -> exp.Expr:
    """Returns `then`, or NULL if one of the needed parts is NULL."""
    missing = list(dict.fromkeys(check for part in needed for check in _null_checks(part)))
    if not missing:
        return then
    guard = exp.If(this=exp.or_(*missing, wrap=False), true=exp.null(), false=then)
    # Mark our own IF: a user's IF looks the same but may test anything, so `build` must not look inside it.
    guard.meta["strict"] = True
    return guard


def _null_checks(part: exp.Expr) -> list[exp.Expr]:
    constant = part.this if isinstance(part, (exp.Cast, exp.Neg)) else part
    if isinstance(constant, (exp.Literal, exp.Struct, exp.Array)) or _is_number(constant):
        return []
    if _remove_guard(part) is not part:
        checks = part.this.flatten() if isinstance(part.this, exp.Or) else [part.this]
        return [cast("exp.Expr", check.copy()) for check in checks]
    return [exp.Is(this=enclose(part), expression=exp.null())]


def remove_guards(*parts: exp.Expr) -> list[exp.Expr]:
    """Returns the parts from which `build` takes fields without their NULL check."""
    return [part for part in parts if _remove_guard(part) is not part]


def _remove_guard(part: exp.Expr) -> exp.Expr:
    if isinstance(part, exp.If) and part.meta.get("strict"):
        return cast("exp.Expr", part.args["false"])
    return part


def raise_error(message: str, shown: exp.Expr) -> exp.Expr:
    """Fails the query with `message, got "shown"`. It has no type of its own, so it fits into any branch."""
    text = exp.Anonymous(this="concat", expressions=[string(f'{message}, got "'), shown.copy(), string('"')])
    return exp.Anonymous(this="raise_error", expressions=[text])


def as_double(value: TypedSql) -> exp.Expr:
    constant = constant_number(value.sql)
    if constant is not None:
        # Spark would read 0.1 as a decimal.
        return number(constant)
    return value.sql if value.type == t.DOUBLE else exp.cast(value.sql.copy(), "DOUBLE")


def as_bigint(value: TypedSql) -> exp.Expr:
    return value.sql if value.type == t.BIGINT and not _is_number(value.sql) else exp.cast(value.sql.copy(), "BIGINT")


# ---------------------------------------------------------------- constants


def literal(value: object, type_: Type | None = None) -> TypedSql:
    """Returns the Spark expression of a Python value: a scalar, spatial or temporal value, a uuid, or None.

    `type_` narrows an int or float (to tinyint, float, …) and sets the type of a NULL. Doubles keep every bit, and
    datetimes keep every microsecond. A string may contain anything; no part of it is ever parsed as SQL.
    """
    match value:
        case None:
            return TypedSql(exp.null(), t.ANY) if type_ is None else TypedSql(null_of(type_), type_)
        case bool():
            return TypedSql(exp.true() if value else exp.false(), t.BOOLEAN)
        case int() if type_ in (t.DOUBLE, t.FLOAT):
            return literal(float(value), type_)
        case int():
            kind = t.BIGINT if type_ is None else type_
            return TypedSql(integer(value, kind), kind)
        case float():
            narrow = type_ == t.FLOAT
            return TypedSql(exp.cast(number(value), "FLOAT"), t.FLOAT) if narrow else TypedSql(number(value), t.DOUBLE)
        case str():
            return TypedSql(string(value), t.STRING)
        case datetime():
            utc = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
            text = utc.replace(tzinfo=None).isoformat(" ", "microseconds") + "Z"
            return TypedSql(exp.cast(exp.Literal.string(text), "TIMESTAMP"), t.DATETIME)
        case date():
            return TypedSql(exp.cast(exp.Literal.string(value.isoformat()), "DATE"), t.DATE)
        case time():
            return TypedSql(integer(micros_of_day(value), t.BIGINT), t.TIME)
        case UUID():
            return TypedSql(exp.Literal.string(str(value)), t.UUID)
        case Duration():
            months, micros = integer(value.months, t.INTEGER), integer(value.micros, t.BIGINT)
            return TypedSql(struct(months=months, micros=micros), t.DURATION)
        case Point():
            return TypedSql(_doubles(x=value.x, y=value.y), t.POINT)
        case Line(a, b):
            return TypedSql(_doubles(x1=a.x, y1=a.y, x2=b.x, y2=b.y), t.LINE)
        case Rectangle(a, b):
            return TypedSql(_doubles(x1=a.x, y1=a.y, x2=b.x, y2=b.y), t.RECTANGLE)
        case Circle(center, radius):
            return TypedSql(_doubles(x=center.x, y=center.y, radius=radius), t.CIRCLE)
        case Polygon(points):
            return TypedSql(exp.Array(expressions=[_doubles(x=point.x, y=point.y) for point in points]), t.POLYGON)
    raise FunctionError(f"expected a value that SQL can hold, got {type(value).__name__}")


def null_of(type_: Type) -> exp.Expr:
    if isinstance(type_, ArrayType) and type_.item in SPARK_TYPES:
        return exp.cast(exp.null(), f"ARRAY<{SPARK_TYPES[type_.item]}>", dialect="spark")
    return exp.cast(exp.null(), SPARK_TYPES[type_], dialect="spark") if type_ in SPARK_TYPES else exp.null()


def is_null(sql: exp.Expr) -> bool:
    return isinstance(sql, exp.Null)


def integer(value: int, kind: Type) -> exp.Expr:
    bits = t.INTEGER_BITS.get(str(kind))
    if bits is None or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise FunctionError(f"expected a number that fits {kind}, got {value}")
    if value == -(2**63):
        # Spark parses the sign and the number separately, and 2⁶³ alone does not fit.
        return exp.cast(exp.Literal.string(str(value)), "BIGINT")
    return exp.cast(exp.Literal.number(value), SPARK_TYPES[kind])


def number(value: float) -> exp.Expr:
    if not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return exp.cast(exp.Literal.string(name), "DOUBLE")
    text = repr(abs(value)).upper()
    # The exponent makes it a double; Spark reads a number without exponent as a decimal.
    plain = exp.Literal.number(text if "E" in text else f"{text}E0")
    return exp.Neg(this=plain) if math.copysign(1.0, value) < 0 else plain


# The escape of a control character would include the digits that follow it, and Spark replaces `${name}` by a setting
# before it parses the SQL, even inside strings. So such strings are passed as bytes.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]|\$\{")


def string(value: str) -> exp.Expr:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise FunctionError("expected text of whole characters, got half of a surrogate pair") from None
    if _UNSAFE.search(value):
        return exp.cast(exp.HexString(this=data.hex().upper()), "STRING")
    return exp.Literal.string(value)


def constant_string(sql: exp.Expr) -> str | None:
    """Returns the text of a string literal, or None for any other expression."""
    if isinstance(sql, exp.Literal) and sql.is_string:
        return str(sql.this)
    if isinstance(sql, exp.Cast) and isinstance(sql.this, exp.HexString) and sql.is_type("STRING", "TEXT"):
        return bytes.fromhex(sql.this.this).decode()
    return None


def constant_integer(sql: exp.Expr) -> int | None:
    inner = sql.this if isinstance(sql, exp.Cast) and sql.is_type("INT", "BIGINT", "SMALLINT", "TINYINT") else sql
    text = inner.sql() if _is_number(inner) else ""
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else None


_WHOLE: Final[dict[type[exp.Expr], Callable[[int, int], int]]] = {
    exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul,
}  # fmt: skip


def constant_whole(sql: exp.Expr) -> int | None:
    """Like `constant_integer`, and also evaluates sums, differences and products of such constants."""
    if isinstance(sql, exp.Paren) or (isinstance(sql, exp.Cast) and sql.is_type("INT", "BIGINT")):
        return constant_whole(sql.this)
    compute = _WHOLE.get(type(sql))
    if compute is None:
        return constant_integer(sql)
    left, right = constant_whole(sql.this), constant_whole(sql.expression)
    return None if left is None or right is None else compute(left, right)


def constant_number(sql: exp.Expr) -> float | None:
    integer_value = constant_integer(sql)
    return (
        float(integer_value)
        if integer_value is not None
        else float(sql.sql(dialect="spark"))
        if _is_number(sql)
        else None
    )


def from_text(parse: Callable[[str], Any], otherwise: str) -> Callable[[TypedSql], exp.Expr]:
    """Returns a constructor from text: it parses a literal now (or raises FunctionError); `otherwise` handles `_s`."""

    def make(argument: TypedSql) -> exp.Expr:
        text = constant_string(argument.sql)
        if text is None:
            return build(otherwise, _s=argument.sql)
        try:
            return literal(parse(text)).sql
        except ValueError as error:
            raise FunctionError(str(error)) from None

    return make


def _is_number(sql: exp.Expr) -> bool:
    inner = sql.this if isinstance(sql, exp.Neg) else sql
    return isinstance(inner, exp.Literal) and not inner.is_string


def _doubles(**fields: float) -> exp.Expr:
    return struct(**{name: number(value) for name, value in fields.items()})
