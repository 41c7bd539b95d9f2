"""An execution of a channel is committed whole and in its turn, and is remembered for a while."""

from __future__ import annotations

import pytest

from tests.support.stored_channel import EAST, StoredChannel, fetched
from tocsin.rules.model.cursors import LAST_ORDINAL, START, Cursor, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest, Execution, Failure
from tocsin.wire.errors import ConflictError


async def test_results_vector_tick_and_number_commit_together(store: ChannelStore, channel: StoredChannel) -> None:
    one, two = await channel.subscribe("[1]", "[2]")
    done = await store.commit_execution(
        channel.id,
        Execution(1, 10, 20, {"d": 4}, 15, {"new": 2}),
        [two, one, two, one, one],
        [b"2a", b"1a", b"2b", b"1b", b"1a"],
    )
    assert done.results == 5
    assert done.position == await store.position()
    assert await channel.pairs(one) == [((store.epoch, 1, n), text) for n, text in enumerate(["1a", "1b", "1a"])]
    assert await channel.pairs(two) == [((store.epoch, 1, n), text) for n, text in enumerate(["2a", "2b"])]
    state = await store.state(channel.id)
    assert (state.last_execution, state.vector, state.tick_us, state.results) == (1, {"d": 4}, 15, 5)
    (recorded,) = await store.executions(channel.id)
    assert (recorded.number, recorded.epoch, recorded.results, recorded.reason) == (1, store.epoch, 5, None)
    assert (recorded.started_us, recorded.ended_us, recorded.details) == (10, 20, {"new": 2})
    (answer,) = await fetched(store, [Range(one, START)])
    assert [(result.executed_us, result.size_bytes) for result in answer["results"]] == [(15, 2)] * 3


@pytest.mark.parametrize("number", [0, 1, 3, -1])
async def test_an_execution_that_is_not_the_next_one_is_refused_whole(
    store: ChannelStore, channel: StoredChannel, number: int
) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a"]})
    before = await store.state(channel.id)
    with pytest.raises(ConflictError, match="cannot follow execution 1"):
        await store.commit_execution(channel.id, Execution(number, 1, 2, {"d": 9}), [interest], [b"x"])
    assert await store.state(channel.id) == before
    assert await channel.texts(interest) == ["a"]


async def test_results_of_interests_that_went_meanwhile_are_left_out(
    store: ChannelStore, channel: StoredChannel
) -> None:
    made = await store.subscribe(
        channel.id, [BackendRequest("[1]", EAST, "a"), BackendRequest("[2]", EAST, "b")], created_us=1
    )
    foreign = (await StoredChannel(store, await store.add_channel()).subscribe("[1]"))[0]
    await store.unsubscribe(channel.id, ["a"])
    gone, kept = (each.interest for each in made)
    done = await store.commit_execution(
        channel.id, Execution(1, 1, 2, {}), [kept, gone, foreign, 999, kept], [b"same", b"same", b"f", b"n", b"same"]
    )
    assert done.results == 2
    assert await channel.texts(kept) == ["same", "same"]
    assert (await fetched(store, [Range(foreign, START)]))[0]["results"] == []


async def test_a_failed_execution_is_recorded_and_advances_nothing(store: ChannelStore, channel: StoredChannel) -> None:
    await channel.run({})
    before = await store.state(channel.id)
    poison_records = {"poison_records": [{"dataset": "d", "key": 7}]}
    await store.record_failure(channel.id, Failure(2, 150, 160, "division by zero", 140, poison_records))
    assert await store.state(channel.id) == before
    await channel.run({})
    kept = await store.executions(channel.id)
    assert [(each.number, each.reason) for each in kept] == [(2, None), (2, "division by zero"), (1, None)]
    assert kept[1].details == poison_records
    assert [each.number for each in await store.executions(channel.id, limit=1)] == [2]


async def test_the_history_of_executions_is_bounded(store: ChannelStore, channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["kept"]})
    for number in range(2, 12):
        await store.record_failure(channel.id, Failure(number, 1, 2, "why"))
        await channel.run({})
    await store.retain(channel.id, executions=3)
    kept = await store.executions(channel.id)
    assert [each.number for each in kept if each.reason is None] == [11, 10, 9, 1]
    assert [each.number for each in kept if each.reason is not None] == [11, 10, 9]
    assert await channel.texts(interest) == ["kept"]


async def test_of_more_matches_than_an_interest_may_have_the_last_are_kept_and_the_gap_is_told(
    store: ChannelStore, channel: StoredChannel
) -> None:
    one, two = await channel.subscribe("[1]", "[2]")
    await channel.run({one: ["old"], two: ["old"]})
    interests = [one, two, one, one, two, one, one]
    payloads = [f"{n}".encode() for n in range(7)]
    done = await store.commit_execution(channel.id, Execution(2, 1, 2, {}), interests, payloads, matches_at_most=3)
    assert (done.results, done.left_out) == (5, 2)
    assert await channel.texts(one) == ["3", "5", "6"]
    assert await channel.texts(two) == ["old", "1", "4"]
    # Who had everything so far, who had nothing, and who subscribed since then is told that some is missing.
    for after in (START, Cursor(store.epoch, 1, 0), Cursor(store.epoch, 1, LAST_ORDINAL)):
        assert await channel.gap(one, after) == Cursor(store.epoch, 2, 0)
        assert await channel.gap(two, after) is None
    assert await channel.gap(one, Cursor(store.epoch, 2, 0)) is None
    assert (await store.state(channel.id)).results == 6
    channel.last = 2
    await channel.run({one: ["next"]})
    assert (await channel.texts(one))[-1] == "next"
