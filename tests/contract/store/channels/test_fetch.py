"""Results are fetched by cursor: all that were asked for, in their order, in chunks of a bounded size."""

from __future__ import annotations

import pytest

from tests.support.stored_channel import EAST, WEST, StoredChannel, fetched, new_heads_of
from tocsin.rules.model.cursors import START, Cursor, Position, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest
from tocsin.wire.errors import InputError


async def test_one_fetch_answers_many_ranges_in_cursor_order(store: ChannelStore, channel: StoredChannel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(1500)))
    for _ in range(2):
        await channel.run({interest: [f"{interest}", "same"] for interest in interests})
    answers = await fetched(store, [Range(interest, START) for interest in reversed(interests)], chunk_bytes=10_000)
    for interest, answer in zip(reversed(interests), answers, strict=True):
        assert [result.payload.decode() for result in answer["results"]] == [f"{interest}", "same"] * 2


async def test_a_range_keeps_to_its_bounds_and_its_limit(channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    for number in range(1, 5):
        await channel.run({interest: [f"{number}.{n}" for n in range(3)]})
    every = await channel.pairs(interest)
    cursors = [cursor for cursor, _ in every]
    assert [text for _, text in every] == [f"{n}.{m}" for n in range(1, 5) for m in range(3)]
    for begin in range(12):
        assert await channel.pairs(interest, cursors[begin]) == every[begin + 1 :]
        assert await channel.pairs(interest, START, to=cursors[begin]) == every[: begin + 1]
        for limit in (1, 2, 5, 100):
            assert await channel.pairs(interest, cursors[begin], limit=limit) == every[begin + 1 :][:limit]
            upto = await channel.pairs(interest, cursors[0], to=cursors[begin], limit=limit)
            assert upto == every[1 : begin + 1][:limit]


async def test_a_limit_holds_across_chunks(store: ChannelStore, channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: [f"{n:500}" for n in range(40)]})
    for limit in (1, 7, 39, 40, 41):
        ranges = [Range(interest, START, limit=limit)] * 3
        answers = await fetched(store, ranges, chunk_bytes=1_000)
        assert [len(answer["results"]) for answer in answers] == [min(limit, 40)] * 3


@pytest.mark.parametrize("chunk_bytes", [1, 1_000, 4_000, 1 << 20])
async def test_a_range_ends_with_the_result_that_reaches_its_bytes(
    store: ChannelStore, channel: StoredChannel, chunk_bytes: int
) -> None:
    interests = await channel.subscribe("[1]", "[2]", "[3]")
    await channel.run({each: [f"{n:400}" for n in range(20)] for each in interests})
    for limit_bytes, expected in ((1, 1), (500, 1), (501, 2), (1_000, 2), (9_500, 19), (9_501, 20), (1 << 60, 20)):
        ranges = [Range(each, START, limit_bytes=limit_bytes) for each in interests]
        answers = await fetched(store, [*ranges, Range(interests[0], START, limit=3)], chunk_bytes=chunk_bytes)
        counts = [[int(result.payload) for result in answer["results"]] for answer in answers]
        assert counts == [list(range(expected))] * 3 + [[0, 1, 2]]
    both = [Range(interests[0], START, limit=limit, limit_bytes=1_000) for limit in (1, 5)]
    assert [len(part["results"]) for part in await fetched(store, both, chunk_bytes=chunk_bytes)] == [1, 2]


async def test_chunks_are_bounded_in_bytes_and_hold_a_result_of_any_size(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["x" * size for size in (100_000, 10, 10, 100_000, 100_000, 10)]})
    sizes = [
        sum(result.size_bytes for part in chunk for result in part.results)
        async for chunk in store.fetch([Range(interest, START)], chunk_bytes=50_000)
    ]
    assert sum(sizes) == 300_030
    assert max(sizes) <= 100_020


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_makes_no_sense_is_refused(store: ChannelStore, limit: int) -> None:
    with pytest.raises(InputError, match="limit"):
        await fetched(store, [Range(1, START, limit=limit)])
    with pytest.raises(InputError, match="bytes"):
        await fetched(store, [Range(1, START, limit_bytes=limit)])


async def test_interests_and_cursors_that_were_never_given_out_harm_nobody(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a"]})
    strange = [0, -1, 10**6, 2**63, -(2**70)]
    answers = await fetched(store, [Range(interest, START), *(Range(each, START) for each in strange)])
    assert [answer["known"] for answer in answers] == [True] + [False] * len(strange)
    for cursor in (Cursor(store.epoch, 2**80, 2**80), Cursor(store.epoch, 1, 0)):
        assert await channel.texts(interest, cursor) == []
    unknown = [Cursor(2**80, 0, 0), Cursor(store.epoch + 1, 7, 0)]
    for cursor in (Cursor(-(2**80), -5, -5), Cursor(store.epoch, -1, -1), Cursor(store.epoch - 1, 2**80, 0), *unknown):
        assert await channel.texts(interest, cursor) == ["a"]
    await store.acknowledge(EAST, {interest: Cursor(2**80, 0, 0), 999: START})
    await channel.run({interest: ["b"]})
    for page in [page async for page in store.lowest_acknowledged(channel.id)]:
        await store.trim(channel.id, page)
    assert await channel.texts(interest) == ["a", "b"], "a cursor from nowhere acknowledges nothing"
    assert (await fetched(store, []))[:] == []


async def test_a_life_that_began_with_the_clock_set_back_passes_nothing_over(channel: StoredChannel) -> None:
    store = channel.store
    (interest,) = await channel.subscribe("[1]")
    position = await channel.run({interest: ["a"]})
    await store.renew_epoch()
    # Another restore of the same backup had a later clock, and a broker heard of its executions.
    other = store.epoch + (1 << 40)
    await channel.run({interest: ["b"]})
    assert await channel.texts(interest, Cursor(other, 9, 0)) == ["b"]
    assert await new_heads_of(store, Position(other, position.number + 100)) == {interest: Cursor(store.epoch, 2, 0)}


async def test_a_new_epoch_comes_after_all_cursors_of_the_old_one(channel: StoredChannel) -> None:
    store = channel.store
    (interest,) = await channel.subscribe("[1]")
    position = await channel.run({interest: ["a"]})
    old = store.epoch
    # Another life went on after the backup, up to execution 5, and a broker heard of it.
    ahead, ahead_position = Cursor(old, 5, 3), Position(old, position.number + 100)
    assert await store.renew_epoch() == store.epoch > old
    assert await new_heads_of(store, ahead_position) == {}
    await channel.run({interest: ["b"]})
    assert await channel.pairs(interest) == [((old, 1, 0), "a"), ((store.epoch, 2, 0), "b")]
    assert await channel.texts(interest, ahead) == ["b"]
    assert await channel.texts(interest, START, to=ahead) == ["a"]
    assert await new_heads_of(store, ahead_position) == {interest: Cursor(store.epoch, 2, 0)}
    assert await new_heads_of(store, await store.position()) == {}
    (made,) = await store.subscribe(channel.id, [BackendRequest("[1]", WEST)], created_us=1)
    assert await store.renew_epoch() > made.since.epoch
    await channel.run({interest: ["c"]})
    assert await channel.texts(interest, made.since) == ["c"]
    await store.close()
    await store.open()
    assert await channel.texts(interest, made.since) == ["c"]
