"""SQL++'s functions of collections in plain Python: what each answers for values, NULL and MISSING.

None is NULL. Items of an array are never MISSING, because an array constructor turns MISSING into NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from tocsin.rules.model.values import MISSING, Duration, Multiset

_ORDER: list[tuple[type | tuple[type, ...], Callable[[Any], Any]]] = [
    (str, lambda value: value),
    (bool, lambda value: value),
    (datetime, lambda value: value),
    (date, lambda value: value),
    (time, lambda value: value),
    (Duration, lambda value: (value.months * 30 * 86_400_000_000 + value.micros, value.months)),
    (UUID, str),
]


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def key(value: Any) -> Any:
    """Equal for equal values: 1 and 1.0 are equal, also inside of arrays and objects; 1, "1" and true are not."""
    if is_number(value):
        return ("number", "nan" if math.isnan(value) else value)
    if isinstance(value, Multiset):
        return ("multiset", tuple(map(key, value)))
    if is_list(value):
        return ("array", tuple(map(key, value)))
    if isinstance(value, dict):
        return ("object", tuple(sorted((name, key(inner)) for name, inner in value.items())))
    return (type(value).__name__, value)


def order(value: Any) -> tuple[int, Any] | None:
    """What values are sorted by: their kind first. None for a value without an order."""
    if is_number(value):
        return 0, (math.isnan(value), 0 if math.isnan(value) else value)
    found = ((kind, of(value)) for kind, (type_, of) in enumerate(_ORDER, 1) if type(value) is type_)
    return next(found, None)


def whole(value: Any) -> int | None:
    """A whole number, such as 3 or 3.0; None for anything else."""
    if not is_number(value) or not math.isfinite(value) or value != math.floor(value):
        return None
    return int(value)


def strict(*nullable: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """MISSING if an argument is MISSING; NULL if one is NULL, apart from those that may be."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if any(argument is MISSING for argument in arguments):
                return MISSING
            if any(argument is None for at, argument in enumerate(arguments) if at not in nullable):
                return None
            return function(*arguments)

        return call

    return decorate


def _known(items: Any) -> list[Any]:
    return [item for item in items if item is not None] if is_list(items) else []


# ---------------------------------------------------------------- aggregates


def array_count(items: Any) -> int:
    return len(_known(items))


def strict_count(items: Any) -> int:
    return len(items) if is_list(items) else 0


def array_sum(items: Any) -> Any:
    numbers = [item for item in _known(items) if is_number(item)]
    return sum(numbers[1:], numbers[0]) if numbers else None


def array_avg(items: Any) -> Any:
    numbers = [float(item) for item in _known(items) if is_number(item)]
    return sum(numbers) / len(numbers) if numbers else None


def variance(items: Any, fewer: int) -> Any:
    """The variance of a population (`fewer` is 0) or of a sample (1)."""
    numbers = [float(item) for item in _known(items) if is_number(item)]
    if len(numbers) <= fewer:
        return None
    mean = sum(numbers) / len(numbers)
    return sum((number - mean) * (number - mean) for number in numbers) / (len(numbers) - fewer)


def extreme(choose: Callable[..., Any]) -> Callable[[Any], Any]:
    def call(items: Any) -> Any:
        known = _known(items)
        if len({found and found[0] for found in map(order, known)}) != 1 or order(known[0]) is None:
            return None
        best = choose(known, key=order)
        return float(best) if any(isinstance(item, float) for item in known) and is_number(best) else best

    return call


array_min, array_max = extreme(min), extreme(max)


def strictly(aggregate: Callable[[Any], Any], *, numbers: bool) -> Callable[[Any], Any]:
    """The strict form: NULL if an item is NULL, or no number where numbers are wanted."""

    def call(items: Any) -> Any:
        if not is_list(items) or None in items or (numbers and not all(map(is_number, items))):
            return None
        return aggregate(items)

    return call


# ---------------------------------------------------------------- one array


@strict()
def array_length(items: Any) -> Any:
    return len(items) if is_list(items) else None


@strict()
def array_reverse(items: Any) -> Any:
    return items[::-1] if is_list(items) else None


@strict()
def array_sort(items: Any) -> Any:
    """NULL comes first. Values without an order come last, in any order."""
    if not is_list(items):
        return None
    ordered = sorted((item for item in items if order(item) is not None), key=order)
    unordered = [item for item in items if item is not None and order(item) is None]
    return [None] * items.count(None) + ordered + unordered


@strict()
def array_distinct(items: Any) -> Any:
    return _firsts(items) if is_list(items) else None


def _firsts(items: list[Any]) -> list[Any]:
    seen: dict[Any, Any] = {}
    for item in items:
        seen.setdefault(key(item), item)
    return list(seen.values())


@strict()
def array_ifnull(items: Any) -> Any:
    return next((item for item in items if item is not None), None) if is_list(items) else None


@strict()
def array_slice(items: Any, start: Any, *end: Any) -> Any:
    first, last = whole(start), whole(end[0]) if end else len(items) if is_list(items) else None
    if not is_list(items) or first is None or last is None:
        return None
    first, last = (position + len(items) if position < 0 else position for position in (first, last))
    return items[first:last] if 0 <= first < len(items) and first <= last <= len(items) else None


@strict()
def array_flatten(items: Any, depth: Any) -> Any:
    levels = whole(depth)
    return _flat(items, levels) if is_list(items) and levels is not None else None


def _flat(items: Any, levels: int) -> list[Any]:
    return [inner for item in items for inner in (_flat(item, levels - 1) if is_list(item) and levels != 0 else [item])]


# ---------------------------------------------------------------- an array and items


@strict()
def array_contains(items: Any, item: Any) -> Any:
    return key(item) in map(key, items) if is_list(items) else None


@strict()
def array_position(items: Any, item: Any) -> Any:
    if not is_list(items):
        return None
    return next((at for at, other in enumerate(items) if key(other) == key(item)), -1)


@strict(1)
def array_append(items: Any, item: Any) -> Any:
    return [*items, item] if is_list(items) else None


@strict(0)
def array_prepend(item: Any, items: Any) -> Any:
    return [item, *items] if is_list(items) else None


@strict(2)
def array_insert(items: Any, position: Any, item: Any) -> Any:
    at = whole(position)
    if not is_list(items) or at is None:
        return None
    at = at + len(items) if at < 0 else at
    return [*items[:at], item, *items[at:]] if 0 <= at <= len(items) else None


@strict()
def array_put(items: Any, *new: Any) -> Any:
    return [*items, *(item for item in new if key(item) not in set(map(key, items)))] if is_list(items) else None


@strict()
def array_remove(items: Any, *removed: Any) -> Any:
    return [item for item in items if key(item) not in set(map(key, removed))] if is_list(items) else None


@strict(2)
def array_replace(items: Any, old: Any, new: Any, most: Any = -1) -> Any:
    left = whole(most)
    if not is_list(items) or left is None:
        return None
    replaced = []
    for item in items:
        matches = key(item) == key(old) and left != 0
        left -= matches
        replaced.append(new if matches else item)
    return replaced


@strict()
def array_repeat(item: Any, times: Any) -> Any:
    count = whole(times)
    return None if count is None or count < 0 else [item] * count


# ---------------------------------------------------------------- several arrays


def of_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    @strict()
    def call(*lists: Any) -> Any:
        return function(*lists) if all(map(is_list, lists)) else None

    return call


@of_lists
def array_concat(*lists: list[Any]) -> Any:
    return [item for items in lists for item in items]


@of_lists
def array_union(*lists: list[Any]) -> Any:
    return _firsts([item for items in lists for item in items])


@of_lists
def array_intersect(*lists: list[Any]) -> Any:
    common = set.intersection(*({key(item) for item in items} for items in lists))
    return [item for item in _firsts(lists[-1]) if item is not None and key(item) in common]


@of_lists
def array_except(items: list[Any], others: list[Any]) -> Any:
    return [item for item in items if key(item) not in set(map(key, others))]


def _by_count(wanted: Callable[[int], bool]) -> Callable[..., Any]:
    @of_lists
    def call(*lists: list[Any]) -> Any:
        keys = [{key(item) for item in items} for items in lists]
        every = _firsts([item for items in lists for item in items])
        return [item for item in every if wanted(sum(key(item) in some for some in keys))]

    return call


array_symdiff, array_symdiffn = _by_count(lambda count: count == 1), _by_count(lambda count: count % 2 == 1)


@strict()
def array_range(start: Any, end: Any, step: Any = 1) -> Any:
    """The numbers from a start up to and without an end; doubles if an argument is one."""
    if not all(map(is_number, (start, end, step))):
        return None
    kind = float if any(isinstance(number, float) for number in (start, end, step)) else int
    count = max(math.ceil((end - start) / step), 0)
    return [kind(start + place * step) for place in range(count)]


def array_star(items: Any) -> Any:
    """An object of arrays for an array of objects; MISSING if no item has a field."""
    if items is MISSING or not is_list(items):
        return MISSING if items is MISSING else None
    names = sorted({name for item in items if isinstance(item, dict) for name in item})
    columns = {name: [item.get(name) if isinstance(item, dict) else None for item in items] for name in names}
    return columns or MISSING


@strict()
def concat(left: Any, right: Any) -> Any:
    """Joins arrays or texts; not one with the other."""
    for kind in (list, str):
        if isinstance(left, kind) and isinstance(right, kind):
            return left + right
    return None


@of_lists
def similarity_jaccard(*lists: list[Any]) -> Any:
    left, right = ({key(item) for item in items} for items in lists)
    return len(left & right) / len(left | right) if left | right else 0.0
