"""Parses and writes ADM, the original system's text of values: JSON with constructors, widths and multisets.

    { "id": 7i64, "ratio": 1.5f, "zone": circle("1.0,2.0 0.5"), "at": datetime("2026-11-15T08:30:00Z"),
      "tags": {{ "flood", "road" }}, "parts": [ 1, null, missing ], "nothing": double("NaN") }

Every JSON text is ADM. The parser checks a width and then forgets it: `7i8` is the int 7. It leaves out a field whose
value is `missing`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]  # fast, and made for parsers
from json.encoder import encode_basestring
from math import isfinite, isnan
from typing import Any, Final
from uuid import UUID

from tocsin.rules.model import values
from tocsin.rules.model.constructors import (
    CONSTRUCTORS,
    DIGITS_LIMIT,
    SUFFIXES,
    WORDS,
    fraction,
    quote_text,
    whole_number,
)
from tocsin.rules.model.type_check import MAX_OPEN_DEPTH

MAX_DEPTH: Final = MAX_OPEN_DEPTH + 1
"""The nesting limit of objects, arrays and multisets: a record, and the deepest value that it may hold."""


class AdmError(ValueError):
    """The text is not ADM at `offset` (in characters, from 0); `reason` says what was expected there."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} at offset {self.offset}"


def loads(text: str) -> Any:
    """Parses the single value in the text. Raises AdmError if there is none, or more than one."""
    value, at = _value(text, _skip(text, 0), MAX_DEPTH)
    at = _skip(text, at)
    if at != len(text):
        raise _expectation_error("the end of the text", text, at)
    return value


# ---------------------------------------------------------------- reading

# All patterns are possessive: a text that does not match costs one pass, even a hostile one.
_WS: Final = r"[ \t\r\n]*+"
_SCALAR: Final = (
    r'(?:"([^"\\]*+)"'  # a string without escapes
    r"|([+-]?[0-9]++)(?![0-9A-Za-z_.])"  # a whole number
    r"|([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)(?:(i8|i16|i32|i64|[fFdD])(?![0-9A-Za-z_.]))?"
    rf'|(-?[A-Za-z][A-Za-z0-9_-]*+)(?:{_WS}\({_WS}"([^"\\]*+)"{_WS}\))?)'  # a word, or a constructor with its text
)
_STRING, _WHOLE, _NUMBER, _SUFFIXED, _WORD, _CONSTRUCTOR = range(1, 7)

_SPACE: Final = re.compile(_WS)
_scalar = re.compile(_SCALAR).match
# A field with a scalar value and the character behind it in one match: most of a record consists of these.
_member = re.compile(rf'{_WS}"([^"\\]*+)"{_WS}:{_WS}{_SCALAR}{_WS}[,}}]').match
# In the original, the end of a multiset is two ends of objects: white space may separate them.
_CLOSING: Final = {"]": re.compile(r"\]").match, "}}": re.compile(rf"\}}{_WS}\}}").match}


def _skip(text: str, at: int) -> int:
    """Skips the white space at `at`."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _object(text: str, at: int, levels_left: int) -> tuple[dict[str, Any], int]:
    """Parses the object whose "{" is before `at`. Returns it and its end."""
    fields: dict[str, Any] = {}
    sparse = False
    while True:
        match = _member(text, at)
        if match is None:
            at = _skip(text, at)
            if not fields and text[at : at + 1] == "}":
                return fields, at + 1
            name_at = at
            name, at = _string(text, at, "the name of a field")
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise _expectation_error('a ":"', text, at)
            value, at = _value(text, _skip(text, at + 1), levels_left)
            at = _skip(text, at) + 1
            if text[at - 1 : at] not in (",", "}"):
                raise _expectation_error('a "," or "}"', text, at - 1)
        else:
            name_at, at = match.start(1), match.end()
            name = match[1]
            group = match.lastindex
            if group == 2:
                value = match[2]
            elif group == 3 and len(match[3]) < DIGITS_LIMIT:
                value = int(match[3])
            else:
                value = _scalar_value(match, 1)
        if name in fields:
            raise AdmError(name_at, f"the field {quote_text(name)} is there twice")
        fields[name] = value
        sparse = sparse or value is values.MISSING
        if text[at - 1] == "}":
            return {
                name: value for name, value in fields.items() if value is not values.MISSING
            } if sparse else fields, at


def _items(text: str, at: int, levels_left: int, closing: str) -> tuple[list[Any], int]:
    """Parses the items of the array or multiset that opens before `at`. Returns them and the end."""
    items: list[Any] = []
    close = _CLOSING[closing]
    at = _skip(text, at)
    closed = close(text, at)
    while closed is None:
        value, at = _value(text, at, levels_left)
        items.append(value)
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        else:
            closed = close(text, at)
            if closed is None:
                raise _expectation_error(f'a "," or "{closing}"', text, at)
    return items, closed.end()


def _value(text: str, at: int, levels_left: int) -> tuple[Any, int]:
    first = text[at : at + 1]
    if first in ("{", "["):
        if not levels_left:
            raise AdmError(at, f"the value is nested more than {MAX_DEPTH} levels deep")
        if first == "[":
            return _items(text, at + 1, levels_left - 1, "]")
        if text.startswith("{{", at):
            items, end = _items(text, at + 2, levels_left - 1, "}}")
            return values.Multiset(items), end
        return _object(text, at + 1, levels_left - 1)
    match = _scalar(text, at)
    if match is not None:
        if match.lastindex == _WORD and text.startswith("(", _skip(text, match.end())):
            return _escaped_constructor(text, at, match)
        return _scalar_value(match, 0), match.end()
    if first == '"':
        return _string(text, at, "a string")
    raise _expectation_error("a value", text, at)


def _string(text: str, at: int, expected: str) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        raise _expectation_error(f"{expected} in double quotes", text, at)
    try:
        # Not strict, because the original accepts line ends and tabs inside strings.
        string, end = scanstring(text, at + 1, False)
    except JSONDecodeError as error:
        raise AdmError(error.pos, f"not a string: {error.msg}") from None
    return string, end


def _escaped_constructor(text: str, at: int, found: re.Match[str]) -> tuple[Any, int]:
    """Parses a constructor whose text has escapes, or reports what is wrong with it."""
    argument_at = _skip(text, found.end()) + 1
    argument, end = _string(text, _skip(text, argument_at), "the text of the value")
    end = _skip(text, end)
    if text[end : end + 1] != ")":
        raise _expectation_error('a ")"', text, end)
    return _construct_value(found[_WORD], argument, at), end + 1


def _scalar_value(found: re.Match[str], before: int) -> Any:
    """The value of a match of `_SCALAR`, whose groups follow `before` other groups."""
    group = found.lastindex - before  # type: ignore[operator]
    if group == _STRING:
        return found[before + _STRING]
    if group == _CONSTRUCTOR:
        return _construct_value(found[before + _WORD], found[before + _CONSTRUCTOR], found.start(before + _WORD))
    at = found.start(before + group)
    if group == _WORD:
        word = found[before + _WORD]
        value = WORDS.get(word, WORDS)
        if value is WORDS:
            value = WORDS.get(word.lower(), WORDS)
            if value is WORDS:
                expected = f'the text of the {word} in brackets: {word}("…")' if _find_constructor(word) else "a value"
                raise _expectation_error(expected, found.string, at)
        return value
    try:
        if group == _WHOLE:
            return whole_number(found[before + _WHOLE])
        number = found[before + _NUMBER]
        return fraction(number) if group == _NUMBER else SUFFIXES[found[before + _SUFFIXED].lower()](number)
    except ValueError as error:
        raise AdmError(found.start(before + min(group, _NUMBER)), str(error)) from None


def _construct_value(word: str, inside: str, at: int) -> Any:
    constructor = _find_constructor(word)
    if constructor is None:
        raise AdmError(at, f"there is no constructor {quote_text(word)}; known are {', '.join(sorted(CONSTRUCTORS))}")
    try:
        return constructor(inside)
    except ValueError as error:
        raise AdmError(at, str(error)) from None


def _find_constructor(word: str) -> Callable[[str], Any] | None:
    return CONSTRUCTORS.get(word) or CONSTRUCTORS.get(word.lower().replace("-", "_"))


def _expectation_error(what: str, text: str, at: int) -> AdmError:
    got = quote_text(text[at : at + 20]) if at < len(text) else "the end of the text"
    return AdmError(min(at, len(text)), f"expected {what}, got {got}")


# ---------------------------------------------------------------- writing


def _float_text(value: float) -> str:
    if isfinite(value):
        return float.__repr__(value)
    return f'double("{"NaN" if isnan(value) else "INF" if value > 0 else "-INF"}")'


def _object_text(value: dict[str, Any]) -> str:
    parts = [
        f"{encode_basestring(name)}: {dumps(member)}" for name, member in value.items() if member is not values.MISSING
    ]
    return f"{{ {', '.join(parts)} }}"


def _items_text(value: list[Any]) -> str:
    return f"[ {', '.join(map(dumps, value))} ]"


def _xy(*points: values.Point) -> str:
    return " ".join(f"{point.x!r},{point.y!r}" for point in points)


_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: _float_text,
    type(None): lambda _: "null",
    type(values.MISSING): lambda _: "missing",
    dict: _object_text,
    values.Multiset: lambda value: f"{{{{ {', '.join(map(dumps, value))} }}}}",
    list: _items_text,
    datetime: lambda value: f'datetime("{values.datetime_text(value)}")',
    date: lambda value: f'date("{value.isoformat()}")',
    time: lambda value: f'time("{values.time_text(value)}")',
    values.Duration: lambda value: f'duration("{values.duration_text(value)}")',
    UUID: lambda value: f'uuid("{value}")',
    values.Point: lambda value: f'point("{_xy(value)}")',
    values.Line: lambda value: f'line("{_xy(value.start, value.end)}")',
    values.Rectangle: lambda value: f'rectangle("{_xy(value.low, value.high)}")',
    values.Circle: lambda value: f'circle("{_xy(value.center)} {value.radius!r}")',
    values.Polygon: lambda value: f'polygon("{_xy(*value.points)}")',
}

dumps: Final[Callable[[Any], str]] = values.value_writer(_WRITERS)
"""Writes text that `loads` reads back as the same value. A field that is MISSING is left out."""
