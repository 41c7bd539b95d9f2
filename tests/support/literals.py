"""Values as a script writes them."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from tocsin.rules.model.types import AnyType, ArrayType, MultisetType, ObjectType, Primitive, Type
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
    time_text,
)


def literal(value: Any) -> str:
    """The SQL++ text of any value."""
    match value:
        case None:
            return "null"
        case _ if value is MISSING:
            return "missing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f'double("{_nonfinite(value)}")'
        case str():
            return quoted(value)
        case Multiset():
            return "{{" + ", ".join(map(literal, value)) + "}}"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{quoted(name)}: {literal(inside)}" for name, inside in value.items()) + "}"
        case datetime():
            return f'datetime("{datetime_text(value)}")'
        case date():
            return f'date("{value.isoformat()}")'
        case time():
            return f'time("{time_text(value)}")'
        case Duration():
            return f'duration("{duration_text(value)}")'
        case UUID():
            return f'uuid("{value}")'
        case Point():
            return f'point("{_xy(value)}")'
        case Line(start, end):
            return f'line("{_xy(start)} {_xy(end)}")'
        case Rectangle(low, high):
            return f'rectangle("{_xy(low)} {_xy(high)}")'
        case Circle(center, radius):
            return f'circle("{_xy(center)} {radius!r}")'
        case Polygon(points):
            return f'polygon("{" ".join(map(_xy, points))}")'
    raise TypeError(f"not a value: {value!r}")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def name(text: str) -> str:
    """An identifier in backticks."""
    return "`" + text.replace("`", "``") + "`"


def declaration(kind: Type) -> str:
    """A type as CREATE TYPE writes it."""
    match kind:
        case Primitive():
            return {"bigint": "int", "integer": "int32"}.get(str(kind), str(kind))
        case AnyType():
            return "any"
        case ArrayType(item, optional):
            return f"[{declaration(item)}{'?' if optional else ''}]"
        case MultisetType(item, optional):
            return f"{{{{{declaration(item)}{'?' if optional else ''}}}}}"
        case ObjectType():
            fields = (f"{quoted(f.name)}: {declaration(f.type)}{'?' if f.optional else ''}" for f in kind.fields)
            return f"{'open' if kind.open else 'closed'} {{{', '.join(fields)}}}"
    raise TypeError(f"not a type: {kind!r}")


def _nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _xy(point: Point) -> str:
    return f"{point.x!r},{point.y!r}"
