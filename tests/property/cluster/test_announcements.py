"""Whatever fails in between, a broker that follows what it is told has every result, each once and in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random

import orjson
import pytest

from tests.support.sparkless_cluster import AnnouncementReceiver, SparklessCluster, fake_broker, world
from tocsin.rules.model.cursors import START, Cursor, Position, Range
from tocsin.store.channels.rows import BrokerName

STEPS = 40


class Follower:
    """What a broker makes of announcements: it takes what is pushed, and fetches the rest after its own cursors."""

    def __init__(self) -> None:
        self.held: dict[int, list[object]] = defaultdict(list)
        self.at: dict[int, Cursor] = {}
        self.known: set[Position] = set()

    async def follow(self, here: SparklessCluster, broker: AnnouncementReceiver) -> None:
        broker.answers = [503] * 100_000  # What it takes from now on nobody would look at.
        for announcement in broker.got:
            # Never a hole: each begins where one before it ended.
            assert not self.known or announcement.after in self.known
            self.known |= {announcement.after, announcement.position}
            for pushed in announcement.pushed:
                for result in pushed.results:
                    self.take(pushed.interest, result.cursor, result.payload)
            wanted = [
                Range(interest, self.at.get(interest, START), to=cursor)
                for interests in announcement.heads.values()
                for interest, cursor in interests
            ]
            parts, more = await here.fetch(*wanted)
            assert more is None
            for part in parts:
                assert part.gap is None
                for result in part.results:
                    self.take(wanted[part.range].interest, result.cursor, result.payload)

    def take(self, interest: int, cursor: Cursor, payload: bytes) -> None:
        if cursor > self.at.get(interest, START):
            self.held[interest].append(orjson.loads(payload))
            self.at[interest] = cursor


@pytest.mark.parametrize("seed", range(4))
async def test_a_broker_misses_nothing_whatever_fails(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    expected: dict[int, list[object]] = defaultdict(list)
    follower, made, secret = Follower(), 0, ""
    limits = {"items": chance.choice([2, 7, 10_000]), "pushed_bytes": chance.choice([20, 200, 1 << 20])}
    async with fake_broker() as first:
        port = int(first.url.split(":")[2].split("/")[0])
        async with world(tmp_path, announced=limits) as here:
            for channel in (await here.channel("c"), await here.channel("p", push=True)):
                if not secret:
                    first.secret = secret = await here.register("v.b", first.url)
                    await here.register("v.other")
                await here.subscribe(f"v.{channel.name}", "v.b", *([n] for n in range(5)))
                await here.subscribe(f"v.{channel.name}", "v.other", *([n] for n in range(3, 8)))
    while made < STEPS:
        async with world(tmp_path, announced=limits) as here:
            channels = here.catalog.catalog.channels
            mine = {
                channel.channel_id: [held.interest for held in await here.store.subscriptions(channel.channel_id)]
                for channel in channels
            }
            own = {subscription.interest for subscription in await here.store.subscriptions_of(BrokerName("v", "b"))}
            away = chance.random() < 0.3
            async with fake_broker(0 if away else port) as broker:
                broker.secret = secret
                for _ in range(chance.randrange(1, 12)):
                    broker.answers += [chance.choice([500, 503, 404])] * chance.choice([0, 0, 1, 3])
                    channel = chance.choice(channels)
                    found = {
                        interest: [f"{made} {n} " + "x" * chance.choice([0, 30]) for n in range(chance.randrange(1, 4))]
                        for interest in chance.sample(sorted(set(mine[channel.channel_id])), chance.randrange(1, 5))
                    }
                    await here.execute(channel, found)
                    for interest, texts in found.items():
                        if interest in own:
                            expected[interest] += texts
                    made += 1
                if not away and chance.random() < 0.5:
                    await broker.until(lambda: broker.answers == [] and bool(broker.got))
                await follower.follow(here, broker)
    async with fake_broker(port) as broker, world(tmp_path, announced=limits) as here:
        broker.secret = secret
        # One more, so that there is an end to wait for.
        channel = here.catalog.catalog.channels[0]
        last = min(own & set(mine[channel.channel_id]))
        await here.execute(channel, {last: ["end"]})
        expected[last].append("end")
        number = (await here.store.state(channel.channel_id)).last_execution
        await broker.until(lambda: broker.told.get(last) == f"{number}-0")
        await follower.follow(here, broker)
    assert follower.held == expected
    assert broker.refused == []
