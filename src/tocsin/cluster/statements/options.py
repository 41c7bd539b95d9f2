"""Reads the options of statements: WITH {…} of a dataset, channel or broker, and SET for the rest of a script.

An unknown name in WITH is an error with a suggestion, because a misspelt option that has no effect is found late.
Clauses and options that tune the storage or the compiler of AsterixDB are accepted: the answer says that they have no
effect, and what does their work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model.values import Duration, parse_duration

_NODE_GROUPS: Final = "data are not divided among nodes: every worker of Spark reads all files"
_COMPACTION: Final = "small files are merged in tiers, without a choice of policy"

# Clauses and options of CREATE DATASET without effect, and what does their work.
_DATASET_NOTES: Final[Mapping[str, str]] = {
    "HINTS": "the engine estimates sizes by itself",
    "COMPACTION POLICY": _COMPACTION,
    "ON nodegroup": _NODE_GROUPS,
    "FILTER ON": "files are pruned by the min/max statistics of every declared field",
    "merge-policy": _COMPACTION,
    "storage-block-compression": "data files are Parquet, whose columns are always compressed",
    "storage-format": "data files are Parquet, which stores columns",
    "node-group": _NODE_GROUPS,
    "node-group-name": _NODE_GROUPS,
}


def with_notes(summary: StatementSummary, notes: Iterable[str]) -> StatementSummary:
    """Adds the notes to the answer of a statement, if there are any."""
    listed = list(notes)
    return {**summary, "notes": listed} if listed else summary


def no_effect(name: str, instead: str) -> str:
    return f"{name} has no effect: {instead}"


def _storage_option(value: Any) -> Any:
    """Reads an option for AsterixDB's storage: a text, or an object such as {"name": "prefix"}."""
    if not isinstance(value, str | dict):
        raise ValueError(f'must be an object such as {{"name": "prefix"}}, got {value}')
    return value


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
    options = read_options(statement, now, {**readers, **dict.fromkeys(_DATASET_NOTES, _storage_option)})
    filters = () if statement.filter_on is None else ("FILTER ON",)
    unused = (*statement.tuning, *filters, *(name for name in options if name not in readers))
    notes = tuple(no_effect(name, _DATASET_NOTES[name]) for name in unused)
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


_SHORT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}

# Options of the original that describe what the cluster always does: the value that is true here, and the note.
_ALWAYS: Final = {
    "wait-for-completion-procedure": ("true", "EXECUTE waits until a procedure without a period is done"),
    "wait-for-completion-feed": ("false", "START FEED never waits for the end of a feed"),
}


@dataclass(slots=True)
class SetOptions:
    """The options that SET has given to one script so far."""

    timeout_s: float | None = None
    """How long each further statement may take; None: as long as the script."""

    def apply(self, statement: st.SetOption) -> StatementSummary:
        """Applies a SET; the summary says whether it has an effect."""
        name, value = statement.name, statement.value
        if name.lower() == "timeout":
            self.timeout_s = _timeout_s(statement)
            return {"name": name, "value": value, "applied": True}
        if name.lower() in _ALWAYS:
            usual, note = _ALWAYS[name.lower()]
            return {"name": name, "value": value, "applied": value.lower() == usual, "note": note}
        return {"name": name, "value": value, "applied": False, "note": "this option has no effect here"}


def _timeout_s(statement: st.SetOption) -> float:
    match = _SHORT.fullmatch(statement.value.strip().lower())
    try:
        timeout_s = float(match[1]) * _UNIT_S[match[2]] if match else seconds(statement.value)
        if timeout_s <= 0:
            raise ValueError
    except ValueError:
        raise TranslationError(
            f"timeout: expected a duration above zero, got {statement.value[:40]!r}", statement.offset,
            'SET timeout "30s", with ms, s, m or h, or "PT30S"',
        ) from None  # fmt: skip
    return timeout_s
