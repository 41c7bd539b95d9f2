"""Implements SQL++'s functions of collections, and Spark's that cannot take untyped items, as one table.

All of them follow one rule for MISSING, NULL and wrong types (see `array_arguments.py`). Where SQL++ and Spark have a
function of the same name, SQL++ decides: positions count from 0, and a search never yields NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections import array_sets, array_structure
from tocsin.language.functions.collections.array_arguments import CollectionCall, CollectionFunction, is_known
from tocsin.language.functions.collections.array_structure import sort_items
from tocsin.language.types.typed_sql import FunctionError, MapType, TypedSql, build
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import VOID, once
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType

_ITEM: Final = exp.column("__x")


# ---------------------------------------------------------------- one array


def _position(call: CollectionCall) -> exp.Expr:
    return build("CAST(array_position(_k, _x) - 1 AS BIGINT)", _k=call.keys(call.arrays[0]), _x=call.key(call.items[0]))


def _contains(call: CollectionCall) -> exp.Expr:
    # array_contains would be NULL for an array with a NULL item.
    return build("array_position(_k, _x) > 0", _k=call.keys(call.arrays[0]), _x=call.key(call.items[0]))


def _length(call: CollectionCall) -> exp.Expr:
    return exp.cast(values.call("size", call.arrays[0]), "BIGINT")


def _reverse(call: CollectionCall) -> exp.Expr:
    return values.call("reverse", call.arrays[0])


def _sort(call: CollectionCall) -> exp.Expr:
    return sort_items(call.arrays[0], call.item, rising=True)


def _first_known(call: CollectionCall) -> exp.Expr:
    return build("get(filter(_v, __x -> _known), 0)", _v=call.arrays[0], _known=is_known(_ITEM, call.item))


def _compact(call: CollectionCall) -> exp.Expr:
    return build("filter(_v, __x -> _known)", _v=call.arrays[0], _known=is_known(_ITEM, call.item))


def _slice(call: CollectionCall) -> exp.Expr:
    """Returns the items from a position to the one before another. A position outside of the array yields NULL."""
    array = call.arrays[0]
    size = values.call("size", array)
    start, end = (_from_end(number, size) for number in (call.numbers[0], (*call.numbers, size)[1]))
    return build(
        "if(_start >= 0 AND _start < _size AND _end >= _start AND _end <= _size,"
        " slice(_v, CAST(_start AS INT) + 1, CAST(_end - _start AS INT)), NULL)",
        _v=array, _start=start, _end=end, _size=size,
    )  # fmt: skip


def _from_end(number: exp.Expr, size: exp.Expr) -> exp.Expr:
    return build("if(_n < 0, _size + _n, _n)", _n=number, _size=size)


# ---------------------------------------------------------------- an array and items


def _append(call: CollectionCall) -> exp.Expr:
    return values.call("concat", call.arrays[0], values.call("array", *call.items))


def _prepend(call: CollectionCall) -> exp.Expr:
    return values.call("concat", values.call("array", *call.items), call.arrays[0])


def _insert(call: CollectionCall) -> exp.Expr:
    array = call.arrays[0]
    size = values.call("size", array)
    return build(
        "if(_at >= 0 AND _at <= _size, concat(slice(_v, 1, CAST(_at AS INT)), _items,"
        " slice(_v, CAST(_at AS INT) + 1, _size)), NULL)",
        _v=array, _items=values.call("array", *call.items), _at=_from_end(call.numbers[0], size), _size=size,
    )  # fmt: skip


def _put(call: CollectionCall) -> exp.Expr:
    array = call.arrays[0]

    def find_new_items(keys: exp.Expr) -> exp.Expr:
        return build(
            "filter(_items, __x -> NOT (array_position(_keys, _key) > 0))",
            _items=values.call("array", *call.items), _keys=keys, _key=call.key(_ITEM),
        )  # fmt: skip

    return values.call("concat", array, once(call.keys(array), "__k", find_new_items))


def _remove(call: CollectionCall) -> exp.Expr:
    array = call.arrays[0]
    removed = call.keys(values.call("array", *call.items))
    return once(
        removed, "__k",
        lambda keys: build("filter(_v, __x -> NOT exists(_k, __k1 -> __k1 <=> _key))",
                           _v=array, _k=keys, _key=call.key(_ITEM)),
    )  # fmt: skip


def _replace(call: CollectionCall) -> exp.Expr:
    """Replaces an item by another: everywhere, or at most so many times if the number is not negative."""
    array, (old, new) = call.arrays[0], call.items
    is_old = build("_key <=> _old", _key=call.key(_ITEM), _old=call.key(old))
    if not call.numbers:
        return build("transform(_v, __x -> if(_is_old, _new, __x))", _v=array, _is_old=is_old, _new=new)
    places = build(
        "filter(transform(_v, (__x, __i) -> if(_is_old, __i, NULL)), __i -> __i IS NOT NULL)", _v=array, _is_old=is_old
    )
    # The index of the first item that stays because enough others were replaced.
    end = "if(_most < 0, NULL, get(_places, CAST(least(_most, size(_places)) AS INT)))"
    return once(
        build(end, _most=call.numbers[0], _places=places), "__e",
        lambda stays_from: build("transform(_v, (__x, __i) -> if(_is_old AND (_e IS NULL OR __i < _e), _new, __x))",
                                 _v=array, _is_old=is_old, _e=stays_from, _new=new),
    )  # fmt: skip


def _concat(call: CollectionCall) -> exp.Expr:
    return values.call("concat", *call.arrays)


def _overlap(call: CollectionCall) -> exp.Expr:
    return values.call("arrays_overlap", *(call.keys(array) for array in call.arrays))


def _jaccard(call: CollectionCall) -> exp.Expr:
    """Returns how many of the different items of two arrays both have."""
    common, all_ = (
        build("size(_v)", _v=values.call(name, *(call.keys(array) for array in call.arrays)))
        for name in ("array_intersect", "array_union")
    )
    return build("if(_all = 0, 0E0, _common / CAST(_all AS DOUBLE))", _all=all_, _common=common)


def _repeat(call: CollectionCall) -> exp.Expr:
    count = build("CAST(least(_n, 2147483647L) AS INT)", _n=call.numbers[0])
    return exp.If(
        this=build("_n >= 0", _n=call.numbers[0]),
        true=values.call("array_repeat", call.items[0], count),
        false=exp.null(),
    )


def call(name: str, arguments: Sequence[TypedSql]) -> TypedSql | None:
    """Calls a function of collections; returns None for another function, and for maps."""
    if any(isinstance(argument.type, MapType) for argument in arguments):
        return None
    if name in array_structure.FUNCTIONS:
        return array_structure.FUNCTIONS[name](name, arguments)
    if (
        name == "array_prepend"
        and len(arguments) == 2
        and [_is_array(argument) for argument in arguments] == [True, False]
    ):
        raise FunctionError("array_prepend takes the array last: array_prepend(x, a)")
    return _FUNCTIONS[name].call(name, arguments) if name in _FUNCTIONS else None


def _is_array(value: TypedSql) -> bool | None:
    """Whether a value is a collection; None if only a row can tell."""
    return None if value.type in (t.ANY, VOID) else isinstance(value.type, ArrayType | MultisetType)


def call_one(name: str, arguments: Sequence[TypedSql]) -> TypedSql:
    """Calls the function of this name."""
    return _FUNCTIONS[name].call(name, arguments)


_LENGTH: Final = CollectionFunction("array", _length, t.BIGINT)
_FUNCTIONS: Final[dict[str, CollectionFunction]] = {
    "array_append": CollectionFunction("array nullable+", _append),
    "array_compact": CollectionFunction("array", _compact),
    "array_concat": CollectionFunction("array array+", _concat),
    "array_contains": CollectionFunction("array item", _contains, t.BOOLEAN),
    "array_distinct": CollectionFunction("array", array_sets.DISTINCT.build),
    "array_except": CollectionFunction("array array", array_sets.EXCEPT.build),
    "array_ifnull": CollectionFunction("array", _first_known, "item"),
    "array_insert": CollectionFunction("array number nullable+", _insert),
    "array_intersect": CollectionFunction("array array+", array_sets.INTERSECT.build),
    "array_length": _LENGTH,
    "array_position": CollectionFunction("array item", _position, t.BIGINT),
    "array_prepend": CollectionFunction("nullable+ array", _prepend),
    "array_put": CollectionFunction("array item+", _put),
    "array_remove": CollectionFunction("array item+", _remove),
    "array_repeat": CollectionFunction("item number", _repeat),
    "array_replace": CollectionFunction("array item nullable number?", _replace),
    "array_reverse": CollectionFunction("array", _reverse),
    "array_size": _LENGTH,
    "array_slice": CollectionFunction("array number number?", _slice),
    "array_sort": CollectionFunction("array", _sort),
    "array_symdiff": CollectionFunction("array array+", array_sets.IN_ONE.build),
    "array_symdiffn": CollectionFunction("array array+", array_sets.IN_ODD.build),
    "array_union": CollectionFunction("array array+", array_sets.UNION.build),
    "arrays_overlap": CollectionFunction("array array", _overlap, t.BOOLEAN),
    "cardinality": _LENGTH,
    "len": _LENGTH,
    "similarity_jaccard": CollectionFunction("array array", _jaccard, t.DOUBLE),
    "size": _LENGTH,
}
NAMES: Final = frozenset((*_FUNCTIONS, *array_structure.FUNCTIONS))
