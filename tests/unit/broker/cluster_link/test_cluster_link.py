"""A broker and its cluster: what each tells the other, also when one of them was away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.support.in_process_broker import InProcessBroker, Listener, both, broker
from tests.support.sparkless_cluster import SparklessCluster, Token, world
from tests.support.waiting import WITHIN_S, until
from tocsin.broker.cluster_link.link import TURN_EVENTS
from tocsin.cluster.catalog.catalog import Remove
from tocsin.cluster.catalog.entries import DataverseEntry
from tocsin.rules.model import types as t
from tocsin.rules.model.cursors import Position
from tocsin.serving.application import bind_socket
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.announcements import Announcement


async def test_announcements_that_the_cluster_did_not_sign_are_refused(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        forged = {"webhook-id": "x", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"}
        status, said = await made.ask("POST", "/v1/announcements", data=b"{}", headers=forged)
        assert (status, said["error"]["code"]) == (401, "unauthorized")
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await here.execute(channel, {int(held["interest"]): ["still here"]})
            assert await ada.values_until(1) == ["still here"]


async def test_pushed_results_need_no_fetch(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("p", push=True)
        held = await made.subscribe("ada", "v.p", 1)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            for n in range(3):
                await here.execute(channel, {int(held["interest"]): [n, n]})
            assert await ada.values_until(6) == [0, 0, 1, 1, 2, 2]
        assert made.parts.counters.fetches == 0


class LoopTurns:
    """A trace that counts events by the turn of the event loop in which they happened."""

    def __init__(self) -> None:
        self.turn = 0
        self.events: Counter[int] = Counter()

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def record(self, _event: object, _now_s: float) -> None:
        self.events[self.turn] += 1

    def flush(self) -> None: ...

    def close(self, _now_s: float) -> None: ...


async def test_a_large_announcement_lets_others_have_their_turns(cluster: Any, tmp_path: Path) -> None:
    turns: Any = LoopTurns()
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("p", push=True)
        held = await made.subscribe("ada", "v.p", 1)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            made.parts.runtime.trace = turns
            counting = asyncio.create_task(turns.count())
            await here.execute(channel, {int(held["interest"]): list(range(2_000))})
            assert await ada.values_until(2_000) == list(range(2_000))
            counting.cancel()
        assert turns.events.total() >= 2_000
        assert max(turns.events.values()) <= TURN_EVENTS + 1, "some acknowledgements may come between"
        assert made.parts.counters.fetches == 0


async def test_what_retention_took_is_told_as_a_gap(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c", retention_bytes=60)
        held = await made.subscribe("ada", "v.c", 1)
        for n in range(5):
            await here.execute(channel, {int(held["interest"]): [{"n": n, "pad": "x" * 30}]})
        await until(lambda: made.parts.runtime.core.caches[int(held["interest"])].head[1] == 5)
        await here.retention.look_over()
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await ada.until(lambda: ada.events and ada.values[-1:] and ada.values[-1]["n"] == 4)
            assert ada.events[0]["data"]["recovered"] is False
            assert ada.events[0]["data"]["gap"] is not None
            assert len(ada.values) < 5


async def test_publishing_goes_through_to_the_cluster_and_comes_back_as_it_is(tmp_path: Path) -> None:
    taken: list[tuple[str, Any, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        taken.append((request.path_qs, request.headers.get("Idempotency-Key"), await request.read()))
        return web.json_response({"accepted": 1, "rejected": []}, status=200)

    app = web.Application(client_max_size=1 << 24)
    app.add_routes([web.post("/v1/feeds/{name}", take)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with broker(tmp_path, url, publish__user_field="user") as made:
            await made.user("ada")
            status, said = await made.ask(
                "POST", "/v1/feeds/v.Locations?wait=visible", data=b'{"at": 1, "user": "eve"}\n{"at": 2}', user="ada",
                headers={"Idempotency-Key": "k"},
            )  # fmt: skip
            assert (status, said) == (200, {"accepted": 1, "rejected": []})
            ((path, key, body),) = taken[:1]
            assert path == "/v1/feeds/v.Locations?wait=visible"
            # What others at this broker and at others call their keys is not this one.
            assert key == "Default.b:1:k"
            assert [orjson.loads(line) for line in body.splitlines()] == [
                {"at": 1, "user": "ada"},
                {"at": 2, "user": "ada"},
            ]
            assert (await made.ask("POST", "/v1/feeds/v.Locations", data=b"{}"))[0] == 401
            # Records may be many; what is said beside them is short.
            large = b'{"at": "' + b"x" * (2 << 20) + b'"}'
            assert (await made.ask("POST", "/v1/feeds/v.Locations", data=large, user="ada"))[0] == 200
            assert (await made.ask("POST", "/v1/login", data=large))[0] == 413
    finally:
        await runner.cleanup()


async def test_policies_are_switched_while_it_runs(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {int(held["interest"]): ["x"]})
        await until(lambda: made.parts.runtime.core.caches.resident_bytes)
        status, said = await made.ask("PUT", "/v1/policies", {"eviction": "lru", "expiry": "ttl"})
        assert (status, said["policy"]) == (200, "all+lru+ttl")
        assert said["resident_bytes"] > 0
        assert set(said["counters"]) == {"all+lsc+never", "all+lru+ttl"}
        for bad in ({"eviction": "nosuch"}, {"budget_bytes": "1"}, {"nosuch": 1}, []):
            status, said = await made.ask("PUT", "/v1/policies", bad)
            assert (status, said["error"]["code"]) == (400, "bad_request")
        shown = (await made.ask("GET", "/metrics"))[1].decode()
        assert 'tocsin_broker_arrived_total{policy="all+lsc+never"} 1.0' in shown


async def test_the_cluster_is_told_what_everybody_has(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, delivery__report_every_s=0) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await here.execute(channel, {interest: ["x"]})
            await ada.values_until(1)
            await ada.ack(str(interest), ada.events[0]["data"]["to"])

            async with asyncio.timeout(WITHIN_S):
                while not [
                    item async for item in here.store.lowest_acknowledged(channel.channel_id) if interest in item
                ]:
                    await asyncio.sleep(0.01)


async def life(made: InProcessBroker, here: SparklessCluster, channel: Any, interest: int, n: int) -> None:
    await here.execute(channel, {interest: [n]})
    head = made.parts.runtime.core.caches
    await until(lambda: head[interest].head[1] == n + 1)


async def test_a_broker_that_starts_again_goes_on(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here:
        async with both(tmp_path / "broker", here) as made:
            channel = await here.channel("c", t.BIGINT)
            interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
            for n in range(3):
                await life(made, here, channel, interest, n)
            _, said = await made.ask("GET", "/v1/poll", user="ada")
            first = said["events"][0]["data"]["results"][0]["cursor"]
            await made.ask("POST", "/v1/acks", {"acks": {str(interest): first}}, user="ada")
            token = made.tokens["ada"]
        # It misses something, and the cluster has other news as well.
        await here.execute(channel, {interest: [3]})
        async with broker(tmp_path / "broker", here.url) as made, Listener(made.url, token) as ada:
            assert await ada.values_until(3) == [1, 2, 3]
            await here.execute(channel, {interest: [4]})
            assert (await ada.values_until(4))[-1] == 4


async def test_while_the_cluster_is_away_a_broker_delivers_what_it_has(tmp_path: Path) -> None:
    with bind_socket("127.0.0.1", 0) as (sock, _):
        port = sock.getsockname()[1]
    async with world(tmp_path / "cluster", port=port) as here:
        stack = both(tmp_path / "broker", here)
        made = await stack.__aenter__()
        try:
            channel = await here.channel("c")
            interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
            await life(made, here, channel, interest, 0)
        except BaseException:
            await stack.__aexit__(None, None, None)
            raise
    try:
        async with Listener(made.url, made.tokens["ada"]) as ada:
            assert await ada.values_until(1) == [0]
            again = await made.subscribe("ada", "v.c", 1)
            assert int(again["interest"]) == interest
            away = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [2]}, user="ada")
            assert (away[0], away[1]["error"]["code"]) == (503, "unavailable")
            await until(lambda: not made.parts.link.connected)
            assert await made.ask("GET", "/readyz") == (200, {"status": "ready", "cluster": "away"})
            assert (await made.ask("GET", "/readyz?cluster=1"))[0] == 503
            async with world(tmp_path / "cluster", port=port) as here:
                (channel,) = here.catalog.catalog.channels
                await here.execute(channel, {interest: [1]})
                assert await ada.values_until(2) == [0, 1]
                await until(lambda: made.parts.link.connected)
    finally:
        await stack.__aexit__(None, None, None)


async def test_a_cluster_that_has_lost_the_broker_is_told_again(tmp_path: Path, cluster: Any) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await here.brokers.remove(BrokerName("Default", "b"), Token("ada", "admin"))
        async with Listener(made.url, made.tokens["ada"]) as ada:
            async with asyncio.timeout(WITHIN_S):
                while not (held := await here.store.subscriptions(channel.channel_id)):
                    await asyncio.sleep(0.01)
            await here.execute(channel, {held[0].interest: ["again"]})
            # Under another number: who is connected connects again, and learns it. Who came after that knows it.
            await ada.until(lambda: ada.values or ada.close_code is not None)
            if ada.values:
                assert ada.values == ["again"]
            else:
                assert held[0].interest != interest
                async with Listener(made.url, made.tokens["ada"]) as again:
                    assert await again.values_until(1) == ["again"]


async def test_a_cluster_that_loses_the_broker_during_a_check_gets_its_subscriptions_again(
    tmp_path: Path, cluster: Any
) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as made:
        channel = await here.channel("c")
        await made.subscribe("ada", "v.c", 1)
        ask, removed = made.parts.client.announcement, asyncio.Event()

        async def removed_first(after: Position) -> Announcement:
            if not removed.is_set():
                await here.brokers.remove(BrokerName("Default", "b"), Token("ada", "admin"))
                assert await here.store.subscriptions(channel.channel_id) == []
                removed.set()
            return await ask(after)

        made.parts.client.announcement = removed_first  # type: ignore[method-assign]
        async with asyncio.timeout(WITHIN_S):
            await removed.wait()
            while not await here.store.subscriptions(channel.channel_id):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("told", [True, False], ids=["told", "looked for"])
async def test_subscriptions_end_with_their_channel(cluster: Any, tmp_path: Path, told: bool) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=3600 if told else 0.05) as made:
        dropped, kept = await here.channel("c"), await here.channel("d")
        await made.subscribe("ada", "v.c", 1)
        other = int((await made.subscribe("ada", "v.d", 1))["interest"])
        if not told:
            here.announcer.dropped = lambda: None  # type: ignore[method-assign]
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            await here.drop(dropped)
            await ada.until(lambda: [event["type"] for event in ada.events] == ["tocsin.ended"])
            assert ada.events[0]["channel"] == "v.c"
            await here.execute(kept, {other: ["goes on"]})
            await ada.until(lambda: ada.values == ["goes on"])
        status, said = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [1]}, user="ada")
        assert (status, said["error"]["code"]) == (404, "not_found")


async def test_a_channel_that_comes_again_under_its_name_is_another_one(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=3600) as made:
        channel = await here.channel("c")
        before = int((await made.subscribe("ada", "v.c", 1))["interest"])
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            await here.drop(channel)
            again = await here.channel("c")
            # Its subscription has ended, or is one to the new channel: in no case does it hang on the old one.
            await ada.until(lambda: ada.events or ada.close_code is not None)
        after = int((await made.subscribe("ada", "v.c", 1))["interest"])
        assert after != before
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await here.execute(again, {after: ["of the new one"]})
            assert await ada.values_until(1) == ["of the new one"]


async def test_a_cluster_that_refuses_the_broker_is_not_said_to_be_away(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, broker(tmp_path / "b", here.url, name="nowhere.b") as made:
        await until(lambda: made.parts.link.refusal)
        status, said = await made.ask("GET", "/readyz")
        assert status == 503
        assert said["error"]["message"].startswith("the cluster refuses the broker: ")
        assert "nowhere" in said["error"]["message"]


async def test_a_broker_that_the_cluster_does_not_have_any_more_serves_all_the_same(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here:
        channel = await here.channel("c")
        async with both(tmp_path / "b", here, name="v.b", cluster__check_every_s=0.05) as made:
            assert await made.ask("GET", "/readyz") == (200, {"status": "ready", "cluster": "here"})
            await here.drop(channel)
            await here.catalog.apply([Remove(DataverseEntry("v").ref)])
            await until(lambda: made.parts.link.refusal)
            assert await made.ask("GET", "/readyz") == (200, {"status": "ready", "cluster": "refuses"})
            assert (await made.ask("GET", "/readyz?cluster=1"))[0] == 503
            assert (await made.ask("GET", "/readyz?cluster=maybe"))[0] == 400


async def test_whoever_demands_the_cluster_is_told_that_it_is_gone_though_nobody_has_asked_it_for_anything(
    cluster: Any, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(cluster)
        async with broker(tmp_path / "b", here.url, cluster__check_every_s=3_600) as made:
            await made.idle()
            assert (await made.ask("GET", "/readyz?cluster=1"))[0] == 200
            await stack.aclose()
            async with asyncio.timeout(WITHIN_S):
                while (await made.ask("GET", "/readyz?cluster=1"))[0] != 503:
                    await asyncio.sleep(0.02)
            await until(lambda: not made.parts.link.connected)
            assert await made.ask("GET", "/readyz") == (200, {"status": "ready", "cluster": "away"})
