"""Results go by age, by size and when everybody has them; a broker that lacks them is told of the gap."""

from __future__ import annotations

import asyncio

from tests.support.stored_channel import EAST, StoredChannel
from tocsin.rules.model.cursors import LAST_ORDINAL, START, Cursor, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest


async def test_retention_by_age_tells_the_gap_to_whom_it_concerns(store: ChannelStore, channel: StoredChannel) -> None:
    one, two = await channel.subscribe("[1]", "[2]")
    await channel.run({one: ["a", "b"]})
    await channel.run({one: ["c"], two: ["x"]})
    await channel.run({one: ["d"]})
    assert await store.retain(channel.id, ended_before_us=100) == 0
    assert await store.retain(channel.id, ended_before_us=101) == 2
    assert await channel.texts(one) == ["c", "d"]
    assert await channel.gap(one) == (store.epoch, 1, 1)
    assert await channel.gap(one, Cursor(store.epoch, 1, 0)) == (store.epoch, 1, 1)
    assert await channel.gap(one, Cursor(store.epoch, 1, 1)) is None
    assert await channel.gap(two) is None, "nothing of this one is gone"
    assert await channel.gap(one, START, to=Cursor(store.epoch, 1, 0)) == (store.epoch, 1, 0)
    state = await store.state(channel.id)
    assert state.results == 3
    assert await store.retain(channel.id, ended_before_us=10**9) == 3
    assert (await store.state(channel.id)).result_bytes == 0
    assert await channel.gap(two) == (store.epoch, 2, 0)
    assert (await store.state(channel.id)).last_execution == 3


async def test_retention_by_bytes_removes_the_oldest_executions_but_never_the_newest(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    for number in range(5):
        await channel.run({interest: [f"{number}" * 1000]})
    assert await store.retain(channel.id, max_bytes=10**9) == 0
    await store.retain(channel.id, max_bytes=3_500)
    assert [text[0] for text in await channel.texts(interest)] == ["2", "3", "4"]
    await store.retain(channel.id, max_bytes=0)
    assert [text[0] for text in await channel.texts(interest)] == ["4"]


async def test_trimming_removes_what_lies_below_the_cursors(store: ChannelStore, channel: StoredChannel) -> None:
    one, two, three = await channel.subscribe("[1]", "[2]", "[3]")
    for number in range(1, 4):
        # Shared payloads: the first interest's row holds what the others name.
        await channel.run({each: [f"s{number}", f"t{number}"] for each in (one, two, three)})
    assert (
        await store.trim(channel.id, {one: Cursor(store.epoch, 2, 0), two: Cursor(store.epoch, 3, 9), 99: START}) == 9
    )
    assert await channel.texts(one) == ["t2", "s3", "t3"]
    assert await channel.texts(two) == []
    assert await channel.texts(three) == ["s1", "t1", "s2", "t2", "s3", "t3"]
    assert await channel.gap(one) == (store.epoch, 2, 0)
    assert await channel.gap(two) == (store.epoch, 3, 1)
    assert await channel.gap(three) is None
    assert await store.trim(channel.id, {one: Cursor(store.epoch, 2, 0)}) == 0
    await store.trim(channel.id, dict.fromkeys((one, two, three), await end(channel)))
    assert (await store.state(channel.id)).results == 0
    assert (await store.state(channel.id)).result_bytes == 0


async def test_deleted_results_are_gone_and_cursors_stay_valid(store: ChannelStore, channel: StoredChannel) -> None:
    one, two = await channel.subscribe("[1]", "[2]")
    start = await store.position()
    # Shared payloads: the row of the first interest holds them.
    await channel.run({each: ["a", "b", "c"] for each in (one, two)})
    await channel.run({one: ["d"], two: ["d"]})
    cursors = [cursor for cursor, _ in await channel.pairs(one)]
    assert await store.delete_results(channel.id, [(one, cursors[0]), (one, cursors[2]), (one, cursors[3])]) == 3
    assert await channel.texts(one) == ["b"]
    assert await channel.texts(two) == ["a", "b", "c", "d"], "what refers to a deleted payload stays"
    assert await channel.gap(one) is None
    assert await channel.texts(one, cursors[0], to=cursors[3]) == ["b"], "a deleted result's cursor is a place"
    heads = {item.interest: item.cursor for item in (await store.new_results(start)).items}
    assert heads == {one: cursors[1], two: cursors[3]}, "what is gone is not announced"
    assert (await store.state(channel.id)).results == 5
    await store.acknowledge(EAST, {one: cursors[3]})
    await channel.run({one: ["e"]})
    assert await channel.texts(one, cursors[3]) == ["e"]
    assert await store.delete_results(channel.id, [(one, cursors[0]), (99, cursors[0]), (one, START)]) == 0


async def test_deleted_results_free_their_space_and_expire_with_their_execution(
    store: ChannelStore, channel: StoredChannel
) -> None:
    one, two = await channel.subscribe("[1]", "[2]")
    await channel.run({one: ["same" * 100, "own"], two: ["same" * 100]})
    before = (await store.state(channel.id)).result_bytes
    pairs = await channel.pairs(one)
    assert await store.delete_results(channel.id, [(one, cursor) for cursor, _ in pairs]) == 2
    state = await store.state(channel.id)
    assert state.results == 1
    assert 400 < state.result_bytes < before
    assert await channel.texts(two) == ["same" * 100]
    assert await store.retain(channel.id, ended_before_us=101) == 1
    assert (await store.state(channel.id)).result_bytes == 0
    assert await channel.gap(one) is None, "its results were deleted before they could expire"
    assert await channel.gap(two) is not None


async def test_deletion_stays_in_its_channel(store: ChannelStore, channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a"]})
    ((cursor, _),) = await channel.pairs(interest)
    other = await store.add_channel()
    assert await store.delete_results(other, [(interest, cursor)]) == 0
    assert await channel.texts(interest) == ["a"]


async def end(channel: StoredChannel) -> Cursor:
    return Cursor(channel.store.epoch, channel.last, LAST_ORDINAL)


async def test_what_interests_that_went_have_left_goes_with_retention(
    store: ChannelStore, channel: StoredChannel
) -> None:
    made = await store.subscribe(channel.id, [BackendRequest(f"[{n}]", EAST, f"{n}") for n in range(10)], created_us=1)
    await channel.run({each.interest: ["same", f"{each.id}" * 100] for each in made})
    before = (await store.state(channel.id)).result_bytes
    await store.unsubscribe(channel.id, [f"{n}" for n in range(9)])
    assert await store.retain(channel.id) == 18
    state = await store.state(channel.id)
    assert state.results == 2
    assert state.result_bytes < before / 3
    assert await channel.texts(made[9].interest) == ["same", "9" * 100]
    await store.unsubscribe(channel.id, ["9"])
    await store.retain(channel.id)
    assert (await store.state(channel.id)).result_bytes == 0


async def test_what_is_removed_while_a_reader_takes_its_time_is_told_as_a_gap(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    for number in range(1, 4):
        await channel.run({interest: [f"{number}" * 1000]})
    reader = store.fetch([Range(interest, START)], chunk_bytes=500)
    (first,) = await anext(reader)
    assert first.gap is None
    await store.retain(channel.id, ended_before_us=250)
    (second,) = await anext(reader)
    assert second.gap == (store.epoch, 2, 0)
    assert [result.payload[:1] for result in second.results] == [b"3"]


async def test_others_read_and_write_while_much_is_removed(store: ChannelStore, channel: StoredChannel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(2_000)))
    for _ in range(4):
        await channel.run({interest: ["a", "b"] for interest in interests})
    other = StoredChannel(store, await store.add_channel())
    (kept,) = await other.subscribe("[1]")
    removing = asyncio.create_task(store.drop_channel(channel.id))
    runs = 0
    while not removing.done():
        await other.run({kept: [f"{runs}"]})
        runs += 1
    await removing
    assert runs > 3, "nobody else had a turn"
    assert await other.texts(kept) == [f"{n}" for n in range(runs)]
