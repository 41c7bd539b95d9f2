"""Ticks as they come due: one run at a time, missed ones coalesce."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.cluster import schedule
from tocsin.rules.model.values import Duration

ANCHOR = datetime(2026, 11, 15, tzinfo=UTC)
SECOND = Duration(micros=1_000_000)


class EndedError(Exception):
    pass


class Clock:
    """Time passes only where somebody sleeps or a run takes it."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at = ANCHOR + timedelta(seconds=at_s)
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        return self.at

    def passes(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.passes(seconds)


async def runs(
    clock: Clock, takes_s: list[float], done: int = 0, period: Duration = SECOND, late_ticks: int = 1
) -> list[tuple[int, float, int]]:
    """(tick, seconds from the anchor, missed) of as many runs as there are times they take."""
    found: list[tuple[int, float, int]] = []

    async def run(tick: int, due: datetime, missed: int) -> None:
        found.append((tick, (due - ANCHOR).total_seconds(), missed))
        clock.passes(takes_s[len(found) - 1])
        if len(found) == len(takes_s):
            raise EndedError

    with pytest.raises(EndedError):
        await schedule.run_ticks(ANCHOR, period, done, run, clock.now, clock.sleep, late_ticks=late_ticks)
    return found


async def test_every_tick_runs_once_at_its_instant() -> None:
    assert await runs(Clock(), [0.1, 0.5, 0.9]) == [(1, 1.0, 0), (2, 2.0, 0), (3, 3.0, 0)]


async def test_a_run_that_takes_too_long_makes_the_missed_ticks_one() -> None:
    assert await runs(Clock(), [3.5, 0.1, 0.1]) == [(1, 1.0, 0), (4, 4.0, 2), (5, 5.0, 0)]


async def test_after_a_pause_the_latest_tick_is_made_up_for_at_once() -> None:
    clock = Clock(at_s=100.25)
    assert await runs(clock, [0.1, 0.1], done=7) == [(100, 100.0, 92), (101, 101.0, 0)]
    assert clock.sleeps == [pytest.approx(0.65)]


async def test_late_ticks_run_one_by_one_each_at_its_own_instant() -> None:
    clock = Clock()
    assert await runs(clock, [3.5, 0.1, 0.1, 0.1, 0.1], late_ticks=3) == [
        (1, 1.0, 0), (2, 2.0, 0), (3, 3.0, 0), (4, 4.0, 0), (5, 5.0, 0),
    ]  # fmt: skip


async def test_ticks_beyond_the_bound_coalesce_with_the_first_that_runs() -> None:
    assert await runs(Clock(), [5.5, 0.1, 0.1, 0.1, 0.1], late_ticks=3) == [
        (1, 1.0, 0), (4, 4.0, 2), (5, 5.0, 0), (6, 6.0, 0), (7, 7.0, 0),
    ]  # fmt: skip


async def test_nothing_runs_twice_when_the_clock_is_set_back() -> None:
    clock = Clock(at_s=5.0)
    assert await runs(clock, [-3.0, 0.1]) == [(5, 5.0, 4), (6, 6.0, 0)]


async def test_nobody_waits_long_without_a_look_at_the_clock() -> None:
    clock = Clock()
    assert await runs(clock, [0.1], period=Duration(micros=3_600_000_000)) == [(1, 3600.0, 0)]
    assert max(clock.sleeps) <= schedule.LONGEST_WAIT_S


async def test_it_ends_with_the_calendar() -> None:
    async def run(_tick: int, _due: datetime, _missed: int) -> None: ...

    clock = Clock()
    clock.at = datetime(9998, 1, 1, tzinfo=UTC)
    await schedule.run_ticks(clock.at, Duration(months=24), 0, run, clock.now, clock.sleep)
