"""Calls a function at every tick of a period.

One call runs at a time. After a long call or a downtime, the newest missed ticks run late, each for its own instant.
The ticks before them coalesce with the first of these and count as missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from tocsin.rules.model.values import Duration
from tocsin.rules.periods import instant, last_tick

# The wall clock may be changed, and machines sleep, so check the clock at least this often.
LONGEST_WAIT_S: Final = 30.0

_RunTick = Callable[[int, datetime, int], Awaitable[None]]
"""Called with the number of the tick, its instant, and how many earlier ticks coalesced with it."""


def _wall_clock() -> datetime:
    return datetime.now(UTC)


async def run_ticks(  # noqa: PLR0917
    anchor: datetime,
    period: Duration,
    done: int,
    run: _RunTick,
    now: Callable[[], datetime] = _wall_clock,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    *,
    late_ticks: int = 1,
) -> None:
    """Calls `run` for every tick after `done` when it is due, until the calendar ends or the task is cancelled. Of the
    ticks that are already due, runs only the newest `late_ticks`.

    An error of `run` ends the schedule, so a `run` that must continue catches its own errors."""
    while True:
        latest = last_tick(anchor, period, now())
        if latest > done:
            tick = max(done + 1, latest - late_ticks + 1)
            due = instant(anchor, period, tick)
            assert due is not None
            missed, done = tick - done - 1, tick
            await run(tick, due, missed)
            continue
        next_due = instant(anchor, period, done + 1)
        if next_due is None:
            return
        await sleep(min(max((next_due - now()).total_seconds(), 0.0), LONGEST_WAIT_S))
