"""Groups: members have what their group holds, for as long as anybody wants it for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.broker_store_contents import (
    all_backends,
    all_frontends,
    at,
    contents,
    default,
    ids,
    new_backend,
    people,
    subscribe,
)
from tocsin.rules.model.cursors import START, Position
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRequest, NewBackendRow
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError


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
    await store.record_announcement(Position(7, 1), {1: at(8)})
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
    (mine,) = await store.subscribe([FrontendRequest(ann, 1)], created_us=9)
    assert (mine.made, mine.frontend) == (False, replace(held, own=True, groups=(staff.id,)))
    assert await store.remove_members(staff.id, [ann]) == []
    assert ids(await store.unsubscribe([own.id])) == [own.id]


async def test_what_an_application_holds_outside_of_its_channels_ends_in_steps(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    other = await store.add_application("o", digest=None, created_us=1)
    eve = (await store.add_subscriber(other.id, "eve", password="#", created_us=1)).id
    inside = NewBackendRow(9, "v.inside", "[9]", "at-9", START)
    wanted = [FrontendRequest(each, 9) for each in (ann, eve)]
    kept = [frontend.frontend for frontend in await store.subscribe(wanted, backends=[inside], created_us=5)]
    kept += await subscribe(store, eve, 1)
    outside = [*await subscribe(store, ann, 1, 2), *await subscribe(store, bob, 1)]
    group = await store.add_group(await default(store), "g", [bob], created_us=5)
    outside += (await store.subscribe_group(group.id, 2, created_us=5)).frontends
    held = await store.subscribe_group(group.id, 9, created_us=5)
    first = await store.end_outside(await default(store), ["v.inside", "v.x"], limit=3)
    assert ids(first) == ids(outside)[:3]
    rest = await store.end_outside(await default(store), ["v.inside"], after=first[-1].id, limit=3)
    assert ids(rest) == ids(outside)[3:]
    assert await store.end_outside(await default(store), ["v.inside"]) == []
    assert ids(await all_frontends(store)) == ids([*kept, *held.frontends])
    assert [each.interest for each in await store.group_subscriptions(group.id)] == [9]
    # Nothing may be used: everything ends.
    assert len(await store.end_outside(await default(store), [])) == 2


async def test_a_group_takes_only_members_of_its_own_application(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    other = (await store.add_application("b", digest=None, created_us=1)).id
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
