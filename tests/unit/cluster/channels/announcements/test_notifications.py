"""Brokers of the original's kinds are told in its JSON: at least once, in order, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import WITHIN_S
from tocsin.clock import from_us
from tocsin.cluster.catalog.catalog import Put
from tocsin.cluster.catalog.entries import BrokerEntry, BrokerKind, DataverseEntry
from tocsin.rules.model.values import datetime_text
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.addresses import NO_NETWORKS
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.signatures import verify

EAST = BrokerName("v", "east")
AT_US = 1_794_000_060_123_000


@dataclass(slots=True)
class NotificationReceiver:
    """A broker of the original: takes any POST; `answers` are given first, then 200."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    asked: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked += 1
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        async with self._changed:
            self._changed.notify_all()
        return web.Response(status=status, headers={"Location": self.url} if status == 302 else None)

    async def until(self, count: int) -> list[Any]:
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(lambda: len(self.bodies) >= count)
        return [orjson.loads(body) for body in self.bodies]


@asynccontextmanager
async def receiver() -> AsyncIterator[NotificationReceiver]:
    made = NotificationReceiver()
    app = web.Application()
    app.add_routes([web.post("/", made.take)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


async def broker(here: SparklessCluster, url: str, kind: BrokerKind = "general", name: str = "east") -> None:
    """A broker as the statement CREATE BROKER makes it."""
    if "v" not in {dataverse.name for dataverse in here.catalog.catalog.dataverses}:
        await here.catalog.apply([Put(DataverseEntry("v"))])
    await here.catalog.apply([Put(BrokerEntry("v", name, url, kind))])
    await here.announcer.settle()


async def subscribed(here: SparklessCluster, channel: str, **parameters: int) -> dict[str, int]:
    """Subscriptions with these ids, and the interest of each."""
    wanted = [{"id": id_, "parameters": [value]} for id_, value in parameters.items()]
    status, said = await here.ask(
        "POST", f"/v1/channels/{channel}/subscriptions", {"broker": "v.east", "subscriptions": wanted}
    )
    assert status == 200, said
    return {made["id"]: made["interest"] for made in said["subscriptions"]}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[SparklessCluster]:
    async with world(tmp_path) as made:
        yield made


async def test_a_general_broker_is_told_the_subscriptions_of_each_execution(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with receiver() as east:
        await broker(here, east.url)
        held = await subscribed(here, "v.c", a=1, b=1, c=2)
        await here.execute(channel, {held["a"]: ["x", "y"], held["c"]: ["z"]}, AT_US)
        await here.execute(channel, {held["c"]: ["w"]}, AT_US + 1_000_000)
        told = await east.until(2)
    assert told == [
        {"dataverseName": "v", "channelName": "c", "channelExecutionEpochTime": AT_US // 1_000,
         "subscriptionIds": [["a", "b", "c"]]},
        {"dataverseName": "v", "channelName": "c", "channelExecutionEpochTime": AT_US // 1_000 + 1_000,
         "subscriptionIds": [["c"]]},
    ]  # fmt: skip
    assert east.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize("kind", ["general", "bad"])
async def test_a_push_channel_sends_the_results_for_each_subscription(here: SparklessCluster, kind: BrokerKind) -> None:
    channel = await here.channel("p", push=True)
    identity = "5c848e5c-6b6a-498f-8452-8847a2957421"
    async with receiver() as east:
        await broker(here, east.url, kind)
        held = await subscribed(here, "v.p", **{"a": 1, identity: 1})
        await here.execute(channel, {held["a"]: [{"t": {"n": 1}}]}, AT_US, AT_US + 250_000)
        async with asyncio.timeout(WITHIN_S):
            while not east.bodies:
                await asyncio.sleep(0.01)
    (body,) = east.bodies
    assert body.startswith(b'{"dataverseName":"v","channelName":"p","channelExecutionEpochTime":')
    if kind == "general":
        results = orjson.loads(body)["results"]
        executed, ended = (datetime_text(from_us(at_us)) for at_us in (AT_US, AT_US + 250_000))
        assert results == [
            {"result": {"t": {"n": 1}}, "channelExecutionTime": executed, "subscriptionId": id_, "deliveryTime": ended}
            for id_ in (identity, "a")
        ]
    else:
        assert b'"subscriptionId":uuid("' + identity.encode() + b'")' in body
        assert b'"subscriptionId":"a"' in body
        assert b'"channelExecutionTime":datetime("' in body


async def test_what_fails_is_sent_again_until_it_is_taken_and_after_a_restart(tmp_path: Path) -> None:
    async with receiver() as east:
        async with world(tmp_path) as here:
            channel = await here.channel("c")
            await broker(here, east.url)
            held = await subscribed(here, "v.c", a=1)
            east.answers = [500, 302, 404, 503]
            await here.execute(channel, {held["a"]: ["x"]}, AT_US)
            await east.until(1)
            await here.until_kept(EAST)
            assert east.asked == 5
            (figures,) = here.announcer.figures()
            assert (figures.counts.sent, figures.counts.failed) == (1, 4)
            east.answers = [500] * 1_000
            await here.execute(channel, {held["a"]: ["y"]}, AT_US + 1_000)
        east.answers = []
        async with world(tmp_path):
            told = await east.until(2)
    assert [notification["channelExecutionEpochTime"] for notification in told] == [AT_US // 1_000, AT_US // 1_000 + 1]


async def test_a_broker_that_is_away_does_not_delay_another(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with receiver() as east:
        await broker(here, "http://127.0.0.1:9", name="west")
        await broker(here, east.url)
        held = await subscribed(here, "v.c", a=1)
        await here.execute(channel, {held["a"]: ["x"]})
        await east.until(1)


async def test_messages_are_bounded_and_cover_all(tmp_path: Path) -> None:
    async with world(tmp_path, notified={"items": 3, "ids": 2, "body_bytes": 300}) as here, receiver() as east:
        told, pushed = await here.channel("c"), await here.channel("p", push=True)
        await broker(here, east.url)
        names = {f"s{number}": number % 3 for number in range(9)}
        held = await subscribed(here, "v.c", **names)
        await here.execute(told, {interest: ["x"] for interest in set(held.values())}, AT_US)
        await here.until_kept(EAST)
        bodies = [orjson.loads(body) for body in east.bodies]
        assert all(len(ids) <= 2 for body in bodies for ids in body["subscriptionIds"])
        assert sorted(id_ for body in bodies for ids in body["subscriptionIds"] for id_ in ids) == sorted(names)
        east.bodies.clear()
        held = await subscribed(here, "v.p", **names)
        await here.execute(pushed, {interest: ["y" * 50, "z"] for interest in set(held.values())}, AT_US)
        await here.until_kept(EAST)
    assert max(map(len, east.bodies)) < 700
    results = [result for body in east.bodies for result in orjson.loads(body)["results"]]
    assert len(results) == 18
    assert {(result["subscriptionId"], result["result"][0]) for result in results} == {
        (name, first) for name in names for first in "yz"
    }


async def test_a_subscription_is_told_only_of_results_after_it(here: SparklessCluster) -> None:
    channel = await here.channel("p", push=True)
    async with receiver() as east:
        await broker(here, east.url)
        held = await subscribed(here, "v.p", early=1)
        await here.execute(channel, {held["early"]: ["x"]}, AT_US)
        await east.until(1)
        await subscribed(here, "v.p", late=1)
        await here.execute(channel, {held["early"]: ["y"]}, AT_US + 1_000)
        told = await east.until(2)
    assert [result["subscriptionId"] for result in told[0]["results"]] == ["early"]
    assert [result["subscriptionId"] for result in told[1]["results"]] == ["early", "late"]


async def test_notifications_are_signed_for_those_who_ask_for_the_secret(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with receiver() as east:
        await broker(here, east.url)
        status, said = await here.ask("POST", "/v1/brokers/v.east/secret")
        assert status == 200
        held = await subscribed(here, "v.c", a=1)
        await here.execute(channel, {held["a"]: ["x"]})
        await east.until(1)
    verify(said["secret"], east.headers[0], east.bodies[0], now_s=time.time())


async def test_a_broker_that_registers_itself_gets_frames_from_then_on(here: SparklessCluster) -> None:
    channel = await here.channel("c")
    async with receiver() as east:
        await broker(here, east.url)
        held = await subscribed(here, "v.c", a=1)
        await here.execute(channel, {held["a"]: ["x"]})
        await east.until(1)
        assert (await here.ask("PUT", "/v1/brokers/v.east", {"url": east.url}))[0] == 200
        await here.execute(channel, {held["a"]: ["y"]})
        async with asyncio.timeout(WITHIN_S):
            while len(east.bodies) < 2:
                await asyncio.sleep(0.01)
    assert east.headers[1]["content-type"] == "application/vnd.tocsin.frames"
    assert here.catalog.catalog.broker("v", "east").kind == "tocsin"


async def test_a_private_address_is_not_told(tmp_path: Path) -> None:
    guard = AddressGuard("cluster.channels.private", NO_NETWORKS)
    async with world(tmp_path, guard=guard) as here, receiver() as east:
        channel = await here.channel("c")
        await broker(here, east.url)
        held = await subscribed(here, "v.c", a=1)
        await here.execute(channel, {held["a"]: ["x"]})
        async with asyncio.timeout(WITHIN_S):
            while not here.announcer.figures()[0].counts.failed:
                await asyncio.sleep(0.01)
    assert east.bodies == []
