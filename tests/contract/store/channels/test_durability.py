"""What the channels' store has committed outlives closing, full disks, cancellations and backups."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.store_backends import StoreBackend, opened
from tests.support.stored_channel import StoredChannel
from tocsin.rules.model.cursors import START, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.wire.errors import ConflictError, StorageFullError, UnavailableError


async def test_what_was_written_is_there_after_opening_again(
    backend: StoreBackend[ChannelStore], channel: StoredChannel
) -> None:
    store = channel.store
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a", "b"]}, tick_us=77, details={"new": 3})
    before = await store.state(channel.id), await store.executions(channel.id), store.epoch
    pairs = await channel.pairs(interest)
    await store.close()
    async with opened(backend.store()) as again:
        assert (await again.state(channel.id), await again.executions(channel.id), again.epoch) == before
        assert await StoredChannel(again, channel.id).pairs(interest) == pairs
        assert before[0].vector == {"d": 1}
        assert before[0].tick_us == 77


async def test_a_full_disk_is_said_clearly_and_loses_nothing(small_store: ChannelStore) -> None:
    store = small_store
    channel = StoredChannel(store, await store.add_channel())
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["kept"]})
    with pytest.raises(StorageFullError, match="no room"):
        await channel.run({interest: [f"{n}" * 100_000 for n in range(100)]})
    state = await store.state(channel.id)
    assert (state.last_execution, state.results) == (1, 1)
    channel.last = 1
    await channel.run({interest: ["next"]})
    assert await channel.texts(interest) == ["kept", "next"]


async def test_a_closed_store_says_so(store: ChannelStore, channel: StoredChannel) -> None:
    await store.close()
    await store.close()
    for ask in (store.state(channel.id), store.add_channel(), store.position(), anext(store.fetch([Range(1, START)]))):
        with pytest.raises(UnavailableError, match="not open"):
            await ask
    with pytest.raises(UnavailableError, match="not open"):
        _ = store.epoch
    await store.open()
    assert await store.channel_ids() == [channel.id]


async def test_a_cancellation_leaves_all_or_nothing_and_frees_the_store(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    for steps in range(20):
        task = asyncio.create_task(channel.run({interest: ["a", "b"]}))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        channel.last = (await store.state(channel.id)).last_execution
        assert await channel.texts(interest) == ["a", "b"] * channel.last


async def test_readers_do_not_wait_for_a_long_commit(store: ChannelStore, channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["seen"]})
    commit = asyncio.create_task(channel.run({interest: [f"{n}" for n in range(50_000)]}))
    reads = 0
    while not commit.done():
        state = await store.state(channel.id)
        assert (state.last_execution, state.results) in ((1, 1), (2, 50_001))
        reads += state.last_execution == 1
    await commit
    assert reads > 1, "every read waited for the commit"


async def test_a_backup_holds_one_committed_state(
    backend: StoreBackend[ChannelStore], store: ChannelStore, channel: StoredChannel, tmp_path: Path
) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(100)))
    await channel.run({interest: ["x" * 1000] for interest in interests})
    target = tmp_path / "copy.backup"
    commit = asyncio.create_task(channel.run({interest: ["y"] for interest in interests}))
    await store.backup_to(target)
    await commit
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    async with opened(backend.of_backup(target)) as copy:
        state = await copy.state(channel.id)
        assert (state.last_execution, state.results) in ((1, 100), (2, 200))
        assert (await store.state(channel.id)).results == 200
