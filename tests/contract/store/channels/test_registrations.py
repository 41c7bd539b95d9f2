"""Brokers that are told of news: their secrets, owners and positions."""

from __future__ import annotations

import pytest

from tests.support.store_backends import StoreBackend, opened
from tests.support.stored_channel import EAST, WEST, StoredChannel, new_heads_of
from tocsin.rules.model.cursors import Cursor, Position
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName
from tocsin.wire.errors import FencedError, NotFoundError


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
    assert [registration.broker for registration in await store.registrations()] == [EAST, WEST]
    with pytest.raises(NotFoundError):
        await store.renew_secret(BrokerName("Default", "nobody"), "x")


async def test_a_brokers_position_goes_neither_back_nor_beyond_what_was_committed(
    store: ChannelStore, channel: StoredChannel
) -> None:
    start = (await store.register(EAST, "s", owner=None)).position
    (one,) = await channel.subscribe("[1]")
    reached = await channel.run({one: ["a", "b"]})
    assert await store.record_position(EAST, reached) == reached
    assert await store.record_position(EAST, start) == reached
    assert await store.record_position(EAST, Position(store.epoch, 10**30)) == reached
    await store.renew_epoch()
    assert await store.record_position(EAST, Position(store.epoch + 1, 10**6)) == reached
    later = await channel.run({one: ["c"]})
    assert await new_heads_of(store, (await store.registrations())[0].position, EAST) == {
        one: Cursor(store.epoch, 2, 0)
    }
    assert await store.record_position(EAST, later) == later
    with pytest.raises(NotFoundError):
        await store.record_position(WEST, later)


async def test_a_broker_that_is_forgotten_takes_its_subscriptions_along(
    store: ChannelStore, channel: StoredChannel
) -> None:
    other = StoredChannel(store, await store.add_channel())
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


# --- generations


async def claimed(store: ChannelStore, by: str, had: Position | None = None, *, starts: bool = True) -> Position:
    given = (await store.claim(EAST, BrokerClaim(by, had, starts), f"secret of {by}")).generation
    assert given is not None
    return given


async def test_each_start_is_a_greater_generation_and_one_that_goes_on_keeps_its_own(store: ChannelStore) -> None:
    with pytest.raises(NotFoundError):
        await claimed(store, "a")
    assert (await store.register(EAST, "s", owner=None)).generation is None
    first = await claimed(store, "a")
    second = await claimed(store, "a", first)
    assert second > first
    assert await claimed(store, "a", second, starts=False) == second
    # The answer was lost with the process: the store knows the one before.
    assert await claimed(store, "a", first) > second
    kept = await store.registration(EAST)
    assert kept is not None
    assert (kept.holder, kept.secret) == ("a", "secret of a")


async def test_a_store_without_a_generation_takes_the_name_and_the_older_one_does_not_get_it_back(
    store: ChannelStore,
) -> None:
    await store.register(EAST, "s", owner=None)
    older = await claimed(store, "a")
    newer = await claimed(store, "b")
    kept = await store.registration(EAST)
    assert kept is not None
    assert (newer > older, kept.secret) == (True, "secret of b")
    for starts in (True, False):
        with pytest.raises(FencedError):
            await claimed(store, "a", older, starts=starts)
    assert await claimed(store, "b", newer, starts=False) == newer
    # Somebody decides otherwise: it becomes another store.
    again = await claimed(store, "c")
    with pytest.raises(FencedError):
        await claimed(store, "b", newer)
    assert again > newer


async def test_after_a_restore_of_the_cluster_generations_are_greater_than_those_it_has_forgotten(
    store: ChannelStore,
) -> None:
    await store.register(EAST, "s", owner=None)
    before = await claimed(store, "a")
    forgotten = Position(before.epoch, before.number + 7)  # given after the backup
    await store.renew_epoch()
    kept = await store.registration(EAST)
    assert kept is not None
    assert (kept.generation, kept.holder) == (before, None)
    after = await claimed(store, "b", forgotten, starts=False)
    assert after > forgotten
    with pytest.raises(FencedError):
        await claimed(store, "a", before, starts=False)
