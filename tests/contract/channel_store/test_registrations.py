"""Brokers that are told of news: their secrets, owners and positions."""

from __future__ import annotations

import pytest

from tests.contract.channel_store.channel import EAST, WEST, Channel, news_of
from tests.contract.stores import StoreBackend, opened
from tocsin.rules.model.cursors import Cursor, Position
from tocsin.store.channel_rows import Broker
from tocsin.store.channel_store import ChannelStore
from tocsin.wire.errors import NotFoundError


async def test_a_broker_keeps_its_first_secret_and_owner_until_they_are_renewed(store: ChannelStore) -> None:
    made = await store.register(EAST, "first", owner=None)
    assert (made.secret, made.owner, made.position) == ("first", None, await store.position())
    assert (await store.register(EAST, "second", owner="ada")).secret == "first"
    assert (await store.register(EAST, "third", owner="bob")).owner == "ada"
    await store.renew_secret(EAST, "new")
    kept = await store.registration(EAST)
    assert kept is not None
    assert (kept.secret, kept.owner) == ("new", "ada")
    assert "new" not in repr(kept)
    await store.register(WEST, "x", owner=None)
    assert [one.broker for one in await store.registrations()] == [EAST, WEST]
    with pytest.raises(NotFoundError):
        await store.renew_secret(Broker("Default", "nobody"), "x")


async def test_a_brokers_position_goes_neither_back_nor_beyond_what_was_committed(
    store: ChannelStore, channel: Channel
) -> None:
    start = (await store.register(EAST, "s", owner=None)).position
    (one,) = await channel.subscribe("[1]")
    reached = await channel.run({one: ["a", "b"]})
    assert await store.told(EAST, reached) == reached
    assert await store.told(EAST, start) == reached
    assert await store.told(EAST, Position(store.epoch, 10**30)) == reached
    await store.renew_epoch()
    assert await store.told(EAST, Position(store.epoch + 1, 10**6)) == reached
    later = await channel.run({one: ["c"]})
    assert await news_of(store, (await store.registrations())[0].position, EAST) == {one: Cursor(store.epoch, 2, 0)}
    assert await store.told(EAST, later) == later
    with pytest.raises(NotFoundError):
        await store.told(WEST, later)


async def test_a_broker_that_is_forgotten_takes_its_subscriptions_along(store: ChannelStore, channel: Channel) -> None:
    other = Channel(store, await store.add_channel())
    await store.register(EAST, "s", owner=None)
    await channel.subscribe(*(f"[{n}]" for n in range(50)))
    await other.subscribe("[1]")
    (kept,) = await channel.subscribe("[7]", broker=WEST)
    await store.unregister(EAST)
    await store.unregister(EAST)
    assert await store.registration(EAST) is None
    assert await store.subscriptions_of(EAST) == []
    assert [each.interest for each in await store.subscriptions(channel.id)] == [kept]
    assert (await store.state(other.id)).interests == 0


async def test_registrations_outlive_a_restart(backend: StoreBackend[ChannelStore], store: ChannelStore) -> None:
    made = await store.register(EAST, "s", owner="ada")
    await store.close()
    async with opened(backend.store()) as again:
        assert await again.registrations() == [made]
