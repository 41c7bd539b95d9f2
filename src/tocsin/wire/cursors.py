"""The text form of cursors and positions: `epoch-execution-ordinal` and `epoch-number`, in decimal digits.

`0-0-0` and `0-0` are before everything.
"""

from __future__ import annotations

import re
from typing import Final

from tocsin.rules.model.cursors import START, Cursor, Position
from tocsin.wire.errors import InputError

__all__ = [
    "CURSOR_PATTERN",
    "POSITION_PATTERN",
    "START",
    "Cursor",
    "Position",
    "cursor_text",
    "parse_cursor",
    "parse_position",
    "position_text",
]

# Twenty digits are enough for any 64-bit number.
CURSOR_PATTERN: Final = r"^[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}$"
POSITION_PATTERN: Final = r"^[0-9]{1,20}-[0-9]{1,20}$"

_CURSOR: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})\Z")
_POSITION: Final = re.compile(POSITION_PATTERN.removesuffix("$") + r"\Z")


def cursor_text(cursor: Cursor) -> str:
    return f"{cursor[0]}-{cursor[1]}-{cursor[2]}"


def parse_cursor(text: object) -> Cursor:
    match = _CURSOR.match(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(
            f"expected a cursor, got {_shorten(text)}",
            hint='such as "1763200000-12-0": epoch, execution, ordinal; "0-0-0" is before all',
        )
    epoch, execution, ordinal = match.groups()
    return Cursor(int(epoch), int(execution), int(ordinal))


def position_text(position: Position) -> str:
    return f"{position[0]}-{position[1]}"


def parse_position(text: object) -> Position:
    if not isinstance(text, str) or _POSITION.match(text) is None:
        raise InputError(
            f"expected a position, got {_shorten(text)}",
            hint='such as "1763200000-4711": epoch, number; "0-0" is before all',
        )
    epoch, number = text.split("-")
    return Position(int(epoch), int(number))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
