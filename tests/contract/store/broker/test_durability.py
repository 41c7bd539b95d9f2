"""What a broker's store has committed outlives closing, full disks, cancellations and backups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.broker_store_contents import all_backends, all_frontends, at, contents, default, people, subscribe
from tests.support.store_backends import StoreBackend, opened
from tocsin.rules.model.cursors import START, Position
from tocsin.store.broker.checks import PERSON_LIMIT
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import EVERYTHING, ApplicationRights, LinkRow, NewBackendRow, SubscriberRow
from tocsin.wire.errors import ConflictError, LimitError, StorageFullError, UnavailableError


async def test_a_new_store_has_one_application_that_may_everything_and_nothing_else(store: BrokerStore) -> None:
    (application,) = await store.applications()
    assert application == replace(
        application, name="default", digest=None, allowed=EVERYTHING, subscribers=0, closed=False
    )
    assert await store.link() == LinkRow(0, Position(0, 0), None)
    assert (await all_backends(store), await all_frontends(store), await store.webhooks()) == ([], [], [])
    assert (await store.revoked_tokens(), await store.fact("key")) == ({}, None)


async def filled(store: BrokerStore) -> None:
    """A little of everything."""
    ann, bob = await people(store, "ann", "bob")
    other = await store.add_application(
        "traffic", ApplicationRights(["v.c"], [], {"subscribers": 3}), digest="d", created_us=2
    )
    await store.add_subscriber(other.id, "ann", password="$", created_us=3)
    await subscribe(store, ann, 3, 1, since=at(1))
    group = await store.add_group(await default(store), "crew", created_us=4)
    await store.add_members(group.id, [ann, bob], created_us=4)
    await store.subscribe_group(group.id, 3, created_us=5)
    await store.record_announcement(Position(7, 40), {3: at(9)})
    await store.acknowledge({(await all_frontends(store))[0].id: at(4, 2)})
    await store.put_webhook(bob, "http://there", "whsec_x", created_us=6)
    await store.record_registration(epoch=7, position=Position(7, 41), secret="whsec_y")
    await store.revoke("token", expires_us=900)
    await store.set_fact("key", "k\u00e9y")


async def test_what_was_written_is_there_after_opening_again(
    backend: StoreBackend[BrokerStore], store: BrokerStore
) -> None:
    await filled(store)
    before = await contents(store)
    assert all(before)
    await store.close()
    async with opened(backend.store()) as again:
        assert await contents(again) == before


async def test_a_backup_holds_one_committed_state_and_overwrites_nothing(
    backend: StoreBackend[BrokerStore], store: BrokerStore, tmp_path: Path
) -> None:
    await filled(store)
    before = await contents(store)
    target = tmp_path / "copy.backup"
    await store.backup_to(target)
    await people(store, "later")
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    async with opened(backend.of_backup(target)) as copy:
        assert await contents(copy) == before


async def test_a_closed_store_says_so(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await store.close()
    await store.close()
    for call in (store.link(), store.acknowledge({1: at(1)}), store.unsubscribe([1]), store.subscriber_by_id(ann)):
        with pytest.raises(UnavailableError, match="not open"):
            await call


async def test_a_store_belongs_to_one_at_a_time(backend: StoreBackend[BrokerStore], store: BrokerStore) -> None:
    second = backend.store()
    with pytest.raises(UnavailableError, match="in use"):
        await second.open()
    await store.set_fact("key", "goes on")
    await store.close()
    await second.open()
    assert await second.fact("key") == "goes on"
    with pytest.raises(RuntimeError, match="open already"):
        await second.open()
    await second.close()


async def test_closing_waits_for_what_runs(backend: StoreBackend[BrokerStore], store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    running = [asyncio.create_task(store.acknowledge({held.id: at(n)})) for n in (1, 2)]
    running.append(asyncio.create_task(store.set_fact("key", "kept")))
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*running)
    async with opened(backend.store()) as again:
        assert ((await all_frontends(again))[0].marker, await again.fact("key")) == (at(2), "kept")


async def test_a_full_disk_is_said_clearly_and_loses_nothing(small_store: BrokerStore) -> None:
    store = small_store
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    before = await contents(store)
    wide = [NewBackendRow(n, "v.c", f"[{n}]" + " " * 50_000, "s", START) for n in range(2, 60)]
    with pytest.raises(StorageFullError):
        await store.subscribe([], backends=wide, created_us=1)
    assert await contents(store) == before
    await store.acknowledge({held.id: at(3)})
    assert (await all_frontends(store))[0].marker == at(3)


async def test_a_cancellation_leaves_all_or_nothing_and_frees_the_store(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    task = asyncio.create_task(subscribe(store, ann, 1, 2, 3))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await all_frontends(store)) in {0, 3}
    await subscribe(store, ann, 1, 2, 3)
    assert len(await all_frontends(store)) == 3


async def test_writes_that_wait_together_take_effect_in_order_and_fail_alone(store: BrokerStore) -> None:
    application = await default(store)
    made = [
        store.add_subscriber(application, user, password="#", created_us=1)
        for user in ("ann", "ann", "bob", "x" * (PERSON_LIMIT + 1), "cid")
    ]
    outcomes = await asyncio.gather(*made, return_exceptions=True)
    assert [type(each) for each in outcomes] == [SubscriberRow, ConflictError, SubscriberRow, LimitError, SubscriberRow]
    assert [each.user for each in await store.subscribers(application)] == ["ann", "bob", "cid"]
    assert (await store.applications())[0].subscribers == 3
