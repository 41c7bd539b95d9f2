"""Parses the option `period`: how often an adapter polls."""

from __future__ import annotations

import re
from typing import Final

from tocsin.rules.model.values import parse_duration
from tocsin.wire.errors import InputError

MOST_S: Final = 31 * 86_400.0
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def period_s(text: str, least_s: float) -> float:
    """Returns the seconds of a duration or a number. Raises InputError if the text is neither, or out of bounds."""
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        seconds = float(stripped)
    else:
        try:
            duration = parse_duration(stripped)
        except ValueError:
            raise InputError(f'period: must be a duration such as "PT1M", or seconds, got "{text}"') from None
        if duration.months:
            raise InputError(f'period: months are of no fixed length; say it in days, got "{text}"')
        seconds = duration.micros / 1e6
    if not least_s <= seconds <= MOST_S:
        raise InputError(f'period: must be from {least_s:g} s to {MOST_S / 86_400:g} days, got "{text}"')
    return seconds
