"""Implements array functions over untyped items, which Spark can neither compare nor sort.

Each item is therefore compared by a text that is equal for equal items, and sorted by its sort key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import FunctionError, TypedSql, build
from tocsin.language.types.variant import encoder, operators, values
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType, Type

_MANY: Final = ArrayType(t.ANY)


def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Applies a function to untyped items; returns None for another function, or if no argument is untyped."""
    function = _FUNCTIONS.get(name)
    if function is None or not arguments or not any(_is_untyped(argument.type) for argument in arguments):
        return None
    arrays, others, make, result = function
    if not arrays + len(others) >= len(arguments) >= arrays + sum(others):
        raise FunctionError(f"{name} does not take {len(arguments)} arguments")
    items = [_items(argument) for argument in arguments[:arrays]]
    return TypedSql(make(*items, *arguments[arrays:]), result)


def _is_untyped(type_: Type) -> bool:
    return type_ == t.ANY or (isinstance(type_, ArrayType | MultisetType) and type_.item == t.ANY)


def _items(value: TypedSql) -> exp.Expr:
    items = values.items(value)
    assert isinstance(items.type, ArrayType)
    if items.type.item == t.ANY:
        return items.sql
    inner = encoder.to_any(TypedSql(exp.column("__item"), items.type.item))
    return build("transform(_v, __item -> _inner)", _v=items.sql, _inner=inner)


def _key(sql: exp.Expr) -> exp.Expr:
    """Returns a text that is equal for equal items. A NULL item has a key too."""
    return values.call("coalesce", values.key(sql), exp.Literal.string("null"))


def _keys(items: exp.Expr) -> exp.Expr:
    return build("transform(_v, __i -> _key)", _v=items, _key=_key(exp.column("__i")))


def in_any_order(value: TypedSql) -> exp.Expr:
    """Returns an array that is equal for collections of the same items in any order."""
    return values.call("array_sort", _keys(_items(value)))


def _one(value: TypedSql) -> exp.Expr:
    return _key(encoder.to_any(value))


def _contains(items: exp.Expr, value: TypedSql) -> exp.Expr:
    return values.call("array_contains", _keys(items), _one(value))


def _position(items: exp.Expr, value: TypedSql) -> exp.Expr:
    return values.call("array_position", _keys(items), _one(value))


def _distinct(items: exp.Expr) -> exp.Expr:
    first = values.call("array_position", _keys(items), _key(exp.column("__x")))
    return build("filter(_v, (__x, __n) -> _first = __n + 1)", _v=items, _first=first)


def _kept(items: exp.Expr, others: exp.Expr, among: bool) -> exp.Expr:
    is_member = values.call("array_contains", others, _key(exp.column("__x")))
    return build(f"filter(_v, __x -> {'' if among else 'NOT '}_found)", _v=items, _found=is_member)


def _without(items: exp.Expr, value: TypedSql) -> exp.Expr:
    return _kept(items, values.call("array", _one(value)), among=False)


def _sorted(items: exp.Expr, ascending: TypedSql | None = None) -> exp.Expr:
    rising = ascending is None or not isinstance(ascending.sql, exp.Boolean) or bool(ascending.sql.this)
    if ascending is not None and not isinstance(ascending.sql, exp.Boolean):
        raise FunctionError("sort_array expects true or false as its second argument")
    less, more = (-1, 1) if rising else (1, -1)
    paired = build(
        "transform(_v, __i -> named_struct('k', _key, 'v', __i))", _v=items, _key=operators.sort_key(exp.column("__i"))
    )
    return build(
        f"transform(array_sort(_p, (__a, __b) -> CASE WHEN __a.k IS NULL AND __b.k IS NULL THEN 0"
        f" WHEN __a.k IS NULL THEN {less} WHEN __b.k IS NULL THEN {more}"
        f" WHEN __a.k < __b.k THEN {less} WHEN __a.k > __b.k THEN {more} ELSE 0 END), __e -> __e.v)",
        _p=paired,
    )


def _end(last: bool) -> Callable[[exp.Expr], exp.Expr]:
    def make(items: exp.Expr) -> exp.Expr:
        sortable = build("filter(_v, __i -> _key IS NOT NULL)", _v=items, _key=operators.sort_key(exp.column("__i")))
        return values.call("get", _sorted(sortable, TypedSql(exp.false() if last else exp.true(), t.BOOLEAN)), _ZERO)

    return make


_ZERO: Final = exp.Literal.number(0)


def _flat(items: exp.Expr) -> exp.Expr:
    inner = values.as_type(exp.column("__i"), _MANY)
    return build("flatten(transform(_v, __i -> _inner))", _v=items, _inner=inner)


def _joined(items: exp.Expr, between: TypedSql, instead: TypedSql | None = None) -> exp.Expr:
    texts = build("transform(_v, __i -> _text)", _v=items, _text=operators.text(exp.column("__i")))
    return values.call("array_join", texts, between.sql, *([instead.sql] if instead is not None else []))


# The number of arrays, the other arguments (True: required), the builder and the result type.
_FUNCTIONS: Final[dict[str, tuple[int, tuple[bool, ...], Callable[..., exp.Expr], Type]]] = {
    "array_contains": (1, (True,), _contains, t.BOOLEAN),
    "array_position": (1, (True,), _position, t.BIGINT),
    "array_distinct": (1, (), _distinct, _MANY),
    "array_remove": (1, (True,), _without, _MANY),
    "array_append": (1, (True,), lambda a, x: values.call("array_append", a, encoder.to_any(x)), _MANY),
    "array_prepend": (1, (True,), lambda a, x: values.call("array_prepend", a, encoder.to_any(x)), _MANY),
    "sort_array": (1, (False,), _sorted, _MANY),
    "array_sort": (1, (), _sorted, _MANY),
    "array_min": (1, (), _end(last=False), t.ANY),
    "array_max": (1, (), _end(last=True), t.ANY),
    "flatten": (1, (), _flat, _MANY),
    "array_join": (1, (True, False), _joined, t.STRING),
    "array_intersect": (2, (), lambda a, b: _distinct(_kept(a, _keys(b), among=True)), _MANY),
    "array_except": (2, (), lambda a, b: _distinct(_kept(a, _keys(b), among=False)), _MANY),
    "array_union": (2, (), lambda a, b: _distinct(values.call("concat", a, b)), _MANY),
    "arrays_overlap": (2, (), lambda a, b: values.call("arrays_overlap", _keys(a), _keys(b)), t.BOOLEAN),
}
