"""Brokers made by statement, in a cluster without Spark behind its real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sparkless_process import opened
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest, BrokerName
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.wire.errors import ConflictError

EAST = BrokerName("v", "east")


async def registered(data: Path) -> list[BrokerName]:
    store: ChannelStore = SqliteChannelStore(data / "channels.db")
    await store.open()
    try:
        return [registration.broker for registration in await store.registrations()]
    finally:
        await store.close()


async def test_a_broker_made_by_statement_is_registered_and_goes_with_it(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run('CREATE DATAVERSE v; CREATE BROKER v.east AT "http://127.0.0.1:1/";')
        await parts.run('CREATE BROKER v.east IF NOT EXISTS AT "http://127.0.0.1:2/";')
        with pytest.raises(ConflictError):
            await parts.run('CREATE BROKER v.east AT "http://127.0.0.1:2/";')
    assert await registered(data_dir) == [EAST]
    async with opened(data_dir) as parts:
        await parts.run("DROP BROKER v.east;")
    assert await registered(data_dir) == []
    async with opened(data_dir) as parts:
        await parts.run('CREATE BROKER v.east AT "http://127.0.0.1:1/"; DROP DATAVERSE v;')
    assert await registered(data_dir) == []


async def test_a_broker_with_subscriptions_is_not_dropped_alone(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run('CREATE DATAVERSE v; CREATE DATAVERSE w; CREATE BROKER v.east AT "http://127.0.0.1:1/";')
        channel = await subscribed(parts.channel_store, EAST)
        with pytest.raises(ConflictError, match="has subscriptions"):
            await parts.run("DROP BROKER v.east;")
        # A dataverse goes with all that is in it, also what that holds elsewhere.
        await parts.run("DROP DATAVERSE v;")
        assert (await parts.channel_store.state(channel)).subscriptions == 0


async def subscribed(store: ChannelStore, broker: BrokerName) -> int:
    channel = await store.add_channel()
    await store.subscribe(channel, [BackendRequest("[1]", broker)], created_us=1)
    return channel
