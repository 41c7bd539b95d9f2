"""Reads and writes the lossless JSON text of undeclared data.

Values that JSON cannot express are objects with one key that begins with "$":

    {"$point":[x,y]} · {"$line":[[x,y],[x,y]]} · {"$rectangle":[[x,y],[x,y]]} · {"$circle":[x,y,r]}
    {"$polygon":[[x,y],…]} · {"$datetime":"…Z"} · {"$date":"…"} · {"$time":"…"} · {"$duration":[months,micros]}
    {"$uuid":"…"} · {"$multiset":[…]} · {"$double":"NaN"|"Infinity"|"-Infinity"}

A field whose own name begins with "$" gets one "$" more, in every object. A query that asks for a field by name
therefore knows the key. Floats always have an exponent, because Spark's parse_json then reads them as DOUBLE, and
integers as BIGINT. The text is compact and its keys are sorted, so that equal objects have equal texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final
from uuid import UUID

from tocsin.rules.model import values
from tocsin.rules.model.json_form import NONFINITE, nonfinite_name


def dumps(fields: dict[str, Any]) -> str:
    """Writes an object. A field that is MISSING is left out."""
    return _object_text(fields)


def loads(text: str) -> dict[str, Any]:
    """Reads the object that `dumps` wrote. Raises ValueError if the text is not an object."""
    value = loads_value(text)
    if not isinstance(value, dict):
        raise ValueError("expected the text of an object")
    return value


def dumps_value(value: Any) -> str:
    """Writes a value. MISSING has no text, except inside an array, where it becomes null."""
    if value is values.MISSING:
        raise ValueError("MISSING has no text")
    return _text(value)


def loads_value(text: str) -> Any:
    """Reads the value that `dumps_value` wrote."""
    # Without a "$" there is no tag, and the C parser alone is several times faster.
    return json.loads(text, object_hook=_remove_tag) if "$" in text else json.loads(text)


def field_key(name: str) -> str:
    """The key of a field in the text."""
    return "$" + name if name.startswith("$") else name


# ---------------------------------------------------------------- writing


def _float_text(value: float) -> str:
    text = float.__repr__(value)
    if "e" in text:
        return text
    return text + "e0" if isfinite(value) else f'{{"$double":"{nonfinite_name(value)}"}}'


def _object_text(value: dict[str, Any]) -> str:
    parts = [
        f"{encode_basestring(field_key(name))}:{_text(member)}"
        for name, member in sorted(value.items(), key=_name)
        if member is not values.MISSING
    ]
    return f"{{{','.join(parts)}}}"


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _items_text(value: list[Any]) -> str:
    return f"[{','.join(map(_text, value))}]"


def _xy(point: values.Point) -> str:
    return f"[{_float_text(point.x)},{_float_text(point.y)}]"


_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: _float_text,
    type(None): lambda _: "null",
    type(values.MISSING): lambda _: "null",
    dict: _object_text,
    values.Multiset: lambda value: f'{{"$multiset":{_items_text(value)}}}',
    list: _items_text,
    datetime: lambda value: f'{{"$datetime":"{values.datetime_text(value)}"}}',
    date: lambda value: f'{{"$date":"{value.isoformat()}"}}',
    time: lambda value: f'{{"$time":"{values.time_text(value)}"}}',
    values.Duration: lambda value: f'{{"$duration":[{value.months},{value.micros}]}}',
    UUID: lambda value: f'{{"$uuid":"{value}"}}',
    values.Point: lambda value: f'{{"$point":{_xy(value)}}}',
    values.Line: lambda value: f'{{"$line":[{_xy(value.start)},{_xy(value.end)}]}}',
    values.Rectangle: lambda value: f'{{"$rectangle":[{_xy(value.low)},{_xy(value.high)}]}}',
    values.Circle: lambda value: (
        f'{{"$circle":[{_float_text(value.center.x)},{_float_text(value.center.y)},{_float_text(value.radius)}]}}'
    ),
    values.Polygon: lambda value: f'{{"$polygon":[{",".join(map(_xy, value.points))}]}}',
}
_text: Final[Callable[[Any], str]] = values.value_writer(_WRITERS)


# ---------------------------------------------------------------- reading


def _remove_tag(read: dict[str, Any]) -> Any:
    """Converts a parsed object whose members are converted already."""
    if len(read) == 1:
        ((key, content),) = read.items()
        convert = _TAGS.get(key)
        if convert is not None:
            try:
                return convert(content)
            except (TypeError, ValueError, IndexError, KeyError):
                raise ValueError(f"the text of a {key} is damaged") from None
    # An object that a query built may contain a single "$" that was never doubled: it stays.
    return {name[1:] if name.startswith("$$") else name: member for name, member in read.items()}


def _point(xy: Any) -> values.Point:
    x, y = xy
    return values.Point(float(x), float(y))


def _circle(xyr: Any) -> values.Circle:
    x, y, radius = xyr
    return values.Circle(values.Point(float(x), float(y)), float(radius))


def _duration(parts: Any) -> values.Duration:
    months, micros = parts
    return values.Duration(int(months), int(micros))


_TAGS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$point": _point,
    "$line": lambda ends: values.Line(*map(_point, ends)),
    "$rectangle": lambda corners: values.Rectangle(*map(_point, corners)),
    "$circle": _circle,
    "$polygon": lambda corners: values.Polygon(tuple(map(_point, corners))),
    "$datetime": values.parse_datetime,
    "$date": date.fromisoformat,
    "$time": values.parse_time,
    "$duration": _duration,
    "$uuid": UUID,
    "$multiset": values.Multiset,
    "$double": NONFINITE.__getitem__,
}
