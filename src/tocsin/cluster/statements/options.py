"""What WITH {…} says of a dataset or a channel: constants under names that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.model.values import Duration, parse_duration

# A retention of months is counted in days.
_MONTH_S: Final = 30 * 86_400
_HIGHEST: Final = 2**62

Reader = Callable[[Any], Any]
"""An option's value, or ValueError where it cannot be."""


def read_options(
    statement: st.CreateDataset | st.CreateChannel, now: datetime, readers: Mapping[str, Reader]
) -> dict[str, Any]:
    """The options that are given, as their readers have them. TranslationError names the one that cannot be."""
    found: dict[str, Any] = {}
    for name, node in statement.options.items():
        try:
            value = evaluate(node, now)
        except NotConstantError:
            raise TranslationError(f"the option {name} must be a constant", statement.offset) from None
        except ConstantError as error:
            raise TranslationError(f"{name}: {error}", error.offset or statement.offset) from None
        if name not in readers:
            raise TranslationError(f"unknown option {name}", statement.offset, f"known are {' and '.join(readers)}")
        try:
            found[name] = readers[name](value)
        except ValueError as error:
            raise TranslationError(f"{name}: {error}", statement.offset) from None
    return found


def dataset_options(statement: st.CreateDataset, now: datetime, *, history: int) -> tuple[int, float | None]:
    """How many commits can be asked for (`history` where it is not said), and how old rows grow; None: without end."""
    found = read_options(statement, now, {"history": whole_number("commits", 1, 1_000_000), "retention": seconds})
    return found.get("history", history), found.get("retention")


def seconds(value: Any) -> float:
    """Of a duration, or of its text; longer than nothing."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, Duration):
        raise ValueError(f'must be a duration such as duration("P7D"), got {value}')
    found = duration.months * _MONTH_S + duration.micros / 1_000_000
    if found <= 0:
        raise ValueError("must be longer than nothing")
    return found


def whole_number(of: str, low: int, high: int | None = None) -> Reader:
    """Reads a number of these, from the lowest to the highest."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high:,}"

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= (high or _HIGHEST):
            raise ValueError(f"must be a number of {of} {bounds}, got {value}")
        return value

    return read
