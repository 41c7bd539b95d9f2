"""Many share the lock, or one has it alone, in order of arrival."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.cluster.shared_lock import SharedLock


async def test_many_work_at_the_same_time() -> None:
    lock = SharedLock()
    async with lock.acquire(alone=False), lock.acquire(alone=False):
        pass


async def test_nobody_begins_while_it_is_still_and_it_is_not_while_somebody_works() -> None:
    lock, order = SharedLock(), []
    begun, look = asyncio.Event(), asyncio.Event()

    async def work(name: str) -> None:
        async with lock.acquire(alone=False):
            order.append(f"{name} begins")
            begun.set()
            await look.wait()
            order.append(f"{name} ends")

    async def hold() -> None:
        async with lock.acquire(alone=True):
            order.append("still")

    first = asyncio.create_task(work("first"))
    await begun.wait()
    holding = asyncio.create_task(hold())
    await asyncio.sleep(0)
    second = asyncio.create_task(work("second"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["first begins"]
    look.set()
    await asyncio.gather(first, holding, second)
    assert order == ["first begins", "first ends", "still", "second begins", "second ends"]


async def test_who_gives_up_waiting_for_stillness_leaves_nothing_behind() -> None:
    lock = SharedLock()
    async with lock.acquire(alone=False):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), lock.acquire(alone=True):
                pass
        async with lock.acquire(alone=False):
            pass
    async with lock.acquire(alone=True):
        pass
