"""Results reach subscribers over every transport, and count when they are acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.support.in_process_broker import Listener, both, values
from tests.support.waiting import until


async def test_a_result_reaches_a_websocket_and_is_acknowledged(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 7)
        async with Listener(made.url, made.tokens["ada"], login=True) as ada:
            await ada.until(lambda: 0 in ada.replies)
            await here.execute(channel, {int(held["interest"]): [{"n": 1}, "two"]})
            assert await ada.values_until(2) == [{"n": 1}, "two"]
            (event,) = ada.events
            assert (event["channel"], event["data"]["recovered"]) == ("v.c", True)
            await ada.ack(held["interest"], event["data"]["to"])
        _, said = await made.ask("GET", f"/v1/subscriptions/{held['id']}", user="ada")
        assert said["marker"] == event["data"]["to"]


async def test_who_was_away_gets_everything_from_the_cache_the_cluster_and_both(cluster: Any, tmp_path: Path) -> None:
    # Nothing is kept beyond 300 bytes: older results come from the cluster.
    async with cluster as here, both(tmp_path / "broker", here, cache__budget_bytes=300) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        for n in range(6):
            await here.execute(channel, {interest: [{"n": n, "pad": "x" * 50}]})
        caches = made.parts.runtime.core.caches
        await until(lambda: caches.counters.arrived == 6)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            assert [value["n"] for value in await ada.values_until(6)] == list(range(6))
            assert caches.counters.hits > 0
            assert caches.counters.misses > 0
            assert caches.counters.hits + caches.counters.misses == 6
            assert ada.events[0]["data"]["after"] < ada.events[-1]["data"]["to"]
            # And goes on with what comes now.
            await here.execute(channel, {interest: [{"n": 6}]})
            assert [value["n"] for value in await ada.values_until(7)][-1] == 6


async def test_results_are_pulled_page_by_page_and_waited_for(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1, mode="notify")
        place = f"/v1/subscriptions/{held['id']}/results"
        waiting = asyncio.create_task(made.ask("GET", f"{place}?wait=20", user="ada"))
        await until(lambda: made.parts.runtime.arrivals)
        await here.execute(channel, {int(held["interest"]): ["a", "b", "c"]})
        status, said = await waiting
        assert (status, values(said["events"]), said["more"]) == (200, ["a", "b", "c"], False)
        _, said = await made.ask("GET", f"{place}?limit=2", user="ada")
        assert (values(said["events"]), said["more"]) == (["a", "b"], True)
        after = said["events"][0]["data"]["to"]
        _, said = await made.ask("GET", f"{place}?after={after}", user="ada")
        assert (values(said["events"]), said["more"]) == (["c"], False)
        to = said["events"][0]["data"]["to"]
        _, said = await made.ask("POST", "/v1/acks", {"acks": {held["interest"]: to}}, user="ada")
        assert said == {"acknowledged": 1}
        assert (await made.ask("GET", place, user="ada"))[1] == {"events": [], "more": False}


async def test_a_poll_waits_and_answers_what_is_not_acknowledged(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        inline = await made.subscribe("ada", "v.c", 1)
        notify = await made.subscribe("ada", "v.c", 2, mode="notify")
        polling = asyncio.create_task(made.ask("GET", "/v1/poll?wait=20", user="ada"))
        await until(lambda: made.parts.fan_out.listeners)
        await here.execute(channel, {int(inline["interest"]): ["x"], int(notify["interest"]): ["y"]})
        _, first = await polling
        await until(lambda: made.parts.runtime.core.caches[int(notify["interest"])].head[1] == 1)
        _, again = await made.ask("GET", "/v1/poll", user="ada")
        assert values(first["events"]) == values(again["events"]) == ["x"]
        assert {event["type"] for event in again["events"]} == {"tocsin.results", "tocsin.available"}
        to = next(event["data"]["to"] for event in again["events"] if event["type"] == "tocsin.results")
        await made.ask("POST", "/v1/acks", {"acks": {inline["interest"]: to}}, user="ada")
        assert [event["type"] for event in (await made.ask("GET", "/v1/poll", user="ada"))[1]["events"]] == [
            "tocsin.available"
        ]


async def test_a_poll_that_does_not_wait_answers_what_has_to_be_fetched(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c")
        kept = [await made.subscribe("ada", "v.c", n) for n in range(3)]
        # Nobody reads these events, and the next poll does not wait for them.
        await made.ask("PUT", "/v1/webhook", {"url": "http://127.0.0.1:9/"}, user="ada")
        await here.execute(channel, {int(subscription["interest"]): [place] for place, subscription in enumerate(kept)})
        core = made.parts.runtime.core
        await until(lambda: all(core.caches[int(subscription["interest"])].head[1] == 1 for subscription in kept))
        for _ in range(2):
            _, said = await made.ask("GET", "/v1/poll", user="ada")
            assert sorted(values(said["events"])) == [0, 1, 2]
        acks = {event["interest"]: event["data"]["to"] for event in said["events"]}
        await made.ask("POST", "/v1/acks", {"acks": acks}, user="ada")
        assert (await made.ask("GET", "/v1/poll", user="ada"))[1]["events"] == []


async def test_a_browser_reads_events_and_its_last_id_counts_as_an_acknowledgement(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {int(held["interest"]): ["x"]})

        async def first(headers: dict[str, str]) -> dict[str, str]:
            place = f"{made.url}/v1/events?access_token={made.tokens['ada']}"
            async with aiohttp.ClientSession() as session, session.get(place, headers=headers) as response:
                assert response.content_type == "text/event-stream"
                found: dict[str, str] = {}
                async for line in response.content:
                    name, _, value = line.decode().strip().partition(": ")
                    found[name] = value
                    if name == "data":
                        return found
            return found

        said = await first({})
        assert said["event"] == "tocsin.results"
        assert values([orjson.loads(said["data"])]) == ["x"]
        await until(lambda: not made.parts.fan_out.listeners)
        await here.execute(channel, {int(held["interest"]): ["y"]})
        again = await first({"Last-Event-ID": said["id"]})
        assert values([orjson.loads(again["data"])]) == ["y"]


async def test_who_takes_nothing_is_behind_and_gets_everything_later(cluster: Any, tmp_path: Path) -> None:
    settings = {"delivery__buffer_bytes": 2_048, "cache__budget_bytes": 5_000}
    async with cluster as here, both(tmp_path / "broker", here, **settings) as made:
        channel = await here.channel("c")
        await made.user("bob")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await made.subscribe("bob", "v.c", 1)
        parts = made.parts
        async with Listener(made.url, made.tokens["bob"]) as bob, aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
            slow = await session.ws_connect(f"{made.url}/v1/stream", headers=headers, max_msg_size=0)
            await until(lambda: parts.fan_out.listeners == 2)
            count = 0
            while not parts.fan_out.behind:
                await here.execute(channel, {interest: [{"n": count, "pad": "x" * 100_000}]})
                count += 1
                await bob.values_until(count)
            for _ in range(3):
                await here.execute(channel, {interest: [{"n": count}]})
                count += 1
            # The other one has all of it meanwhile.
            assert [value["n"] for value in await bob.values_until(count)] == list(range(count))
            got: list[Any] = []
            while len(got) < count:
                got += values([orjson.loads((await slow.receive()).data)])
            assert [item["n"] for item in got] == list(range(count))
            await until(lambda: not parts.fan_out.behind)
            await slow.close()


async def test_the_slower_of_two_connections_is_given_up(cluster: Any, tmp_path: Path) -> None:
    async with (
        cluster as here,
        both(tmp_path / "broker", here, delivery__buffer_bytes=2_048, delivery__patience_s=0.1) as made,
    ):
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        async with Listener(made.url, made.tokens["ada"]) as quick, aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
            slow = await session.ws_connect(f"{made.url}/v1/stream", headers=headers, max_msg_size=0)
            await until(lambda: made.parts.connections.count == 2)
            count = 0
            while not made.parts.counters.shed:
                await here.execute(channel, {interest: [{"n": count, "pad": "x" * 100_000}]})
                count += 1
                await quick.values_until(count)
            await until(lambda: made.parts.connections.count == 1)
            assert not made.parts.fan_out.behind
            await slow.close()
