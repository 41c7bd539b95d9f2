"""Landings are held off while a backup looks, and a backup waits for those that have begun."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.cluster.feeds.backup_barrier import BackupBarrier


async def test_many_work_at_the_same_time() -> None:
    still = BackupBarrier()
    async with still.working(), still.working():
        pass


async def test_nobody_begins_while_it_is_still_and_it_is_not_while_somebody_works() -> None:
    backup_barrier, order = BackupBarrier(), []
    begun, look = asyncio.Event(), asyncio.Event()

    async def work(name: str) -> None:
        async with backup_barrier.working():
            order.append(f"{name} begins")
            begun.set()
            await look.wait()
            order.append(f"{name} ends")

    async def hold() -> None:
        async with backup_barrier.still():
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
    backup_barrier = BackupBarrier()
    async with backup_barrier.working():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), backup_barrier.still():
                pass
        async with backup_barrier.working():
            pass
    async with backup_barrier.still():
        pass
