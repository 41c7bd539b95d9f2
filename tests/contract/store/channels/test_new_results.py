"""Brokers are told what is new for their interests since a position, and acknowledge what they have."""

from __future__ import annotations

from tests.support.stored_channel import EAST, WEST, StoredChannel, new_heads_of
from tocsin.rules.model.cursors import Cursor
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName


async def test_a_broker_catches_up_from_one_position(store: ChannelStore, channel: StoredChannel) -> None:
    other = StoredChannel(store, await store.add_channel())
    one, two = await channel.subscribe("[1]", "[2]", broker=EAST)
    await channel.subscribe("[2]", broker=WEST)
    (three,) = await other.subscribe("[3]", broker=WEST)
    start = await store.position()
    await channel.run({one: ["a", "b"]})
    between = await other.run({three: ["x"]})
    after = await channel.run({one: ["c"], two: ["d"]})
    epoch = store.epoch
    assert await new_heads_of(store, start, EAST) == {one: (epoch, 2, 0), two: (epoch, 2, 0)}
    assert await new_heads_of(store, start, WEST) == {three: (epoch, 1, 0), two: (epoch, 2, 0)}
    assert await new_heads_of(store, between, WEST) == {two: (epoch, 2, 0)}
    everybody = (await store.new_results(between)).items
    assert {(item.broker, item.interest) for item in everybody} == {(EAST, one), (EAST, two), (WEST, two)}
    assert {item.channel_id for item in everybody} == {channel.id}
    caught_up = await store.new_results(start, broker=EAST)
    assert (caught_up.position, caught_up.more, caught_up.gaps) == (after, False, [])
    assert (await store.new_results(start, broker=BrokerName("Default", "nobody"))).items == []


async def test_news_come_in_pages_in_the_order_of_commits(store: ChannelStore, channel: StoredChannel) -> None:
    interests = await channel.subscribe(*(f"[{n}]" for n in range(10)))
    position = await store.position()
    for interest in (*reversed(interests), interests[9]):
        await channel.run({interest: ["x"]})
    told: list[tuple[int, Cursor]] = []
    more = True
    while more:
        page = await store.new_results(position, broker=EAST, limit=3)
        told += [(item.interest, item.cursor) for item in page.items]
        position, more = page.position, page.more
    expected = [(interest, Cursor(store.epoch, n, 0)) for n, interest in enumerate(reversed(interests), 1)]
    assert told == [*expected, (interests[9], Cursor(store.epoch, 11, 0))]
    assert position == await store.position()


async def test_news_that_retention_removed_are_told_as_a_gap_of_the_channel(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (interest,) = await channel.subscribe("[1]")
    (elsewhere,) = await StoredChannel(store, await store.add_channel()).subscribe("[1]", broker=WEST)
    start = await store.position()
    after = await channel.run({interest: ["a"]})
    await store.retain(channel.id, ended_before_us=10**9)
    news = await store.new_results(start, broker=EAST)
    assert (news.items, news.gaps, news.position) == ([], [channel.id], after)
    assert (await store.new_results(after, broker=EAST)).gaps == []
    assert (await store.new_results(start, broker=WEST)).gaps == []
    assert elsewhere != interest


async def test_only_what_all_brokers_acknowledged_may_be_trimmed(store: ChannelStore, channel: StoredChannel) -> None:
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
    await store.acknowledge(BrokerName("Default", "nobody"), {interest: Cursor(epoch, 3, 1)})
    await store.acknowledge(WEST, {interest: Cursor(epoch, 3, 1)})
    assert await lowest() == {interest: (epoch, 3, 0)}


async def test_news_tell_the_first_new_result_of_each_interest(store: ChannelStore, channel: StoredChannel) -> None:
    (one,) = await channel.subscribe("[1]")
    await channel.run({one: ["a"]})
    between = await store.position()
    await channel.run({one: ["b", "c"]})
    await channel.run({one: ["d"]})
    (item,) = (await store.new_results(between, broker=EAST)).items
    assert (item.first[1:], item.cursor[1:]) == ((2, 0), (3, 0))


async def test_an_acknowledgement_says_which_channels_it_is_of(store: ChannelStore, channel: StoredChannel) -> None:
    (one,) = await channel.subscribe("[1]")
    await channel.run({one: ["a"]})
    cursor = Cursor(store.epoch, 1, 0)
    assert await store.acknowledge(EAST, {one: cursor, 999: cursor}) == {channel.id}
    assert await store.acknowledge(BrokerName("Default", "nobody"), {one: cursor}) == set()


async def test_dropped_channels_are_counted_for_ever(store: ChannelStore) -> None:
    channels = [await store.add_channel() for _ in range(3)]
    assert await store.dropped() == 0
    await store.drop_channel(channels[0])
    await store.drop_channel(channels[0])
    assert (await store.dropped(), (await store.new_results(await store.position())).dropped) == (1, 1)
    await store.add_channel()
    await store.drop_channel(channels[2])
    assert await store.dropped() == 2
