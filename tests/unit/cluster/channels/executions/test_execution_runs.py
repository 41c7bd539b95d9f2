"""What executions ask the engine: in time, and alone where that is wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.support.waiting import WITHIN_S
from tocsin.cluster.channels.executions.execution_runs import ExecutionRuns, SparkQuestion
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.shared_lock import SharedLock
from tocsin.wire.errors import DeadlineError, UnavailableError


class FakeEngine:
    """Work is carried out on a thread, until it ends or is cancelled."""

    def __init__(self) -> None:
        self.deadlines: list[float | None] = []
        self.alone_asked: list[bool] = []
        self.ran_alone: list[bool] = []
        self.ended: list[str] = []
        self.error: Exception | None = None
        self.looks = 0
        self.alive_from = 0  # how many looks find it gone
        self.trouble: Callable[[], str | None] = lambda: None

    def is_alive(self) -> bool:
        self.looks += 1
        return self.looks > self.alive_from

    async def pause(self, _seconds: float) -> None:
        await asyncio.sleep(0)

    @asynccontextmanager
    async def alone(self, *, is_clear: bool) -> AsyncIterator[None]:
        self.alone_asked.append(is_clear)
        yield

    async def execution(
        self, work: Callable[[], Any], what: str, *, deadline_s: float | None = None, is_alone: bool = False
    ) -> Any:
        self.deadlines.append(deadline_s)
        self.ran_alone.append(is_alone)
        if self.error is not None:
            raise self.error
        try:
            return await asyncio.to_thread(work)
        finally:
            self.ended.append(what)


def runs_of(engine: FakeEngine, deadline_s: float = 5.0) -> ExecutionRuns:
    return ExecutionRuns(cast("Engine", engine), deadline_s)


async def test_every_question_of_an_execution_has_the_deadline() -> None:
    engine = FakeEngine()

    def execute(ask: SparkQuestion) -> int:
        return ask(lambda: 1) + ask(lambda: 2, alone=True)

    assert await runs_of(engine).lead(execute, "c") == 3
    assert engine.deadlines == [5.0, 5.0]
    assert (engine.ran_alone, engine.alone_asked) == ([False, True], [True])


async def test_only_a_hurried_question_runs_beside_tasks_that_earlier_ones_left() -> None:
    engine = FakeEngine()
    await runs_of(engine).lead(lambda ask: ask(lambda: 1, alone=True, deadline_s=2.0), "c")
    assert engine.alone_asked == [False]


async def test_a_question_may_have_a_shorter_deadline_and_no_longer_one() -> None:
    engine = FakeEngine()
    await runs_of(engine).lead(lambda ask: [ask(lambda: 1, deadline_s=seconds) for seconds in (2.0, 9.0)], "c")
    assert engine.deadlines == [2.0, 5.0]


async def test_an_engine_that_is_being_replaced_is_waited_for() -> None:
    engine, troubles = FakeEngine(), ["it does not answer"]
    engine.alive_from = 2
    engine.trouble = lambda: troubles.pop() if troubles else None
    assert await runs_of(engine).lead(lambda ask: ask(lambda: 1), "c") == 1
    assert engine.looks == 3
    assert not troubles


async def test_an_overrun_is_want_of_time_and_a_lost_engine_is_not() -> None:
    engine = FakeEngine()
    for error in (DeadlineError("late"), UnavailableError("gone")):
        engine.error = error
        with pytest.raises(type(error)):
            await runs_of(engine).lead(lambda ask: ask(lambda: 1), "c")


async def test_what_runs_alone_waits_for_others_and_they_for_it_each_in_turn() -> None:
    lock, order = SharedLock(), []
    go = {name: asyncio.Event() for name in "abcd"}

    async def hold(name: str, alone: bool) -> None:
        async with lock.acquire(alone=alone):
            order.append(name)
            await go[name].wait()

    async def settled() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    tasks = []
    for name, alone in (("a", False), ("b", False), ("c", True), ("d", False)):
        tasks.append(asyncio.create_task(hold(name, alone)))
        await settled()
    assert order == ["a", "b"]
    go["a"].set()
    await settled()
    assert order == ["a", "b"], "one of the others still runs"
    go["b"].set()
    await settled()
    assert order == ["a", "b", "c"], "it runs by itself, and before those that came later"
    go["c"].set()
    go["d"].set()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "d"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_turn_that_is_not_waited_for_any_more_holds_nobody_up(alone: bool) -> None:
    lock = SharedLock()

    async def hold() -> None:
        async with lock.acquire(alone=alone):
            pass

    async with lock.acquire(alone=True):
        waiting = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(WITHIN_S):
        await hold()


async def test_a_cancelled_execution_has_ended_when_the_cancellation_returns() -> None:
    engine, began, go = FakeEngine(), threading.Event(), threading.Event()
    ended: list[str] = []

    def wait() -> None:
        began.set()
        go.wait(60)

    def execute(ask: SparkQuestion) -> None:
        try:
            ask(wait)
            ask(lambda: ended.append("asked again"))
        finally:
            ended.append("execution")

    task = asyncio.create_task(runs_of(engine).lead(execute, "c"))
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["execution"]
    assert engine.ended == ["c"]
    go.set()
