"""Implements the collection functions that treat arrays as sets: distinct items, union, intersection, difference.

Equal items of all arrays are brought together by sorting their keys, so that the time grows with n log n: Spark's own
set functions cannot compare untyped items, and a search for every item would take time in proportion to n².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from tocsin.language.functions.collections.array_arguments import CollectionCall, is_known
from tocsin.language.types.typed_sql import build
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import once

# A place is a struct: `k` the key of the item, `l` the number of its array, `i` its index there. A group is the array
# of the places of equal items, in order.
_IS_FIRST = "__n = 0 OR NOT (get(_p, __n - 1).k <=> __x.k)"


@dataclass(frozen=True, slots=True)
class _SetRule:
    """Which groups of equal items are in the result, and which of their places. `{lists}` is the number of arrays."""

    condition: str
    places: str = "slice(__g, 1, 1)"
    skips_unknown: bool = False

    def build(self, call: CollectionCall) -> exp.Expr:
        places = values.call("array_sort", _concat([self._places(call, at) for at in range(len(call.arrays))]))
        return once(places, "__p", lambda sorted_: once(_starts(sorted_), "__b", self._choose(call, sorted_)))

    def _places(self, call: CollectionCall, at: int) -> exp.Expr:
        items = call.arrays[at].copy()
        key = call.key(exp.column("__x"))
        places = build(f"transform(_v, (__x, __i) -> named_struct('k', _k, 'l', {at}, 'i', __i))", _v=items, _k=key)
        if not self.skips_unknown:
            return places
        known = is_known(build("get(_v, __x.i)", _v=items), call.item)
        return build("filter(_p, __x -> _known)", _p=places, _known=known)

    def _choose(self, call: CollectionCall, places: exp.Expr) -> Callable[[exp.Expr], exp.Expr]:
        lists = len(call.arrays)
        condition = self.condition.format(lists=lists, last=lists - 1)
        pick = self.places.format(lists=lists, last=lists - 1)

        def choose(starts: exp.Expr) -> exp.Expr:
            groups = build(
                "transform(_b, (__n, __m) -> slice(_p, __n + 1, coalesce(get(_b, __m + 1), size(_p)) - __n))",
                _b=starts, _p=places,
            )  # fmt: skip
            chosen = build(
                f"array_sort(transform(flatten(transform(filter(_g, __g -> {condition}), __g -> {pick})),"
                " __c -> named_struct('l', __c.l, 'i', __c.i)))",
                _g=groups,
            )
            return build("transform(_c, __c -> _item)", _c=chosen, _item=_item(call))

        return choose


def _concat(arrays: list[exp.Expr]) -> exp.Expr:
    return arrays[0] if len(arrays) == 1 else values.call("concat", *arrays)


def _starts(places: exp.Expr) -> exp.Expr:
    """Returns the indexes at which a group begins."""
    return build(f"filter(transform(_p, (__x, __n) -> if({_IS_FIRST}, __n, NULL)), __n -> __n IS NOT NULL)", _p=places)


def _item(call: CollectionCall) -> exp.Expr:
    """Returns the item at the place `__c`."""
    *others, last = [build("get(_v, __c.i)", _v=array) for array in call.arrays]
    item = last
    for at, other in reversed(list(enumerate(others))):
        item = exp.If(this=build(f"__c.l = {at}"), true=other, false=item)
    return item


_LISTS = "size(array_distinct(transform(__g, __c -> __c.l)))"

DISTINCT = _SetRule("true")
UNION = _SetRule("true")
INTERSECT = _SetRule(f"{_LISTS} = {{lists}}", "slice(filter(__g, __c -> __c.l = {last}), 1, 1)", skips_unknown=True)
EXCEPT = _SetRule("NOT exists(__g, __c -> __c.l = 1)", "__g")
IN_ONE = _SetRule(f"{_LISTS} = 1")
IN_ODD = _SetRule(f"{_LISTS} % 2 = 1")
