"""Implements the functions that change the structure of collections: nested arrays, arrays of objects, sorted items.

They need more than the common rules: how deep an array is nested is known only at run time, an object's fields too, and
numbers may be integers or doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.bounds import call_limits
from tocsin.language.functions.collections.array_arguments import (
    CollectionCall,
    CollectionFunction,
    answer,
    build_missing_test,
    is_absent,
    item_type,
    items_of,
)
from tocsin.language.types.typed_sql import FunctionError, TypedSql, build, constant_integer, raise_error
from tocsin.language.types.variant import operators, values
from tocsin.language.types.variant.values import VOID, once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

_DEPTH: Final = 64  # of nested arrays in an undeclared value
_ITEM: Final = exp.column("__x")


def sort_items(items: exp.Expr, type_: Type, *, rising: bool) -> exp.Expr:
    """Sorts items. Unknown items come first, and items without an order last, by their text."""
    if type_ != t.ANY:
        return values.call("sort_array", items, exp.true() if rising else exp.false())
    less, more = (-1, 1) if rising else (1, -1)
    key = operators.total_order_key(exp.column("__i"))
    paired = build("transform(_v, __i -> named_struct('k', _key, 'v', __i))", _v=items, _key=key)
    return build(
        f"transform(array_sort(_p, (__a, __b) -> CASE WHEN __a.k IS NULL AND __b.k IS NULL THEN 0"
        f" WHEN __a.k IS NULL THEN {less} WHEN __b.k IS NULL THEN {more}"
        f" WHEN __a.k < __b.k THEN {less} WHEN __a.k > __b.k THEN {more} ELSE 0 END), __e -> __e.v)",
        _p=paired,
    )


def _flatten(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Replaces nested arrays by their items, down to a depth. A negative depth means all, and none means 1."""
    depth = arguments[1] if len(arguments) > 1 else TypedSql(exp.Literal.number(1), t.BIGINT)
    inner = item_type(arguments[0])
    inner_item = inner.item if isinstance(inner, ArrayType | MultisetType) else None
    is_deep = inner_item is None or isinstance(inner_item, ArrayType | MultisetType) or inner_item in (t.ANY, VOID)
    if len(arguments) in (1, 2) and not is_deep and constant_integer(depth.sql) not in (0, None):
        # One level of declared arrays.
        flat = build(
            "flatten(transform(_v, __x -> coalesce(__x, array(_null))))",
            _v=arguments[0].sql, _null=values.null(inner_item or t.ANY),
        )  # fmt: skip
        return answer(flat, ArrayType(inner_item or t.ANY), arguments)

    def unnest(call: CollectionCall) -> exp.Expr:
        array = values.as_type(_ITEM, ArrayType(t.ANY))
        level = build("flatten(transform(__v, __x -> coalesce(_inner, array(__x))))", _inner=array)
        levels = build(f"sequence(1, CAST(if(_n < 0, {_DEPTH}, least(_n, {_DEPTH})) AS INT))", _n=call.numbers[0])
        return build(
            "if(_n = 0, _v, aggregate(_levels, _v,"
            " (__v, __n) -> if(exists(__v, __x -> _inner IS NOT NULL), _level, __v)))",
            _n=call.numbers[0], _v=call.arrays[0], _levels=levels, _inner=array, _level=level,
        )  # fmt: skip

    untyped = [
        TypedSql(items_of(arguments[0], t.ANY), ArrayType(t.ANY)),
        *arguments[1:],
        *[depth][len(arguments) - 1 :],
    ]
    return _with_missing(CollectionFunction("array number", unnest).call(name, untyped), arguments)


def _with_missing(result: TypedSql, arguments: Sequence[TypedSql]) -> TypedSql:
    return answer(result.sql, result.type, arguments)


def _range(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Returns numbers from a start to an end, without the end. They are doubles if an argument is one."""
    if len(arguments) not in (2, 3):
        raise FunctionError(f"{name} takes 2 or 3 arguments, got {len(arguments)}")
    start, end, step = (*arguments, TypedSql(exp.Literal.number(1), t.BIGINT))[:3]
    numbers = [values.number(value.sql) if value.type == t.ANY else exp.cast(value.sql.copy(), "DOUBLE")
               if value.type in t.NUMBERS else values.null(t.DOUBLE) for value in (start, end, step)]  # fmt: skip
    wholes = [values.whole(value.sql) if value.type == t.ANY else value.sql for value in (start, end, step)]
    parts = {"_a": numbers[0], "_b": numbers[1], "_s": numbers[2]}
    is_finite = "abs(_a) < double('Infinity') AND abs(_b) < double('Infinity') AND abs(_s) < double('Infinity')"
    count = build("if(_s = 0E0, 0L, CAST(greatest(ceil((_b - _a) / _s), 0) AS BIGINT))", **parts)
    # An INT would wrap around.
    places = build("array_repeat(0, CAST(least(_n, 2147483647L) AS INT))", _n=count)
    real = build(f"if({is_finite}, transform(_places, (__z, __i) -> _a + __i * _s), NULL)", **parts, _places=places)
    if not all(value.type in (t.ANY, *t.INTEGERS) for value in (start, end, step)):
        return answer(real, ArrayType(t.DOUBLE), arguments)
    whole = build(
        "if(_a IS NULL OR _b IS NULL OR _s IS NULL, NULL, transform(_places, (__z, __i) -> _a + __i * _s))",
        _a=wholes[0], _b=wholes[1], _s=wholes[2], _places=places,
    )  # fmt: skip
    if all(value.type in t.INTEGERS for value in (start, end, step)):
        return answer(exp.cast(whole, "ARRAY<BIGINT>", dialect="spark"), ArrayType(t.BIGINT), arguments)
    all_whole = exp.and_(*(exp.Not(this=is_absent(number)) for number in wholes))
    arrays = [items_of(TypedSql(sql, ArrayType(kind)), t.ANY) for sql, kind in ((whole, t.BIGINT), (real, t.DOUBLE))]
    return answer(exp.If(this=all_whole, true=arrays[0], false=arrays[1]), ArrayType(t.ANY), arguments)


def _star(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Turns an array of objects into an object of arrays. It is MISSING if no item has a field."""
    if len(arguments) != 1:
        raise FunctionError(f"{name} takes 1 argument, got {len(arguments)}")
    is_object = "startswith(schema_of_variant(__x), 'OBJECT<') AND NOT startswith(schema_of_variant(__x), 'OBJECT<`$')"
    objects = build(
        f"transform(_v, __x -> if({is_object}, try_variant_get(__x, '$', 'map<string,variant>'), NULL))",
        _v=items_of(arguments[0], t.ANY),
    )
    names = build(
        "array_sort(array_distinct(flatten(transform(filter(__m, __x -> __x IS NOT NULL), __x -> map_keys(__x)))))"
    )
    field = values.call("try_element_at", _ITEM, exp.column("__n"))
    columns = build("transform(__f, __n -> transform(__m, __x -> _field))", _field=field)
    made = values.call("to_variant_object", values.call("map_from_arrays", exp.column("__f"), columns))
    # Few objects with many different fields would make very many items.
    too_many = raise_error(call_limits.too_many(name), build("string(CAST(size(__f) AS BIGINT) * size(__m))"))
    sized = f"CASE WHEN size(__f) = 0 THEN NULL WHEN CAST(size(__f) AS BIGINT) * size(__m) > {call_limits.ITEMS}"
    body = once(names, "__f", lambda _: build(f"{sized} THEN _fail ELSE _made END", _fail=too_many, _made=made))
    found = once(objects, "__m", lambda _: body)
    null = exp.If(this=is_absent(items_of(arguments[0], t.ANY)), true=values.NULL, false=found)
    missing = build_missing_test(arguments[0])
    sql = null if missing is None else exp.If(this=missing, true=exp.null(), false=null)
    return TypedSql(sql, t.ANY)


def _sort_array(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Spark's sort_array(array, ascending)."""
    rising = arguments[1].sql if len(arguments) == 2 else exp.true()
    if len(arguments) not in (1, 2) or not isinstance(rising, exp.Boolean):
        raise FunctionError(f"{name} takes an array, and then true or false")
    is_rising = bool(rising.this)
    function = CollectionFunction("array", lambda call: sort_items(call.arrays[0], call.item, rising=is_rising))
    return function.call(name, arguments[:1])


def _join(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Spark's array_join over untyped items."""
    if len(arguments) not in (2, 3) or (arguments[0].type != t.ANY and item_type(arguments[0]) != t.ANY):
        return None
    items = items_of(arguments[0], t.ANY)
    texts = build("transform(_v, __i -> _text)", _v=items, _text=operators.text(exp.column("__i")))
    others = [values.as_type(value.sql, t.STRING) if value.type == t.ANY else value.sql for value in arguments[1:]]
    return TypedSql(values.call(name, texts, *others), t.STRING)


FUNCTIONS: Final[dict[str, Callable[[str, Sequence[TypedSql]], TypedSql | None]]] = {
    "array_flatten": _flatten, "array_join": _join, "array_range": _range, "array_star": _star, "flatten": _flatten,
    "sort_array": _sort_array,
}  # fmt: skip
