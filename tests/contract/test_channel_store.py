"""What every backend of the channel store promises (src/tocsin/store/channel_store.py), tried on each.

Another backend is one more class beside `SqliteFile` and one more name in `BACKENDS`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tocsin.rules.model.cursors import BEGINNING, LAST_ORDINAL, START, Cursor, Position, Range
from tocsin.store.channel_store import (
    PARAMETERS_LIMIT,
    SUBSCRIPTION_ID_LIMIT,
    Broker,
    ChannelStore,
    Execution,
    Failure,
    Wanted,
)
from tocsin.store.sqlite_channels import SqliteChannelStore
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StorageFullError, UnavailableError

EAST, WEST = Broker("Default", "east"), Broker("Default", "west")


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "cluster" / "channels.db"

    def store(self) -> ChannelStore:
        """The same contents each time."""
        return SqliteChannelStore(self.path)

    def small_store(self) -> ChannelStore:
        """A store that has room for some megabytes."""
        return SqliteChannelStore(self.path, max_bytes=3_000_000)

    def of_backup(self, path: Path) -> ChannelStore:
        return SqliteChannelStore(path)


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


class Channel:
    """A channel with some interests, and short ways to use it."""

    def __init__(self, store: ChannelStore, channel_id: int) -> None:
        self.store = store
        self.id = channel_id
        self.last = 0

    async def subscribe(self, *texts: str, broker: Broker = EAST) -> list[int]:
        wanted = [Wanted(text, broker) for text in texts]
        return [made.interest for made in await self.store.subscribe(self.id, wanted, created_us=5)]

    async def run(self, found: Mapping[int, Sequence[str]], **fields: Any) -> Position:
        """One execution that ends at its number × 100 and finds these."""
        self.last += 1
        pairs = [(interest, text.encode()) for interest, texts in found.items() for text in texts]
        execution = Execution(self.last, self.last * 100 - 1, self.last * 100, {"d": self.last}, **fields)
        done = await self.store.commit_execution(
            self.id, execution, [interest for interest, _ in pairs], [payload for _, payload in pairs]
        )
        return done.position

    async def texts(self, interest: int, after: Cursor = START, **fields: Any) -> list[str]:
        return [text for _, text in await self.pairs(interest, after, **fields)]

    async def pairs(self, interest: int, after: Cursor = START, **fields: Any) -> list[tuple[Cursor, str]]:
        found = await fetched(self.store, [Range(interest, after, **fields)])
        return [(result.cursor, result.payload.decode()) for result in found[0]["results"]]

    async def gap(self, interest: int, after: Cursor = START, **fields: Any) -> Cursor | None:
        gap: Cursor | None = (await fetched(self.store, [Range(interest, after, **fields)]))[0]["gap"]
        return gap


@pytest.fixture
async def channel(store: ChannelStore) -> Channel:
    return Channel(store, await store.add_channel())


async def fetched(store: ChannelStore, ranges: Sequence[Range], **options: Any) -> list[dict[str, Any]]:
    """The answer to each range, put together, after a look at the order of the parts."""
    answers: list[dict[str, Any]] = [{"results": [], "gap": None, "known": None} for _ in ranges]
    order: list[int] = []
    async for chunk in store.fetch(ranges, **options):
        assert chunk
        for part in chunk:
            order.append(part.range)
            answer = answers[part.range]
            answer["results"] += part.results
            answer["gap"] = part.gap or answer["gap"]
            answer["known"] = part.known
    assert order == sorted(order)
    assert set(order) == set(range(len(ranges)))
    for answer in answers:
        cursors = [result.cursor for result in answer["results"]]
        assert cursors == sorted(set(cursors))
    return answers


async def news_of(store: ChannelStore, after: Position, broker: Broker | None = None) -> dict[int, Cursor]:
    return {item.interest: item.cursor for item in (await store.news(after, broker=broker)).items}


# --- channels


async def test_a_new_channel_has_no_execution_and_its_number_never_comes_again(store: ChannelStore) -> None:
    first, second = await store.add_channel(), await store.add_channel()
    state = await store.state(second)
    assert (state.last_execution, state.vector, state.tick_us, state.interests, state.results) == (0, {}, None, 0, 0)
    await store.drop_channel(second)
    assert await store.channel_ids() == [first]
    assert await store.add_channel() > second


async def test_what_was_written_is_there_after_opening_again(backend: SqliteFile, channel: Channel) -> None:
    store = channel.store
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a", "b"]}, tick_us=77, details={"new": 3})
    before = await store.state(channel.id), await store.executions(channel.id), store.epoch
    pairs = await channel.pairs(interest)
    await store.close()
    again = backend.store()
    await again.open()
    assert (await again.state(channel.id), await again.executions(channel.id), again.epoch) == before
    assert await Channel(again, channel.id).pairs(interest) == pairs
    assert before[0].vector == {"d": 1}
    assert before[0].tick_us == 77
    await again.close()


async def test_a_dropped_channel_is_gone_and_the_others_stay(store: ChannelStore, channel: Channel) -> None:
    other = Channel(store, await store.add_channel())
    kept, gone = (await other.subscribe("[1]"))[0], (await channel.subscribe("[1]"))[0]
    start = await store.position()
    await other.run({kept: ["kept"]})
    await channel.run({gone: ["gone"]})
    await store.drop_channel(channel.id)
    await store.drop_channel(channel.id)
    assert (await fetched(store, [Range(gone, START)]))[0]["known"] is False
    assert await other.texts(kept) == ["kept"]
    assert list(await news_of(store, start)) == [kept]
    assert [each.channel_id for each in await store.subscriptions_of(EAST)] == [other.id]
    for ask in (
        store.state(channel.id),
        store.subscriptions(channel.id),
        store.subscription(channel.id, "x"),
        store.executions(channel.id),
        store.interest_changes(channel.id, 0),
        store.subscribe(channel.id, [], created_us=1),
        store.unsubscribe(channel.id, []),
        store.change_broker(channel.id, "x", WEST),
        store.commit_execution(channel.id, Execution(2, 1, 1, {}), [], []),
        store.record_failure(channel.id, Failure(2, 1, 1, "why")),
        store.retain(channel.id),
        store.trim(channel.id, {}),
    ):
        with pytest.raises(NotFoundError, match=f"no channel number {channel.id}"):
            await ask


# --- subscriptions


async def test_equal_parameters_share_one_interest_whoever_asks(store: ChannelStore, channel: Channel) -> None:
    one, two, three = await store.subscribe(
        channel.id, [Wanted("[1]", EAST), Wanted("[1]", WEST), Wanted("[2]", EAST)], created_us=9
    )
    assert one.interest == two.interest != three.interest
    assert [each.new_interest for each in (one, two, three)] == [True, True, True]
    assert len({one.id, two.id, three.id}) == 3
    (later,) = await store.subscribe(channel.id, [Wanted("[2]", EAST)], created_us=9)
    assert (later.interest, later.new_interest, later.made) == (three.interest, False, True)
    other = Channel(store, await store.add_channel())
    assert await other.subscribe("[1]") != [one.interest]
    state = await store.state(channel.id)
    assert (state.interests, state.subscriptions) == (2, 4)


async def test_an_id_means_the_same_subscription_for_ever(store: ChannelStore, channel: Channel) -> None:
    wanted = [Wanted("[1]", EAST, "k"), Wanted("[2]", EAST, "l"), Wanted("[1]", EAST, "k")]
    first = await store.subscribe(channel.id, wanted, created_us=1)
    await channel.run({})
    again = await store.subscribe(channel.id, wanted, created_us=2)
    assert [each.made for each in first] == [True, True, False]
    assert [each.made for each in again] == [False, False, False]
    assert [(e.id, e.interest, e.since) for e in first] == [(e.id, e.interest, e.since) for e in again]
    before = await store.state(channel.id), await store.subscriptions(channel.id)
    for other in (Wanted("[2]", EAST, "k"), Wanted("[1]", WEST, "k")):
        with pytest.raises(ConflictError, match="another subscription with the id k"):
            await store.subscribe(channel.id, [Wanted("[new]", EAST), other], created_us=3)
    assert (await store.state(channel.id), await store.subscriptions(channel.id)) == before
    elsewhere = await store.add_channel()
    assert (await store.subscribe(elsewhere, [Wanted("[9]", WEST, "k")], created_us=1))[0].made


async def test_a_subscription_begins_after_the_last_execution(store: ChannelStore, channel: Channel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["old", "older"]})
    (made,) = await store.subscribe(channel.id, [Wanted("[1]", WEST, "k")], created_us=1)
    await channel.run({interest: ["new"]})
    assert made.since == (store.epoch, 1, LAST_ORDINAL)
    assert await channel.texts(interest, made.since) == ["new"]
    kept = await store.subscription(channel.id, "k")
    assert kept is not None
    assert (kept.since, kept.parameters, kept.broker, kept.created_us) == (made.since, "[1]", WEST, 1)


async def test_an_interest_goes_with_its_last_subscription_and_its_number_never_comes_again(
    store: ChannelStore, channel: Channel
) -> None:
    one, two = await store.subscribe(channel.id, [Wanted("[1]", EAST, "a"), Wanted("[1]", WEST, "b")], created_us=1)
    await channel.run({one.interest: ["gone"]})
    done = await store.unsubscribe(channel.id, ["a", "never", "a"])
    assert (done.removed, done.emptied) == (["a"], [])
    assert await channel.texts(one.interest) == ["gone"]
    done = await store.unsubscribe(channel.id, ["b", "a"])
    assert (done.removed, done.emptied) == (["b"], [two.interest])
    assert (await fetched(store, [Range(one.interest, START)]))[0]["known"] is False
    assert await news_of(store, BEGINNING) == {}
    (again,) = await channel.subscribe("[1]")
    assert again > one.interest
    assert await channel.texts(again) == []
    assert (await store.state(channel.id)).subscriptions == 1


async def test_subscriptions_are_listed_by_channel_and_by_broker_in_pages(
    store: ChannelStore, channel: Channel
) -> None:
    other = await store.add_channel()
    names = ["z", "a", "M", "é", "0", "🚨", "日"]
    for place in (channel.id, other):
        wanted = [Wanted(f"[{n}]", EAST if n % 2 else WEST, name) for n, name in enumerate(names)]
        await store.subscribe(place, wanted, created_us=1)
    listed: list[str] = []
    while page := await store.subscriptions(channel.id, after=listed[-1] if listed else "", limit=2):
        listed += [each.id for each in page]
    assert listed == sorted(names)
    east: list[tuple[int, str]] = []
    while page := await store.subscriptions_of(EAST, after=east[-1] if east else (0, ""), limit=2):
        assert {each.broker for each in page} == {EAST}
        east += [(each.channel_id, each.id) for each in page]
    assert east == [(place, name) for place in (channel.id, other) for name in sorted(names[1::2])]
    assert await store.subscriptions_of(Broker("Default", "unknown")) == []


async def test_a_subscription_moves_to_another_broker_with_what_is_not_acknowledged(
    store: ChannelStore, channel: Channel
) -> None:
    (made,) = await store.subscribe(channel.id, [Wanted("[1]", EAST, "k")], created_us=1)
    await channel.run({made.interest: ["a"]})
    start = await store.position()
    moved = await store.change_broker(channel.id, "k", WEST)
    assert (moved.broker, moved.since, moved.interest) == (WEST, made.since, made.interest)
    await channel.run({made.interest: ["b"]})
    assert await news_of(store, start, EAST) == {}
    assert list(await news_of(store, start, WEST)) == [made.interest]
    assert [page async for page in store.lowest_acknowledged(channel.id)] == []
    assert await store.change_broker(channel.id, "k", WEST) == moved
    # A broker that has acknowledged the interest for itself lacks what comes with the subscription.
    await channel.subscribe("[1]", broker=EAST)
    await store.acknowledge(EAST, {made.interest: Cursor(store.epoch, 2, 0)})
    await store.change_broker(channel.id, "k", EAST)
    assert [page async for page in store.lowest_acknowledged(channel.id)] == []
    with pytest.raises(NotFoundError, match="no subscription nobody"):
        await store.change_broker(channel.id, "nobody", WEST)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("[1]", EAST, ""),
        Wanted("[1]", EAST, "a\0b"),
        Wanted("[1]", EAST, "x" * (SUBSCRIPTION_ID_LIMIT + 1)),
        Wanted("x" * (PARAMETERS_LIMIT + 1), EAST),
        Wanted("\ud800", EAST),
        Wanted("[1]", Broker("x" * 1000, "b")),
    ],
)
async def test_what_not_every_backend_can_keep_is_refused_whole(channel: Channel, wanted: Wanted) -> None:
    with pytest.raises(InputError):
        await channel.store.subscribe(channel.id, [Wanted("[0]", EAST), wanted], created_us=1)
    assert (await channel.store.state(channel.id)).subscriptions == 0


async def test_odd_parameters_are_kept_apart_character_by_character(channel: Channel) -> None:
    texts = ['["a"]', '["A"]', '["a "]', '["ä"]', '["a\u0308"]', '["🚨"]', '["\\u0000"]', '["\'"]', "1", "1.0", ""]
    ids = await channel.subscribe(*texts)
    assert len(set(ids)) == len(texts)
    assert await channel.subscribe(*texts) == ids
    assert [text async for chunk in channel.store.interests(channel.id) for text in chunk.parameters] == texts


# --- interests and their changes


async def test_changes_tell_what_a_reader_of_all_interests_lacks(store: ChannelStore, channel: Channel) -> None:
    wanted = [Wanted(json.dumps([n]), EAST, str(n)) for n in range(10)]
    await store.subscribe(channel.id, wanted, created_us=1)
    known: dict[int, str] = {}
    change = -1
    async for chunk in store.interests(channel.id):
        known |= dict(zip(chunk.ids, chunk.parameters, strict=True))
        change = chunk.change
    assert change == (await store.state(channel.id)).change
    nothing = await store.interest_changes(channel.id, change)
    assert nothing is not None
    assert (nothing.added, nothing.removed, nothing.more) == ([], [], False)
    await store.unsubscribe(channel.id, ["9"])
    await store.unsubscribe(channel.id, ["0", "5"])
    await channel.subscribe("[0]", "[77]")
    short = await store.subscribe(channel.id, [Wanted("[short]", EAST, "short")], created_us=1)
    await store.unsubscribe(channel.id, ["short"])
    while changes := await store.interest_changes(channel.id, change, limit=2):
        assert short[0].interest not in [id_ for id_, _ in changes.added]
        known |= dict(changes.added)
        for id_ in changes.removed:
            known.pop(id_, None)
        change = changes.change
        if not changes.more:
            break
    assert sorted(known.values()) == sorted(json.dumps([n]) for n in (0, 1, 2, 3, 4, 6, 7, 8, 77))
    assert change == (await store.state(channel.id)).change


# --- executions


async def test_results_vector_tick_and_number_commit_together(store: ChannelStore, channel: Channel) -> None:
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
    store: ChannelStore, channel: Channel, number: int
) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a"]})
    before = await store.state(channel.id)
    with pytest.raises(ConflictError, match="cannot follow execution 1"):
        await store.commit_execution(channel.id, Execution(number, 1, 2, {"d": 9}), [interest], [b"x"])
    assert await store.state(channel.id) == before
    assert await channel.texts(interest) == ["a"]


async def test_results_of_interests_that_went_meanwhile_are_left_out(store: ChannelStore, channel: Channel) -> None:
    made = await store.subscribe(channel.id, [Wanted("[1]", EAST, "a"), Wanted("[2]", EAST, "b")], created_us=1)
    foreign = (await Channel(store, await store.add_channel()).subscribe("[1]"))[0]
    await store.unsubscribe(channel.id, ["a"])
    gone, kept = (each.interest for each in made)
    done = await store.commit_execution(
        channel.id, Execution(1, 1, 2, {}), [kept, gone, foreign, 999, kept], [b"same", b"same", b"f", b"n", b"same"]
    )
    assert done.results == 2
    assert await channel.texts(kept) == ["same", "same"]
    assert (await fetched(store, [Range(foreign, START)]))[0]["results"] == []


async def test_a_failed_execution_is_recorded_and_advances_nothing(store: ChannelStore, channel: Channel) -> None:
    await channel.run({})
    before = await store.state(channel.id)
    culprits = {"culprits": [{"dataset": "d", "key": 7}]}
    await store.record_failure(channel.id, Failure(2, 150, 160, "division by zero", 140, culprits))
    assert await store.state(channel.id) == before
    await channel.run({})
    kept = await store.executions(channel.id)
    assert [(each.number, each.reason) for each in kept] == [(2, None), (2, "division by zero"), (1, None)]
    assert kept[1].details == culprits
    assert [each.number for each in await store.executions(channel.id, limit=1)] == [2]


async def test_the_history_of_executions_is_bounded(store: ChannelStore, channel: Channel) -> None:
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


# --- fetch


async def test_one_fetch_answers_many_ranges_in_cursor_order(store: ChannelStore, channel: Channel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(1500)))
    for _ in range(2):
        await channel.run({interest: [f"{interest}", "same"] for interest in interests})
    answers = await fetched(store, [Range(interest, START) for interest in reversed(interests)], chunk_bytes=10_000)
    for interest, answer in zip(reversed(interests), answers, strict=True):
        assert [result.payload.decode() for result in answer["results"]] == [f"{interest}", "same"] * 2


async def test_a_range_keeps_to_its_bounds_and_its_limit(channel: Channel) -> None:
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


async def test_a_limit_holds_across_chunks(store: ChannelStore, channel: Channel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: [f"{n:500}" for n in range(40)]})
    for limit in (1, 7, 39, 40, 41):
        ranges = [Range(interest, START, limit=limit)] * 3
        answers = await fetched(store, ranges, chunk_bytes=1_000)
        assert [len(answer["results"]) for answer in answers] == [min(limit, 40)] * 3


async def test_chunks_are_bounded_in_bytes_and_hold_a_result_of_any_size(store: ChannelStore, channel: Channel) -> None:
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


async def test_interests_and_cursors_that_were_never_given_out_harm_nobody(
    store: ChannelStore, channel: Channel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["a"]})
    strange = [0, -1, 10**6, 2**63, -(2**70)]
    answers = await fetched(store, [Range(interest, START), *(Range(each, START) for each in strange)])
    assert [answer["known"] for answer in answers] == [True] + [False] * len(strange)
    for cursor in (Cursor(store.epoch, 2**80, 2**80), Cursor(2**80, 0, 0), Cursor(store.epoch, 1, 0)):
        assert await channel.texts(interest, cursor) == []
    for cursor in (Cursor(-(2**80), -5, -5), Cursor(store.epoch, -1, -1), Cursor(store.epoch - 1, 2**80, 0)):
        assert await channel.texts(interest, cursor) == ["a"]
    await store.acknowledge(EAST, {interest: Cursor(2**80, 0, 0), 999: START})
    await channel.run({interest: ["b"]})
    for page in [page async for page in store.lowest_acknowledged(channel.id)]:
        await store.trim(channel.id, page)
    assert await channel.texts(interest) == ["b"], "what came later is not acknowledged by a cursor from nowhere"
    assert (await fetched(store, []))[:] == []


# --- epochs


async def test_a_new_epoch_comes_after_all_cursors_of_the_old_one(backend: SqliteFile, channel: Channel) -> None:
    store = channel.store
    (interest,) = await channel.subscribe("[1]")
    position = await channel.run({interest: ["a"]})
    old = store.epoch
    # Another life went on after the backup, up to execution 5, and a broker heard of it.
    ahead, ahead_position = Cursor(old, 5, 3), Position(old, position.number + 100)
    assert await store.renew_epoch() == store.epoch > old
    assert await news_of(store, ahead_position) == {}
    await channel.run({interest: ["b"]})
    assert await channel.pairs(interest) == [((old, 1, 0), "a"), ((store.epoch, 2, 0), "b")]
    assert await channel.texts(interest, ahead) == ["b"]
    assert await channel.texts(interest, START, to=ahead) == ["a"]
    assert await news_of(store, ahead_position) == {interest: Cursor(store.epoch, 2, 0)}
    assert await news_of(store, await store.position()) == {}
    (made,) = await store.subscribe(channel.id, [Wanted("[1]", WEST)], created_us=1)
    assert await store.renew_epoch() > made.since.epoch
    await channel.run({interest: ["c"]})
    assert await channel.texts(interest, made.since) == ["c"]
    await store.close()
    await store.open()
    assert await channel.texts(interest, made.since) == ["c"]


# --- retention


async def test_retention_by_age_tells_the_gap_to_whom_it_concerns(store: ChannelStore, channel: Channel) -> None:
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
    store: ChannelStore, channel: Channel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    for number in range(5):
        await channel.run({interest: [f"{number}" * 1000]})
    assert await store.retain(channel.id, max_bytes=10**9) == 0
    await store.retain(channel.id, max_bytes=3_500)
    assert [text[0] for text in await channel.texts(interest)] == ["2", "3", "4"]
    await store.retain(channel.id, max_bytes=0)
    assert [text[0] for text in await channel.texts(interest)] == ["4"]


async def test_trimming_removes_what_lies_below_the_cursors(store: ChannelStore, channel: Channel) -> None:
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


async def end(channel: Channel) -> Cursor:
    return Cursor(channel.store.epoch, channel.last, LAST_ORDINAL)


async def test_what_interests_that_went_have_left_goes_with_retention(store: ChannelStore, channel: Channel) -> None:
    made = await store.subscribe(channel.id, [Wanted(f"[{n}]", EAST, f"{n}") for n in range(10)], created_us=1)
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
    store: ChannelStore, channel: Channel
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


async def test_others_read_and_write_while_much_is_removed(store: ChannelStore, channel: Channel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(2_000)))
    for _ in range(4):
        await channel.run({interest: ["a", "b"] for interest in interests})
    other = Channel(store, await store.add_channel())
    (kept,) = await other.subscribe("[1]")
    removing = asyncio.create_task(store.drop_channel(channel.id))
    runs = 0
    while not removing.done():
        await other.run({kept: [f"{runs}"]})
        runs += 1
    await removing
    assert runs > 3, "nobody else had a turn"
    assert await other.texts(kept) == [f"{n}" for n in range(runs)]


# --- news


async def test_a_broker_catches_up_from_one_position(store: ChannelStore, channel: Channel) -> None:
    other = Channel(store, await store.add_channel())
    one, two = await channel.subscribe("[1]", "[2]", broker=EAST)
    await channel.subscribe("[2]", broker=WEST)
    (three,) = await other.subscribe("[3]", broker=WEST)
    start = await store.position()
    await channel.run({one: ["a", "b"]})
    between = await other.run({three: ["x"]})
    after = await channel.run({one: ["c"], two: ["d"]})
    epoch = store.epoch
    assert await news_of(store, start, EAST) == {one: (epoch, 2, 0), two: (epoch, 2, 0)}
    assert await news_of(store, start, WEST) == {three: (epoch, 1, 0), two: (epoch, 2, 0)}
    assert await news_of(store, between, WEST) == {two: (epoch, 2, 0)}
    everybody = (await store.news(between)).items
    assert {(item.broker, item.interest) for item in everybody} == {(EAST, one), (EAST, two), (WEST, two)}
    assert {item.channel_id for item in everybody} == {channel.id}
    caught_up = await store.news(start, broker=EAST)
    assert (caught_up.position, caught_up.more, caught_up.gaps) == (after, False, [])
    assert (await store.news(start, broker=Broker("Default", "nobody"))).items == []


async def test_news_come_in_pages_in_the_order_of_commits(store: ChannelStore, channel: Channel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(10)))
    position = await store.position()
    for interest in (*reversed(interests), interests[9]):
        await channel.run({interest: ["x"]})
    told: list[tuple[int, Cursor]] = []
    more = True
    while more:
        page = await store.news(position, broker=EAST, limit=3)
        told += [(item.interest, item.cursor) for item in page.items]
        position, more = page.position, page.more
    expected = [(interest, Cursor(store.epoch, n, 0)) for n, interest in enumerate(reversed(interests), 1)]
    assert told == [*expected, (interests[9], Cursor(store.epoch, 11, 0))]
    assert position == await store.position()


async def test_news_that_retention_removed_are_told_as_a_gap_of_the_channel(
    store: ChannelStore, channel: Channel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    (elsewhere,) = await Channel(store, await store.add_channel()).subscribe("[1]", broker=WEST)
    start = await store.position()
    after = await channel.run({interest: ["a"]})
    await store.retain(channel.id, ended_before_us=10**9)
    news = await store.news(start, broker=EAST)
    assert (news.items, news.gaps, news.position) == ([], [channel.id], after)
    assert (await store.news(after, broker=EAST)).gaps == []
    assert (await store.news(start, broker=WEST)).gaps == []
    assert elsewhere != interest


async def test_only_what_all_brokers_acknowledged_may_be_trimmed(store: ChannelStore, channel: Channel) -> None:
    (interest,) = await channel.subscribe("[1]", broker=EAST)
    await channel.subscribe("[1]", broker=WEST)
    for _ in range(3):
        await channel.run({interest: ["a", "b"]})
    epoch = store.epoch

    async def lowest() -> dict[int, Cursor]:
        return {key: cursor async for page in store.lowest_acknowledged(channel.id) for key, cursor in page.items()}

    assert await lowest() == {}
    await store.acknowledge(EAST, {interest: Cursor(epoch, 3, 0)})
    assert await lowest() == {}
    await store.acknowledge(WEST, {interest: Cursor(epoch, 2, 0)})
    assert await lowest() == {interest: (epoch, 2, 0)}
    await store.acknowledge(WEST, {interest: Cursor(epoch, 1, 0)})
    assert await lowest() == {interest: (epoch, 2, 0)}, "an acknowledgement went back"
    assert await store.trim(channel.id, await lowest()) == 3
    assert await lowest() == {}
    await store.acknowledge(Broker("Default", "nobody"), {interest: Cursor(epoch, 3, 1)})
    await store.acknowledge(WEST, {interest: Cursor(epoch, 3, 1)})
    assert await lowest() == {interest: (epoch, 3, 0)}


# --- the store itself


async def test_a_full_disk_is_said_clearly_and_loses_nothing(backend: SqliteFile) -> None:
    store = backend.small_store()
    await store.open()
    channel = Channel(store, await store.add_channel())
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["kept"]})
    with pytest.raises(StorageFullError, match="no room"):
        await channel.run({interest: [f"{n}" * 100_000 for n in range(100)]})
    state = await store.state(channel.id)
    assert (state.last_execution, state.results) == (1, 1)
    channel.last = 1
    await channel.run({interest: ["next"]})
    assert await channel.texts(interest) == ["kept", "next"]
    await store.close()


async def test_a_closed_store_says_so(store: ChannelStore, channel: Channel) -> None:
    await store.close()
    await store.close()
    for ask in (store.state(channel.id), store.add_channel(), store.position(), anext(store.fetch([Range(1, START)]))):
        with pytest.raises(UnavailableError, match="not open"):
            await ask
    with pytest.raises(UnavailableError, match="not open"):
        _ = store.epoch
    await store.open()
    assert await store.channel_ids() == [channel.id]


async def test_a_cancellation_leaves_all_or_nothing_and_frees_the_store(store: ChannelStore, channel: Channel) -> None:
    (interest,) = await channel.subscribe("[1]")
    for steps in range(20):
        task = asyncio.create_task(channel.run({interest: ["a", "b"]}))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        channel.last = (await store.state(channel.id)).last_execution
        assert await channel.texts(interest) == ["a", "b"] * channel.last


async def test_readers_do_not_wait_for_a_long_commit(store: ChannelStore, channel: Channel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["seen"]})
    commit = asyncio.create_task(channel.run({interest: [f"{n}" for n in range(50_000)]}))
    reads = 0
    while not commit.done():
        state = await store.state(channel.id)
        assert (state.last_execution, state.results) in ((1, 1), (2, 50_001))
        reads += state.last_execution == 1
    await commit
    assert reads > 1, "every read waited for the commit"


async def test_a_backup_holds_one_committed_state(
    backend: SqliteFile, store: ChannelStore, channel: Channel, tmp_path: Path
) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(100)))
    await channel.run({interest: ["x" * 1000] for interest in interests})
    target = tmp_path / "copy.backup"
    commit = asyncio.create_task(channel.run({interest: ["y"] for interest in interests}))
    await store.backup_to(target)
    await commit
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    copy = backend.of_backup(target)
    await copy.open()
    state = await copy.state(channel.id)
    assert (state.last_execution, state.results) in ((1, 100), (2, 200))
    assert (await store.state(channel.id)).results == 200
    await copy.close()


# --- brokers that are told


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


async def test_registrations_outlive_a_restart(backend: SqliteFile) -> None:
    store = backend.store()
    await store.open()
    made = await store.register(EAST, "s", owner="ada")
    await store.close()
    store = backend.store()
    await store.open()
    assert await store.registrations() == [made]
    await store.close()


async def test_news_tell_the_first_new_result_of_each_interest(store: ChannelStore, channel: Channel) -> None:
    (one,) = await channel.subscribe("[1]")
    await channel.run({one: ["a"]})
    between = await store.position()
    await channel.run({one: ["b", "c"]})
    await channel.run({one: ["d"]})
    (item,) = (await store.news(between, broker=EAST)).items
    assert (item.first[1:], item.cursor[1:]) == ((2, 0), (3, 0))


async def test_an_acknowledgement_says_which_channels_it_is_of(store: ChannelStore, channel: Channel) -> None:
    (one,) = await channel.subscribe("[1]")
    await channel.run({one: ["a"]})
    cursor = Cursor(store.epoch, 1, 0)
    assert await store.acknowledge(EAST, {one: cursor, 999: cursor}) == {channel.id}
    assert await store.acknowledge(Broker("Default", "nobody"), {one: cursor}) == set()
