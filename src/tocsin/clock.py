"""Time as whole microseconds since 1970 (`_us`), as stores, logs and messages have it.

Whole numbers compare and sum exactly; a float of seconds loses microseconds in this century.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

STEP_US: Final = 3600 * 1_000_000
"""The wall clock is suspect if it moved by more than this against the clock since boot."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """The wall clock. What is deleted by age goes by the clock guard instead."""
    return time.time_ns() // 1_000


def to_us(at: datetime) -> int:
    """Whole microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def span_us(seconds: float) -> int:
    """Returns a span of seconds in whole microseconds."""
    return int(seconds * 1e6)


def from_us(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


def since_boot_us() -> int:
    """The time since boot, sleep included, which nobody can set."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000


class AgeClock:
    """The time that a broker measures ages by; call it for the time. It stands still while the wall clock is suspect:
    what is deleted for its age is gone when the clock is right again. Thread-safe.

    The cluster remembers more about its clock, and an operator can accept it (`clock_guard`). A broker has less to
    delete: a restart accepts its clock.
    """

    def __init__(
        self,
        wall_us: Callable[[], int] = now_us,
        boot_us: Callable[[], int] = since_boot_us,
        on_change: Callable[[bool], None] = lambda _is_suspect: None,
    ) -> None:
        """`on_change` is called with whether the clock is suspect from now on."""
        self._wall_us = wall_us
        self._boot_us = boot_us
        self._on_change = on_change
        self._lock = threading.Lock()
        self._believed_us, self._believed_boot_us = wall_us(), boot_us()
        self._is_suspect = False

    def __call__(self) -> int:
        with self._lock:
            wall_us, boot_us = self._wall_us(), self._boot_us()
            is_suspect = abs(wall_us - self._believed_us - boot_us + self._believed_boot_us) > STEP_US
            if is_suspect != self._is_suspect:
                self._is_suspect = is_suspect
                self._on_change(is_suspect)
            if not is_suspect:
                self._believed_us, self._believed_boot_us = wall_us, boot_us
            return min(wall_us, self._believed_us) if is_suspect else wall_us
