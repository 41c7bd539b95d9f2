"""Runs something at every tick of a period.

One run at a time. Of the ticks that passed meanwhile, or while the process was down, the newest are run late, each at
its own instant; the ones before these coalesce with the first of them, and are counted as missed.
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
"""Of a tick, its instant, and how many ticks before it coalesced with it."""


def wall_clock() -> datetime:
    return datetime.now(UTC)


async def keep(  # noqa: PLR0917
    anchor: datetime,
    period: Duration,
    done: int,
    run: Run,
    now: Callable[[], datetime] = wall_clock,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    *,
    late_ticks: int = 1,
) -> None:
    """Calls `run` for ticks after `done` as they come due, until the calendar ends or it is cancelled. Of those that
    are due already it runs the newest `late_ticks`.

    What `run` raises ends it: whoever wants to go on catches that inside.
    """
    while True:
        latest = last_tick(anchor, period, now())
        if latest > done:
            tick = max(done + 1, latest - late_ticks + 1)
            due = instant(anchor, period, tick)
            assert due is not None
            missed, done = tick - done - 1, tick
            await run(tick, due, missed)
            continue
        following = instant(anchor, period, done + 1)
        if following is None:
            return
        await sleep(min(max((following - now()).total_seconds(), 0.0), LONGEST_WAIT_S))
