"""Blocking work that is stopped, waited for, or given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tocsin.cluster.engine.work_threads import WorkThreads
from tocsin.wire.errors import DeadlineError, LimitError


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


class Deaf:
    """Work that ends only when the test lets it, and ignores requests to stop."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let = threading.Event()
        self.stops = 0
        self.is_given_up = False

    def __call__(self) -> str:
        self.began.set()
        self.let.wait()
        return "done"

    def stop(self) -> bool:
        self.stops += 1
        return True

    def give_up(self) -> None:
        self.is_given_up = True


async def test_work_past_its_deadline_that_cannot_be_stopped_is_given_up(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.01), Deaf()
    with pytest.raises(DeadlineError, match=r"within 0\.01 s"):
        await threads.carry_out(pool, deaf, stop=deaf.stop, give_up=deaf.give_up, deadline_s=0.01)
    assert (threads.lost, deaf.stops, deaf.is_given_up) == (1, 1, True)
    deaf.let.set()
    while threads.lost:
        await asyncio.sleep(0)


async def test_work_that_ends_when_told_to_is_not_lost(pool: ThreadPoolExecutor) -> None:
    threads, told = WorkThreads(give_up_s=60), threading.Event()

    def stop() -> bool:
        told.set()
        return True

    def work() -> None:
        told.wait()
        raise ValueError("stopped")

    with pytest.raises(DeadlineError):
        await threads.carry_out(pool, work, stop=stop, deadline_s=0.01)
    assert threads.lost == 0


async def test_work_that_is_done_after_all_when_it_is_stopped_is_an_answer(pool: ThreadPoolExecutor) -> None:
    deaf = Deaf()

    def stop() -> bool:
        deaf.let.set()
        return True

    assert await WorkThreads(60).carry_out(pool, deaf, stop=stop, deadline_s=0.01) == "done"


async def test_a_deadline_begins_when_the_work_does() -> None:
    with ThreadPoolExecutor(1) as pool:
        threads, first = WorkThreads(60), Deaf()
        before = asyncio.create_task(threads.carry_out(pool, first, stop=lambda: True))
        behind = asyncio.create_task(threads.carry_out(pool, lambda: "mine", stop=lambda: True, deadline_s=5))
        _, waiting = await asyncio.wait((before, behind), timeout=0.05)
        assert len(waiting) == 2
        first.let.set()
        assert (await before, await behind) == ("done", "mine")


async def test_a_caller_who_is_cancelled_gets_away_from_work_that_hears_nothing(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.01), Deaf()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.carry_out(pool, deaf, stop=deaf.stop, give_up=deaf.give_up)
    assert (threads.lost, deaf.is_given_up) == (1, True)
    deaf.let.set()


async def test_work_that_may_not_be_given_up_is_waited_for_and_its_result_is_told(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.0), Deaf()
    task = asyncio.create_task(threads.carry_out(pool, deaf, stop=lambda: False, keep_result=True))
    await asyncio.to_thread(deaf.began.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    deaf.let.set()
    assert await task == "done"
    assert threads.lost == 0


async def test_lost_threads_of_an_engine_that_is_gone_are_forgotten(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.0), Deaf()
    with pytest.raises(DeadlineError):
        await threads.carry_out(pool, deaf, stop=lambda: True, deadline_s=0.01)
    threads.forget_lost()
    assert threads.lost == 0
    deaf.let.set()


async def test_an_asker_whose_work_could_not_be_stopped_gets_no_more_until_it_ends(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.0), Deaf()

    async def ask(asker: str) -> None:
        with threads.asked_by(asker), pytest.raises(DeadlineError):
            await threads.carry_out(pool, deaf, stop=deaf.stop, deadline_s=0.01)

    await asyncio.gather(ask("ann"), ask("ann"))
    assert (threads.lost, threads.lost_askers, threads.lost_of(pool)) == (2, 1, 2), "one asker counts once"
    with pytest.raises(LimitError, match="earlier statement of ann could not be stopped and still runs") as refused:
        await ask("ann")
    assert refused.value.status == 429
    assert refused.value.details["retry_after_s"] > 0
    with threads.asked_by("bob"):
        pass
    deaf.let.set()
    while threads.lost:
        await asyncio.sleep(0)
    with threads.asked_by("ann"):
        assert await threads.carry_out(pool, lambda: "mine", stop=deaf.stop) == "mine"


async def test_work_of_a_task_that_an_asker_started_for_good_is_nobodys(pool: ThreadPoolExecutor) -> None:
    threads, deaf = WorkThreads(give_up_s=0.0), Deaf()
    with threads.asked_by("ann"):
        own = [asyncio.create_task(threads.carry_out(pool, deaf, stop=deaf.stop, deadline_s=0.01)) for _ in range(2)]
        await asyncio.wait(own)
    assert all(isinstance(task.exception(), DeadlineError) for task in own)
    assert (threads.lost, threads.lost_askers) == (2, 2)
    with threads.asked_by("ann"):
        pass
    threads.forget_lost()
    deaf.let.set()
