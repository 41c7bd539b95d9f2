"""Checks whether a record fits its type. A type is compiled once into nested functions that normalise a value.

Normalising converts datetimes to UTC and an int to a float where a double is declared, rounds a `float` to 32 bits,
orders the corners of rectangles, and leaves out a field whose value is MISSING. An explicit NULL stays, as None. The
module `values` defines the classes of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from functools import lru_cache
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from tocsin.rules.model import values
from tocsin.rules.model.types import INTEGER_BITS, AnyType, ArrayType, MultisetType, ObjectType, Primitive, Type

MAX_OPEN_DEPTH: Final = 64
"""The nesting limit of objects and arrays in one undeclared value."""

ValueCheck: TypeAlias = Callable[[Any], Any]
_T = TypeVar("_T")


class RecordError(ValueError):
    """A value does not fit. `field` is the path to it ("" for the whole record); `reason` says what is wrong there."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason

    def within(self, step: str) -> RecordError:
        """The same error seen from the enclosing value. `step` is a field (see `field_step`) or a bracketed index."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return RecordError(f"{step}{dot}{self.field}", self.reason)


def checker(kind: ObjectType) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that normalises a record or raises RecordError. Compile once, use often."""
    return compile_check(kind, LEAVES)


def check_value(value: Any, kind: Type) -> Any:
    """Normalises a value. NULL fits only `any`; MISSING fits no type."""
    return _checker_of(kind)(value)


@lru_cache(maxsize=512)
def _checker_of(kind: Type) -> ValueCheck:
    return compile_check(kind, LEAVES)


def compile_check(kind: Type, leaves: Mapping[str, ValueCheck]) -> ValueCheck:
    """Compiles the check of `kind`. `leaves` checks the primitives: only they differ for records from JSON."""
    match kind:
        case Primitive(name=name):
            return leaves[name]
        case ObjectType():
            return _object(kind, leaves)
        case ArrayType(item=item, item_optional=item_optional):
            return _items(compile_check(item, leaves), item_optional, as_multiset=False)
        case MultisetType(item=item, item_optional=item_optional):
            return _items(compile_check(item, leaves), item_optional, as_multiset=True)
        case AnyType():
            return _normalise_value


def _object(kind: ObjectType, leaves: Mapping[str, ValueCheck]) -> ValueCheck:
    plan = tuple((field.name, field.optional, compile_check(field.type, leaves)) for field in kind.fields)
    declared = frozenset(field.name for field in kind.fields)
    is_open, type_text = kind.open, f"the closed type {kind.name}" if kind.name else "this closed type"

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise RecordError("", f"expected an object, got {describe_value(value)}")
        record: dict[str, Any] = {}
        name: Any = ""
        try:
            for name, optional, check_field in plan:
                field_value = value.get(name, values.MISSING)
                if field_value is not None and field_value is not values.MISSING:
                    record[name] = check_field(field_value)
                elif not optional:
                    raise RecordError("", "is required" if field_value is values.MISSING else "is required, got NULL")
                elif field_value is None:
                    record[name] = None
            if len(record) != len(value):
                for name, field_value in value.items():
                    if name not in declared and field_value is not values.MISSING:
                        if not is_open:
                            raise RecordError("", f"is not a field of {type_text}")
                        record[_field_name(name)] = _normalise_value(field_value)
        except RecordError as error:
            raise error.within(field_step(name)) from None
        return record

    return check


def _items(check_item: ValueCheck, item_optional: bool, *, as_multiset: bool) -> ValueCheck:
    expected = "a multiset" if as_multiset else "an array"

    def check(value: Any) -> list[Any]:
        # An array may become a multiset. A multiset must not become an array, because it has no order.
        if not isinstance(value, list) or (not as_multiset and isinstance(value, values.Multiset)):
            raise RecordError("", f"expected {expected}, got {describe_value(value)}")
        items: list[Any] = []
        for item in value:
            if item is None or item is values.MISSING:
                if not item_optional:
                    raise RecordError(f"[{len(items)}]", f"an item of {expected} like this cannot be NULL")
                items.append(None)
                continue
            try:
                items.append(check_item(item))
            except RecordError as error:
                raise error.within(f"[{len(items)}]") from None
        return values.Multiset(items) if as_multiset else items

    return check


# ---------------------------------------------------------------- primitives


def _integer(name: str) -> ValueCheck:
    high = 2 ** (INTEGER_BITS[name] - 1) - 1
    low = -high - 1

    def check(value: Any) -> Any:
        if value.__class__ is not int:
            if not isinstance(value, int) or isinstance(value, bool):
                raise RecordError("", f"expected {_article(name)}, got {describe_value(value)}")
            value = int(value)
        if low <= value <= high:
            return value
        raise RecordError("", f"{describe_value(value)} does not fit into {_article(name)} ({low} to {high})")

    return check


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise RecordError("", f"expected a boolean, got {describe_value(value)}")


def _double(value: Any) -> float:
    if value.__class__ is float:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise RecordError("", f"{describe_value(value)} does not fit into a double") from None
    raise RecordError("", f"expected a number, got {describe_value(value)}")


def _float(value: Any) -> float:
    number = _double(value)
    try:
        return values.float32(number)
    except OverflowError:
        raise RecordError("", f"{number!r} does not fit into a float of 32 bits; declare it double") from None


def _string(value: Any) -> Any:
    if value.__class__ is not str:
        if not isinstance(value, str):
            raise RecordError("", f"expected a string, got {describe_value(value)}")
        value = str(value)
    if value.isascii() or _is_unicode(value):
        return value
    raise RecordError("", "the string holds half of a surrogate pair, which is not Unicode text")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise RecordError("", f"expected a date, got {describe_value(value)}")


def _time(value: Any) -> time:
    if isinstance(value, time) and value.tzinfo is None:
        return value
    raise RecordError("", f"expected a time of day without a zone, got {describe_value(value)}")


def _datetime(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise RecordError("", f"expected a datetime, got {describe_value(value)}")
    if value.tzinfo is UTC:
        return value
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise RecordError("", "the datetime is outside of the years 1 to 9999 in UTC") from None


def _duration(value: Any) -> values.Duration:
    duration = _need(value, values.Duration)
    if duration.months.__class__ is not int or duration.micros.__class__ is not int:
        raise RecordError("", "expected a duration of whole months and microseconds")
    if abs(duration.months) > values.MAX_DURATION_MONTHS or abs(duration.micros) > values.MAX_DURATION_MICROS:
        raise RecordError("", "the duration is longer than can be kept")
    return duration


def _uuid(value: Any) -> UUID:
    return _need(value, UUID)


def _point(value: Any) -> values.Point:
    point = _need(value, values.Point)
    x, y = point.x, point.y
    if x.__class__ is float and y.__class__ is float and isfinite(x) and isfinite(y):
        return point
    return values.Point(_finite(x), _finite(y))


def _need(value: Any, kind: type[_T]) -> _T:
    if isinstance(value, kind):
        return value
    raise RecordError("", f"expected {_article(kind.__name__.lower())}, got {describe_value(value)}")


def _finite(value: Any) -> float:
    number = _double(value)
    # A point without a finite place matches no grid cell and breaks every index.
    if isfinite(number):
        return number
    raise RecordError("", f"expected a finite number, got {describe_value(number)}")


def _line(value: Any) -> values.Line:
    line = _need(value, values.Line)
    return values.Line(_point(line.start), _point(line.end))


def _rectangle(value: Any) -> values.Rectangle:
    corners = _need(value, values.Rectangle)
    return values.rectangle(_point(corners.low), _point(corners.high))


def _circle(value: Any) -> values.Circle:
    value_circle = _need(value, values.Circle)
    return make_or_refuse(values.circle, _point(value_circle.center), _finite(value_circle.radius))


def _polygon(value: Any) -> values.Polygon:
    return make_or_refuse(values.polygon, [_point(corner) for corner in _need(value, values.Polygon).points])


def make_or_refuse(make: Callable[..., _T], *parts: Any) -> _T:
    """Calls `make(*parts)` and turns its ValueError into a RecordError."""
    try:
        return make(*parts)
    except ValueError as error:
        raise RecordError("", str(error)) from None


LEAVES: Final[Mapping[str, ValueCheck]] = {
    "boolean": _boolean,
    **{name: _integer(name) for name in INTEGER_BITS},
    "float": _float, "double": _double, "string": _string,
    "date": _date, "time": _time, "datetime": _datetime, "duration": _duration, "uuid": _uuid,
    "point": _point, "line": _line, "rectangle": _rectangle, "circle": _circle, "polygon": _polygon,
}  # fmt: skip


# ---------------------------------------------------------------- undeclared values


_OPEN: Final[Mapping[type, ValueCheck]] = {
    bool: _boolean, int: LEAVES["bigint"], float: _double, str: _string,
    datetime: _datetime, date: _date, time: _time, values.Duration: _duration, UUID: _uuid,
    values.Point: _point, values.Line: _line, values.Rectangle: _rectangle, values.Circle: _circle,
    values.Polygon: _polygon,
}  # fmt: skip


def _normalise_value(value: Any) -> Any:
    """Normalises any value, as if a field of its own type were declared. MISSING inside an array becomes NULL."""
    if value is values.MISSING:
        raise RecordError("", "expected a value, got MISSING")
    return _normalise_nested(value, MAX_OPEN_DEPTH)


def _normalise_nested(value: Any, levels_left: int) -> Any:
    check = _OPEN.get(value.__class__)
    if check is not None:
        return check(value)
    if value is None:
        return None
    if isinstance(value, (dict, list)):
        if not levels_left:
            raise RecordError("", f"is nested more than {MAX_OPEN_DEPTH} levels deep")
        return (_open_object if isinstance(value, dict) else _open_items)(value, levels_left - 1)
    for base, check in _OPEN.items():
        if isinstance(value, base):
            return check(value)
    raise RecordError("", f"expected a value, got {describe_value(value)}")


def _open_object(value: Any, levels_left: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, member in value.items():
        if member is values.MISSING:
            continue
        try:
            fields[_field_name(name)] = _normalise_nested(member, levels_left)
        except RecordError as error:
            raise error.within(field_step(name)) from None
    return fields


def _open_items(value: Any, levels_left: int) -> list[Any]:
    items: list[Any] = []
    for item in value:
        try:
            items.append(None if item is values.MISSING else _normalise_nested(item, levels_left))
        except RecordError as error:
            raise error.within(f"[{len(items)}]") from None
    return values.Multiset(items) if isinstance(value, values.Multiset) else items


def _field_name(name: Any) -> str:
    if isinstance(name, str) and (name.isascii() or _is_unicode(name)):
        return name
    raise RecordError("", f"a field name must be Unicode text, got {describe_value(name)}")


# ---------------------------------------------------------------- texts for messages


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def field_step(name: Any) -> str:
    """A field's name as a step of a path: in backticks, as in a script, unless it is a plain identifier."""
    return name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else f"`{_printable(str(name))}`"


def describe_value(value: Any) -> str:
    """Describes a value for a message: its type, and a short part of it."""
    if value is None or value is values.MISSING:
        return "NULL" if value is None else "MISSING"
    if isinstance(value, str):
        return f'the string "{_printable(value)}"'
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"the number {value}" if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, (dict, list)):
        return (
            "an object"
            if isinstance(value, dict)
            else "a multiset"
            if isinstance(value, values.Multiset)
            else "an array"
        )
    kind = value.__class__.__name__
    return _article(kind.lower()) if value.__class__ in _OPEN else f"a Python {kind}"


def _printable(text: str) -> str:
    return (text if len(text) <= 60 else text[:60] + "…").encode("utf-8", "replace").decode()


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"
