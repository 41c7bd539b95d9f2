"""Hypothesis strategies for types and for records and values that fit them, already normalised (a checker changes
nothing in them)."""

from __future__ import annotations

import math
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from tocsin.rules.model.types import (
    ANY,
    INTEGER_BITS,
    PRIMITIVES,
    AnyType,
    ArrayType,
    Field,
    MultisetType,
    ObjectType,
    Primitive,
    Type,
)
from tocsin.rules.model.values import Circle, Duration, Line, Multiset, Point, Polygon, rectangle

# Names of every kind that storage must tell apart: ordinary, ours, with marks that text forms use, of other scripts.
_ODD_NAMES = (
    "_open",
    "_commit",
    "_at",
    "_x61",
    "$point",
    "$$a",
    "a b",
    "a.b",
    "a`b",
    'a"b',
    "",
    "naïve",
    "名前",
    "[0]",
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_COORDINATE = st.floats(allow_nan=False, allow_infinity=False)


def names() -> st.SearchStrategy[str]:
    return st.one_of(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True), st.sampled_from(_ODD_NAMES), _TEXT)


def primitives() -> st.SearchStrategy[Primitive]:
    return st.sampled_from(sorted(set(PRIMITIVES.values()), key=str))


def types(*, any_type: bool = True) -> st.SearchStrategy[Type]:
    """Types of every kind, a few levels deep."""
    leaves: st.SearchStrategy[Type] = primitives()
    if any_type:
        leaves = leaves | st.just(ANY)

    def larger(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
        arrays, multisets = (st.builds(made, inner, st.booleans()) for made in (ArrayType, MultisetType))
        return st.one_of(arrays, multisets, object_types(inner))

    return st.recursive(leaves, larger, max_leaves=5)


def object_types(inner: st.SearchStrategy[Type] | None = None) -> st.SearchStrategy[ObjectType]:
    """Object types, open and closed, whose field types come from `inner` (by default from `types()`)."""
    # Fields that differ only in case cannot be declared side by side.
    fields = st.lists(
        st.builds(Field, names(), types() if inner is None else inner, st.booleans()),
        max_size=5,
        unique_by=lambda field: field.name.lower(),
    )
    return st.builds(ObjectType, fields.map(tuple), st.booleans())


def points() -> st.SearchStrategy[Point]:
    return st.builds(Point, _COORDINATE, _COORDINATE)


def durations() -> st.SearchStrategy[Duration]:
    return st.builds(Duration, st.integers(-(2**31) + 1, 2**31 - 1), st.integers(-(2**63) + 1, 2**63 - 1))


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    **{name: _integers(bits) for name, bits in INTEGER_BITS.items()},
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": _TEXT,
    "date": st.dates(),
    "time": st.times(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "duration": durations(),
    "uuid": st.uuids(),
    "point": points(),
    "line": st.builds(Line, points(), points()),
    "rectangle": st.builds(rectangle, points(), points()),
    "circle": st.builds(Circle, points(), st.floats(min_value=0, allow_infinity=False)),
    "polygon": st.builds(Polygon, st.lists(points(), min_size=3, max_size=5).map(tuple)),
}


def json_values() -> st.SearchStrategy[Any]:
    """What JSON itself can say (NaN and the infinities excepted)."""
    leaves = st.one_of(st.none(), st.booleans(), _integers(64), st.floats(allow_nan=False, allow_infinity=False), _TEXT)

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(names(), inner, max_size=3)

    return st.recursive(leaves, larger, max_leaves=6)


def open_values() -> st.SearchStrategy[Any]:
    """Any value that an undeclared field may have."""

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        items = st.lists(inner, max_size=3)
        return st.one_of(items, items.map(Multiset), st.dictionaries(names(), inner, max_size=3))

    return st.recursive(st.none() | st.one_of(*_PRIMITIVE_VALUES.values()), larger, max_leaves=6)


def values_of(kind: Type, undeclared: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Values of a type. Open objects get undeclared fields too, with values from `undeclared`."""
    rest = open_values() if undeclared is None else undeclared
    match kind:
        case Primitive(name=name):
            return _PRIMITIVE_VALUES[name]
        case ObjectType():
            return _records(kind, rest)
        case ArrayType(item=item, item_optional=item_optional):
            return _items(item, item_optional, rest)
        case MultisetType(item=item, item_optional=item_optional):
            return _items(item, item_optional, rest).map(Multiset)
        case AnyType():
            return rest.filter(lambda value: value is not None)


def _items(item: Type, item_optional: bool, rest: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    values = values_of(item, rest)
    return st.lists(st.none() | values if item_optional else values, max_size=4)


@st.composite
def _records(draw: st.DrawFn, kind: ObjectType, rest: st.SearchStrategy[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field in kind.fields:
        presence = draw(st.sampled_from(("there", "null", "missing"))) if field.optional else "there"
        if presence != "missing":
            record[field.name] = draw(values_of(field.type, rest)) if presence == "there" else None
    if kind.open:
        undeclared = draw(st.dictionaries(names(), rest, max_size=2))
        declared = {field.name for field in kind.fields}
        record.update({name: value for name, value in undeclared.items() if name not in declared})
    return record


def typed_records(
    kinds: st.SearchStrategy[ObjectType] | None = None, undeclared: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[tuple[ObjectType, list[dict[str, Any]]]]:
    """A type with a few records of it."""
    return (object_types() if kinds is None else kinds).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind, undeclared), max_size=3))
    )


def same(left: Any, right: Any) -> bool:
    """Equal in value and in kind: 1 is not 1.0 nor true, a list is not a multiset, 0.0 is not -0.0, and NaN is NaN."""
    if left.__class__ is not right.__class__:
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
