"""Reads the options WITH {…} of a dataset or a channel: constants under known names.

An unknown name is an error with a suggestion, because a misspelt option that has no effect is found late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.cluster.statements.storage_notes import DATASET_NOTES, no_effect, storage_option
from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model.values import Duration, parse_duration

# A month in a retention counts as 30 days.
_MONTH_S: Final = 30 * 86_400
_HIGHEST: Final = 2**62

_Reader = Callable[[Any], Any]
"""Returns the value of an option, or raises ValueError."""


def read_options(
    statement: st.CreateDataset | st.CreateChannel | st.CreateBroker, now: datetime, readers: Mapping[str, _Reader]
) -> dict[str, Any]:
    """Returns the given options as their readers convert them. Raises TranslationError, which names the invalid
    option."""
    options: dict[str, Any] = {}
    for name, node in statement.options.items():
        try:
            value = evaluate(node, now)
        except NotConstantError:
            raise TranslationError(f"the option {name} must be a constant", statement.offset) from None
        except ConstantError as error:
            raise TranslationError(f"{name}: {error}", error.offset or statement.offset) from None
        if name not in readers:
            hint = did_you_mean(name, readers) or f"known are {' and '.join(readers)}"
            raise TranslationError(f"unknown option {name}", statement.offset, hint)
        try:
            options[name] = readers[name](value)
        except ValueError as error:
            raise TranslationError(f"{name}: {error}", statement.offset) from None
    return options


@dataclass(frozen=True, slots=True)
class _DatasetOptions:
    """`history` is the number of commits that can be queried. Rows expire after `retention_s`; None means never.
    `notes` say which options and clauses have no effect."""

    history: int
    retention_s: float | None
    notes: tuple[str, ...]


def dataset_options(statement: st.CreateDataset, now: datetime, *, history: int) -> _DatasetOptions:
    """Reads the options of a dataset; `history` is the default."""
    readers = {"history": whole_number("commits", 1, 1_000_000), "retention": seconds}
    options = read_options(statement, now, {**readers, **dict.fromkeys(DATASET_NOTES, storage_option)})
    filters = () if statement.filter_on is None else ("FILTER ON",)
    unused = (*statement.tuning, *filters, *(name for name in options if name not in readers))
    notes = tuple(no_effect(name, DATASET_NOTES[name]) for name in unused)
    return _DatasetOptions(options.get("history", history), options.get("retention"), notes)


def seconds(value: Any) -> float:
    """Returns the positive number of seconds of a duration or of its text."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, Duration):
        raise ValueError(f'must be a duration such as duration("P7D"), got {value}')
    total_s = duration.months * _MONTH_S + duration.micros / 1_000_000
    if total_s <= 0:
        raise ValueError("must be longer than nothing")
    return total_s


def whole_number(of: str, low: int, high: int | None = None) -> _Reader:
    """Returns a reader of a whole number from `low` to `high`."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high:,}"

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= (high or _HIGHEST):
            raise ValueError(f"must be a number of {of} {bounds}, got {value}")
        return value

    return read
