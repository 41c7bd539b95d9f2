"""Limits calls for which Spark builds a plan as large as an argument says: registers, rows, windows, partitions.

Spark builds the plan before anything runs, so nobody can cancel it, and one such plan can take all of the engine's
memory.
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
)

DEVIATIONS: Final = (0.01, 0.39)  # of an approximate count: from 16,384 registers to the fewest that Spark accepts
ROWS: Final = 1_000
WINDOWS: Final = 1_000
_MICROS: Final = {
    "microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000,
    "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_UNIT: Final = re.compile(rf"\s*(\d{{1,18}})\s+({'|'.join(_MICROS)})s?\b", re.ASCII | re.IGNORECASE)


def check_call(name: str, arguments: Sequence[exp.Expr]) -> None:
    """Raises FunctionError if the plan of this call would be too large, or if its size is unknown."""
    check = _CHECKS.get(name)
    if check is not None:
        check(arguments)


def _check_deviation(arguments: Sequence[exp.Expr]) -> None:
    deviation = constant_number(arguments[1]) if len(arguments) > 1 else DEVIATIONS[1]
    if deviation is None or not DEVIATIONS[0] <= deviation <= DEVIATIONS[1]:
        raise FunctionError(
            f"approx_count_distinct takes a deviation from {DEVIATIONS[0]} to {DEVIATIONS[1]}, as a number"
        )


def _check_stack(arguments: Sequence[exp.Expr]) -> None:
    rows = constant_integer(arguments[0]) if arguments else 0
    if rows is None or rows > ROWS:
        raise FunctionError(f"stack takes a number of rows first, at most {ROWS}")


def _check_range(arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) > 3:
        raise FunctionError("range takes a start, an end and a step")


def _check_windows(arguments: Sequence[exp.Expr]) -> None:
    if len(arguments) < 3:
        return  # the windows do not overlap
    duration, slide = map(_micros, arguments[1:3])
    if duration is None or not slide:
        raise FunctionError("window takes durations such as '10 minutes'")
    if ceil(duration / slide) > WINDOWS:
        raise FunctionError(f"each moment would be in more than {WINDOWS} windows; let them begin less often")


def _micros(argument: exp.Expr) -> int | None:
    text = constant_string(argument)
    if text is None:
        return constant_integer(argument)
    rest = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    micros = sum(int(count) * _MICROS[unit.lower()] for count, unit in _UNIT.findall(rest))
    return None if _UNIT.sub("", rest).strip() else micros


_CHECKS: Final[dict[str, Callable[[Sequence[exp.Expr]], None]]] = {
    "approx_count_distinct": _check_deviation, "range": _check_range, "stack": _check_stack, "window": _check_windows,
}  # fmt: skip
