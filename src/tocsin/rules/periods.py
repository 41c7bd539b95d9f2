"""Computes the instants at which a periodic task is due, counted from an anchor.

    tick k is due at anchor + k · period, k = 1, 2, …

Every instant is counted from the anchor and not from the previous instant, so that nothing drifts. Months are calendar
months: a month after January 31 is the last day of February, and two months after it is March 31.
"""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta
from typing import Final

from tocsin.rules.model.values import Duration, parse_duration

_SHORTEST: Final = Duration(micros=100_000)
_LONGEST_YEARS: Final = 100


def parse_period(text: str) -> Duration:
    """Parses a period as a script writes it. The ValueError says what was expected."""
    return check_period(parse_duration(text))


def check_period(period: Duration) -> Duration:
    if period.months < 0 or period.micros < 0:
        raise ValueError("a period goes forward: no part of it can be negative")
    if period.months == 0 and period.micros < _SHORTEST.micros:
        raise ValueError('a period is at least a tenth of a second: "PT0.1S"')
    days = period.micros / 86_400_000_000
    if period.months / 12 + days / 366 > _LONGEST_YEARS:
        raise ValueError(f"a period is at most {_LONGEST_YEARS} years")
    return period


def instant(anchor: datetime, period: Duration, tick: int) -> datetime | None:
    """When the tick is due; None if that is beyond the year 9999."""
    months = anchor.year * 12 + anchor.month - 1 + tick * period.months
    year, month = divmod(months, 12)
    try:
        day = min(anchor.day, calendar.monthrange(year, month + 1)[1])
        return anchor.replace(year=year, month=month + 1, day=day) + timedelta(microseconds=tick * period.micros)
    except (OverflowError, ValueError):
        return None


def last_tick(anchor: datetime, period: Duration, now: datetime) -> int:
    """The latest tick that is due; 0 if none is due yet."""
    low, high = 0, 1
    while _is_due(anchor, period, high, now):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _is_due(anchor, period, middle, now):
            low = middle
        else:
            high = middle
    return low


def _is_due(anchor: datetime, period: Duration, tick: int, now: datetime) -> bool:
    due = instant(anchor, period, tick)
    return due is not None and due <= now
