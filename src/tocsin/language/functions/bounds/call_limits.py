"""Limits calls for which Spark builds a plan or a value as large as an argument says: registers, rows, windows,
partitions, characters, array items.

Spark builds the plan before anything runs and a value in one step, so nobody can cancel it, and one of them can take
all of the engine's memory. This module checks constant arguments; `bounded_calls` guards computed ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from sqlglot import exp

from tocsin.language.types.typed_sql import (
    FunctionError,
    constant_integer,
    constant_number,
    constant_string,
    constant_whole,
)

_DEVIATIONS: Final = (0.01, 0.39)  # of an approximate count: from 16,384 registers to the fewest that Spark accepts
_ROWS: Final = 1_000
_WINDOWS: Final = 1_000
LETTERS: Final = 10_000_000
"""The longest text that repeat and similar functions return."""
ITEMS: Final = 1_000_000
"""The longest array that sequence and similar functions return."""
_DIGITS: Final = 400  # after the decimal point; the smallest double has 324
_MICROS: Final = {
    "microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000,
    "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_UNIT: Final = re.compile(rf"\s*(\d{{1,18}})\s+({'|'.join(_MICROS)})s?\b", re.ASCII | re.IGNORECASE)


def check_call(name: str, arguments: Sequence[exp.Expr]) -> None:
    """Raises FunctionError if the plan or the value of this call would be too large, or if the plan's size is
    unknown."""
    check = _CHECKS.get(name)
    if check is not None:
        check(name, arguments)


def _check_deviation(arguments: Sequence[exp.Expr]) -> None:
    deviation = constant_number(arguments[1]) if len(arguments) > 1 else _DEVIATIONS[1]
    if deviation is None or not _DEVIATIONS[0] <= deviation <= _DEVIATIONS[1]:
        raise FunctionError(
            f"approx_count_distinct takes a deviation from {_DEVIATIONS[0]} to {_DEVIATIONS[1]}, as a number"
        )


def _check_stack(arguments: Sequence[exp.Expr]) -> None:
    rows = constant_integer(arguments[0]) if arguments else 0
    if rows is None or rows > _ROWS:
        raise FunctionError(f"stack takes a number of rows first, at most {_ROWS}")


def _check_range(arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) > 3:
        raise FunctionError("range takes a start, an end and a step")


def _check_windows(arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) < 3:
        return  # the windows do not overlap
    duration, slide = map(_micros, arguments[1:3])
    if duration is None or not slide:
        raise FunctionError("window takes durations such as '10 minutes'")
    if ceil(duration / slide) > _WINDOWS:
        raise FunctionError(f"each moment would be in more than {_WINDOWS} windows; let them begin less often")


def _micros(argument: exp.Expr) -> int | None:
    text = constant_string(argument)
    if text is None:
        return constant_integer(argument)
    rest = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    micros = sum(int(count) * _MICROS[unit.lower()] for count, unit in _UNIT.findall(rest))
    return None if _UNIT.sub("", rest).strip() else micros


def _too_long(name: str) -> str:
    return f"{name} makes texts of at most {LETTERS:,} characters"


def too_many(name: str) -> str:
    return f"{name} makes arrays of at most {ITEMS:,} items"


# Width and precision of a format specifier such as %2$-10.3s.
_WIDTHS: Final = re.compile(r"%(?:\d+\$)?[-#+ 0,(<]*(\d*)(?:\.(\d+))?", re.ASCII)


def check_format(name: str, form: str) -> None:
    """Raises FunctionError if the widths of all specifiers add up to a text that is too long."""
    numbers = [digits for widths in _WIDTHS.findall(form) for digits in widths if digits]
    if any(len(digits) > 9 for digits in numbers) or sum(map(int, numbers)) > LETTERS:
        raise FunctionError(_too_long(name))


def _at_most(place: int, most: int, message: Callable[[str], str]) -> Callable[[str, Sequence[exp.Expr]], None]:
    """Returns a check of the argument at this place."""

    def check(name: str, arguments: Sequence[exp.Expr]) -> None:
        count = constant_whole(arguments[place]) if len(arguments) > place else None
        if count is not None and abs(count) > most:
            raise FunctionError(message(name))

    return check


def _check_repeat(name: str, arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) == 2 and (count := constant_whole(arguments[1])) is not None:
        text = constant_string(arguments[0])
        if count * (1 if text is None else len(text)) > LETTERS:
            raise FunctionError(_too_long(name))


def _check_sequence(name: str, arguments: Sequence[exp.Expr]) -> None:
    constants = [constant for argument in arguments if (constant := constant_whole(argument)) is not None]
    if len(constants) == len(arguments) > 1:
        first, last, step = [*constants, 1][:3]
        if step and abs(last - first) // abs(step) >= ITEMS:
            raise FunctionError(too_many(name))


def _check_formatted(name: str, arguments: Sequence[exp.Expr]) -> None:
    form = constant_string(arguments[0]) if arguments else None
    if form is not None:
        check_format(name, form)


def _check_digits(name: str, arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) < 2 or constant_string(arguments[1]) is not None:
        return  # format_number takes a pattern, too
    digits = constant_whole(arguments[1])
    if digits is None or abs(digits) > _DIGITS:
        raise FunctionError(f"{name} takes a number of digits, at most {_DIGITS}")


def _check_random(name: str, arguments: Sequence[exp.Expr]) -> None:
    count = constant_whole(arguments[0]) if arguments else 0
    if count is None or count > LETTERS:
        raise FunctionError(f"{name} takes a number of characters, at most {LETTERS:,}")


def _nameless(check: Callable[[Sequence[exp.Expr]], None]) -> Callable[[str, Sequence[exp.Expr]], None]:
    return lambda _name, arguments: check(arguments)


_CHECKS: Final[dict[str, Callable[[str, Sequence[exp.Expr]], None]]] = {
    "approx_count_distinct": _nameless(_check_deviation),
    "range": _nameless(_check_range),
    "stack": _nameless(_check_stack),
    "window": _nameless(_check_windows),
    "repeat": _check_repeat,
    "space": _at_most(0, LETTERS, _too_long),
    **dict.fromkeys(("lpad", "rpad"), _at_most(1, LETTERS, _too_long)),
    **dict.fromkeys(("array_repeat", "array_insert"), _at_most(1, ITEMS, too_many)),
    "sequence": _check_sequence,
    **dict.fromkeys(("format_string", "printf"), _check_formatted),
    **dict.fromkeys(("round", "bround", "ceil", "ceiling", "floor", "format_number"), _check_digits),
    "randstr": _check_random,
}
