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

from tocsin.rules.model.type_check import LEAVES, RecordError, ValueCheck, compile_check, describe_value, make_or_refuse
from tocsin.rules.model.types import ObjectType
from tocsin.rules.model.values import (
    MISSING,
    Circle,
    Duration,
    Line,
    Multiset,
    Point,
    Polygon,
    Rectangle,
    datetime_text,
    duration_text,
    parse_circle,
    parse_date,
    parse_datetime,
    parse_duration,
    parse_line,
    parse_point,
    parse_polygon,
    parse_rectangle,
    parse_time,
    parse_uuid,
    time_text,
    writer_of,
)

NONFINITE: Final[Mapping[str, float]] = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


# ---------------------------------------------------------------- value → JSON


def plain(value: Any) -> Any:
    """Converts any value for json.dumps. A MISSING field is left out of its object; elsewhere MISSING becomes null."""
    write = _PLAIN.get(value.__class__) or writer_of(_PLAIN, value)
    return write(value)


def _same(value: Any) -> Any:
    return value


def _plain_float(value: float) -> float | str:
    return value if isfinite(value) else nonfinite_name(value)


def nonfinite_name(value: float) -> str:
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain_object(value: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(member) for name, member in value.items() if member is not MISSING}


def _plain_items(value: list[Any]) -> list[Any]:
    return [plain(item) for item in value]


def _xy(point: Point) -> list[float | str]:
    return [_plain_float(point.x), _plain_float(point.y)]


_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: _same, bool: _same, int: _same, float: _plain_float, type(None): _same,
    dict: _plain_object, list: _plain_items, Multiset: _plain_items,
    datetime: datetime_text, date: date.isoformat, time: time_text, Duration: duration_text, UUID: str,
    Point: _xy,
    Line: lambda line: [_xy(line.start), _xy(line.end)],
    Rectangle: lambda box: [_xy(box.low), _xy(box.high)],
    Circle: lambda round_: {"center": _xy(round_.center), "radius": _plain_float(round_.radius)},
    Polygon: lambda area: [_xy(point) for point in area.points],
    type(MISSING): lambda _: None,
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


def _written(name: str, parse: Callable[[str], Any], shape: Callable[[Any], Any] | None = None) -> ValueCheck:
    check = LEAVES[name]

    def read(value: Any) -> Any:
        if value.__class__ is str:
            return check(make_or_refuse(parse, value))
        if shape is not None and isinstance(value, (list, dict)):
            return check(shape(value))
        return check(value)

    return read


def _point(value: Any) -> Point:
    if isinstance(value, list) and len(value) == 2:
        return Point(value[0], value[1])
    raise RecordError("", f'expected a point as [x, y] or "x,y", got {_seen(value)}')


def _two_points(name: str) -> Callable[[Any], tuple[Point, Point]]:
    def shape(value: Any) -> tuple[Point, Point]:
        if isinstance(value, list) and len(value) == 2:
            return _point(value[0]), _point(value[1])
        raise RecordError("", f'expected a {name} as [[x, y], [x, y]] or "x,y x,y", got {_seen(value)}')

    return shape


_line_ends = _two_points("line")
_rectangle_corners = _two_points("rectangle")


def _circle(value: Any) -> Circle:
    if isinstance(value, dict) and value.keys() == {"center", "radius"}:
        return Circle(_point(value["center"]), value["radius"])
    raise RecordError("", f'expected a circle as {{"center": [x, y], "radius": r}} or "x,y r", got {_seen(value)}')


def _polygon(value: Any) -> Polygon:
    if isinstance(value, list):
        return Polygon(tuple(map(_point, value)))
    raise RecordError("", f'expected a polygon as [[x, y], …] or "x,y x,y x,y", got {_seen(value)}')


def _seen(value: Any) -> str:
    return f"an array of {len(value)}" if isinstance(value, list) else describe_value(value)


_READERS: Final[Mapping[str, ValueCheck]] = {
    **LEAVES,
    "float": _number("float"),
    "double": _number("double"),
    "date": _written("date", parse_date),
    "time": _written("time", parse_time),
    "datetime": _written("datetime", parse_datetime),
    "duration": _written("duration", parse_duration),
    "uuid": _written("uuid", parse_uuid),
    "point": _written("point", parse_point, _point),
    "line": _written("line", parse_line, lambda value: Line(*_line_ends(value))),
    "rectangle": _written("rectangle", parse_rectangle, lambda value: Rectangle(*_rectangle_corners(value))),
    "circle": _written("circle", parse_circle, _circle),
    "polygon": _written("polygon", parse_polygon, _polygon),
}
