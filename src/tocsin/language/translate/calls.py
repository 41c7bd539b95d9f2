"""Resolves a function's name: one of our functions, a SQL++ name of a Spark function, or a Spark function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from tocsin.language.functions import duration_order, geodesy, spark_functions, spatial, temporal
from tocsin.language.functions.grid import Near
from tocsin.language.translate import predicate_notes
from tocsin.language.types import type_probe
from tocsin.language.types.typed_sql import FunctionError, MapType, TypedSql, build, constant_integer
from tocsin.language.types.variant import arrays, encoder, operators
from tocsin.language.types.variant import values as dynamic
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

if TYPE_CHECKING:
    from tocsin.language.translate.expressions import Expressions

OURS: Final[dict[str, Callable[[Sequence[TypedSql]], TypedSql]]] = {
    **spatial.FUNCTIONS, **geodesy.FUNCTIONS, **temporal.FUNCTIONS,
}  # fmt: skip

# The types that our functions try for an untyped argument.
GUESSES: Final[tuple[Type, ...]] = (
    *t.SPATIAL, t.DOUBLE, t.STRING, t.DATETIME, t.DATE, t.TIME, t.DURATION, ArrayType(t.DOUBLE),
)  # fmt: skip

# Functions that Spark has under another name than SQL++.
SPARK_NAMES: Final = {
    "lowercase": "lower", "uppercase": "upper", "string_length": "length", "codepoint_length": "length",
    "len": "size", "to_string": "string", "to_bigint": "bigint", "to_double": "double", "array_length": "size",
    "string_contains": "contains", "starts_with": "startswith", "ends_with": "endswith", "array_flatten": "flatten",
    "regexp_contains": "rlike", "if_missing": "coalesce", "if_null": "coalesce", "if_missing_or_null": "coalesce",
    "ifmissing": "coalesce", "ifmissingornull": "coalesce", "array_concat": "concat",
}  # fmt: skip

NUMERIC: Final = frozenset(
    (
        "abs acos asin atan atan2 cbrt ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod power pow "
        "radians round bround sign signum sin sinh sqrt tan tanh sum avg mean stddev stddev_pop stddev_samp variance "
        "var_pop var_samp corr covar_pop covar_samp median percentile percentile_approx greatest least skewness "
        "kurtosis "
    ).split()
)
KEEP_INTEGERS: Final = frozenset("abs greatest least mod negative positive sign".split())
COLLECTIONS: Final = frozenset(
    (
        "size cardinality array_contains array_position array_distinct array_union array_intersect array_except "
        "array_join array_max array_min array_sort sort_array slice explode posexplode explode_outer flatten "
        "element_at get reverse transform filter exists forall aggregate reduce zip_with array_size array_append "
        "array_remove arrays_overlap "
    ).split()
)
# Functions on a date or time: an untyped argument becomes a datetime.
MOMENTS: Final = frozenset(
    (
        "year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear hour minute second last_day to_date "
        "monthname dayname unix_date unix_micros unix_millis unix_seconds to_timestamp date timestamp "
    ).split()
)
# SQL++'s aggregates over arrays, as folds in Spark.
ARRAY_AGGREGATES: Final = {
    "count": "size(filter(_v, __x -> __x IS NOT NULL))",
    "sum": "aggregate(_v, _zero, (__a, __x) -> __a + coalesce(__x, _zero))",
    "avg": "aggregate(filter(_v, __x -> __x IS NOT NULL), named_struct('s', 0D, 'n', 0L),"
    " (__a, __x) -> named_struct('s', __a.s + __x, 'n', __a.n + 1L), __a -> if(__a.n = 0, NULL, __a.s / __a.n))",
    "min": "array_min(_v)",
    "max": "array_max(_v)",
}  # fmt: skip
AGGREGATES: Final = frozenset(
    (
        "any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or "
        "collect_list collect_set corr count count_if covar_pop covar_samp every first first_value "
        "grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean median min min_by "
        "mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_r2 "
        "skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance "
    ).split()
)
MOMENTS_OF_NOW: Final = {
    "current_datetime": t.DATETIME, "current_timestamp": t.DATETIME, "now": t.DATETIME, "current_date": t.DATE,
    "current_time": t.TIME,
}  # fmt: skip
# Functions that only channels have.
CHANNELS_OWN: Final = frozenset(("is_new", "active_timestamp", "previous_channel_time", "current_channel_time"))
BUILT_IN: Final = frozenset((*OURS, *AGGREGATES, *CHANNELS_OWN))  # names that a catalog function may not have
NONDETERMINISTIC: Final = frozenset(
    "rand random randn uuid shuffle monotonically_increasing_id randstr uniform".split()
)
CALLABLE: Final = frozenset(
    (
        *OURS, *SPARK_NAMES, *MOMENTS_OF_NOW, *CHANNELS_OWN, *spark_functions.NAMES,
        *(prefix + name for prefix in ("array_", "coll_") for name in ARRAY_AGGREGATES),
    )
)  # fmt: skip
"""Every function that a query may call, apart from the catalog's functions."""
ONCE: Final = "once"  # marks a call that is too expensive to repeat, such as a call into Python
_ALIGNED: Final = frozenset("coalesce nvl ifnull array greatest least nullif".split())


def is_computed_once(sql: exp.Expr) -> bool:
    """Whether an expression must be computed once per row: it is random, or too expensive to repeat."""
    return any(
        str(call_.this).lower() in NONDETERMINISTIC or call_.meta.get(ONCE) for call_ in sql.find_all(exp.Anonymous)
    )


def call(self: Expressions, name: str, node: exp.Anonymous) -> TypedSql:
    """Translates a call of any function except the catalog's. The checks are in order of priority."""
    lower = name.lower()
    if lower in MOMENTS_OF_NOW and not node.expressions:
        return self.moment(MOMENTS_OF_NOW[lower])
    if lower in CHANNELS_OWN:
        return self.of_channel(lower, node)
    if lower == "count" and len(node.expressions) == 1:
        return _count(self, node)
    for prefix in ("array_", "coll_"):
        if lower.startswith(prefix) and lower.removeprefix(prefix) in ARRAY_AGGREGATES and len(node.expressions) == 1:
            return _array_aggregate(lower.removeprefix(prefix), self.expression(node.expressions[0]))
    if any(isinstance(argument, exp.Lambda) for argument in node.expressions):
        return _higher_order(self, name, node)
    if lower in ("like", "ilike") and len(node.expressions) in (2, 3):
        return self.expression(_like(lower, *node.expressions))
    if any(isinstance(argument, exp.Star | exp.Distinct | exp.Alias) for argument in node.expressions):
        return self._generic(node)
    arguments = [self.expression(argument) for argument in node.expressions]
    if lower in OURS and not (lower == "uuid" and not arguments):
        try:
            return _noted(lower, self.known(OURS[lower], arguments), arguments)
        except FunctionError as ours:
            # Spark has functions of the same names, such as `date(x)`, which may accept these arguments.
            if lower not in _SPARK_HAS_TOO:
                raise
            try:
                return _spark(self, lower, arguments)
            except FunctionError:
                raise ours from None
    on_arrays = arrays.call(SPARK_NAMES.get(lower, lower), arguments)
    if on_arrays is not None:
        return on_arrays
    if lower in ("grouping", "grouping_id"):
        # Spark analyses these functions only inside of their GROUP BY, so set the type here.
        keys = [dynamic.key(argument.sql) if argument.type == t.ANY else argument.sql for argument in arguments]
        return TypedSql(exp.cast(dynamic.call(lower, *keys), "BIGINT"), t.BIGINT)
    on_durations = duration_order.order_durations(lower, arguments)
    if on_durations is not None:
        return on_durations
    if lower in _ALIGNED or SPARK_NAMES.get(lower) == "coalesce":
        return _aligned(self, SPARK_NAMES.get(lower, lower), arguments)
    if lower == "if" and len(arguments) == 3:
        type_, (then, otherwise) = self.aligned(arguments[1:])
        return TypedSql(exp.If(this=self._as(arguments[0], t.BOOLEAN), true=then, false=otherwise), type_)
    if lower in ("min", "max") and len(arguments) == 1 and arguments[0].type == t.ANY:
        return TypedSql(operators.extreme(lower, arguments[0].sql), t.ANY)
    if lower in ("min", "max") and len(arguments) == 1 and (sorted_by := temporal.order_key(arguments[0])) is not None:
        return TypedSql(dynamic.call(f"{lower}_by", arguments[0].sql, sorted_by), t.DURATION)
    result = _spark(self, SPARK_NAMES.get(lower, name), arguments)
    return TypedSql(result.sql, t.UUID) if lower == "uuid" else result


_SPARK_HAS_TOO: Final = frozenset(("date", "time", "point", "add", "print", "multiply", "subtract"))


def _like(name: str, text: exp.Expr, pattern: exp.Expr, escape: exp.Expr | None = None) -> exp.Expr:
    """Rewrites like(…) as the operator LIKE, so that both match in the same way."""
    like = (exp.Like if name == "like" else exp.ILike)(this=text.copy(), expression=pattern.copy())
    return like if escape is None else exp.Escape(this=like, expression=escape.copy())


def _noted(name: str, made: TypedSql, arguments: Sequence[TypedSql]) -> TypedSql:
    """Annotates a spatial call, so that `channels/joins` can use it as a join condition."""
    kind = {"intersect": predicate_notes.NEAR, "distance": predicate_notes.APART}.get(name.rpartition("_")[2])
    if kind is not None and len(arguments) == 2 and all(argument.type in t.SPATIAL for argument in arguments):
        a, b = (TypedSql(argument.sql, argument.type) for argument in arguments)
        made.sql.meta[kind] = Near(a, b, globe=name.startswith("geo_"))
    return made


# Functions that accept an untyped value as it is.
_TAKES_UNTYPED: Final = frozenset(
    (
        "any_value array_agg collect_list collect_set element_at first is_variant_null last map named_struct "
        "schema_of_variant struct to_json try_variant_get typeof variant_get "
    ).split()
)


def _spark(self: Expressions, name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Calls a Spark function: first with the arguments as they are, then with adapted ones, until Spark accepts it."""
    lower = name.lower()

    def fitted(value: TypedSql) -> TypedSql:
        if value.type != t.ANY:
            return value
        if lower in MOMENTS:
            self.taken(value, t.DATETIME)
            return TypedSql(operators.moment(value.sql), t.DATETIME)
        if lower not in NUMERIC and lower not in COLLECTIONS:
            self.taken(value, t.STRING)
            return TypedSql(operators.text(value.sql), t.STRING)
        type_: Type = t.DOUBLE if lower in NUMERIC else ArrayType(t.ANY) if lower in COLLECTIONS else t.STRING
        if lower in NUMERIC:
            self.taken(value, t.BIGINT if lower in KEEP_INTEGERS else t.DOUBLE)
        return TypedSql(dynamic.exactly(value.sql, type_), type_)

    def narrow(value: TypedSql) -> TypedSql:
        """Casts a BIGINT to INT: our integers are BIGINT, and many functions of Spark require INT."""
        constant = constant_integer(value.sql) if value.type in t.INTEGERS else None
        if constant is not None and -(2**31) <= constant < 2**31:
            return TypedSql(exp.Literal.number(constant), t.INTEGER)
        return TypedSql(exp.cast(value.sql.copy(), "INT"), t.INTEGER) if value.type == t.BIGINT else value

    as_they_are = list(arguments)
    adapted = [fitted(argument) for argument in arguments]
    tries = [as_they_are] if all(argument.type != t.ANY for argument in arguments) else []
    if lower in _TAKES_UNTYPED:
        tries = [as_they_are]
    tries += [adapted, [narrow(argument) for argument in adapted]]
    problem: FunctionError | None = None
    for candidate in tries:
        try:
            result = self.ask(dynamic.call(name, *(value.sql for value in candidate)), candidate)
        except FunctionError as error:
            problem = problem or error
            continue
        if lower in KEEP_INTEGERS:
            result.sql.meta[predicate_notes.MADE_OF] = predicate_notes.operands(*arguments)
        return result
    assert problem is not None
    raise problem


def _aligned(self: Expressions, name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Calls a function whose arguments must have a common type."""
    if name in ("greatest", "least") and any(argument.type == t.ANY for argument in arguments):
        arguments = [
            TypedSql(self._as(argument, t.DOUBLE), t.DOUBLE if argument.type == t.ANY else argument.type)
            for argument in arguments
        ]
    if name == "coalesce":
        # A variant NULL is no SQL NULL, and coalesce must skip it too.
        arguments = [
            TypedSql(build("if(is_variant_null(_v), NULL, _v)", _v=argument.sql), t.ANY)
            if argument.type == t.ANY
            else TypedSql(argument.sql, argument.type)
            for argument in arguments
        ]
    type_, values = self.aligned(arguments)
    result = dynamic.call(name, *values)
    return TypedSql(result, ArrayType(type_)) if name == "array" else TypedSql(result, type_)


def _count(self: Expressions, node: exp.Anonymous) -> TypedSql:
    argument = node.expressions[0]
    if isinstance(argument, exp.Star):
        return TypedSql(dynamic.call("count", exp.Star()), t.BIGINT)
    distinct = isinstance(argument, exp.Distinct)
    values = [self.expression(operand) for operand in (argument.expressions if distinct else [argument])]
    sqls = [dynamic.key(value.sql) if value.type == t.ANY else value.sql for value in values]
    inner = exp.Distinct(expressions=[sql.copy() for sql in sqls]) if distinct else sqls[0]
    return TypedSql(exp.Anonymous(this="count", expressions=[inner]), t.BIGINT)


def _array_aggregate(name: str, value: TypedSql) -> TypedSql:
    """Translates SQL++'s aggregates over an array, such as array_sum."""
    items = dynamic.items(value)
    assert isinstance(items.type, ArrayType)
    item = items.type.item
    if name in ("min", "max") and (on_arrays := arrays.call(f"array_{name}", [value])) is not None:
        return on_arrays
    if item in (t.ANY, VOID):
        items, item = (
            TypedSql(
                dynamic.as_type(encoder.to_any(value) if value.type != t.ANY else value.sql, ArrayType(t.DOUBLE)),
                ArrayType(t.DOUBLE),
            ),
            t.DOUBLE,
        )
    on_durations = duration_order.order_durations(f"array_{name}", [items])
    if on_durations is not None:
        return on_durations
    if name in ("sum", "avg") and item in type_probe.OPAQUE:
        raise type_probe.refusal(f"array_{name}", item)
    zero = exp.cast(exp.Literal.number(0), "DOUBLE" if item in (t.FLOAT, t.DOUBLE) else "BIGINT")
    wide = t.DOUBLE if item in (t.FLOAT, t.DOUBLE) else t.BIGINT
    if name in ("sum", "avg"):
        kind = "ARRAY<DOUBLE>" if name == "avg" or wide == t.DOUBLE else "ARRAY<BIGINT>"
        items = TypedSql(exp.cast(items.sql.copy(), kind, dialect="spark"), items.type)
    sql = build(ARRAY_AGGREGATES[name], _v=items.sql, _zero=zero)
    result: Type = {"count": t.BIGINT, "avg": t.DOUBLE, "sum": wide}.get(name, item)
    return TypedSql(exp.cast(sql, "BIGINT") if name == "count" else sql, result)


def _higher_order(self: Expressions, name: str, node: exp.Anonymous) -> TypedSql:
    """Translates transform(a, x -> …) and similar calls. A lambda's variables have the types of the array's items."""
    from tocsin.language.translate.scope import NameScope

    values: list[TypedSql] = []
    sqls: list[exp.Expr] = []
    probed: list[tuple[TypedSql, list[exp.Identifier]]] = []  # a value, or the body of a lambda with its variables
    for argument in node.expressions:
        if not isinstance(argument, exp.Lambda):
            value = self.expression(argument)
            if isinstance(value.type, MultisetType) or (value.type == t.ANY and not values):
                value = dynamic.items(value)
            values.append(value)
            sqls.append(value.sql)
            probed.append((value, []))
            continue
        names = [variable.name for variable in argument.expressions]
        types = _lambda_types(name.lower(), values, len(names))
        outer, self.frame = (
            self.frame,
            NameScope(
                {
                    variable: TypedSql(exp.column(variable, quoted=True), type_)
                    for variable, type_ in zip(names, types, strict=True)
                },
                [],
                self.frame,
            ),
        )
        try:
            body = self.expression(argument.this)
        finally:
            self.frame = outer
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
    return type_probe.type_by_spark(self.type_analyser, dynamic.call(name, *sqls), name, question, types_)


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
