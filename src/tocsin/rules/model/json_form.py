"""Converts records to and from JSON that people write and read.

    point [x,y] · line, rectangle [[x,y],[x,y]] · circle {"center":[x,y],"radius":r} · polygon [[x,y],…]
    date, time, datetime, duration, uuid their text · multiset an array · NaN and the infinities their names

An undeclared field has no type to convert it back: it stays what JSON says. `open_form` is the lossless form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from math import inf, isfinite, isnan, nan
from typing import Any, Final
from uuid import UUID

from tocsin.rules.model import values
from tocsin.rules.model.type_check import LEAVES, RecordError, ValueCheck, compile_check, describe_value, make_or_refuse
from tocsin.rules.model.types import ObjectType

NONFINITE: Final[Mapping[str, float]] = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


# ---------------------------------------------------------------- value → JSON


def _same(value: Any) -> Any:
    return value


def _plain_float(value: float) -> float | str:
    return value if isfinite(value) else nonfinite_name(value)


def nonfinite_name(value: float) -> str:
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain_object(value: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(member) for name, member in value.items() if member is not values.MISSING}


def _plain_items(value: list[Any]) -> list[Any]:
    return [plain(item) for item in value]


def _xy(point: values.Point) -> list[float | str]:
    return [_plain_float(point.x), _plain_float(point.y)]


_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: _same, bool: _same, int: _same, float: _plain_float, type(None): _same,
    dict: _plain_object, list: _plain_items, values.Multiset: _plain_items,
    datetime: values.datetime_text, date: date.isoformat, time: values.time_text,
    values.Duration: values.duration_text, UUID: str,
    values.Point: _xy,
    values.Line: lambda line: [_xy(line.start), _xy(line.end)],
    values.Rectangle: lambda box: [_xy(box.low), _xy(box.high)],
    values.Circle: lambda round_: {"center": _xy(round_.center), "radius": _plain_float(round_.radius)},
    values.Polygon: lambda area: [_xy(point) for point in area.points],
    type(values.MISSING): lambda _: None,
}  # fmt: skip


# ---------------------------------------------------------------- JSON → value


def reader(kind: ObjectType) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that converts parsed JSON to the checked record. A declared field may have the form that
    `plain` writes or be the text of its constructor ("1.0,2.0" for a point); in both cases the result is what
    `checker` returns.
    """
    return compile_check(kind, _READERS)


def _number(name: str) -> ValueCheck:
    check = LEAVES[name]

    def read(value: Any) -> Any:
        if value.__class__ is str and value in NONFINITE:
            return NONFINITE[value]
        return check(value)

    return read


def _make_reader(name: str, parse: Callable[[str], Any], shape: Callable[[Any], Any] | None = None) -> ValueCheck:
    check = LEAVES[name]

    def read(value: Any) -> Any:
        if value.__class__ is str:
            return check(make_or_refuse(parse, value))
        if shape is not None and isinstance(value, (list, dict)):
            return check(shape(value))
        return check(value)

    return read


def _point(value: Any) -> values.Point:
    if isinstance(value, list) and len(value) == 2:
        return values.Point(value[0], value[1])
    raise RecordError("", f'expected a point as [x, y] or "x,y", got {_describe(value)}')


def _two_points(name: str) -> Callable[[Any], tuple[values.Point, values.Point]]:
    def shape(value: Any) -> tuple[values.Point, values.Point]:
        if isinstance(value, list) and len(value) == 2:
            return _point(value[0]), _point(value[1])
        raise RecordError("", f'expected a {name} as [[x, y], [x, y]] or "x,y x,y", got {_describe(value)}')

    return shape


_line_ends = _two_points("line")
_rectangle_corners = _two_points("rectangle")


def _circle(value: Any) -> values.Circle:
    if isinstance(value, dict) and value.keys() == {"center", "radius"}:
        return values.Circle(_point(value["center"]), value["radius"])
    raise RecordError("", f'expected a circle as {{"center": [x, y], "radius": r}} or "x,y r", got {_describe(value)}')


def _polygon(value: Any) -> values.Polygon:
    if isinstance(value, list):
        return values.Polygon(tuple(map(_point, value)))
    raise RecordError("", f'expected a polygon as [[x, y], …] or "x,y x,y x,y", got {_describe(value)}')


def _describe(value: Any) -> str:
    return f"an array of {len(value)}" if isinstance(value, list) else describe_value(value)


_READERS: Final[Mapping[str, ValueCheck]] = {
    **LEAVES,
    "float": _number("float"),
    "double": _number("double"),
    "date": _make_reader("date", values.parse_date),
    "time": _make_reader("time", values.parse_time),
    "datetime": _make_reader("datetime", values.parse_datetime),
    "duration": _make_reader("duration", values.parse_duration),
    "uuid": _make_reader("uuid", values.parse_uuid),
    "point": _make_reader("point", values.parse_point, _point),
    "line": _make_reader("line", values.parse_line, lambda value: values.Line(*_line_ends(value))),
    "rectangle": _make_reader(
        "rectangle", values.parse_rectangle, lambda value: values.Rectangle(*_rectangle_corners(value))
    ),
    "circle": _make_reader("circle", values.parse_circle, _circle),
    "polygon": _make_reader("polygon", values.parse_polygon, _polygon),
}
plain: Final[Callable[[Any], Any]] = values.value_writer(_PLAIN)
"""Converts any value for json.dumps. A MISSING field is left out of its object; elsewhere MISSING becomes null."""
