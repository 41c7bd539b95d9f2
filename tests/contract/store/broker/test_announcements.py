"""How far a broker has heard and how far each subscriber has got: forwards, and nowhere else."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.broker_store_contents import all_backends, all_frontends, at, new_backend, people, subscribe
from tocsin.rules.model.cursors import LAST_ORDINAL, Cursor, Position
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRequest, LinkRow, ReboundBackend
from tocsin.wire.errors import InputError


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
        store.record_announcement(Position(1, 1), {1: cursor}),
        store.subscribe([FrontendRequest(ann, 1, since=cursor)], created_us=1),
        store.subscribe([], backends=[new_backend(2, cursor)], created_us=1),
        store.rebind([ReboundBackend(1, 2, "s", cursor)]),
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
    await store.record_announcement(Position(7, 5), {1: at(3), 99: at(3)})
    await store.record_announcement(Position(7, 4), {1: at(2), 2: at(1)})
    assert (await store.link()).position == Position(7, 5)
    assert [each.head for each in await all_backends(store)] == [at(3), at(1)]
    await store.record_announcement(Position(8, 1), {})
    assert (await store.link()).position == Position(8, 1)
    with pytest.raises(InputError, match="beyond every announcement"):
        await store.record_announcement(Position(8, 1 << 63), {1: at(4)})
    assert (await all_backends(store))[0].head == at(3)


async def test_a_registration_sets_the_position_wherever_it_stood(store: BrokerStore) -> None:
    await store.record_registration(epoch=9, position=Position(9, 70), secret="whsec_a")
    assert await store.link() == LinkRow(9, Position(9, 70), "whsec_a")
    await store.record_registration(epoch=3, position=Position(3, 2))
    assert await store.link() == LinkRow(3, Position(3, 2), "whsec_a")
    assert "whsec_a" not in repr(await store.link())
