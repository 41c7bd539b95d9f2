"""Time as whole microseconds since 1970 (`_us`), as stores, logs and messages have it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """The wall clock. What is deleted by age goes by the clock guard instead."""
    return time.time_ns() // 1_000


def to_us(at: datetime) -> int:
    """Whole microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_us(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
