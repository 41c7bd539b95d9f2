"""Translates literals, constructors and Spark's own expressions, each with its type; converts values between types.

A value carries its type because NULL, MISSING and untyped values need other SQL than typed ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlglot import exp

from tocsin.language.functions import function_registry, number_arguments, temporal, text_functions
from tocsin.language.functions.collections import row_aggregates
from tocsin.language.syntax import nodes
from tocsin.language.syntax.script import offset_of
from tocsin.language.translate.scope import OptionalVariable, optional
from tocsin.language.types import typed_sql
from tocsin.language.types.output_types import to_output_type
from tocsin.language.types.typed_sql import MapType, TypedSql, enclose, number, string
from tocsin.language.types.variant import encoder
from tocsin.language.types.variant import operators as untyped
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


class TranslationError(Exception):
    """A query has no valid translation. `offset` is the place in its text, or None if only the statement is known."""

    def __init__(self, message: str, offset: int | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.offset, self.hint = message, offset, hint


def fail(message: str, node: Any = None, hint: str | None = None) -> NoReturn:
    raise TranslationError(message, offset_of(node), hint)


class Expressions:
    """Translates literals, constructors, and the expressions that only Spark's analyser can type."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def literal(self, node: exp.Literal) -> TypedSql:
        if node.is_string:
            return TypedSql(string(node.this), t.STRING)
        text = node.this
        if text.isdigit():
            return typed_sql.literal(int(text))
        value = float(text)
        if math.isinf(value):
            fail(f"{text} is too large for a double", node)
        return TypedSql(number(value), t.DOUBLE)

    def text(self, node: exp.Expr) -> TypedSql:
        return TypedSql(string(node.this), t.STRING)

    def boolean(self, node: exp.Boolean) -> TypedSql:
        return TypedSql(node.copy(), t.BOOLEAN)

    def null(self, _node: exp.Null) -> TypedSql:
        return TypedSql(exp.null(), VOID)

    def object_of(self, node: nodes.ObjectOf) -> TypedSql:
        return make_object(
            [(member.this.name, self.translator.expression(member.expression), member) for member in node.expressions]
        )

    def array(self, node: exp.Expr) -> TypedSql:
        values = [self.translator.expression(item) for item in node.expressions]
        type_, aligned = align(values)
        kind: Type = MultisetType(type_) if isinstance(node, nodes.MultisetOf) else ArrayType(type_)
        if not values:
            return TypedSql(dynamic.call("array"), ArrayType(VOID)) if isinstance(node, exp.Array) else TypedSql(
                exp.cast(dynamic.call("array"), "ARRAY<VARIANT>", dialect="spark"), MultisetType(t.ANY))  # fmt: skip
        return TypedSql(dynamic.call("array", *aligned), kind)

    def instant(self, node: exp.Expr) -> TypedSql:
        return self.translator.hooks.instant(t.DATETIME if isinstance(node, exp.CurrentTimestamp) else t.DATE)

    def generic(self, node: exp.Expr) -> TypedSql:
        """Translates any other expression of Spark's grammar: translates its parts, and lets Spark find the type."""
        if isinstance(node, exp.Query):
            return self.translator.subqueries.subquery(node)
        if type(node) not in _GENERIC:
            fail(
                f"{text_functions.name_of(node)} is no part of this language",
                node,
                "write it with operators and functions",
            )
        return self._aggregate(node) or self.translator.ask(*self._assemble(node))

    def _aggregate(self, node: exp.Expr) -> TypedSql | None:
        """Translates an aggregate with FILTER or OVER whose values Spark would treat in another way than SQL++."""
        call = node
        while isinstance(call, exp.Window | exp.Filter):
            call = call.this
        if call is node or not isinstance(call, exp.Anonymous) or len(call.expressions) != 1:
            return None
        name, argument = str(call.this).lower(), call.expressions[0]
        if name not in row_aggregates.NAMES or isinstance(argument, (exp.Star, *_STRUCTURE)):
            return None
        value = self.translator.expression(argument)
        if not row_aggregates.needs_own_sql(name, value.type):
            return None
        return row_aggregates.call(name, value, lambda aggregate: self._assemble(node, aggregate)[0])

    def _assemble(self, node: exp.Expr, aggregate: exp.Expr | None = None) -> tuple[exp.Expr, list[TypedSql]]:
        """Returns the translated expression and its parts, with `aggregate` in place of the call in FILTER or OVER."""
        parts: list[TypedSql] = []

        def around(called: exp.Anonymous) -> exp.Expr:
            if aggregate is not None:
                return aggregate
            name = (called.this if isinstance(called.this, str) else called.this.name).lower()
            self.translator.calls.check_callable(name, called)
            arguments: list[exp.Expr] = []
            for argument in called.expressions:
                if isinstance(argument, (exp.Literal, exp.Star, *_STRUCTURE)):
                    # A number stays a literal, and so an INT, which these functions may require.
                    is_text = isinstance(argument, exp.Literal) and argument.is_string
                    arguments.append(
                        string(argument.this) if is_text else argument if argument.is_number else translate(argument)
                    )
                    continue
                (part,) = number_arguments.only_numbers(name, [self.translator.expression(argument)])
                if name in ("min", "max") and (order := temporal.order_key(part)) is not None:
                    parts.extend((part, TypedSql(order, temporal.ORDER_KEY)))
                    return dynamic.call(f"{name}_by", part.sql, order)
                is_numeric = name in function_registry.NUMERIC or name in number_arguments.FUNCTIONS
                parts.append(untyped.as_argument(name, part, is_numeric))
                arguments.append(parts[-1].sql.copy())
            return exp.Anonymous(this=name, expressions=arguments)

        def translate(value: Any) -> Any:
            if isinstance(value, list):
                return [translate(item) for item in value]
            if isinstance(value, exp.DataType | exp.Var | exp.WindowSpec | exp.Star) or not isinstance(value, exp.Expr):
                _check_word(value, node)
                return value
            if isinstance(value, exp.Anonymous) and isinstance(value.parent, _AROUND_A_CALL):
                # Spark cannot analyse a window function without its OVER clause, so translate only the arguments.
                return around(value)
            if isinstance(value, exp.Alias):
                return exp.alias_(translate(value.this), value.alias, quoted=True)
            if isinstance(value, _STRUCTURE):
                return type(value)(**{key: translate(child) for key, child in value.args.items()})
            part = self.translator.expression(value)
            if isinstance(node, _OF_TEXTS) and not isinstance(part.type, ArrayType | MultisetType):
                if part.type == t.ANY:
                    self.translator.hooks.note_use(part, t.STRING)
                part = text_functions.as_text(part)
            parts.append(untyped.as_part(part, value))
            return parts[-1].sql.copy()

        return type(node)(**{key: translate(value) for key, value in node.args.items()}), parts


PARTS_LIMIT: Final = 20_000
"""The nodes of one translated expression. Names and functions that repeat each other multiply, beyond any memory."""


def has_more_parts(sql: exp.Expr, limit: int) -> bool:
    """Whether an expression has more nodes than this."""
    return next(itertools.islice(sql.walk(), limit, None), None) is not None


def convert(value: TypedSql, type_: Type) -> exp.Expr:
    """Returns the value as this type. Only an untyped value and NULL need a conversion."""
    if value.type == VOID:
        return dynamic.void_as(value.sql, type_)
    if value.type == t.ANY:
        return dynamic.exactly(value.sql, type_) if type_ == t.BOOLEAN else dynamic.as_type(value.sql, type_)
    return value.sql


def make_self_contained(value: TypedSql) -> TypedSql:
    """Makes a value self-contained: an optional field becomes untyped, which can tell NULL from MISSING."""
    value = optional(value)
    if isinstance(value, OptionalVariable):
        if dynamic.is_short(value.sql):
            return TypedSql(_tag_value(value.sql, value.type, value.explicit), t.ANY)
        both = dynamic.record([("v", value.sql), ("n", value.explicit)])
        inside = [exp.column(name, table="__either") for name in ("v", "n")]
        return TypedSql(dynamic.once(both, "__either", lambda _: _tag_value(inside[0], value.type, inside[1])), t.ANY)
    if value.type == VOID:
        return TypedSql(encoder.to_any(value), t.ANY)
    if value.type == ArrayType(VOID):
        return TypedSql(exp.cast(value.sql.copy(), dynamic.spark_type(value.type), dialect="spark"), ArrayType(t.ANY))
    return TypedSql(value.sql, value.type)


def _tag_value(sql: exp.Expr, type_: Type, explicit: exp.Expr) -> exp.Expr:
    """Returns an untyped value, NULL if it is `explicit`, or MISSING."""
    present = exp.Not(this=exp.Is(this=enclose(sql), expression=exp.null()))
    return exp.Case(
        ifs=[
            exp.If(this=present, true=encoder.to_any(TypedSql(sql, type_))),
            exp.If(this=explicit.copy(), true=dynamic.NULL.copy()),
        ]
    )


def make_object(members: Sequence[tuple[str, TypedSql, exp.Expr]]) -> TypedSql:
    """Builds an object of these values. A MISSING value leaves its field out."""
    seen: dict[str, TypedSql] = {}
    for name, value, node in members:
        if name in seen:
            fail(f"the field {name} is given twice", node, "give one of them another name with AS")
        seen[name] = make_self_contained(to_output_type(value) if isinstance(value.type, MapType) else value)
    type_ = ObjectType(tuple(Field(name, value.type) for name, value in seen.items()), open=False)
    parts = [(physical(name), value.sql) for name, value in seen.items()]
    return TypedSql(dynamic.record(parts or [(OPEN, dynamic.null(t.STRING))]), type_)


def align(values: Sequence[TypedSql]) -> tuple[Type, list[exp.Expr]]:
    """Converts the values to one type: their common type, the wider number, or untyped."""
    types = {value.type for value in values if value.type != VOID}
    if not types:
        return (VOID if values else t.ANY), [value.sql for value in values]
    if len(types) == 1:
        (only,) = types
        return only, [dynamic.void_as(value.sql, only) if value.type == VOID else value.sql for value in values]
    if types <= set(t.NUMBERS):
        wide = t.DOUBLE if types & {t.FLOAT, t.DOUBLE} else t.BIGINT
        return wide, [exp.cast(value.sql.copy(), dynamic.spark_type(wide)) for value in values]
    return t.ANY, [
        encoder.to_any(make_self_contained(to_output_type(value) if isinstance(value.type, MapType) else value))
        for value in values
    ]


def _check_word(value: Any, node: exp.Expr) -> None:
    """Checks a word that goes to Spark unchanged."""
    match value:
        case exp.Var() if value.name.lower() not in function_registry.UNITS:
            remedy = did_you_mean(value.name, function_registry.UNITS)
            fail(f"unknown unit {value.name[:60]}", node, remedy or "use year, month, day, hour, minute or second")
        case exp.Star() if any(value.args.values()):
            fail("* stands alone here", node, "leave out what follows it")
        case exp.WindowSpec():
            for bound in (value.args.get("start"), value.args.get("end")):
                if isinstance(bound, exp.Expr) and not isinstance(bound, exp.Literal):
                    fail("a window begins and ends a number of rows away", node, "ROWS BETWEEN 2 PRECEDING AND …")


# Expressions without a handler of their own, which Spark's analyser may type.
_GENERIC: Final = frozenset((
    exp.Anonymous, exp.BitwiseAnd, exp.BitwiseLeftShift, exp.BitwiseNot, exp.BitwiseOr, exp.BitwiseRightShift,
    exp.Extract, exp.Filter, exp.HexString, exp.ILike, exp.IgnoreNulls,
    exp.Interval, exp.Is, exp.Like, exp.RegexpLike, exp.RespectNulls, exp.StrPosition, exp.Trim, exp.Window,
    exp.WithinGroup,
))  # fmt: skip
_OF_TEXTS = (exp.ILike, exp.Like, exp.RegexpLike, exp.StrPosition, exp.Trim)
# Nodes around a call, and further nodes that have no meaning outside of a call.
_AROUND_A_CALL = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_STRUCTURE = (exp.Ordered, exp.Order, exp.Distinct, exp.Tuple, exp.Where, exp.Interval, *_AROUND_A_CALL)
