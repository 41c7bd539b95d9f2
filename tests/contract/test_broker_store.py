"""What every backend of the broker's store promises (src/tocsin/store/broker_store.py), tried on each.

Another backend is one more class beside `SqliteFile` and one more name in `BACKENDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.rules.model.cursors import LAST_ORDINAL, START, Cursor, Position
from tocsin.store.broker_rows import (
    LISTED,
    PERSON_LIMIT,
    TEXT_LIMIT,
    URL_LIMIT,
    Application,
    Backend,
    Frontend,
    Link,
    NewBackend,
    Rebound,
    Subscriber,
    Wanted,
    Webhook,
)
from tocsin.store.broker_store import BrokerStore
from tocsin.store.sqlite_broker import SqliteBrokerStore
from tocsin.wire.errors import (
    ConflictError,
    InputError,
    LimitError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "brokers" / "broker-east.db"

    def store(self) -> BrokerStore:
        """The same contents each time."""
        return SqliteBrokerStore(self.path)

    def small_store(self) -> BrokerStore:
        """A store that has room for a megabyte."""
        return SqliteBrokerStore(self.path, max_bytes=1_000_000)

    def of_backup(self, path: Path) -> BrokerStore:
        return SqliteBrokerStore(path)


BACKENDS = {"sqlite": SqliteFile}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteFile:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
async def store(backend: SqliteFile) -> Any:
    store = backend.store()
    await store.open()
    yield store
    await store.close()


def at(execution: int, ordinal: int = 0, epoch: int = 7) -> Cursor:
    return Cursor(epoch, execution, ordinal)


def new_backend(interest: int, since: Cursor = START) -> NewBackend:
    return NewBackend(interest, "v.c", f"[{interest}]", f"at-{interest}", since)


async def default(store: BrokerStore) -> int:
    return (await store.applications())[0].id


async def people(store: BrokerStore, *users: str) -> list[int]:
    application = await default(store)
    return [(await store.add_subscriber(application, user, password="#", created_us=1)).id for user in users]


async def subscribe(store: BrokerStore, subscriber: int, *interests: int, **fields: Any) -> list[Frontend]:
    wanted = [Wanted(subscriber, interest, **fields) for interest in interests]
    made = await store.subscribe(wanted, backends=[new_backend(each) for each in interests], created_us=5)
    return [one.frontend for one in made]


async def all_frontends(store: BrokerStore) -> list[Frontend]:
    return [each async for chunk in store.frontends() for each in chunk]


async def all_backends(store: BrokerStore) -> list[Backend]:
    return [each async for chunk in store.backends() for each in chunk]


async def contents(store: BrokerStore) -> Any:
    applications = await store.applications()
    groups = [group for one in applications for group in await store.groups(one.id)]
    return (
        applications,
        [await store.subscribers(one.id) for one in applications],
        [(group, await store.members(group.id), await store.group_subscriptions(group.id)) for group in groups],
        await all_backends(store),
        await all_frontends(store),
        await store.webhooks(),
        await store.link(),
        await store.revoked(),
        await store.fact("key"),
    )


def ids(frontends: Sequence[Frontend]) -> list[int]:
    return [each.id for each in frontends]


# --- the store itself


async def test_a_new_store_has_one_application_that_may_everything_and_nothing_else(store: BrokerStore) -> None:
    (application,) = await store.applications()
    assert application == replace(
        application, name="default", digest=None, channels=None, feeds=None, limits={}, subscribers=0, closed=False
    )
    assert await store.link() == Link(0, Position(0, 0), None)
    assert (await all_backends(store), await all_frontends(store), await store.webhooks()) == ([], [], [])
    assert (await store.revoked(), await store.fact("key")) == ({}, None)


async def filled(store: BrokerStore) -> None:
    """A little of everything."""
    ann, bob = await people(store, "ann", "bob")
    other = await store.add_application(
        "traffic", digest="d", channels=["v.c"], feeds=[], limits={"subscribers": 3}, created_us=2
    )
    await store.add_subscriber(other.id, "ann", password="$", created_us=3)
    await subscribe(store, ann, 3, 1, since=at(1))
    group = await store.add_group(await default(store), "crew", created_us=4)
    await store.add_members(group.id, [ann, bob], created_us=4)
    await store.subscribe_group(group.id, 3, created_us=5)
    await store.record_news(Position(7, 40), {3: at(9)})
    await store.acknowledge({(await all_frontends(store))[0].id: at(4, 2)})
    await store.put_webhook(bob, "http://there", "whsec_x", created_us=6)
    await store.registered(epoch=7, position=Position(7, 41), secret="whsec_y")
    await store.revoke("token", expires_us=900)
    await store.set_fact("key", "k\u00e9y")


async def test_what_was_written_is_there_after_opening_again(backend: SqliteFile, store: BrokerStore) -> None:
    await filled(store)
    before = await contents(store)
    assert all(before)
    await store.close()
    again = backend.store()
    await again.open()
    assert await contents(again) == before
    await again.close()


async def test_a_backup_holds_one_committed_state_and_overwrites_nothing(
    backend: SqliteFile, store: BrokerStore, tmp_path: Path
) -> None:
    await filled(store)
    before = await contents(store)
    target = tmp_path / "copy.backup"
    await store.backup_to(target)
    await people(store, "later")
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    copy = backend.of_backup(target)
    await copy.open()
    assert await contents(copy) == before
    await copy.close()


async def test_a_closed_store_says_so(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await store.close()
    await store.close()
    for call in (store.link(), store.acknowledge({1: at(1)}), store.unsubscribe([1]), store.subscriber_by_id(ann)):
        with pytest.raises(UnavailableError, match="not open"):
            await call


async def test_a_store_belongs_to_one_at_a_time(backend: SqliteFile, store: BrokerStore) -> None:
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


async def test_closing_waits_for_what_runs(backend: SqliteFile, store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    running = [asyncio.create_task(store.acknowledge({held.id: at(n)})) for n in (1, 2)]
    running.append(asyncio.create_task(store.set_fact("key", "kept")))
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*running)
    again = backend.store()
    await again.open()
    assert ((await all_frontends(again))[0].marker, await again.fact("key")) == (at(2), "kept")
    await again.close()


async def test_a_full_disk_is_said_clearly_and_loses_nothing(backend: SqliteFile) -> None:
    store = backend.small_store()
    await store.open()
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    before = await contents(store)
    wide = [NewBackend(n, "v.c", f"[{n}]" + " " * 50_000, "s", START) for n in range(2, 60)]
    with pytest.raises(StorageFullError):
        await store.subscribe([], backends=wide, created_us=1)
    assert await contents(store) == before
    await store.acknowledge({held.id: at(3)})
    assert (await all_frontends(store))[0].marker == at(3)
    await store.close()


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
    assert [type(each) for each in outcomes] == [Subscriber, ConflictError, Subscriber, LimitError, Subscriber]
    assert [each.user for each in await store.subscribers(application)] == ["ann", "bob", "cid"]
    assert (await store.applications())[0].subscribers == 3


# --- acknowledgements and news


async def test_a_marker_never_goes_back_whoever_waits_with_whom(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    (first,), (second,) = await subscribe(store, ann, 1, since=at(2)), await subscribe(store, bob, 1, since=at(2))
    await asyncio.gather(
        store.acknowledge({first.id: at(3, 1)}),
        store.acknowledge({first.id: at(9, epoch=6), second.id: at(2, 1), 999: at(4)}),
        store.acknowledge({first.id: at(3), second.id: at(1)}),
    )
    assert [each.marker for each in await all_frontends(store)] == [at(3, 1), at(2, 1)]
    await store.acknowledge({first.id: at(3), second.id: at(0, epoch=8)})
    assert [each.marker for each in await all_frontends(store)] == [at(3, 1), at(0, epoch=8)]
    assert [each.since for each in await all_frontends(store)] == [at(2), at(2)]


@pytest.mark.parametrize(
    "cursor", [at(-1), at(1, LAST_ORDINAL + 1), at(1 << 40), at(1, epoch=1 << 63), at(1, epoch=-1)]
)
async def test_a_cursor_beyond_every_result_is_refused(store: BrokerStore, cursor: Cursor) -> None:
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    for call in (
        store.acknowledge({held.id: cursor}),
        store.record_news(Position(1, 1), {1: cursor}),
        store.subscribe([Wanted(ann, 1, since=cursor)], created_us=1),
        store.subscribe([], backends=[new_backend(2, cursor)], created_us=1),
        store.rebind([Rebound(1, 2, "s", cursor)]),
    ):
        with pytest.raises(InputError, match="beyond every result"):
            await call
    assert (await store.link()).position == Position(0, 0)


async def test_the_largest_cursor_comes_back_as_it_was(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    (held,) = await subscribe(store, ann, 1)
    last = Cursor((1 << 63) - 1, (1 << 35) - 1, LAST_ORDINAL)
    await store.acknowledge({held.id: last})
    assert (await all_frontends(store))[0].marker == last


async def test_news_move_position_and_heads_together_and_never_back(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await subscribe(store, ann, 1, 2)
    await store.record_news(Position(7, 5), {1: at(3), 99: at(3)})
    await store.record_news(Position(7, 4), {1: at(2), 2: at(1)})
    assert (await store.link()).position == Position(7, 5)
    assert [each.head for each in await all_backends(store)] == [at(3), at(1)]
    await store.record_news(Position(8, 1), {})
    assert (await store.link()).position == Position(8, 1)
    with pytest.raises(InputError, match="beyond all news"):
        await store.record_news(Position(8, 1 << 63), {1: at(4)})
    assert (await all_backends(store))[0].head == at(3)


async def test_a_registration_sets_the_position_wherever_it_stood(store: BrokerStore) -> None:
    await store.registered(epoch=9, position=Position(9, 70), secret="whsec_a")
    assert await store.link() == Link(9, Position(9, 70), "whsec_a")
    await store.registered(epoch=3, position=Position(3, 2))
    assert await store.link() == Link(3, Position(3, 2), "whsec_a")
    assert "whsec_a" not in repr(await store.link())


# --- subscriptions


async def test_many_subscribers_share_one_backend(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    made = await store.subscribe(
        [Wanted(ann, 4, "notify"), Wanted(bob, 4)], backends=[new_backend(4, at(1))], created_us=5
    )
    await store.record_news(Position(7, 1), {4: at(6)})
    (again,) = await store.subscribe([Wanted(ann, 4, since=START)], backends=[new_backend(4, at(9))], created_us=6)
    assert [one.made for one in made] == [True, True]
    assert (again.made, again.frontend) == (False, made[0].frontend)
    assert await all_backends(store) == [Backend(4, "v.c", "[4]", "at-4", at(1), at(6))]
    first, second = await all_frontends(store)
    assert (first.subscriber, first.interest, first.mode, first.since, first.marker) == (ann, 4, "notify", at(1), at(1))
    assert (second.subscriber, second.mode, second.own, second.created_us) == (bob, "inline", True, 5)
    assert all(one.frontend.public_id.startswith("sub_") for one in made)
    assert await store.backend("v.c", "[4]") == (await all_backends(store))[0]
    assert await store.backend("v.c", "[5]") is None


async def test_a_subscription_begins_at_the_head_or_where_it_asks(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    await subscribe(store, ann, 1)
    await store.record_news(Position(7, 1), {1: at(6)})
    assert (await subscribe(store, bob, 1))[0].marker == at(6)
    await store.unsubscribe([(await store.frontends_of(bob))[0].id])
    assert (await subscribe(store, bob, 1, since=at(2)))[0].marker == at(2)


async def test_what_was_told_before_a_backend_was_kept_is_known_of_it(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    told = replace(new_backend(1, at(2)), head=at(5))
    (made,) = await store.subscribe([Wanted(ann, 1)], backends=[told], created_us=1)
    assert (made.frontend.since, (await all_backends(store))[0].head) == (at(5), at(5))
    for head, kept in ((at(4), at(5)), (at(7), at(7)), (None, at(7))):
        await store.subscribe([Wanted(ann, 1)], backends=[replace(told, head=head)], created_us=1)
        assert await all_backends(store) == [Backend(1, "v.c", "[1]", "at-1", at(2), kept)]
    (second,) = await store.subscribe([Wanted(bob, 1)], backends=[replace(told, head=at(8))], created_us=1)
    assert second.frontend.marker == at(8)
    await store.subscribe([], backends=[replace(new_backend(2, at(3)), head=START)], created_us=1)
    assert (await all_backends(store))[1].head == at(3)


async def test_the_same_asked_for_twice_in_one_call_is_made_once(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    made = await store.subscribe([Wanted(ann, 1), Wanted(ann, 1)], backends=[new_backend(1)], created_us=1)
    assert [one.made for one in made] == [True, False]
    assert made[0].frontend == made[1].frontend


async def test_subscriptions_are_made_all_or_none(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    for wrong, error in (
        ([Wanted(ann, 1), Wanted(ann, 8)], NotFoundError),
        ([Wanted(ann, 1), Wanted(99, 1)], NotFoundError),
        ([Wanted(ann, 1), Wanted(ann, 1, "loudly")], InputError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            await store.subscribe(wrong, backends=[new_backend(1)], created_us=1)
    assert (await all_backends(store), await all_frontends(store)) == ([], [])


async def test_a_subscriber_has_at_most_so_many_of_its_own(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    backends = [new_backend(n) for n in (1, 2, 3)]
    await store.subscribe([Wanted(ann, 1), Wanted(ann, 2), Wanted(bob, 3)], backends=backends, created_us=1, at_most=2)
    with pytest.raises(LimitError, match="more subscriptions") as told:
        await store.subscribe([Wanted(bob, 1), Wanted(ann, 3)], created_us=1, at_most=2)
    assert told.value.status == 429
    assert len(await all_frontends(store)) == 3
    # What is there already costs nothing.
    await store.subscribe([Wanted(ann, 1)], created_us=1, at_most=2)


async def test_an_interest_that_is_anothers_is_refused(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await subscribe(store, ann, 1)
    for wrong in (replace(new_backend(1), parameters="[2]"), replace(new_backend(2), parameters="[1]")):
        with pytest.raises(ConflictError, match="bind"):
            await store.subscribe([], backends=[wrong], created_us=1)


async def test_a_subscriber_sees_only_its_own(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    mine = await subscribe(store, ann, 3, 1, 2)
    await subscribe(store, bob, 1)
    assert ids(await store.frontends_of(ann)) == ids(mine)
    assert ids(await store.frontends_of(ann, after=mine[0].id, limit=1)) == [mine[1].id]
    assert await store.frontend(ann, mine[0].public_id) == mine[0]
    assert await store.frontend(bob, mine[0].public_id) is None


async def test_ended_subscriptions_are_told_and_their_ids_never_come_again(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    mine, (his,) = await subscribe(store, ann, 1, 2), await subscribe(store, bob, 2)
    assert await store.unsubscribe([mine[0].id, mine[1].id, 999]) == mine
    assert await store.unsubscribe(ids(mine)) == []
    assert await all_frontends(store) == [his]
    (again,) = await subscribe(store, ann, 1)
    assert again.id > max(*ids(mine), his.id)


async def test_a_backend_is_released_only_when_nobody_holds_it(store: BrokerStore) -> None:
    ann, _ = await people(store, "ann", "bob")
    mine = await subscribe(store, ann, 1, 2, 3)
    group = await store.add_group(await default(store), "empty", created_us=1)
    await store.subscribe_group(group.id, 3, created_us=1)
    await store.unsubscribe([mine[0].id, mine[2].id])
    assert await store.release_backends([1, 2, 3, 4]) == [1]
    assert [each.interest for each in await all_backends(store)] == [2, 3]
    (again,) = await subscribe(store, ann, 1)
    assert again.marker == START


async def test_a_dropped_backend_takes_all_that_hold_it_along(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    mine, (his,) = await subscribe(store, ann, 1, 2), await subscribe(store, bob, 1)
    group = await store.add_group(await default(store), "crew", created_us=1)
    await store.subscribe_group(group.id, 1, created_us=1)
    assert await store.drop_backends([1, 77]) == [mine[0], his]
    assert await all_frontends(store) == [mine[1]]
    assert [each.interest for each in await all_backends(store)] == [2]
    assert await store.group_subscriptions(group.id) == []


async def test_backends_may_change_places_and_frontends_follow_with_their_markers(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    one, two = await subscribe(store, ann, 1, 2)
    await store.acknowledge({one.id: at(5), two.id: at(6)})
    await store.record_news(Position(7, 9), {1: at(5), 2: at(99, epoch=8)})
    new = at(0, epoch=8)
    await store.rebind([Rebound(1, 2, "new-1", new, head=at(1, epoch=8)), Rebound(2, 1, "new-2", new)])
    assert await all_backends(store) == [
        Backend(1, "v.c", "[2]", "new-2", at(0, epoch=8), at(99, epoch=8)),
        Backend(2, "v.c", "[1]", "new-1", at(0, epoch=8), at(1, epoch=8)),
    ]
    assert [(each.interest, each.marker) for each in await all_frontends(store)] == [(2, at(5)), (1, at(6))]


async def test_binding_again_is_all_or_nothing(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await subscribe(store, ann, 1, 2, 3)
    before = await contents(store)
    with pytest.raises(ConflictError, match="another's"):
        await store.rebind([Rebound(1, 9, "s", START), Rebound(2, 3, "s", START)])
    with pytest.raises(NotFoundError):
        await store.rebind([Rebound(1, 9, "s", START), Rebound(4, 5, "s", START)])
    assert await contents(store) == before


# --- applications and subscribers


async def test_applications_are_kept_with_all_they_may(store: BrokerStore) -> None:
    made = await store.add_application(
        "traffic", digest="d1", channels=["v.a", "v.b"], feeds=[], limits={"subscribers": 3}, created_us=8
    )
    assert made == Application(made.id, "traffic", "d1", ("v.a", "v.b"), (), {"subscribers": 3}, 8)
    with pytest.raises(ConflictError, match="traffic"):
        await store.add_application("traffic", digest=None, channels=None, feeds=None, limits={}, created_us=8)
    with pytest.raises(ConflictError, match="token"):
        await store.add_application("Traffic", digest="d1", channels=None, feeds=None, limits={}, created_us=8)
    changed = await store.change_application(made.id, channels=None, feeds=["v.f"], limits={})
    assert changed == replace(made, channels=None, feeds=("v.f",), limits={})
    renewed = await store.renew_application_token(made.id, "d2")
    assert [each.name for each in await store.applications()] == ["default", "traffic"]
    assert (await store.applications())[1] == renewed == replace(changed, digest="d2")
    assert (await store.application(made.id), await store.application(99)) == (renewed, None)
    for missing in (
        store.change_application(99, channels=None, feeds=None, limits={}),
        store.renew_application_token(99, "d3"),
        store.close_application(99),
    ):
        with pytest.raises(NotFoundError):
            await missing


async def test_an_application_is_removed_in_steps_and_takes_nobody_meanwhile(store: BrokerStore) -> None:
    application = await store.add_application(
        "traffic", digest=None, channels=None, feeds=None, limits={}, created_us=8
    )
    ann = await store.add_subscriber(application.id, "ann", password="#", created_us=1)
    group = await store.add_group(application.id, "crew", created_us=1)
    await subscribe(store, ann.id, 1)
    await store.subscribe_group(group.id, 1, created_us=1)
    with pytest.raises(ConflictError, match="in use"):
        await store.remove_application(application.id)
    await store.close_application(application.id)
    with pytest.raises(ConflictError, match="in use"):
        await store.remove_application(application.id)
    for late in (
        store.add_subscriber(application.id, "bob", password="#", created_us=1),
        store.add_group(application.id, "late", created_us=1),
    ):
        with pytest.raises(NotFoundError, match="being removed"):
            await late
    assert [each.closed for each in await store.applications()] == [False, True]
    await store.remove_subscribers([ann.id])
    await store.remove_application(application.id)
    await store.remove_application(application.id)
    assert [each.name for each in await store.applications()] == ["default"]
    assert await store.release_backends([1]) == [1]


async def test_users_are_unique_per_application_and_character_by_character(store: BrokerStore) -> None:
    application = await default(store)
    other = (await store.add_application("b", digest=None, channels=None, feeds=None, limits={}, created_us=1)).id
    names = ["Ann", "ann", "ann ", "\u00e4nn", "a\u0308nn", "\U0001f600"]
    for name in names:
        await store.add_subscriber(application, name, password="#", created_us=1)
    await store.add_subscriber(other, "ann", password="#", created_us=1)
    for name in names:
        with pytest.raises(ConflictError):
            await store.add_subscriber(application, name, password="#", created_us=1)
    assert [each.user for each in await store.subscribers(application)] == sorted(names)
    assert [each.user for each in await store.subscribers(application, after="ann", limit=2)] == ["ann ", "a\u0308nn"]
    asked = [*names, "nobody", "a\0b"]
    assert [each.user for each in await store.find_subscribers(application, asked)] == sorted(names)
    found = await store.subscriber(other, "ann")
    assert found is not None
    assert (await store.subscriber_by_id(found.id), found.application) == (found, other)
    assert await store.subscriber(other, "Ann") is None
    assert await store.subscriber_by_id(999) is None


async def test_an_application_has_at_most_so_many_subscribers(store: BrokerStore) -> None:
    application = await default(store)
    for user in ("ann", "bob"):
        await store.add_subscriber(application, user, password="#", created_us=1, at_most=2)
    with pytest.raises(LimitError) as told:
        await store.add_subscriber(application, "cid", password="#", created_us=1, at_most=2)
    assert told.value.status == 429
    ann = await store.subscriber(application, "ann")
    assert ann is not None
    await store.remove_subscribers([ann.id])
    await store.add_subscriber(application, "cid", password="#", created_us=1, at_most=2)


async def test_another_hash_may_end_older_tokens_and_is_never_shown(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await store.change_subscriber(ann, password="second", tokens_from_us=50)
    await store.change_subscriber(ann, password="third")
    found = await store.subscriber_by_id(ann)
    assert found is not None
    assert (found.password, found.tokens_from_us) == ("third", 50)
    assert "third" not in repr(found)
    with pytest.raises(NotFoundError):
        await store.change_subscriber(99, password="none")


async def test_a_subscriber_that_is_removed_leaves_nothing(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    mine, (his,) = await subscribe(store, ann, 1, 2), await subscribe(store, bob, 1)
    group = await store.add_group(await default(store), "crew", created_us=1)
    await store.add_members(group.id, [ann, bob], created_us=1)
    await store.put_webhook(ann, "http://there", "s", created_us=1)
    assert await store.remove_subscribers([ann, 99]) == mine
    assert await all_frontends(store) == [his]
    assert [each.id for each in await store.members(group.id)] == [bob]
    assert (await store.webhooks(), await store.subscriber_by_id(ann)) == ([], None)
    assert (await store.applications())[0].subscribers == 1


# --- groups


async def test_members_get_what_their_group_holds_from_joining_on(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    group = await store.add_group(await default(store), "crew", created_us=1)
    await store.add_members(group.id, [ann], created_us=2)
    made = await store.subscribe_group(group.id, 1, mode="notify", backends=[new_backend(1, at(1))], created_us=3)
    assert made.made
    assert made.subscription.public_id.startswith("grp_")
    assert [(each.subscriber, each.mode, each.marker, each.own, each.groups) for each in made.frontends] == [
        (ann, "notify", at(1), False, (group.id,))
    ]
    await store.record_news(Position(7, 1), {1: at(8)})
    (joined,) = await store.add_members(group.id, [bob, ann], created_us=4)
    assert (joined.subscriber, joined.since, joined.marker) == (bob, at(8), at(8))
    again = await store.subscribe_group(group.id, 1, created_us=5)
    assert (again.made, again.subscription, again.frontends) == (False, made.subscription, [])
    assert await store.group_subscriptions(group.id) == [made.subscription]
    assert await store.remove_members(group.id, [ann, 99]) == made.frontends
    assert await store.unsubscribe_group(group.id, "grp_other") is None
    assert await store.unsubscribe_group(group.id, made.subscription.public_id) == [joined]
    assert (await all_frontends(store), await store.release_backends([1])) == ([], [1])


async def test_a_frontend_stays_while_anybody_wants_it(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    application = await default(store)
    crew = await store.add_group(application, "crew", created_us=1)
    staff = await store.add_group(application, "staff", created_us=1)
    (own,) = await subscribe(store, ann, 1)
    for group in (crew, staff):
        assert await store.add_members(group.id, [ann], created_us=1) == []
        assert (await store.subscribe_group(group.id, 1, created_us=1)).frontends == []
    await store.acknowledge({own.id: at(4)})
    assert await store.unsubscribe([own.id]) == []
    held = replace(own, marker=at(4), own=False, groups=(crew.id, staff.id))
    assert await all_frontends(store) == [held]
    assert await store.remove_group(crew.id) == []
    (mine,) = await store.subscribe([Wanted(ann, 1)], created_us=9)
    assert (mine.made, mine.frontend) == (False, replace(held, own=True, groups=(staff.id,)))
    assert await store.remove_members(staff.id, [ann]) == []
    assert ids(await store.unsubscribe([own.id])) == [own.id]


async def test_a_group_takes_only_members_of_its_own_application(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    other = (await store.add_application("b", digest=None, channels=None, feeds=None, limits={}, created_us=1)).id
    stranger = await store.add_subscriber(other, "ann", password="#", created_us=1)
    group = await store.add_group(await default(store), "crew", created_us=1)
    with pytest.raises(NotFoundError):
        await store.add_members(group.id, [ann, stranger.id], created_us=1)
    with pytest.raises(NotFoundError):
        await store.add_group(await default(store), "both", [ann, stranger.id], created_us=1)
    assert await store.members(group.id) == []
    assert await store.groups(await default(store)) == [group]
    for missing in (
        store.add_members(99, [ann], created_us=1),
        store.subscribe_group(99, 1, backends=[new_backend(1)], created_us=1),
        store.add_group(99, "crew", created_us=1),
        store.subscribe_group(group.id, 5, created_us=1),
    ):
        with pytest.raises(NotFoundError):
            await missing
    assert await all_backends(store) == []


async def test_groups_are_listed_by_application_and_by_member(store: BrokerStore) -> None:
    ann, bob, cid = await people(store, "ann", "bob", "cid")
    application = await default(store)
    made = {name: await store.add_group(application, name, created_us=1) for name in ("c", "a", "b")}
    with pytest.raises(ConflictError):
        await store.add_group(application, "a", created_us=1)
    await store.add_members(made["c"].id, [cid, ann, bob], created_us=1)
    trio = await store.add_group(application, "trio", [cid, ann, bob], created_us=1)
    assert await store.members(trio.id) == await store.members(made["c"].id)
    await store.remove_group(trio.id)
    await store.add_members(made["a"].id, [ann], created_us=1)
    assert [each.name for each in await store.groups(application)] == ["a", "b", "c"]
    assert [each.name for each in await store.groups(application, after="a", limit=1)] == ["b"]
    assert await store.group(application, "b") == made["b"]
    assert await store.group(application, "d") is None
    assert [each.name for each in await store.groups_of(ann)] == ["a", "c"]
    assert [each.user for each in await store.members(made["c"].id, after="ann", limit=5)] == ["bob", "cid"]
    assert await store.remove_group(made["c"].id) == []
    assert await store.remove_group(made["c"].id) == []
    assert [each.name for each in await store.groups_of(ann)] == ["a"]


async def test_groups_are_bounded_in_number_members_and_subscriptions(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    application = await default(store)
    group = await store.add_group(application, "crew", created_us=1, at_most=1)
    backends = [new_backend(1), new_backend(2)]
    await store.subscribe_group(group.id, 1, backends=backends, created_us=1, at_most=1)
    before = await contents(store)
    for too_many in (
        store.add_group(application, "more", created_us=1, at_most=1),
        store.add_members(group.id, [ann, bob], created_us=1, at_most=1),
        store.add_group(application, "pair", [ann, bob], created_us=1, members_at_most=1),
        store.subscribe_group(group.id, 2, created_us=1, at_most=1),
    ):
        with pytest.raises(LimitError) as told:
            await too_many
        assert told.value.status == 429
    assert await contents(store) == before
    # Whom and what it has already costs nothing.
    await store.add_members(group.id, [ann, ann], created_us=1, at_most=1)
    await store.subscribe_group(group.id, 1, created_us=1, at_most=1)


# --- the rest


async def test_a_subscriber_has_one_webhook(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    await store.put_webhook(ann, "http://first", "s1", created_us=1)
    second = await store.put_webhook(ann, "http://second", "s2", created_us=2)
    assert await store.webhook(ann) == second == Webhook(ann, "http://second", 2, "s2")
    assert await store.webhooks() == [second]
    assert "s2" not in repr(second)
    assert await store.webhook(bob) is None
    assert (await store.remove_webhook(ann), await store.remove_webhook(ann)) == (True, False)
    with pytest.raises(NotFoundError):
        await store.put_webhook(99, "http://x", "s", created_us=1)


async def test_the_first_fact_stays_for_all_who_ask(store: BrokerStore) -> None:
    assert await asyncio.gather(*(store.first_fact("key", value) for value in "abc")) == ["a", "a", "a"]
    await store.set_fact("key", "d")
    assert (await store.fact("key"), await store.first_fact("key", "e")) == ("d", "d")


async def test_ended_tokens_are_forgotten_when_they_would_have_ended_by_themselves(store: BrokerStore) -> None:
    await store.revoke("one", expires_us=10)
    await store.revoke("one", expires_us=99)
    await store.revoke("two", expires_us=20)
    assert await store.revoked() == {"one": 10, "two": 20}
    assert await store.forget_revoked(expired_before_us=20) == 1
    assert await store.revoked() == {"two": 20}


async def test_what_not_every_backend_can_keep_is_refused(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    application = await default(store)
    long = "x" * (PERSON_LIMIT + 1)
    before = await contents(store)

    def application_of(**fields: Any) -> Any:
        told = {"digest": None, "channels": None, "feeds": None, "limits": {}, "created_us": 1, **fields}
        return store.add_application("b", **told)

    for wrong in (
        store.add_subscriber(application, "", password="#", created_us=1),
        store.add_subscriber(application, "a\0b", password="#", created_us=1),
        store.add_subscriber(application, "\ud800", password="#", created_us=1),
        store.add_subscriber(application, "b", password="x" * (TEXT_LIMIT + 1), created_us=1),
        store.add_group(application, long, created_us=1),
        store.add_application(long, digest=None, channels=None, feeds=None, limits={}, created_us=1),
        application_of(channels=["v.c"] * (LISTED + 1)),
        application_of(feeds=["\0"]),
        application_of(limits={"subscribers": -1}),
        application_of(limits={str(n): n for n in range(101)}),
        store.put_webhook(ann, "x" * (URL_LIMIT + 1), "s", created_us=1),
        store.set_fact("key", "\0"),
        store.subscribe([], backends=[replace(new_backend(1), channel="\0")], created_us=1),
        store.subscribe([], backends=[new_backend(0)], created_us=1),
    ):
        with pytest.raises(InputError):
            await wrong
    assert await contents(store) == before
