"""Frontend subscriptions, the backend subscriptions that they share, and the end of both."""

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
from tocsin.store.broker.rows import BackendRow, FrontendRequest, ReboundBackend
from tocsin.wire.errors import ConflictError, InputError, LimitError, NotFoundError


async def test_many_subscribers_share_one_backend(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    made = await store.subscribe(
        [FrontendRequest(ann, 4, "notify"), FrontendRequest(bob, 4)], backends=[new_backend(4, at(1))], created_us=5
    )
    await store.record_announcement(Position(7, 1), {4: at(6)})
    (again,) = await store.subscribe(
        [FrontendRequest(ann, 4, since=START)], backends=[new_backend(4, at(9))], created_us=6
    )
    assert [item.made for item in made] == [True, True]
    assert (again.made, again.frontend) == (False, made[0].frontend)
    assert await all_backends(store) == [BackendRow(4, "v.c", "[4]", "at-4", at(1), at(6))]
    first, second = await all_frontends(store)
    assert (first.subscriber, first.interest, first.mode, first.since, first.marker) == (ann, 4, "notify", at(1), at(1))
    assert (second.subscriber, second.mode, second.own, second.created_us) == (bob, "inline", True, 5)
    assert all(item.frontend.public_id.startswith("sub_") for item in made)
    assert await store.backend("v.c", "[4]") == (await all_backends(store))[0]
    assert await store.backend("v.c", "[5]") is None


async def test_a_subscription_begins_at_the_head_or_where_it_asks(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    await subscribe(store, ann, 1)
    await store.record_announcement(Position(7, 1), {1: at(6)})
    assert (await subscribe(store, bob, 1))[0].marker == at(6)
    await store.unsubscribe([(await store.frontends_of(bob))[0].id])
    assert (await subscribe(store, bob, 1, since=at(2)))[0].marker == at(2)


async def test_what_was_told_before_a_backend_was_kept_is_known_of_it(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    told = replace(new_backend(1, at(2)), head=at(5))
    (made,) = await store.subscribe([FrontendRequest(ann, 1)], backends=[told], created_us=1)
    assert (made.frontend.since, (await all_backends(store))[0].head) == (at(5), at(5))
    for head, kept in ((at(4), at(5)), (at(7), at(7)), (None, at(7))):
        await store.subscribe([FrontendRequest(ann, 1)], backends=[replace(told, head=head)], created_us=1)
        assert await all_backends(store) == [BackendRow(1, "v.c", "[1]", "at-1", at(2), kept)]
    (second,) = await store.subscribe([FrontendRequest(bob, 1)], backends=[replace(told, head=at(8))], created_us=1)
    assert second.frontend.marker == at(8)
    await store.subscribe([], backends=[replace(new_backend(2, at(3)), head=START)], created_us=1)
    assert (await all_backends(store))[1].head == at(3)


async def test_the_same_asked_for_twice_in_one_call_is_made_once(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    made = await store.subscribe(
        [FrontendRequest(ann, 1), FrontendRequest(ann, 1)], backends=[new_backend(1)], created_us=1
    )
    assert [item.made for item in made] == [True, False]
    assert made[0].frontend == made[1].frontend


async def test_subscriptions_are_made_all_or_none(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    for wrong, error in (
        ([FrontendRequest(ann, 1), FrontendRequest(ann, 8)], NotFoundError),
        ([FrontendRequest(ann, 1), FrontendRequest(99, 1)], NotFoundError),
        ([FrontendRequest(ann, 1), FrontendRequest(ann, 1, "loudly")], InputError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            await store.subscribe(wrong, backends=[new_backend(1)], created_us=1)
    assert (await all_backends(store), await all_frontends(store)) == ([], [])


async def test_a_subscriber_has_at_most_so_many_of_its_own(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    backends = [new_backend(n) for n in (1, 2, 3)]
    await store.subscribe(
        [FrontendRequest(ann, 1), FrontendRequest(ann, 2), FrontendRequest(bob, 3)],
        backends=backends,
        created_us=1,
        at_most=2,
    )
    with pytest.raises(LimitError, match="more subscriptions") as told:
        await store.subscribe([FrontendRequest(bob, 1), FrontendRequest(ann, 3)], created_us=1, at_most=2)
    assert told.value.status == 429
    assert len(await all_frontends(store)) == 3
    # What is there already costs nothing.
    await store.subscribe([FrontendRequest(ann, 1)], created_us=1, at_most=2)


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
    await store.record_announcement(Position(7, 9), {1: at(5), 2: at(99, epoch=8)})
    new = at(0, epoch=8)
    await store.rebind([ReboundBackend(1, 2, "new-1", new, head=at(1, epoch=8)), ReboundBackend(2, 1, "new-2", new)])
    assert await all_backends(store) == [
        BackendRow(1, "v.c", "[2]", "new-2", at(0, epoch=8), at(99, epoch=8)),
        BackendRow(2, "v.c", "[1]", "new-1", at(0, epoch=8), at(1, epoch=8)),
    ]
    assert [(each.interest, each.marker) for each in await all_frontends(store)] == [(2, at(5)), (1, at(6))]


async def test_binding_again_is_all_or_nothing(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await subscribe(store, ann, 1, 2, 3)
    before = await contents(store)
    with pytest.raises(ConflictError, match="another's"):
        await store.rebind([ReboundBackend(1, 9, "s", START), ReboundBackend(2, 3, "s", START)])
    with pytest.raises(NotFoundError):
        await store.rebind([ReboundBackend(1, 9, "s", START), ReboundBackend(4, 5, "s", START)])
    assert await contents(store) == before
