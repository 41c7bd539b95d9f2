"""What a channel keeps is shared between applications: who floods loses its own."""

from __future__ import annotations

import pytest

from tests.support.stored_channel import EAST, WEST, StoredChannel, new_heads_of
from tocsin.rules.model.cursors import Cursor
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest
from tocsin.wire.errors import LimitError


async def test_an_application_that_floods_pushes_out_its_own_results_only(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (quiet,) = await channel.subscribe("[0]", application="quiet")
    (silent,) = await channel.subscribe("[-1]", broker=WEST)
    flood = await channel.subscribe(*(f"[{n}]" for n in range(1, 21)), application="flood")
    for number in range(30):
        found = {each: [f"{number} " * 100] for each in flood}
        if number % 10 == 0:
            found[quiet], found[silent] = [f"for quiet {number}"], [f"{number} " * 100]
        await channel.run(found)
        await store.retain(channel.id, max_bytes=10_000)
        assert (await store.state(channel.id)).result_bytes <= 10_000
    assert await channel.texts(quiet) == ["for quiet 0", "for quiet 10", "for quiet 20"]
    assert await channel.texts(silent) == [f"{number} " * 100 for number in (0, 10, 20)], (
        "though the payload was shared"
    )
    for each in (quiet, silent):
        assert await channel.gap(each) is None
    for each in flood:
        kept = [text.split()[0] for text in await channel.texts(each)]
        assert kept == [f"{number}" for number in range(30 - len(kept), 30)], "the newest stay"
        assert await channel.gap(each) == Cursor(store.epoch, 30 - len(kept), 0)


async def test_room_that_others_do_not_use_is_there_for_who_needs_it(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (small,), (large,) = [await channel.subscribe(f"[{n}]", application=f"app {n}") for n in range(2)]
    await channel.run({small: ["x" * 1_000]})
    for _ in range(20):
        await channel.run({large: ["y" * 952]})
    await store.retain(channel.id, max_bytes=16_000)
    assert len(await channel.texts(small)) == 1
    assert len(await channel.texts(large)) == 14


async def test_of_two_that_have_more_than_their_share_the_larger_loses_first(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (first,), (second,) = [await channel.subscribe(f"[{n}]", application=f"app {n}") for n in range(2)]
    for _ in range(8):
        await channel.run({first: ["x" * 952]})
    for _ in range(20):
        await channel.run({second: ["y" * 952]})
    await store.retain(channel.id, max_bytes=20_000)
    assert (len(await channel.texts(first)), len(await channel.texts(second))) == (8, 12)
    await store.retain(channel.id, max_bytes=8_000)
    assert (len(await channel.texts(first)), len(await channel.texts(second))) == (4, 4)


async def test_a_shared_interest_counts_for_all_and_stays_while_one_below_its_share_needs_it(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (shared,) = await channel.subscribe("[1]", application="quiet")
    assert await channel.subscribe("[1]", application="flood") == [shared]
    (own,) = await channel.subscribe("[2]", application="flood")
    for number in range(3):
        await channel.run({shared: [f"{number}" * 100]})
    for number in range(20):
        await channel.run({own: [f"{number % 10}" * 952]})
    await store.retain(channel.id, max_bytes=5_000)
    assert (len(await channel.texts(shared)), await channel.gap(shared)) == (3, None)
    assert len(await channel.texts(own)) == 4
    assert (await store.state(channel.id)).result_bytes <= 5_000
    # Once it has them, they are the flooding one's alone.
    await store.acknowledge(EAST, {shared: Cursor(store.epoch, 3, 0)})
    await store.retain(channel.id, max_bytes=2_000)
    assert await channel.texts(shared) == []


async def test_whoever_was_not_told_yet_of_what_went_is_told_that_it_did(
    store: ChannelStore, channel: StoredChannel
) -> None:
    (quiet,) = await channel.subscribe("[0]", application="quiet")
    (flood,) = await channel.subscribe("[1]", broker=WEST)
    before = await store.position()
    await channel.run({quiet: ["q"], flood: ["x" * 1_000]})
    for _ in range(5):
        await channel.run({flood: ["x" * 1_000]})
    await store.retain(channel.id, max_bytes=3_000)
    told = await store.new_results(before, broker=WEST)
    assert told.gaps == [channel.id]
    assert set(await new_heads_of(store, before, EAST)) == {quiet}


async def test_an_application_holds_no_more_interests_than_it_may(store: ChannelStore, channel: StoredChannel) -> None:
    other = StoredChannel(store, await store.add_channel())

    async def subscribe(of: StoredChannel, *texts: str, application: str = "a") -> list[str]:
        wanted = [BackendRequest(text, EAST, application=application) for text in texts]
        made = await store.subscribe(of.id, wanted, created_us=1, interests_at_most=3)
        return [subscription.id for subscription in made]

    ids = await subscribe(channel, "[1]", "[2]")
    await subscribe(channel, "[2]")
    await subscribe(other, "[1]")
    with pytest.raises(LimitError, match=r"application a of the broker Default\.east has as many interests") as refused:
        await subscribe(channel, "[3]", "[1]")
    assert refused.value.status == 429
    assert (await store.state(channel.id)).interests == 2, "all or none"
    await subscribe(channel, "[1]", "[3]", "[4]", application="b")
    await store.unsubscribe(channel.id, ids[:1])
    await subscribe(channel, "[3]")
    await store.drop_channel(other.id)
    await subscribe(channel, "[5]")
    # What moves to another broker counts there.
    await store.change_subscription(channel.id, ids[1], WEST)
    with pytest.raises(LimitError):
        await subscribe(channel, "[6]")  # One subscription to [2] was left behind.


async def test_subscriptions_say_for_which_application_they_are(store: ChannelStore, channel: StoredChannel) -> None:
    await channel.subscribe("[1]", application="a")
    await channel.subscribe("[1]")
    assert sorted(subscription.application for subscription in await store.subscriptions(channel.id)) == ["", "a"]
