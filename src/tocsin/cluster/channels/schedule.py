"""Runs something at every tick of a period.

One run at a time. Ticks that pass meanwhile, or while nobody was there, are made up for by one run, of the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from tocsin.rules.model.values import Duration
from tocsin.rules.periods import instant, last_tick

# The wall clock may be set, and machines sleep: nobody waits longer than this without looking at it.
LONGEST_WAIT_S: Final = 30.0

Run = Callable[[int, datetime, int], Awaitable[None]]
"""Of a tick, its instant, and how many ticks before it were missed."""


def wall_clock() -> datetime:
    return datetime.now(UTC)


async def keep(  # noqa: PLR0917
    anchor: datetime,
    period: Duration,
    done: int,
    run: Run,
    now: Callable[[], datetime] = wall_clock,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Calls `run` for ticks after `done` as they come due, until the calendar ends or it is cancelled.

    What `run` raises ends it: whoever wants to go on catches that inside.
    """
    while True:
        tick = last_tick(anchor, period, now())
        if tick > done:
            due = instant(anchor, period, tick)
            assert due is not None
            missed, done = tick - done - 1, tick
            await run(tick, due, missed)
            continue
        following = instant(anchor, period, done + 1)
        if following is None:
            return
        await sleep(min(max((following - now()).total_seconds(), 0.0), LONGEST_WAIT_S))
