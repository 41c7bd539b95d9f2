"""The Python classes of values, and conversion from and to the text of SQL++ constructors.

    boolean bool · integers int · float, double float · string str · date datetime.date
    time datetime.time · datetime datetime.datetime (UTC) · uuid uuid.UUID · object dict
    array list · multiset Multiset · NULL None · a field that is not there MISSING
    duration Duration · point Point · line Line · rectangle Rectangle · circle Circle · polygon Polygon

Datetimes without a zone count as UTC; the resolution is one microsecond.
"""

from __future__ import annotations

import enum
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final, TypeVar
from uuid import UUID


class _Missing(enum.Enum):
    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing.MISSING
_Written = TypeVar("_Written")


class Multiset(list[Any]):
    """A bag: order carries no meaning."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """Months and microseconds are separate, since a month has no fixed length."""

    months: int = 0
    micros: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    start: Point
    end: Point


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`low` is always the lower left corner; the text may name any two opposite corners."""

    low: Point
    high: Point


@dataclass(frozen=True, slots=True)
class Circle:
    center: Point
    radius: float


@dataclass(frozen=True, slots=True)
class Polygon:
    points: tuple[Point, ...]


# ---------------------------------------------------------------- text → value; ValueError says what was expected


def parse_point(text: str) -> Point:
    points = _points(text, 'a point such as "1.0,2.0"')
    if len(points) != 1:
        raise ValueError(f'expected a point such as "1.0,2.0", got {_quote_text(text)}')
    return points[0]


def parse_line(text: str) -> Line:
    start, end = _pair(text, 'a line such as "1.0,2.0 3.0,4.0"')
    return Line(start, end)


def parse_rectangle(text: str) -> Rectangle:
    return rectangle(*_pair(text, 'a rectangle such as "1.0,2.0 3.0,4.0"'))


def parse_circle(text: str) -> Circle:
    expected = 'a circle such as "1.0,2.0 0.5"'
    parts = _without_blanks_at_commas(text).split()
    if len(parts) != 2:
        raise ValueError(f"expected {expected}, got {_quote_text(text)}")
    (center,) = _points(parts[0], expected)
    return circle(center, _number(parts[1], expected, text))


def parse_polygon(text: str) -> Polygon:
    return polygon(_points(text, 'a polygon such as "0,0 0,1 1,0"'))


def rectangle(a: Point, b: Point) -> Rectangle:
    return Rectangle(Point(min(a.x, b.x), min(a.y, b.y)), Point(max(a.x, b.x), max(a.y, b.y)))


def circle(center: Point, radius: float) -> Circle:
    if not radius >= 0:
        raise ValueError(f"expected a radius of at least 0, got {radius}")
    return Circle(center, radius)


def polygon(points: Iterable[Point]) -> Polygon:
    corners = tuple(points)
    if len(corners) < 3:
        raise ValueError(f"expected a polygon of at least three points, got {len(corners)}")
    return Polygon(corners)


# ISO 8601 puts the sign before the whole duration ("-P1M"). Its part 2 also allows a sign on single parts ("P1M-1D"),
# which a duration needs whose months and days have different signs. The last part may have a fraction if its unit has
# a fixed length: "PT1.5H".
_SECONDS_IN: Final = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def _unit(name: str, letter: str) -> str:
    fraction = rf"(?:\.(?P<of_{name}>[0-9]{{1,6}})(?=[A-Z]\Z))?" if name in _SECONDS_IN else ""
    return rf"(?:(?P<{name}>-?[0-9]{{1,19}}){fraction}{letter})?"


_DURATION = re.compile(
    rf"(?P<sign>-)?P(?=.){_unit('years', 'Y')}{_unit('months', 'M')}{_unit('weeks', 'W')}{_unit('days', 'D')}"
    rf"(?:T(?=.){_unit('hours', 'H')}{_unit('minutes', 'M')}{_unit('seconds', 'S')})?"
)
_PART_OF_A_MONTH = re.compile(r"-?P[^T]*[0-9][.,][0-9]+[YM]")
# The range is symmetric, so that every duration can be negated and written.
MAX_DURATION_MONTHS: Final = 2**31 - 1
MAX_DURATION_MICROS: Final = 2**63 - 1


def parse_duration(text: str) -> Duration:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        if _PART_OF_A_MONTH.match(text.strip()):
            raise ValueError(f"expected whole years and months, as they differ in length, got {_quote_text(text)}")
        raise ValueError(f'expected an ISO 8601 duration such as "PT10S" or "P1DT2H", got {_quote_text(text)}')
    part = {name: int(digits or 0) for name, digits in match.groupdict().items() if name != "sign"}
    months = part["years"] * 12 + part["months"]
    micros = 0
    for name, seconds in _SECONDS_IN.items():
        fraction = int((match[f"of_{name}"] or "0").ljust(6, "0"))
        # The sign comes from the text: in "-0.5S" the whole number is 0 and has no sign.
        negative = (match[name] or "").startswith("-")
        micros += (part[name] * 1_000_000 + (-fraction if negative else fraction)) * seconds
    if abs(months) > MAX_DURATION_MONTHS or abs(micros) > MAX_DURATION_MICROS:
        raise ValueError(f"the duration {_quote_text(text)} is longer than can be kept")
    return Duration(-months, -micros) if match["sign"] else Duration(months, micros)


_DATETIME = re.compile(
    r"[0-9]{4}(?:-[0-9]{2}-[0-9]{2}|[0-9]{4})[T ][0-9]{2}[0-9:]*(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-?)[0-9A-Fa-f]{4}\1[0-9A-Fa-f]{4}\1[0-9A-Fa-f]{4}\1[0-9A-Fa-f]{12}")
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FLOAT32 = struct.Struct("<f")


def float32(number: float) -> float:
    """Rounds to the nearest number of 32 bits. Raises OverflowError beyond their range."""
    return float(_FLOAT32.unpack(_FLOAT32.pack(number))[0])


def parse_datetime(text: str) -> datetime:
    try:
        # fromisoformat alone would also accept any separator between date and time, and a date alone.
        if _DATETIME.fullmatch(text.strip()) is None:
            raise ValueError
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'expected a datetime such as "2026-11-15T08:30:00Z", got {_quote_text(text)}') from None


def parse_date(text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'expected a date such as "2026-11-15", got {_quote_text(text)}') from None


def parse_time(text: str) -> time:
    try:
        moment = time.fromisoformat(text.strip().removesuffix("Z"))
        if moment.tzinfo is not None:
            raise ValueError
        return moment
    except ValueError:
        raise ValueError(f'expected a time of day such as "08:30:00.250", got {_quote_text(text)}') from None


def parse_uuid(text: str) -> UUID:
    # UUID() alone would also accept hyphens anywhere, underscores and digits of other scripts.
    if _UUID.fullmatch(text.strip()) is None:
        raise ValueError(f'expected a uuid such as "5c848e5c-6b6a-498f-8452-8847a2957421", got {_quote_text(text)}')
    return UUID(text.strip())


# ---------------------------------------------------------------- value → text


def duration_text(value: Duration) -> str:
    """Writes one sign in front if months and microseconds agree; otherwise a sign on every negative part."""
    sign = "-" if value.months <= 0 and value.micros <= 0 and value != Duration() else ""
    month_sign = "-" if value.months < 0 and not sign else ""
    micro_sign = "-" if value.micros < 0 and not sign else ""
    years, months = divmod(abs(value.months), 12)
    seconds, fraction = divmod(abs(value.micros), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    day = "".join(f"{month_sign}{n}{unit}" for n, unit in ((years, "Y"), (months, "M")) if n)
    day += f"{micro_sign}{days}D" if days else ""
    clock = "".join(f"{micro_sign}{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M")) if n)
    if fraction:
        clock += micro_sign + f"{seconds}.{fraction:06d}".rstrip("0") + "S"
    elif seconds or not (day or clock):
        clock += f"{micro_sign}{seconds}S"
    return f"{sign}P{day}{'T' + clock if clock else ''}"


def datetime_text(value: datetime) -> str:
    # astimezone would take a datetime without a zone for local time.
    moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat() + "Z"


def micros_of_day(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def time_text(value: time) -> str:
    return value.isoformat()


# ---------------------------------------------------------------- internals


def _points(text: str, expected: str) -> list[Point]:
    points = []
    for part in _without_blanks_at_commas(text).split():
        x, comma, y = part.partition(",")
        if not comma:
            raise ValueError(f"expected {expected}, got {_quote_text(text)}")
        points.append(Point(_number(x, expected, text), _number(y, expected, text)))
    if not points:
        raise ValueError(f"expected {expected}, got {_quote_text(text)}")
    return points


def _without_blanks_at_commas(text: str) -> str:
    """Blanks around a comma carry no meaning: programs of the original system write points as "1.0, 2.0"."""
    return ",".join(part.strip() for part in text.split(",")) if "," in text else text


def _pair(text: str, expected: str) -> tuple[Point, Point]:
    points = _points(text, expected)
    if len(points) != 2:
        raise ValueError(f"expected {expected}, got {_quote_text(text)}")
    return points[0], points[1]


def _number(text: str, expected: str, whole: str) -> float:
    # float() alone would also accept underscores, digits of other scripts and "nan".
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected {expected}, got {_quote_text(whole)}")
    return number


def _quote_text(text: str) -> str:
    """`text` for a message: short, and without lone surrogates, which no encoder accepts."""
    shown = text if len(text) <= 80 else text[:80] + "…"
    return f'"{shown.encode("utf-8", "replace").decode()}"'


def value_writer(writers: Mapping[type, Callable[[Any], _Written]]) -> Callable[[Any], _Written]:
    """Returns a function that writes a value of any class. It raises TypeError if there is no writer for the class."""

    def write(value: Any) -> _Written:
        writer = writers.get(value.__class__) or _inherited_writer(writers, value)
        return writer(value)

    return write


def _inherited_writer(writers: Mapping[type, Callable[[Any], _Written]], value: Any) -> Callable[[Any], _Written]:
    for base, write in writers.items():
        if isinstance(value, base):
            return write
    raise TypeError(f"not a value: {value.__class__.__name__}")
