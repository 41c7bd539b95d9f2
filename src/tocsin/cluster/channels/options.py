"""What WITH {…} says of a channel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.language import statements as st
from tocsin.language.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.expressions import TranslationError
from tocsin.rules.model.values import Duration, parse_duration

# A retention of months is counted in days.
_MONTH_S: Final = 30 * 86_400
_BYTES_LIMIT: Final = 2**62


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How long results are kept, and how many bytes of them; None: the cluster's default."""

    retention_s: float | None = None
    retention_bytes: int | None = None


def channel_options(statement: st.CreateChannel, now: datetime) -> ChannelOptions:
    """Raises TranslationError naming the option that cannot be."""
    found: dict[str, Any] = {}
    for name, node in statement.options.items():
        try:
            value = evaluate(node, now)
        except NotConstantError:
            raise TranslationError(f"the option {name} must be a constant", statement.offset) from None
        except ConstantError as error:
            raise TranslationError(f"{name}: {error}", error.offset or statement.offset) from None
        try:
            if name == "retention":
                found["retention_s"] = _seconds(value)
            elif name == "retention-bytes":
                found["retention_bytes"] = _bytes(value)
            else:
                raise TranslationError(
                    f"unknown option {name}", statement.offset, "known are retention and retention-bytes"
                )
        except ValueError as error:
            raise TranslationError(f"{name}: {error}", statement.offset) from None
    return ChannelOptions(**found)


def _seconds(value: Any) -> float:
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, Duration):
        raise ValueError(f'must be a duration such as duration("P7D"), got {value}')
    seconds = duration.months * _MONTH_S + duration.micros / 1_000_000
    if seconds <= 0:
        raise ValueError("must be longer than nothing")
    return seconds


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _BYTES_LIMIT:
        raise ValueError(f"must be a number of bytes of at least 1, got {value}")
    return value
