"""Parses the text of one ADM value: in a constructor (`int8("7")`) or with a suffix (`7i8`).

Each function takes the text and returns the value. Its ValueError says what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from math import inf, isinf, nan
from typing import Any, Final

from tocsin.rules.model import values
from tocsin.rules.model.types import INTEGER_BITS, PRIMITIVES

DIGITS_LIMIT: Final = 400
"""The longest whole number that is parsed; a double has at most 309 digits before the point."""

_INT = re.compile(r"[+-]?[0-9]++")
_FLOAT = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_NONFINITE: Final[Mapping[str, float]] = {
    name: value
    for names, value in (("NaN", nan), ("INF +INF Infinity +Infinity", inf), ("-INF -Infinity", -inf))
    for name in names.split()
}


def whole_number(text: str) -> int:
    if len(text) > DIGITS_LIMIT:
        raise ValueError(f"expected a number, got one of {len(text)} digits")
    return int(text)


def fraction(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"the number {text[:40]} does not fit into a double")
    return number


def _whole(name: str) -> Callable[[str], int]:
    high = 2 ** (INTEGER_BITS[name] - 1) - 1
    low = -high - 1

    def read(text: str) -> int:
        if _INT.fullmatch(text.strip()) is None:
            raise ValueError(f"expected a whole number, got {quote_text(text[:40])}")
        number = whole_number(text.strip())
        if low <= number <= high:
            return number
        raise ValueError(f"the number {text.strip()[:40]} does not fit into a {name} ({low} to {high})")

    return read


def _double(text: str) -> float:
    stripped = text.strip()
    if stripped in _NONFINITE:
        return _NONFINITE[stripped]
    if _FLOAT.fullmatch(stripped) is None:
        raise ValueError(f"expected a number, got {quote_text(text[:40])}")
    return fraction(stripped)


def _float32(text: str) -> float:
    number = _double(text)
    try:
        return values.float32(number)
    except OverflowError:
        raise ValueError(f"the number {text.strip()[:40]} does not fit into a float of 32 bits") from None


def _boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, got {quote_text(text[:40])}")
    return text.strip().lower() == "true"


def _day_time(text: str) -> values.Duration:
    duration = values.parse_duration(text)
    if duration.months:
        raise ValueError(f'expected a duration of days and times such as "P1DT2H", got {quote_text(text[:40])}')
    return duration


def _year_month(text: str) -> values.Duration:
    duration = values.parse_duration(text)
    if duration.micros:
        raise ValueError(f'expected a duration of years and months such as "P1Y2M", got {quote_text(text[:40])}')
    return duration


CONSTRUCTORS: Final[Mapping[str, Callable[[str], Any]]] = {
    **{name: _whole(kind.name) for name, kind in PRIMITIVES.items() if kind.name in INTEGER_BITS},
    "float": _float32, "double": _double, "boolean": _boolean, "string": str,
    "date": values.parse_date, "time": values.parse_time, "datetime": values.parse_datetime,
    "timestamp": values.parse_datetime,
    "duration": values.parse_duration, "day_time_duration": _day_time, "year_month_duration": _year_month,
    "uuid": values.parse_uuid,
    "point": values.parse_point, "line": values.parse_line, "rectangle": values.parse_rectangle,
    "circle": values.parse_circle, "polygon": values.parse_polygon,
}  # fmt: skip
SUFFIXES: Final[Mapping[str, Callable[[str], Any]]] = {
    "i8": _whole("tinyint"), "i16": _whole("smallint"), "i32": _whole("integer"), "i64": _whole("bigint"),
    "f": _float32, "d": fraction,
}  # fmt: skip
WORDS: Final[Mapping[str, Any]] = {
    "true": True, "false": False, "null": None, "missing": values.MISSING,
    **{name + width: value for name, value in _NONFINITE.items() for width in ("", "f", "F", "d", "D")},
}  # fmt: skip


def quote_text(text: str) -> str:
    """Quotes `text` for a message."""
    return encode_basestring(text.encode("utf-8", "replace").decode())
