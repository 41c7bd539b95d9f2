"""Channels, who subscribes to them, and the interests that equal parameters share."""

from __future__ import annotations

import json

import pytest

from tests.support.stored_channel import EAST, WEST, StoredChannel, fetched, new_heads_of
from tocsin.rules.model.cursors import BEGINNING, LAST_ORDINAL, START, Cursor, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import PARAMETERS_LIMIT, BackendRequest, BrokerName, Execution, Failure
from tocsin.wire.cluster import SUBSCRIPTION_ID_LIMIT
from tocsin.wire.errors import ConflictError, InputError, LimitError, NotFoundError


async def test_a_new_channel_has_no_execution_and_its_number_never_comes_again(store: ChannelStore) -> None:
    first, second = await store.add_channel(), await store.add_channel()
    state = await store.state(second)
    assert (state.last_execution, state.vector, state.tick_us, state.interests, state.results) == (0, {}, None, 0, 0)
    await store.drop_channel(second)
    assert await store.channel_ids() == [first]
    assert await store.add_channel() > second


async def test_a_dropped_channel_is_gone_and_the_others_stay(store: ChannelStore, channel: StoredChannel) -> None:
    other = StoredChannel(store, await store.add_channel())
    kept, gone = (await other.subscribe("[1]"))[0], (await channel.subscribe("[1]"))[0]
    start = await store.position()
    await other.run({kept: ["kept"]})
    await channel.run({gone: ["gone"]})
    await store.drop_channel(channel.id)
    await store.drop_channel(channel.id)
    assert (await fetched(store, [Range(gone, START)]))[0]["known"] is False
    assert await other.texts(kept) == ["kept"]
    assert list(await new_heads_of(store, start)) == [kept]
    assert [each.channel_id for each in await store.subscriptions_of(EAST)] == [other.id]
    for ask in (
        store.state(channel.id),
        store.subscriptions(channel.id),
        store.subscription(channel.id, "x"),
        store.executions(channel.id),
        store.interest_changes(channel.id, 0),
        store.subscribe(channel.id, [], created_us=1),
        store.unsubscribe(channel.id, []),
        store.change_subscription(channel.id, "x", WEST),
        store.commit_execution(channel.id, Execution(2, 1, 1, {}), [], []),
        store.record_failure(channel.id, Failure(2, 1, 1, "why")),
        store.retain(channel.id),
        store.trim(channel.id, {}),
    ):
        with pytest.raises(NotFoundError, match=f"no channel number {channel.id}"):
            await ask


async def test_equal_parameters_share_one_interest_whoever_asks(store: ChannelStore, channel: StoredChannel) -> None:
    one, two, three = await store.subscribe(
        channel.id,
        [BackendRequest("[1]", EAST), BackendRequest("[1]", WEST), BackendRequest("[2]", EAST)],
        created_us=9,
    )
    assert one.interest == two.interest != three.interest
    assert [each.new_interest for each in (one, two, three)] == [True, True, True]
    assert len({one.id, two.id, three.id}) == 3
    (later,) = await store.subscribe(channel.id, [BackendRequest("[2]", EAST)], created_us=9)
    assert (later.interest, later.new_interest, later.made) == (three.interest, False, True)
    other = StoredChannel(store, await store.add_channel())
    assert await other.subscribe("[1]") != [one.interest]
    state = await store.state(channel.id)
    assert (state.interests, state.subscriptions) == (2, 4)


async def test_an_id_means_the_same_subscription_for_ever(store: ChannelStore, channel: StoredChannel) -> None:
    wanted = [BackendRequest("[1]", EAST, "k"), BackendRequest("[2]", EAST, "l"), BackendRequest("[1]", EAST, "k")]
    first = await store.subscribe(channel.id, wanted, created_us=1)
    await channel.run({})
    again = await store.subscribe(channel.id, wanted, created_us=2)
    assert [each.made for each in first] == [True, True, False]
    assert [each.made for each in again] == [False, False, False]
    assert [(e.id, e.interest, e.since) for e in first] == [(e.id, e.interest, e.since) for e in again]
    before = await store.state(channel.id), await store.subscriptions(channel.id)
    for other in (BackendRequest("[2]", EAST, "k"), BackendRequest("[1]", WEST, "k")):
        with pytest.raises(ConflictError, match="another subscription with the id k"):
            await store.subscribe(channel.id, [BackendRequest("[new]", EAST), other], created_us=3)
    assert (await store.state(channel.id), await store.subscriptions(channel.id)) == before
    elsewhere = await store.add_channel()
    assert (await store.subscribe(elsewhere, [BackendRequest("[9]", WEST, "k")], created_us=1))[0].made


async def test_a_subscription_begins_after_the_last_execution(store: ChannelStore, channel: StoredChannel) -> None:
    (interest,) = await channel.subscribe("[1]")
    await channel.run({interest: ["old", "older"]})
    (made,) = await store.subscribe(channel.id, [BackendRequest("[1]", WEST, "k")], created_us=1)
    await channel.run({interest: ["new"]})
    assert made.since == (store.epoch, 1, LAST_ORDINAL)
    assert await channel.texts(interest, made.since) == ["new"]
    kept = await store.subscription(channel.id, "k")
    assert kept is not None
    assert (kept.since, kept.parameters, kept.broker, kept.created_us) == (made.since, "[1]", WEST, 1)


async def test_an_interest_goes_with_its_last_subscription_and_its_number_never_comes_again(
    store: ChannelStore, channel: StoredChannel
) -> None:
    one, two = await store.subscribe(
        channel.id, [BackendRequest("[1]", EAST, "a"), BackendRequest("[1]", WEST, "b")], created_us=1
    )
    await channel.run({one.interest: ["gone"]})
    done = await store.unsubscribe(channel.id, ["a", "never", "a"])
    assert (done.removed, done.emptied) == (["a"], [])
    assert await channel.texts(one.interest) == ["gone"]
    done = await store.unsubscribe(channel.id, ["b", "a"])
    assert (done.removed, done.emptied) == (["b"], [two.interest])
    assert (await fetched(store, [Range(one.interest, START)]))[0]["known"] is False
    assert await new_heads_of(store, BEGINNING) == {}
    (again,) = await channel.subscribe("[1]")
    assert again > one.interest
    assert await channel.texts(again) == []
    assert (await store.state(channel.id)).subscriptions == 1


async def test_subscriptions_are_listed_by_channel_and_by_broker_in_pages(
    store: ChannelStore, channel: StoredChannel
) -> None:
    other = await store.add_channel()
    names = ["z", "a", "M", "é", "0", "🚨", "日"]
    for place in (channel.id, other):
        wanted = [BackendRequest(f"[{n}]", EAST if n % 2 else WEST, name) for n, name in enumerate(names)]
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
    assert await store.subscriptions_of(BrokerName("Default", "unknown")) == []


async def test_the_holders_of_interests_are_listed_in_pages(store: ChannelStore, channel: StoredChannel) -> None:
    other = await store.add_channel()
    names = ["z", "a", "é", "0", "🚨"]
    interests: dict[str, int] = {}
    for place in (other, channel.id):
        wanted = [BackendRequest(f"[{n % 3}]", EAST if n else WEST, name) for n, name in enumerate(names)]
        made = await store.subscribe(place, wanted, created_us=1)
        interests = {name: outcome.interest for name, outcome in zip(names, made, strict=True)}
    some = [interests["z"], interests["é"], 10**15]
    listed: list[str] = []
    while page := await store.holders(EAST, channel.id, some, after=listed[-1] if listed else "", limit=1):
        assert {(each.channel_id, each.broker) for each in page} == {(channel.id, EAST)}
        listed += [each.id for each in page]
    assert listed == sorted(name for name in names if interests[name] in some and name != "z")
    assert await store.holders(EAST, channel.id, []) == []
    assert await store.holders(BrokerName("Default", "unknown"), channel.id, some) == []
    assert await store.holders(EAST, 10**9, some) == []


async def test_a_subscription_moves_to_another_broker_with_what_is_not_acknowledged(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (made,) = await store.subscribe(channel.id, [BackendRequest("[1]", EAST, "k")], created_us=1)
    await channel.run({made.interest: ["a"]})
    start = await store.position()
    moved = await store.change_subscription(channel.id, "k", WEST)
    assert (moved.broker, moved.since, moved.interest) == (WEST, made.since, made.interest)
    await channel.run({made.interest: ["b"]})
    assert await new_heads_of(store, start, EAST) == {}
    assert list(await new_heads_of(store, start, WEST)) == [made.interest]
    assert [page async for page in store.lowest_acknowledged(channel.id)] == []
    assert await store.change_subscription(channel.id, "k", WEST) == moved
    # A broker that has acknowledged the interest for itself lacks what comes with the subscription.
    await channel.subscribe("[1]", broker=EAST)
    await store.acknowledge(EAST, {made.interest: Cursor(store.epoch, 2, 0)})
    await store.change_subscription(channel.id, "k", EAST)
    assert [page async for page in store.lowest_acknowledged(channel.id)] == []
    with pytest.raises(NotFoundError, match="no subscription nobody"):
        await store.change_subscription(channel.id, "nobody", WEST)


async def test_a_subscription_moves_to_another_interest_and_gets_its_later_results(
    store: ChannelStore, channel: StoredChannel
) -> None:
    made = await store.subscribe(
        channel.id, [BackendRequest("[1]", EAST, "k", "app"), BackendRequest("[2]", EAST, "other")], created_us=1
    )
    await channel.run({each.interest: ["old"] for each in made})
    moved = await store.change_subscription(channel.id, "k", WEST, parameters="[2]")
    assert (moved.parameters, moved.interest, moved.broker) == ("[2]", made[1].interest, WEST)
    assert (moved.created_us, moved.application) == (1, "app")
    assert moved.since == Cursor(store.epoch, 1, LAST_ORDINAL)
    state = await store.state(channel.id)
    assert (state.interests, state.subscriptions) == (1, 2), "nobody holds the first interest any more"
    start = await store.position()
    await channel.run({made[1].interest: ["new"]})
    assert await channel.texts(moved.interest, moved.since) == ["new"]
    assert list(await new_heads_of(store, start, WEST)) == [made[1].interest]


async def test_a_change_to_a_forbidden_interest_leaves_the_subscription_as_it_was(
    store: ChannelStore, channel: StoredChannel
) -> None:
    wanted = [BackendRequest("[1]", EAST, "k"), BackendRequest("[2]", WEST), BackendRequest("[3]", WEST)]
    await store.subscribe(channel.id, wanted, created_us=1)
    before = await store.subscription(channel.id, "k"), await store.state(channel.id)
    with pytest.raises(LimitError, match="as many interests as it may"):
        await store.change_subscription(channel.id, "k", WEST, parameters="[4]", interests_at_most=2)
    assert (await store.subscription(channel.id, "k"), await store.state(channel.id)) == before


async def test_an_id_that_is_taken_is_refused_repeated_or_changed_as_the_caller_says(
    store: ChannelStore, channel: StoredChannel
) -> None:
    first = BackendRequest("[1]", EAST, "k")
    (made,) = await store.subscribe(channel.id, [first], created_us=1)
    wanted = [BackendRequest("[9]", EAST, "new"), first]
    with pytest.raises(ConflictError, match="with the id k already"):
        await store.subscribe(channel.id, wanted, created_us=2, when_taken="refuse")
    assert [each.id for each in await store.subscriptions(channel.id)] == ["k"]
    (again,) = await store.subscribe(channel.id, [first], created_us=2, when_taken="change")
    assert (again.interest, again.since, again.made) == (made.interest, made.since, False)
    wanted = [BackendRequest("[2]", WEST, "k"), BackendRequest("[1]", WEST, "new")]
    await store.subscribe(channel.id, wanted, created_us=2, when_taken="change")
    listed = {each.id: (each.parameters, each.broker) for each in await store.subscriptions(channel.id)}
    assert listed == {"k": ("[2]", WEST), "new": ("[1]", WEST)}
    with pytest.raises(ConflictError, match="an id occurs twice"):
        await store.subscribe(channel.id, [first, first], created_us=3, when_taken="change")


@pytest.mark.parametrize(
    "wanted",
    [
        BackendRequest("[1]", EAST, ""),
        BackendRequest("[1]", EAST, "a\0b"),
        BackendRequest("[1]", EAST, "x" * (SUBSCRIPTION_ID_LIMIT + 1)),
        BackendRequest("x" * (PARAMETERS_LIMIT + 1), EAST),
        BackendRequest("\ud800", EAST),
        BackendRequest("[1]", BrokerName("x" * 1000, "b")),
    ],
)
async def test_what_not_every_backend_can_keep_is_refused_whole(channel: StoredChannel, wanted: BackendRequest) -> None:
    with pytest.raises(InputError):
        await channel.store.subscribe(channel.id, [BackendRequest("[0]", EAST), wanted], created_us=1)
    assert (await channel.store.state(channel.id)).subscriptions == 0


async def test_odd_parameters_are_kept_apart_character_by_character(channel: StoredChannel) -> None:
    texts = ['["a"]', '["A"]', '["a "]', '["ä"]', '["a\u0308"]', '["🚨"]', '["\\u0000"]', '["\'"]', "1", "1.0", ""]
    ids = await channel.subscribe(*texts)
    assert len(set(ids)) == len(texts)
    assert await channel.subscribe(*texts) == ids
    assert [text async for chunk in channel.store.interests(channel.id) for text in chunk.parameters] == texts


async def test_changes_tell_what_a_reader_of_all_interests_lacks(store: ChannelStore, channel: StoredChannel) -> None:
    wanted = [BackendRequest(json.dumps([n]), EAST, str(n)) for n in range(10)]
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
    short = await store.subscribe(channel.id, [BackendRequest("[short]", EAST, "short")], created_us=1)
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
