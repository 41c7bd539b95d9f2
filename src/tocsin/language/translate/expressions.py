"""Translates expressions to Spark SQL, each with its type."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NoReturn

from sqlglot import exp

from tocsin.language.functions import calls, spark_functions, temporal, text_arguments
from tocsin.language.syntax import dialect
from tocsin.language.syntax.script import offset_of
from tocsin.language.translate.name_lookup import NameLookup, TypeAnalyser
from tocsin.language.translate.scope import NameScope, OptionalVariable
from tocsin.language.types import type_probe
from tocsin.language.types.output_types import to_output_type
from tocsin.language.types.typed_sql import (
    FunctionError,
    MapType,
    TypedSql,
    enclose,
    literal,
    number,
    string,
)
from tocsin.language.types.variant import encoder
from tocsin.language.types.variant import operators as untyped
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import OPEN, physical
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type


class TranslationError(Exception):
    """A query has no valid translation. `offset` is the place in its text, or None if only the statement is known."""

    def __init__(self, message: str, offset: int | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.offset, self.hint = message, offset, hint


def fail(message: str, node: Any = None, hint: str | None = None) -> NoReturn:
    raise TranslationError(message, offset_of(node), hint)


class Expressions(ABC):
    """Translates expressions in a scope of names. `Queries` extends it with subqueries and sources."""

    handlers: ClassVar[dict[type, Callable[..., TypedSql]]]
    # Whether a function is being defined: functions that only channels have are allowed, although this is no channel.
    for_channels = False

    def __init__(self, names: NameLookup, type_analyser: TypeAnalyser, dataverse: str, now: datetime) -> None:
        self.names = names
        self.type_analyser = type_analyser
        self.dataverse = dataverse
        self.now = now
        self.frame = NameScope()
        self.quantifiers = 0  # the depth of quantifiers around the current expression

    # ------------------------------------------------------------ entry

    def expression(self, node: exp.Expr | None) -> TypedSql:
        """Translates an expression by the handler of its node type; errors get the node's place in the script."""
        if node is None:
            fail("an expression is missing")
        handler = self.handlers.get(type(node))
        try:
            return handler(self, node) if handler is not None else self._generic(node)
        except FunctionError as error:
            fail(str(error), node)

    def boolean(self, node: exp.Expr) -> exp.Expr:
        """Translates a condition."""
        value = self.expression(node)
        if value.type not in (t.BOOLEAN, t.ANY, VOID):
            fail(f"a condition is true or false, this is of type {value.type}", node)
        return self._as(value, t.BOOLEAN)

    def _as(self, value: TypedSql, type_: Type) -> exp.Expr:
        if value.type == VOID:
            return dynamic.void_as(value.sql, type_)
        if value.type == t.ANY:
            return dynamic.exactly(value.sql, type_) if type_ == t.BOOLEAN else dynamic.as_type(value.sql, type_)
        return value.sql

    # ------------------------------------------------------------ literals and constructors

    def _literal(self, node: exp.Literal) -> TypedSql:
        if node.is_string:
            return TypedSql(string(node.this), t.STRING)
        text = node.this
        if text.isdigit():
            return literal(int(text))
        value = float(text)
        if math.isinf(value):
            fail(f"{text} is too large for a double", node)
        return TypedSql(number(value), t.DOUBLE)

    def _text(self, node: exp.Expr) -> TypedSql:
        return TypedSql(string(node.this), t.STRING)

    def _boolean(self, node: exp.Boolean) -> TypedSql:
        return TypedSql(node.copy(), t.BOOLEAN)

    def _null(self, _node: exp.Null) -> TypedSql:
        return TypedSql(exp.null(), VOID)

    def _object(self, node: dialect.ObjectOf) -> TypedSql:
        return self.object_of(
            [(member.this.name, self.expression(member.expression), member) for member in node.expressions]
        )

    def object_of(self, members: Sequence[tuple[str, TypedSql, exp.Expr]]) -> TypedSql:
        """Builds an object of these values. A MISSING value leaves its field out."""
        seen: dict[str, TypedSql] = {}
        for name, value, node in members:
            if name in seen:
                fail(f"the field {name} is given twice", node, "give one of them another name with AS")
            seen[name] = self.settled(to_output_type(value) if isinstance(value.type, MapType) else value)
        type_ = ObjectType(tuple(Field(name, value.type) for name, value in seen.items()), open=False)
        parts = [(physical(name), value.sql) for name, value in seen.items()]
        return TypedSql(dynamic.record(parts or [(OPEN, dynamic.null(t.STRING))]), type_)

    def settled(self, value: TypedSql) -> TypedSql:
        """Makes a value self-contained: an optional field becomes untyped, which can tell NULL from MISSING."""
        if isinstance(value, OptionalVariable):
            present = exp.Not(this=exp.Is(this=enclose(value.sql), expression=exp.null()))
            tagged = exp.Case(
                ifs=[
                    exp.If(this=present, true=encoder.to_any(value)),
                    exp.If(this=value.explicit.copy(), true=dynamic.call("parse_json", exp.Literal.string("null"))),
                ]
            )
            return TypedSql(tagged, t.ANY)
        if value.type == VOID:
            return TypedSql(encoder.to_any(value), t.ANY)
        if value.type == ArrayType(VOID):
            return TypedSql(
                exp.cast(value.sql.copy(), dynamic.spark_type(value.type), dialect="spark"), ArrayType(t.ANY)
            )
        return TypedSql(value.sql, value.type)

    def _array(self, node: exp.Expr) -> TypedSql:
        values = [self.expression(item) for item in node.expressions]
        type_, aligned = self.aligned(values)
        kind: Type = MultisetType(type_) if isinstance(node, dialect.MultisetOf) else ArrayType(type_)
        if not values:
            return TypedSql(dynamic.call("array"), ArrayType(VOID)) if isinstance(node, exp.Array) else TypedSql(
                exp.cast(dynamic.call("array"), "ARRAY<VARIANT>", dialect="spark"), MultisetType(t.ANY))  # fmt: skip
        return TypedSql(dynamic.call("array", *aligned), kind)

    def aligned(self, values: Sequence[TypedSql]) -> tuple[Type, list[exp.Expr]]:
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
            encoder.to_any(self.settled(to_output_type(value) if isinstance(value.type, MapType) else value))
            for value in values
        ]

    def _now(self, node: exp.Expr) -> TypedSql:
        return self.moment(t.DATETIME if isinstance(node, exp.CurrentTimestamp) else t.DATE)

    def moment(self, kind: Type) -> TypedSql:
        """Returns the statement's instant, as a datetime, a date or a time."""
        return literal(self.now if kind == t.DATETIME else self.now.date() if kind == t.DATE else self.now.time())

    def of_channel(self, name: str, node: exp.Anonymous) -> TypedSql:
        """Translates is_new(v) and the other functions of channels.

        They are an error outside of channels. In a function that a channel may call, only their type counts.
        """
        if not self.for_channels:
            fail(f"{name} means something in a channel only", node)
        for argument in node.expressions:
            self.expression(argument)
        return TypedSql(exp.true(), t.BOOLEAN) if name == "is_new" else self.moment(t.DATETIME)

    def taken(self, value: TypedSql, type_: Type) -> None:  # noqa: B027 - an optional hook
        """Hook: the query uses an untyped value as this type. Channels infer the types of parameters from it."""

    # ------------------------------------------------------------ calls and generic expressions

    def _call(self, node: exp.Anonymous) -> TypedSql:
        name = node.this if isinstance(node.this, str) else node.this.name
        return self.call(None, name, node)

    def call(self, dataverse: str | None, name: str, node: exp.Anonymous) -> TypedSql:
        """Calls a function of the catalog, else one of ours or of Spark."""
        named = next(
            (argument for argument in node.expressions if isinstance(argument, exp.Kwarg | exp.PropertyEQ)), None
        )
        if named is not None:
            fail("named arguments are not supported", node, "pass them by position")
        function = self.names.find_function(dataverse or self.dataverse, name, len(node.expressions))
        if function is not None:
            return self.inlined(function, [self.expression(argument) for argument in node.expressions], node)
        if dataverse is not None:
            self.unknown_function(dataverse, name, node)
        self._check_callable(name, node)
        try:
            return calls.call(self, name, node)
        except FunctionError:
            if self.names.arities(self.dataverse, name):
                self.unknown_function(self.dataverse, name, node)
            raise

    def _check_callable(self, name: str, node: exp.Anonymous) -> None:
        if name.lower() in calls.CALLABLE:
            return
        if self.names.arities(self.dataverse, name):
            self.unknown_function(self.dataverse, name, node)
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        fail(f"{shown} cannot be called here", node, spark_functions.suggest_function(name, calls.CALLABLE))

    def unknown_function(self, dataverse: str, name: str, node: exp.Anonymous) -> NoReturn:
        counts = " or ".join(str(arity) for arity in self.names.arities(dataverse, name))
        hint = f"{name} takes {counts}" if counts else None
        count = len(node.expressions)
        fail(f"unknown function {dataverse}.{name} with {count} parameter{'' if count == 1 else 's'}", node, hint)

    def known(self, function: Callable[[Sequence[TypedSql]], TypedSql], arguments: Sequence[TypedSql]) -> TypedSql:
        """Calls one of our own functions; tries an untyped argument as each type that the function may take."""
        arguments = [_kept(argument) for argument in arguments]
        untyped = [i for i, argument in enumerate(arguments) if argument.type == t.ANY]
        if not untyped:
            return function(
                [TypedSql(exp.null(), t.ANY) if argument.type == VOID else argument for argument in arguments]
            )
        if len(untyped) > 2:
            guesses: Any = [(t.DOUBLE,) * len(untyped)]
        else:
            guesses = itertools.product(calls.GUESSES, repeat=len(untyped))
        results: list[TypedSql] = []
        problem: FunctionError | None = None
        for guess in guesses:
            tried = list(arguments)
            for i, type_ in zip(untyped, guess, strict=True):
                tried[i] = TypedSql(dynamic.as_type(arguments[i].sql, type_), type_)
            try:
                results.append(function(tried))
            except FunctionError as error:
                problem = problem or error
                continue
            for i, type_ in zip(untyped, guess, strict=True) if len(results) == 1 else ():
                self.taken(arguments[i], type_)
        if not results:
            raise problem or FunctionError("the arguments do not fit")
        type_ = results[0].type
        same = [result.sql for result in results if result.type == type_]
        return TypedSql(same[0] if len(same) == 1 else dynamic.call("coalesce", *same), type_)

    def _generic(self, node: exp.Expr) -> TypedSql:
        """Translates any other expression of Spark's grammar: translates its parts, and lets Spark find the type."""
        if isinstance(node, exp.Query):
            return self.subquery(node)
        if type(node) not in _GENERIC:
            fail(
                f"{text_arguments.name_of(node)} is no part of this language",
                node,
                "write it with operators and functions",
            )
        parts: list[TypedSql] = []

        def around(called: exp.Anonymous) -> exp.Expr:
            name = (called.this if isinstance(called.this, str) else called.this.name).lower()
            self._check_callable(name, called)
            arguments: list[exp.Expr] = []
            for argument in called.expressions:
                if isinstance(argument, (exp.Literal, exp.Star, *_STRUCTURE)):
                    # A number stays a literal, and so an INT, which these functions may require.
                    is_text = isinstance(argument, exp.Literal) and argument.is_string
                    arguments.append(
                        string(argument.this) if is_text else argument if argument.is_number else translated(argument)
                    )
                    continue
                part = self.expression(argument)
                if name in ("min", "max") and part.type == t.ANY:
                    parts.extend((part, TypedSql(untyped.sort_key(part.sql), untyped.SORT_KEY)))
                    return untyped.extreme(name, part.sql)
                if name in ("min", "max") and (order := temporal.order_key(part)) is not None:
                    parts.extend((part, TypedSql(order, temporal.ORDER_KEY)))
                    return dynamic.call(f"{name}_by", part.sql, order)
                parts.append(untyped.as_argument(name, part, name in calls.NUMERIC))
                arguments.append(parts[-1].sql.copy())
            return exp.Anonymous(this=name, expressions=arguments)

        def translated(value: Any) -> Any:
            if isinstance(value, list):
                return [translated(item) for item in value]
            if isinstance(value, exp.DataType | exp.Var | exp.WindowSpec | exp.Star) or not isinstance(value, exp.Expr):
                _check_word(value, node)
                return value
            if isinstance(value, exp.Anonymous) and isinstance(value.parent, _AROUND_A_CALL):
                # Spark cannot analyse a window function without its OVER clause, so translate only the arguments.
                return around(value)
            if isinstance(value, exp.Alias):
                return exp.alias_(translated(value.this), value.alias, quoted=True)
            if isinstance(value, _STRUCTURE):
                return type(value)(**{key: translated(child) for key, child in value.args.items()})
            part = self.expression(value)
            if part.type == t.ANY and isinstance(node, exp.Like | exp.ILike | exp.RegexpLike):
                self.taken(part, t.STRING)
            parts.append(untyped.as_part(part, value))
            return parts[-1].sql.copy()

        return self.ask(type(node)(**{key: translated(value) for key, value in node.args.items()}), parts)

    def ask(self, made: exp.Expr, parts: Sequence[TypedSql]) -> TypedSql:
        """Returns the expression with the type that Spark's analyser finds, with typed NULLs in place of its parts."""
        made, parts = text_arguments.with_texts(made, parts)
        types = [part.type for part in parts]
        return type_probe.type_by_spark(
            self.type_analyser, made, text_arguments.name_of(made), type_probe.with_typed_nulls(made, parts), types
        )

    def blank(self, part: TypedSql) -> exp.Expr:
        return type_probe.blank(part, dynamic.null)

    # ------------------------------------------------------------ implemented by Subqueries

    @abstractmethod
    def subquery(self, node: exp.Query) -> TypedSql: ...

    @abstractmethod
    def exists_query(self, node: exp.Query) -> TypedSql: ...

    @abstractmethod
    def in_query(self, value: TypedSql, node: exp.In) -> TypedSql: ...

    @abstractmethod
    def inlined(self, function: Any, arguments: Sequence[TypedSql], node: exp.Expr) -> TypedSql: ...

    HANDLERS: ClassVar[dict[type, Callable[..., TypedSql]]] = {
        exp.Literal: _literal,
        exp.RawString: _text,
        exp.National: _text,
        exp.Boolean: _boolean,
        exp.Null: _null,
        dialect.ObjectOf: _object,
        exp.Array: _array,
        dialect.MultisetOf: _array,
        exp.CurrentTimestamp: _now,
        exp.CurrentDate: _now,
        exp.Anonymous: _call,
    }


def _check_word(value: Any, node: exp.Expr) -> None:
    """Checks a word that goes to Spark unchanged."""
    match value:
        case exp.Var() if value.name.lower() not in spark_functions.UNITS:
            remedy = spark_functions.suggestion(value.name, spark_functions.UNITS)
            fail(f"unknown unit {value.name[:60]}", node, remedy or "use year, month, day, hour, minute or second")
        case exp.Star() if any(value.args.values()):
            fail("* stands alone here", node, "leave out what follows it")
        case exp.WindowSpec():
            for bound in (value.args.get("start"), value.args.get("end")):
                if isinstance(bound, exp.Expr) and not isinstance(bound, exp.Literal):
                    fail("a window begins and ends a number of rows away", node, "ROWS BETWEEN 2 PRECEDING AND …")


def _kept(value: TypedSql) -> TypedSql:
    """Keeps an expression that is always NULL but no NULL literal: its evaluation may fail, as raise_error does."""
    if value.type != VOID or isinstance(value.sql, exp.Null):
        return value
    return TypedSql(dynamic.void_as(value.sql, t.ANY), t.ANY)


# Expressions without a handler of their own, which Spark's analyser may type.
_GENERIC: Final = frozenset((
    exp.Anonymous, exp.BitwiseAnd, exp.BitwiseLeftShift, exp.BitwiseNot, exp.BitwiseOr, exp.BitwiseRightShift,
    exp.BitwiseXor, exp.DPipe, exp.Extract, exp.Filter, exp.HexString, exp.ILike, exp.IgnoreNulls,
    exp.Interval, exp.Is, exp.Like, exp.RegexpLike, exp.RespectNulls, exp.StrPosition, exp.Trim, exp.Window,
    exp.WithinGroup,
))  # fmt: skip
# Nodes around a call, and further nodes that have no meaning outside of a call.
_AROUND_A_CALL = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_STRUCTURE = (exp.Ordered, exp.Order, exp.Distinct, exp.Tuple, exp.Where, exp.Interval, *_AROUND_A_CALL)
