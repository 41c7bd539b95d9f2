"""When records of a feed's log land: at once, unless few come all the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.feeds.landing import LandableBatch
from tocsin.cluster.feeds.landing_worker import LandingWorker
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.intake.log import IntakeLog


class FakeTarget:
    counted = True
    position = 0
    halted = False
    asks_spark = False
    dataset = Ref("dataset", "v", "D")

    def __init__(self) -> None:
        self.batches: list[int] = []

    def land(self, entries: Sequence[LandableBatch]) -> int:
        self.batches.append(entries[-1].end - self.position)
        self.position = entries[-1].end
        return self.position


class FakeEngine:
    async def land(self, work: Callable[[], Any], _what: str, *, asks_spark: bool) -> Any:
        return work()


@dataclass(slots=True)
class LandingHarness:
    log: IntakeLog
    target: FakeTarget
    worker: LandingWorker
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def landed(self, position: int) -> None:
        async with asyncio.timeout(WITHIN_S), self.moved:
            await self.moved.wait_for(lambda: self.target.position >= position)


@asynccontextmanager
async def harness(folder: Path, limits: FeedLimits = USUAL_LIMITS) -> AsyncIterator[LandingHarness]:
    log, target = IntakeLog.open(folder), FakeTarget()

    async def changed() -> None:
        async with made.moved:
            made.moved.notify_all()

    worker = LandingWorker(
        "F",
        log,
        target,
        cast("Any", FakeEngine()),
        counts=FeedCounts(),
        landed=lambda: None,
        changed=changed,
        limits=limits,
    )
    made = LandingHarness(log, target, worker)
    worker.start()
    try:
        yield made
    finally:
        await worker.end()
        await log.close()


ENDLESS_RESTS = FeedLimits(rest=1e12, longest_rest_s=1e6)


async def test_what_comes_while_landing_rests_lands_together_once_somebody_waits_for_it(tmp_path: Path) -> None:
    async with harness(tmp_path / "log", ENDLESS_RESTS) as made:
        await made.log.append(b"x", 1)
        await made.landed(1)
        for _ in range(3):
            await made.log.append(b"x", 1)
        assert made.target.batches == [1]
        made.worker.hurry()
        await made.landed(4)
        assert made.target.batches == [1, 3]
        await made.log.append(b"x", 1)
        assert made.target.batches == [1, 3], "it rests again: hurrying was for once"


async def test_landing_does_not_rest_while_many_records_wait(tmp_path: Path) -> None:
    async with harness(tmp_path / "log", replace(ENDLESS_RESTS, batch_rows=2_000)) as made:
        await asyncio.gather(*(made.log.append(b"x", 1_000) for _ in range(7)))
        await made.landed(6_000)


async def test_a_rest_ends_by_itself(tmp_path: Path) -> None:
    async with harness(tmp_path / "log") as made:
        for number in range(1, 6):
            await made.log.append(b"x", 1)
            await made.landed(number)
        assert made.target.batches == [1] * 5
