"""Translates calls: of the catalog's functions, of our own, and of Spark's by their own or SQL++ names.

All names are in `functions/function_registry.py`. A call that Spark types is tried with its arguments as they are, and
then with adapted ones, because an untyped value may stand for any type that the function takes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlglot import exp

from tocsin.language.functions import kind_functions, number_arguments, temporal, text_functions, text_search
from tocsin.language.functions.collections import array_aggregates, array_functions, row_aggregates
from tocsin.language.functions.collections.array_arguments import whole_number
from tocsin.language.functions.function_registry import (
    AGGREGATES,
    CALLABLE,
    CHANNELS_OWN,
    COLLECTIONS,
    COMPARING,
    GUESSES,
    INDEXED,
    KEEP_INTEGERS,
    MOMENTS,
    MOMENTS_OF_NOW,
    NUMERIC,
    OF_VALUES,
    OURS,
    SPARK_NAMES,
    suggest_function,
)
from tocsin.language.functions.grid import Near
from tocsin.language.functions.temporal_text import duration_text
from tocsin.language.syntax import nodes
from tocsin.language.translate import comparing_calls, predicate_notes
from tocsin.language.translate.expressions import align, fail, make_self_contained
from tocsin.language.translate.scope import RowVariable
from tocsin.language.types import type_probe
from tocsin.language.types.output_types import to_output_type
from tocsin.language.types.typed_sql import FunctionError, MapType, TypedSql, build, constant_integer, string
from tocsin.language.types.variant import encoder, operators
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator

_LAMBDA_VARIABLE: Final = re.compile(r"\w+")
_ALIGNED: Final = frozenset("coalesce nvl ifnull array".split())
_SPARK_HAS_TOO: Final = frozenset(("date", "time", "point", "add", "print", "multiply", "subtract"))
# Functions that accept an untyped value as it is.
_TAKES_UNTYPED: Final = frozenset(
    (
        "any_value array_agg collect_list collect_set element_at first is_variant_null last map named_struct "
        "schema_of_variant struct to_json try_variant_get typeof variant_get "
    ).split()
)


# The functions of arrays that aggregate distinct values; None where the array itself is the answer.
_OF_DISTINCT: Final[dict[str, str | None]] = {
    "array_agg": None, "collect_list": None, "collect_set": None,
    "avg": "array_avg", "max": "array_max", "mean": "array_avg", "min": "array_min", "sum": "array_sum",
}  # fmt: skip


class FunctionCalls:
    """Translates calls of functions."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    def call_unqualified(self, node: exp.Anonymous) -> TypedSql:
        name = node.this if isinstance(node.this, str) else node.this.name
        return self.call(None, name, node)

    def call(self, dataverse: str | None, name: str, node: exp.Anonymous) -> TypedSql:
        """Calls a function of the catalog, else one of ours or of Spark."""
        named = next(
            (argument for argument in node.expressions if isinstance(argument, exp.Kwarg | exp.PropertyEQ)), None
        )
        if named is not None:
            fail("named arguments are not supported", node, "pass them by position")
        function = self.translator.names.find_function(
            dataverse or self.translator.dataverse, name, len(node.expressions)
        )
        if function is not None:
            return self.translator.subqueries.inline(
                function, [self.translator.expression(argument) for argument in node.expressions], node
            )
        if dataverse is not None:
            self.fail_unknown(dataverse, name, node)
        self.check_callable(name, node)
        try:
            return self._call_built_in(name, node)
        except FunctionError:
            if self.translator.names.arities(self.translator.dataverse, name):
                self.fail_unknown(self.translator.dataverse, name, node)
            raise

    def check_callable(self, name: str, node: exp.Anonymous) -> None:
        if name.lower() in CALLABLE:
            return
        if self.translator.names.arities(self.translator.dataverse, name):
            self.fail_unknown(self.translator.dataverse, name, node)
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        fail(f"{shown} cannot be called here", node, suggest_function(name, CALLABLE))

    def fail_unknown(self, dataverse: str, name: str, node: exp.Anonymous) -> NoReturn:
        counts = " or ".join(str(arity) for arity in self.translator.names.arities(dataverse, name))
        hint = f"{name} takes {counts}" if counts else None
        count = len(node.expressions)
        fail(f"unknown function {dataverse}.{name} with {count} parameter{'' if count == 1 else 's'}", node, hint)

    def _call_ours(self, function: Callable[[Sequence[TypedSql]], TypedSql], arguments: Sequence[TypedSql]) -> TypedSql:
        """Calls one of our own functions; tries an untyped argument as each type that the function may take."""
        arguments = [_keep_evaluation(argument) for argument in arguments]
        untyped = [i for i, argument in enumerate(arguments) if argument.type == t.ANY]
        if not untyped:
            return function(
                [TypedSql(exp.null(), t.ANY) if argument.type == VOID else argument for argument in arguments]
            )
        if len(untyped) > 2:
            guesses: Any = [(t.DOUBLE,) * len(untyped)]
        else:
            guesses = itertools.product(GUESSES, repeat=len(untyped))
        results: list[TypedSql] = []
        problem: FunctionError | None = None
        for guess in guesses:
            tried = list(arguments)
            for i, type_ in zip(untyped, guess, strict=True):
                tried[i] = TypedSql(dynamic.exactly(arguments[i].sql, type_), type_)
            try:
                results.append(function(tried))
            except FunctionError as error:
                problem = problem or error
                continue
            for i, type_ in zip(untyped, guess, strict=True) if len(results) == 1 else ():
                self.translator.hooks.note_use(arguments[i], type_)
        if not results:
            raise problem or FunctionError("the arguments do not fit")
        type_ = results[0].type
        same = [result.sql for result in results if result.type == type_]
        return TypedSql(same[0] if len(same) == 1 else dynamic.call("coalesce", *same), type_)

    def _call_built_in(self, name: str, node: exp.Anonymous) -> TypedSql:
        """Translates a call of any function except the catalog's. The checks are in order of priority."""
        lower = name.lower()
        if lower in MOMENTS_OF_NOW and not node.expressions:
            return self.translator.hooks.instant(MOMENTS_OF_NOW[lower])
        if lower in CHANNELS_OWN:
            return self.translator.hooks.call_channel_function(lower, node, self.translator)
        if lower in kind_functions.IS_OPERATORS and len(node.expressions) == 1:
            kind = kind_functions.IS_OPERATORS[lower]
            return self.translator.expression(nodes.IsKind(this=node.expressions[0].copy(), kind=kind))
        if lower == "count" and len(node.expressions) == 1:
            return self._count(node)
        if lower in array_aggregates.FUNCTIONS and len(node.expressions) == 1:
            return array_aggregates.call(lower, self.translator.expression(node.expressions[0]))
        if any(isinstance(argument, exp.Lambda) for argument in node.expressions):
            return self._higher_order(name, node)
        if lower in ("like", "ilike") and len(node.expressions) in (2, 3):
            return self.translator.expression(_like(lower, *node.expressions))
        if lower == text_search.FTCONTAINS:
            values = [self.translator.expression(argument) for argument in node.expressions[:2]]
            options = node.expressions[2] if len(node.expressions) == 3 else None
            return text_search.find_words(
                values if len(node.expressions) <= 3 else [], options, self.translator.hooks.note_use
            )
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Distinct):
            of_untyped = self._aggregate_distinct(lower, node.expressions[0])
            if of_untyped is not None:
                return of_untyped
        if any(isinstance(argument, exp.Star | exp.Distinct | exp.Alias) for argument in node.expressions):
            return self.translator.expressions.generic(node)
        arguments = [self.translator.expression(argument) for argument in node.expressions]
        if lower == "create_uuid" and arguments:
            raise FunctionError("create_uuid takes no arguments")
        if lower in OURS and not (lower == "uuid" and not arguments):
            try:
                return _annotate(lower, self._call_ours(OURS[lower], arguments), arguments)
            except FunctionError as ours:
                # Spark has functions of the same names, such as `date(x)`, which may accept these arguments.
                if lower not in _SPARK_HAS_TOO:
                    raise
                try:
                    return self._call_spark(lower, arguments)
                except FunctionError:
                    raise ours from None
        on_arrays = array_functions.call(lower, arguments)
        if on_arrays is not None:
            return on_arrays
        if lower == "concat" and arguments:
            return self.concat(arguments)
        if lower == "reverse" and len(arguments) == 1:
            return text_functions.reverse(arguments[0])
        if lower in ("grouping", "grouping_id"):
            # Spark analyses these functions only inside of their GROUP BY, so set the type here.
            keys = [dynamic.key(argument.sql) if argument.type == t.ANY else argument.sql for argument in arguments]
            return TypedSql(exp.cast(dynamic.call(lower, *keys), "BIGINT"), t.BIGINT)
        on_durations = temporal.order_durations(lower, arguments)
        if on_durations is not None:
            return on_durations
        if lower in COMPARING:
            return comparing_calls.FUNCTIONS[lower](lower, arguments, self.translator.operators)
        if lower == "decode" and len(arguments) > 2:
            return comparing_calls.DECODE(lower, arguments, self.translator.operators)
        if lower in OF_VALUES and not (lower == "to_number" and len(arguments) == 2):
            of_values = OF_VALUES[lower](lower, [_keep_evaluation(make_plain(argument)) for argument in arguments])
            if of_values is not None:
                return of_values
        if lower == "to_json" and len(arguments) == 1:
            return to_json(arguments[0])
        if lower in ("max_by", "min_by") and len(arguments) == 2:
            return self._by_order(lower, *arguments)
        if lower == "log" and len(arguments) == 1:
            lower = name = "log10"  # as in SQL++
        if lower in _ALIGNED or SPARK_NAMES.get(lower) == "coalesce":
            return _call_aligned(SPARK_NAMES.get(lower, lower), arguments)
        if len(arguments) == 1 and row_aggregates.needs_own_sql(lower, arguments[0].type):
            if lower == "sum":
                self.translator.hooks.note_use(arguments[0], t.DOUBLE)
            return row_aggregates.call(lower, arguments[0], lambda aggregate: aggregate)
        if (
            lower in ("min", "max")
            and len(arguments) == 1
            and (sorted_by := temporal.order_key(arguments[0])) is not None
        ):
            return TypedSql(dynamic.call(f"{lower}_by", arguments[0].sql, sorted_by), t.DURATION)
        result = self._call_spark(SPARK_NAMES.get(lower, name), arguments)
        return TypedSql(result.sql, t.UUID) if lower in ("uuid", "create_uuid") else result

    def _by_order(self, name: str, value: TypedSql, order: TypedSql) -> TypedSql:
        """Translates max_by and min_by, whose first value may have any type."""
        key = temporal.order_key(order)
        if order.type == t.ANY:
            order = TypedSql(operators.sort_key(order.sql), operators.SORT_KEY)
        elif key is not None:
            order = TypedSql(key, temporal.ORDER_KEY)
        return self.translator.ask(dynamic.call(name, value.sql, order.sql), [value, order])

    def _call_spark(self, name: str, arguments: Sequence[TypedSql]) -> TypedSql:
        """Calls a Spark function: with the arguments as they are, then with adapted ones, until Spark accepts it."""
        lower = name.lower()
        note_use = self.translator.hooks.note_use
        places = text_functions.PLACES.get(lower, ())
        self._note_texts([argument for at, argument in enumerate(arguments) if at in places])
        arguments = number_arguments.only_numbers(lower, text_functions.only_texts(lower, arguments))
        if lower in INDEXED and arguments and not isinstance(arguments[0].type, MapType):
            arguments = [
                TypedSql(whole_number(argument), t.BIGINT) if at and is_no_index(argument.type) else argument
                for at, argument in enumerate(arguments)
            ]
        is_numeric = lower in NUMERIC or lower in number_arguments.FUNCTIONS

        def fit(value: TypedSql) -> TypedSql:
            if value.type != t.ANY:
                return value
            if lower in INDEXED and value is not arguments[0]:
                return TypedSql(whole_number(value), t.BIGINT)
            if lower in MOMENTS:
                note_use(value, t.DATETIME)
                return TypedSql(operators.moment(value.sql), t.DATETIME)
            if not is_numeric and lower not in COLLECTIONS:
                note_use(value, t.STRING)
                return TypedSql(operators.text(value.sql), t.STRING)
            type_: Type = t.DOUBLE if is_numeric else ArrayType(t.ANY) if lower in COLLECTIONS else t.STRING
            if is_numeric:
                note_use(value, t.BIGINT if lower in KEEP_INTEGERS else t.DOUBLE)
            return TypedSql(dynamic.exactly(value.sql, type_), type_)

        def narrow(value: TypedSql) -> TypedSql:
            """Casts a BIGINT to INT: our integers are BIGINT, and many functions of Spark require INT."""
            constant = constant_integer(value.sql) if value.type in t.INTEGERS else None
            if constant is not None and -(2**31) <= constant < 2**31:
                return TypedSql(exp.Literal.number(constant), t.INTEGER)
            return TypedSql(exp.cast(value.sql.copy(), "INT"), t.INTEGER) if value.type == t.BIGINT else value

        unchanged = list(arguments)
        adapted = [fit(argument) for argument in arguments]
        tries = [unchanged] if all(argument.type != t.ANY for argument in arguments) else []
        if lower in _TAKES_UNTYPED:
            tries = [unchanged]
        tries += [adapted, [narrow(argument) for argument in adapted]]
        problem: FunctionError | None = None
        for candidate in tries:
            try:
                result = self.translator.ask(dynamic.call(name, *(value.sql for value in candidate)), candidate)
            except FunctionError as error:
                problem = problem or error
                continue
            if lower == "element_at" and constant_integer(candidate[-1].sql) is None:
                # Spark takes the result for never NULL, even if the index is NULL.
                result = TypedSql(dynamic.when(candidate[-1].sql, result.sql), result.type)
            if lower in KEEP_INTEGERS:
                result.sql.meta[predicate_notes.MADE_OF] = predicate_notes.operands(*arguments)
            return result
        assert problem is not None
        raise problem

    def _note_texts(self, arguments: Sequence[TypedSql]) -> None:
        if not any(isinstance(argument.type, ArrayType | MultisetType) for argument in arguments):
            for argument in arguments:
                if argument.type == t.ANY:
                    self.translator.hooks.note_use(argument, t.STRING)

    def concat(self, arguments: Sequence[TypedSql]) -> TypedSql:
        """Joins texts or arrays, for concat and `||`."""
        self._note_texts(arguments)
        return text_functions.concat(arguments)

    def _count(self, node: exp.Anonymous) -> TypedSql:
        argument = node.expressions[0]
        if isinstance(argument, exp.Star):
            return TypedSql(dynamic.call("count", exp.Star()), t.BIGINT)
        distinct = isinstance(argument, exp.Distinct)
        values = [self.translator.expression(operand) for operand in (argument.expressions if distinct else [argument])]
        sqls = [dynamic.key(value.sql) if value.type == t.ANY else value.sql for value in values]
        inner = exp.Distinct(expressions=[sql.copy() for sql in sqls]) if distinct else sqls[0]
        return TypedSql(exp.Anonymous(this="count", expressions=[inner]), t.BIGINT)

    def _aggregate_distinct(self, name: str, distinct: exp.Distinct) -> TypedSql | None:
        """Translates an aggregate over distinct untyped values, which Spark would compare as texts. None for others."""
        if name not in AGGREGATES or len(distinct.expressions) != 1:
            return None
        value = self.translator.expression(distinct.expressions[0].copy())
        if value.type != t.ANY:
            return None
        if name not in _OF_DISTINCT:
            raise FunctionError(f"{name} takes no DISTINCT over values without a declared type")
        collected = exp.Anonymous(this="array_agg", expressions=[distinct.expressions[0].copy()])
        call: exp.Expr = exp.Anonymous(this="array_distinct", expressions=[collected])
        if (of_array := _OF_DISTINCT[name]) is not None:
            call = exp.Anonymous(this=of_array, expressions=[call])
        return self.translator.expression(call)

    def _higher_order(self, name: str, node: exp.Anonymous) -> TypedSql:
        """Translates transform(a, x -> …) and similar calls. A lambda's variables have the types of the items."""
        translator = self.translator
        values: list[TypedSql] = []
        sqls: list[exp.Expr] = []
        accumulator: Type | None = None
        probed: list[tuple[TypedSql, list[exp.Identifier]]] = []  # a value, or the body of a lambda with its variables
        for argument in node.expressions:
            if not isinstance(argument, exp.Lambda):
                value = translator.expression(argument)
                if isinstance(value.type, MultisetType) or (value.type == t.ANY and not values):
                    value = dynamic.items(value)
                if name.lower() in ("aggregate", "reduce") and len(values) == 1:
                    accumulator = self._accumulator_type(name.lower(), [*values, value], node)
                    value = _converted(value, accumulator)
                values.append(value)
                sqls.append(value.sql)
                probed.append((value, []))
                continue
            names = [variable.name for variable in argument.expressions]
            for variable in names:
                # Spark takes a lambda's variable for a path if it has a dot, and cannot write one with a comma.
                if not _LAMBDA_VARIABLE.fullmatch(variable):
                    fail(f"{variable[:60]!r} cannot name a variable of a lambda", node, "use letters, digits and _")
            types = _lambda_types(name.lower(), values, len(names))
            variables = {
                variable: TypedSql(exp.column(variable, quoted=True), type_)
                for variable, type_ in zip(names, types, strict=True)
            }
            with translator.inner_scope(variables):
                body = translator.expression(argument.this)
            if accumulator is not None and len(probed) == 2:
                body = _converted(body, accumulator)
            if name.lower() == "array_sort" and body.type in t.NUMBERS:
                # Spark requires an INT. Only the sign of a difference counts, and the sign always fits.
                body = TypedSql(exp.cast(dynamic.call("sign", body.sql), "INT"), t.INTEGER)
            quoted = [exp.to_identifier(variable, quoted=True) for variable in names]
            sqls.append(exp.Lambda(this=body.sql, expressions=quoted))
            probed.append((body, quoted))

        def question(null: type_probe.Null) -> exp.Expr:
            blanks = [
                exp.Lambda(this=null(value.type), expressions=[variable.copy() for variable in quoted])
                if quoted
                else type_probe.blank(value, null)
                for value, quoted in probed
            ]
            return dynamic.call(name, *blanks)

        types_ = [value.type for value, _ in probed]
        return type_probe.type_by_spark(translator.type_analyser, dynamic.call(name, *sqls), name, question, types_)

    def _accumulator_type(self, name: str, values: Sequence[TypedSql], node: exp.Anonymous) -> Type:
        """Returns the type that holds both the start of an aggregate and what its lambda makes of it."""
        found = values[1].type
        step = node.expressions[2] if len(node.expressions) > 2 else None
        if not isinstance(step, exp.Lambda) or len(step.expressions) != 2:
            return found
        for _ in range(2):
            accumulated = TypedSql(values[1].sql, found)
            types = _lambda_types(name, [values[0], accumulated], 2)
            variables = {
                variable.name: TypedSql(exp.column(variable.name, quoted=True), type_)
                for variable, type_ in zip(step.expressions, types, strict=True)
            }
            with self.translator.inner_scope(variables):
                made = self.translator.expression(step.this).type
            if made in (found, VOID):
                return found
            numbers = {made, found} <= {VOID, *t.NUMBERS}
            is_real = bool({made, found} & {t.FLOAT, t.DOUBLE})
            found = t.ANY if not numbers else t.DOUBLE if is_real else t.BIGINT
        return found


def _converted(value: TypedSql, type_: Type) -> TypedSql:
    """Returns the value as an accumulator's type: a wider number, or untyped."""
    if type_ in (value.type, VOID):
        return value
    if value.type == VOID:
        return TypedSql(dynamic.void_as(value.sql, type_), type_)
    if type_ == t.ANY:
        return TypedSql(encoder.to_any(make_self_contained(value)), t.ANY)
    return TypedSql(exp.cast(value.sql.copy(), dynamic.spark_type(type_), dialect="spark"), type_)


def is_no_index(type_: Type) -> bool:
    return type_ in (t.STRING, t.BOOLEAN, t.UUID, t.FLOAT, t.DOUBLE)


def make_plain(value: TypedSql) -> TypedSql:
    """Returns a record as an object; an optional field stays one, which can be MISSING."""
    return TypedSql(value.sql, value.type) if isinstance(value, RowVariable) else value


# Tagged values as answers write them. Quotes inside of a text are escaped, so no text contains a tag.
_PLAIN_TAGS: Final = r'\{"\$(?:point|line|rectangle|polygon|datetime|date|time|uuid|double)":([^{}]*)\}'
_CIRCLES: Final = r'\{"\$circle":\[([^,]*),([^,]*),([^\]]*)\]\}'
_DURATIONS: Final = r'\{"\$duration":\[-?[0-9]+,-?[0-9]+\]\}'
_FLAT_MULTISETS: Final = r'\{"\$multiset":(\[[^{}\[\]]*\])\}'
_ESCAPED_NAMES: Final = r'(?<!\\)"\$(\$[^"\\]*(?:\\.[^"\\]*)*":)'


def to_json(value: TypedSql) -> TypedSql:
    """Writes a value as JSON without tags, as answers do. A multiset of arrays or objects has no such text: NULL."""
    text = dynamic.call("to_json", encoder.to_any(make_self_contained(make_plain(to_output_type(value)))))

    def replace(json: exp.Expr, pattern: str, by: str) -> exp.Expr:
        return dynamic.call("regexp_replace", json, string(pattern), string(by))

    def write(json: exp.Expr) -> exp.Expr:
        duration = dynamic.as_type(dynamic.call("parse_json", exp.column("__p")), t.DURATION)
        found = dynamic.call("regexp_extract_all", json, string(_DURATIONS), exp.Literal.number(0))
        durations = build(
            "aggregate(_found, _json, (__a, __p) -> replace(__a, __p, concat('\"', _text, '\"')))",
            _found=found, _json=json, _text=dynamic.once(duration, "__d", duration_text),
        )  # fmt: skip
        circles = replace(durations, _CIRCLES, '{"center":[$1,$2],"radius":$3}')
        plain = replace(replace(circles, _PLAIN_TAGS, "$1"), _FLAT_MULTISETS, "$1")
        has_tag = dynamic.call("contains", plain, string('{"$multiset":'))
        names = exp.If(this=has_tag, true=exp.null(), false=replace(plain, _ESCAPED_NAMES, '"$1'))
        return exp.If(this=dynamic.call("contains", json, string('"$')), true=names, false=json)

    return TypedSql(dynamic.once(text, "__j", write), t.STRING)


def _keep_evaluation(value: TypedSql) -> TypedSql:
    """Keeps an expression that is always NULL but no NULL literal: its evaluation may fail, as raise_error does."""
    if value.type != VOID or isinstance(value.sql, exp.Null):
        return value
    return TypedSql(dynamic.void_as(value.sql, t.ANY), t.ANY)


def _like(name: str, text: exp.Expr, pattern: exp.Expr, escape: exp.Expr | None = None) -> exp.Expr:
    """Rewrites like(…) as the operator LIKE, so that both match in the same way."""
    like = (exp.Like if name == "like" else exp.ILike)(this=text.copy(), expression=pattern.copy())
    return like if escape is None else exp.Escape(this=like, expression=escape.copy())


def _annotate(name: str, call: TypedSql, arguments: Sequence[TypedSql]) -> TypedSql:
    """Annotates a spatial call, so that `channels/joins` can use it as a join condition."""
    kind = {"intersect": predicate_notes.NEAR, "distance": predicate_notes.DISTANCE}.get(name.rpartition("_")[2])
    if kind is not None and len(arguments) == 2 and all(argument.type in t.SPATIAL for argument in arguments):
        a, b = (TypedSql(argument.sql, argument.type) for argument in arguments)
        call.sql.meta[kind] = Near(a, b, globe=name.startswith("geo_"))
    return call


def _call_aligned(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Calls a function whose arguments must have a common type."""
    if name == "coalesce":
        # A variant NULL is no SQL NULL, and coalesce must skip it too.
        arguments = [
            TypedSql(build("if(is_variant_null(_v), NULL, _v)", _v=argument.sql), t.ANY)
            if argument.type == t.ANY
            else TypedSql(argument.sql, argument.type)
            for argument in arguments
        ]
    type_, values = align(arguments)
    result = dynamic.call(name, *values)
    return TypedSql(result, ArrayType(type_)) if name == "array" else TypedSql(result, type_)


def _lambda_types(name: str, values: Sequence[TypedSql], wanted: int) -> list[Type]:
    """Returns the types of a lambda's variables."""

    def item(value: TypedSql) -> Type:
        if isinstance(value.type, ArrayType):
            return value.type.item
        raise FunctionError(f"{name} expects an array, got {value.type}")

    def entries(value: TypedSql) -> list[Type]:
        if isinstance(value.type, MapType):
            return [value.type.key, value.type.value]
        raise FunctionError(f"{name} expects a map, got {value.type}")

    types: list[Type]
    if not values:
        raise FunctionError(f"{name} expects a collection before the lambda")
    if name in ("aggregate", "reduce"):
        types = [values[1].type, item(values[0])] if wanted == 2 else [values[1].type]
    elif name in ("zip_with", "array_sort"):
        types = [item(values[0]), item(values[-1])]
    elif name in ("map_filter", "transform_keys", "transform_values"):
        types = entries(values[0])
    elif name == "map_zip_with":
        types = [*entries(values[0]), entries(values[1])[1]]
    else:
        types = [item(values[0]), t.INTEGER]
    if len(types) < wanted:
        raise FunctionError(f"the lambda of {name} takes at most {len(types)} parameters")
    return types[:wanted]
