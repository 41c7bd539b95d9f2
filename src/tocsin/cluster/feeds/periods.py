"""How often something is done, as options say it."""

from __future__ import annotations

import re
from typing import Final

from tocsin.rules.model.values import parse_duration
from tocsin.wire.errors import InputError

MOST_S: Final = 31 * 86_400.0
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def period_s(text: str, least_s: float) -> float:
    """The option `period`: a duration, or seconds. InputError where it is neither, too short or too long."""
    wanted = text.strip()
    if _SECONDS.fullmatch(wanted):
        found_s = float(wanted)
    else:
        try:
            duration = parse_duration(wanted)
        except ValueError:
            raise InputError(f'period: must be a duration such as "PT1M", or seconds, got "{text}"') from None
        if duration.months:
            raise InputError(f'period: months are of no fixed length; say it in days, got "{text}"')
        found_s = duration.micros / 1e6
    if not least_s <= found_s <= MOST_S:
        raise InputError(f'period: must be from {least_s:g} s to {MOST_S / 86_400:g} days, got "{text}"')
    return found_s
