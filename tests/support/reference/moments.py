"""Calendar arithmetic by the calendar module and plain integers."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, time, timedelta

from tocsin.rules.model.values import Duration

DAY_US = 86_400_000_000


def add(moment: datetime, duration: Duration, sign: int = 1) -> datetime:
    years, month0 = divmod(moment.year * 12 + moment.month - 1 + sign * duration.months, 12)
    day = min(moment.day, calendar.monthrange(years, month0 + 1)[1])
    return moment.replace(year=years, month=month0 + 1, day=day) + timedelta(microseconds=sign * duration.micros)


def add_to_date(day: date, duration: Duration, sign: int = 1) -> date:
    return add(datetime.combine(day, time(), UTC), duration, sign).date()


def micros_of(value: time) -> int:
    return (datetime.combine(date(2000, 1, 1), value) - datetime(2000, 1, 1)) // timedelta(microseconds=1)


def order(duration: Duration) -> tuple[int, int]:
    """A month is 30 days; of equals the one with fewer months comes first."""
    return duration.months * 30 * DAY_US + duration.micros, duration.months


def parts(duration: Duration) -> dict[str, int]:
    """Year, month, day, …, as written in full, each with the duration's sign."""
    month_sign, micro_sign = (-1 if duration.months < 0 else 1), (-1 if duration.micros < 0 else 1)
    years, months = divmod(abs(duration.months), 12)
    whole = timedelta(microseconds=abs(duration.micros))
    hours, rest = divmod(whole.seconds, 3600)
    named = {"day": whole.days, "hour": hours, "minute": rest // 60, "second": rest % 60,
             "millisecond": whole.microseconds // 1000}  # fmt: skip
    return {"year": month_sign * years, "month": month_sign * months} | {k: micro_sign * v for k, v in named.items()}
