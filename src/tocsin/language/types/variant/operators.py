"""Implements order, text and arithmetic for untyped values: each row decides by the kind of its value.

The type of such a value is known only when its row is read, and Spark cannot order it. A sort key stands for it: a
struct that orders by kind first, then within the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions import temporal
from tocsin.language.functions.temporal_text import duration_text
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Primitive, Type

# Values sort by kind first, in the order of SQL++, then within their kind.
SORT_KEY: Final = Primitive("struct<k: int, d: double, w: bigint, t: string>")

# Functions that return their argument unchanged.
_KEEPING: Final = frozenset(
    "any_value array_agg collect_list first first_value lag last last_value lead nth_value".split()
)


def _key_of(kind: int, d: str = "NULL", w: str = "NULL", text: str = "NULL") -> str:
    return f"named_struct('k', {kind}, 'd', CAST({d} AS DOUBLE), 'w', CAST({w} AS BIGINT), 't', CAST({text} AS STRING))"


def _has_tag(tag: str) -> str:
    return f"_s = 'OBJECT<`${tag}`: STRING>'"


_SORT_KEY_SQL: Final = (
    f"CASE WHEN _s = 'STRING' THEN {_key_of(1, text='_text')}"
    f" WHEN _number IS NOT NULL THEN {_key_of(0, '_number', '_exact')}"
    f" WHEN _s = 'BOOLEAN' THEN {_key_of(2, w='CAST(_truth AS INT)')}"
    f" WHEN {_has_tag('datetime')} THEN {_key_of(3, w='unix_micros(_datetime)')}"
    f" WHEN {_has_tag('date')} THEN {_key_of(4, w='unix_date(_date)')}"
    f" WHEN {_has_tag('time')} THEN {_key_of(5, w='_time')}"
    f" WHEN {_has_tag('uuid')} THEN {_key_of(7, text='_uuid')}"
    f" WHEN {_has_tag('double')} THEN {_key_of(0, '_odd')}"
    f" WHEN _months IS NOT NULL THEN {_key_of(6, '_dkey.days', '_dkey.micros', 'lpad(_months + 2147483648L, 10, 0)')}"
    " END"
)


def sort_key(value: exp.Expr) -> exp.Expr:
    """Returns the key for MIN, MAX and `<`; NULL for values without order (NULL, shapes, collections)."""
    return values.bind(value, "__sorted", _sort_key)


def _sort_key(value: exp.Expr) -> exp.Expr:
    duration_key = values.once(values.as_type(value, t.DURATION), "__d", _duration_key)
    exact = exp.If(
        this=build("_s = 'BIGINT'", _s=_schema(value)),
        true=values.as_type(value, t.BIGINT),
        false=build("try_cast(_d AS BIGINT)", _d=values.number_as(value, "double")),
    )
    return build(
        _SORT_KEY_SQL,
        _s=_schema(value),
        _text=values.as_type(value, t.STRING),
        _number=values.number_as(value, "double"),
        _exact=exact,
        _truth=values.as_type(value, t.BOOLEAN),
        _datetime=_to_tagged_type(value, t.DATETIME),
        _date=_to_tagged_type(value, t.DATE),
        _time=_to_tagged_type(value, t.TIME),
        _uuid=_inside(value, "uuid", "string"),
        _odd=_inside(value, "double", "string"),
        _months=values.call(
            "try_variant_get", value, exp.Literal.string('$["$duration"][0]'), exp.Literal.string("int")
        ),
        _dkey=duration_key,
    )


def total_order_key(value: exp.Expr) -> exp.Expr:
    """Returns the key for ORDER BY and array_sort. Values without an order come last, by their text; NULL is NULL."""

    def key(v: exp.Expr) -> exp.Expr:
        text = build("if(is_variant_null(_v), NULL, _key)", _v=v, _key=build(_key_of(8, text="to_json(_v)"), _v=v))
        return values.call("coalesce", _sort_key(v), values.when(v, text))

    return values.bind(value, "__sorted", key)


def _duration_key(duration: exp.Expr) -> exp.Expr:
    key = temporal.order_key(TypedSql(duration, t.DURATION))
    assert key is not None
    return key


def comparison(made: Callable[[exp.Expr, exp.Expr], exp.Expr], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Compares two untyped values by order; unknown if their kinds differ."""
    a, b = sort_key(left), sort_key(right)
    return exp.If(this=build("(_a).k = (_b).k", _a=a, _b=b), true=made(a, b), false=values.null(t.BOOLEAN))


# The kind of a value, by its key (see `values.key`): numbers and booleans begin with two letters, a tag is a kind.
_KIND: Final = (
    "CASE WHEN startswith(_key, 'd') OR startswith(_key, '{\"$double') THEN 'n' WHEN startswith(_key, 't') THEN 'f'"
    " WHEN startswith(_key, '{\"$') AND NOT startswith(_key, '{\"$$') THEN substring(_key, 1, 8)"
    " ELSE substring(_key, 1, 1) END"
)


def kind_of_key(key: exp.Expr) -> exp.Expr:
    """Returns a text for the kind of an untyped value, by its key."""
    return values.bind(key, "__key", lambda short: build(_KIND, _key=short))


def equality(made: Callable[[exp.Expr, exp.Expr], exp.Expr], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Compares two untyped values by `=` or `<>`; unknown if their kinds differ."""
    both = values.record([("a", values.key(left)), ("b", values.key(right))])
    a, b = (exp.column(name, table="__both") for name in ("a", "b"))
    kinds = [kind_of_key(key) for key in (a, b)]
    test = exp.If(
        this=exp.EQ(this=kinds[0], expression=kinds[1]), true=made(a.copy(), b.copy()), false=values.null(t.BOOLEAN)
    )
    return values.once(both, "__both", lambda _: test)


def text(value: exp.Expr) -> exp.Expr:
    """Converts an untyped value to text. A datetime, uuid, … yields its plain text; arrays, objects and shapes, whose
    text would reveal tagged forms, yield NULL."""
    tagged_texts = [_inside(value, tag, "string") for tag in ("uuid", "datetime", "date", "time", "double")]
    duration = values.once(values.as_type(value, t.DURATION), "__d", duration_text)
    return build(
        "CASE WHEN startswith(_s, 'OBJECT<`$') THEN _tagged WHEN startswith(_s, 'OBJECT<') OR startswith(_s, 'ARRAY<')"
        " THEN NULL ELSE _plain END",
        _s=_schema(value), _tagged=values.call("coalesce", *tagged_texts, duration),
        _plain=values.as_type(value, t.STRING),
    )  # fmt: skip


def moment(value: exp.Expr) -> exp.Expr:
    """Converts an untyped datetime, a date (its midnight), or the text of a datetime to a timestamp."""
    midnight = exp.cast(_to_tagged_type(value, t.DATE), "TIMESTAMP", dialect="spark")
    return values.call("coalesce", values.as_type(value, t.DATETIME), midnight)


def _to_tagged_type(value: exp.Expr, type_: Type) -> exp.Expr:
    """Converts an untyped value to a type only if it carries that type's tag; text is not parsed."""
    if type_ == t.TIME:
        inside = _inside(value, "time", "string")
        return build("unix_micros(try_cast(concat('1970-01-01 ', _text) AS TIMESTAMP))", _text=inside)
    if type_ in (t.DATETIME, t.DATE):
        return _inside(value, str(type_), "timestamp" if type_ == t.DATETIME else "date")
    if type_ == t.BIGINT:
        is_whole = exp.EQ(this=_schema(value), expression=exp.Literal.string("BIGINT"))
        return exp.If(this=is_whole, true=values.as_type(value, t.BIGINT), false=exp.null())
    return values.as_type(value, type_)


def _inside(value: exp.Expr, tag: str, kind: str) -> exp.Expr:
    return values.call("try_variant_get", value, exp.Literal.string(f'$["${tag}"]'), exp.Literal.string(kind))


def _schema(value: exp.Expr) -> exp.Expr:
    return values.call("schema_of_variant", value)


def _is_tagged(value: exp.Expr) -> exp.Expr:
    return values.call("startswith", _schema(value), exp.Literal.string("OBJECT<`$"))


# ---------------------------------------------------------------- arithmetic


def arithmetic(op: str, left: TypedSql, right: TypedSql, numbers: Callable[[TypedSql, TypedSql], TypedSql]) -> TypedSql:
    """Translates `left op right` with an untyped operand: by its tag if it has one, else as a number."""
    return _bind_once(
        left,
        "__l",
        lambda a: _bind_once(right, "__r", lambda b: _compute(op, a, b, numbers), values.BIND_ABOVE),
        values.BIND_ABOVE,
    )


def _bind_once(value: TypedSql, name: str, make: Callable[[TypedSql], TypedSql], above: int) -> TypedSql:
    if value.type != t.ANY or sum(1 for _ in value.sql.walk()) <= above:
        return make(value)
    result = make(TypedSql(exp.column(name), t.ANY))
    return TypedSql(values.once(value.sql, name, lambda _: result.sql), result.type)


def _compute(op: str, left: TypedSql, right: TypedSql, numbers: Callable[[TypedSql, TypedSql], TypedSql]) -> TypedSql:
    """Builds the arithmetic: by the temporal types that are possible, else as numbers."""
    candidates = _temporal_ways(op, left, right)
    temporal_operand = next((operand for operand in (left, right) if operand.type in temporal.TEMPORAL), None)
    if temporal_operand is not None:
        if not candidates:
            raise FunctionError(f"cannot compute {left.type} {op} {right.type}")
        return _first(candidates)
    plain = numbers(left, right)
    if not candidates:
        return plain
    test = exp.or_(*(_is_tagged(operand.sql) for operand in (left, right) if operand.type == t.ANY))
    # Keep this apart from the common case, numbers: a single long expression would exceed what Spark compiles.
    temporal_result = _bind_once(
        left, "__l", lambda a: _bind_once(right, "__r", lambda b: _first(_temporal_ways(op, a, b)), 0), 0
    )
    return TypedSql(exp.If(this=test, true=encoder.to_any(temporal_result), false=encoder.to_any(plain)), t.ANY)


def _temporal_ways(op: str, left: TypedSql, right: TypedSql) -> list[TypedSql]:
    """Returns the results for all pairs of temporal types that the operands may have; NULL where they do not apply."""
    reads_text = t.DURATION in (left.type, right.type)

    def meanings(value: TypedSql) -> list[TypedSql]:
        if value.type != t.ANY:
            return [value]
        kinds: Sequence[Type] = (t.DURATION, t.BIGINT) if op == "*" else temporal.TEMPORAL
        candidates = [TypedSql(_to_tagged_type(value.sql, kind), kind) for kind in kinds]
        if reads_text and op != "*":
            candidates.append(TypedSql(values.as_type(value.sql, t.DATETIME), t.DATETIME))
        return candidates

    results = []
    for a in meanings(left):
        for b in meanings(right):
            try:
                result = temporal.arithmetic(op, a, b)
            except FunctionError:
                continue
            if result is not None:
                both_present = exp.and_(*(_is_there(operand) for operand in (a, b)))
                results.append(
                    TypedSql(exp.If(this=both_present, true=result.sql, false=values.null(result.type)), result.type)
                )
    return results


def _is_there(value: TypedSql) -> exp.Expr:
    return exp.Not(this=exp.Is(this=exp.Paren(this=value.sql.copy()), expression=exp.null()))


def _first(ways: Sequence[TypedSql]) -> TypedSql:
    if len({way.type for way in ways}) == 1:
        return TypedSql(values.call("coalesce", *(way.sql for way in ways)), ways[0].type)
    return TypedSql(values.call("coalesce", *(encoder.to_any(way) for way in ways)), t.ANY)


# ---------------------------------------------------------------- operands of Spark expressions


def as_part(value: TypedSql, node: exp.Expr) -> TypedSql:
    """Converts an untyped value to the type that its place in Spark's grammar needs."""
    parent = node.parent
    if isinstance(parent, exp.Ordered):
        enclosing = parent.find_ancestor(exp.WithinGroup, exp.Window)
        if (
            value.type == t.ANY
            and isinstance(enclosing, exp.WithinGroup)
            and enclosing.this.name.lower().startswith("percentile")
        ):
            return TypedSql(values.exactly(value.sql, t.DOUBLE), t.DOUBLE)
        if value.type == t.ANY:
            return TypedSql(total_order_key(value.sql), SORT_KEY)
        order = temporal.order_key(value)
        return (
            value if order is None else TypedSql(order, Primitive("struct<days: bigint, micros: bigint, months: int>"))
        )
    if value.type != t.ANY:
        return value
    if node.arg_key == "partition_by":
        return TypedSql(values.key(value.sql), t.STRING)
    if isinstance(parent, exp.Extract):
        return TypedSql(moment(value.sql), t.DATETIME)
    return TypedSql(text(value.sql), t.STRING)


def as_argument(name: str, value: TypedSql, numeric: bool) -> TypedSql:
    """Converts an untyped argument of an aggregate or a window function."""
    if value.type != t.ANY or name in _KEEPING:
        return value
    if name == "count":
        return TypedSql(values.key(value.sql), t.STRING)
    if numeric:
        return TypedSql(values.exactly(value.sql, t.DOUBLE), t.DOUBLE)
    return TypedSql(text(value.sql), t.STRING)
