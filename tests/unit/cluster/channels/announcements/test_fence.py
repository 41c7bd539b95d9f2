"""A newer broker is answered when nothing of an older one goes on any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from tocsin.cluster.channels.announcements.brokers import BrokerFence
from tocsin.rules.model.cursors import Position
from tocsin.store.channels.rows import BrokerClaim, BrokerName
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.wire.errors import FencedError

EAST, WEST = BrokerName("v", "east"), BrokerName("v", "west")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteChannelStore]:
    made = SqliteChannelStore(tmp_path / "channels.db")
    await made.open()
    for broker in (EAST, WEST):
        await made.register(broker, "s", owner=None)
    yield made
    await made.close()


async def claimed(fence: BrokerFence, by: str, broker: BrokerName = EAST) -> Position:
    given = (await fence.claim(broker, BrokerClaim(by, None, True), by)).generation
    assert given is not None
    return given


async def test_a_claim_waits_for_what_an_older_broker_has_begun_to_change(store: SqliteChannelStore) -> None:
    fence = BrokerFence(store)
    older, other = await claimed(fence, "a"), await claimed(fence, "w", WEST)
    go_on = asyncio.Event()

    async def change(broker: BrokerName, generation: Position) -> None:
        async with fence.change(broker, generation):
            await go_on.wait()

    changes = [asyncio.create_task(change(EAST, older)), asyncio.create_task(change(WEST, other))]
    await asyncio.sleep(0)
    newer = asyncio.create_task(claimed(fence, "b"))

    async def is_refused() -> bool:
        try:
            await fence.check(EAST, older)
        except FencedError:
            return True
        return False

    while not await is_refused():
        await asyncio.sleep(0)
    with pytest.raises(FencedError):
        await change(EAST, older)
    assert not newer.done()
    go_on.set()
    await fence.check(EAST, await newer)
    await asyncio.gather(*changes)


async def test_a_change_that_is_cancelled_holds_up_nobody(store: SqliteChannelStore) -> None:
    fence = BrokerFence(store)
    older = await claimed(fence, "a")

    async def change() -> None:
        async with fence.change(EAST, older):
            await asyncio.Event().wait()

    task = asyncio.create_task(change())
    await asyncio.sleep(0)
    newer = asyncio.create_task(claimed(fence, "b"))
    task.cancel()
    await until(newer.done)
    assert newer.result() > older


async def test_what_is_known_of_generations_outlives_the_process(store: SqliteChannelStore) -> None:
    older = await claimed(BrokerFence(store), "a")
    newer = await claimed(BrokerFence(store), "b")
    again = BrokerFence(store)
    with pytest.raises(FencedError):
        await again.check(EAST, older)
    await again.check(EAST, newer)
