"""A broker between a cluster without Spark and clients: what comes out of every way of asking."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from tests.broker_shell import PASSWORD, BrokerHere, Listener, both, broker, values
from tests.broker_world import World, world
from tests.waiting import until
from tocsin.broker.shell.pace import Bucket
from tocsin.rules.model import types as t
from tocsin.serving.addresses import is_own, place_of
from tocsin.serving.application import bound
from tocsin.wire.signatures import verify


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    return world(tmp_path / "cluster")


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
        caches = made.service.machine.core.caches
        await until(lambda: caches.figures.arrived == 6)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            assert [one["n"] for one in await ada.values_until(6)] == list(range(6))
            assert caches.figures.hits > 0
            assert caches.figures.misses > 0
            assert caches.figures.hits + caches.figures.misses == 6
            assert ada.events[0]["data"]["after"] < ada.events[-1]["data"]["to"]
            # And goes on with what comes now.
            await here.execute(channel, {interest: [{"n": 6}]})
            assert [one["n"] for one in await ada.values_until(7)][-1] == 6


async def test_results_are_pulled_page_by_page_and_waited_for(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1, mode="notify")
        place = f"/v1/subscriptions/{held['id']}/results"
        waiting = asyncio.create_task(made.ask("GET", f"{place}?wait=20", user="ada"))
        await until(lambda: made.service.machine._arrivals)
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
        await until(lambda: made.service.presence.listeners)
        await here.execute(channel, {int(inline["interest"]): ["x"], int(notify["interest"]): ["y"]})
        _, first = await polling
        await until(lambda: made.service.machine.core.caches[int(notify["interest"])].head[1] == 1)
        _, again = await made.ask("GET", "/v1/poll", user="ada")
        assert values(first["events"]) == values(again["events"]) == ["x"]
        assert {one["type"] for one in again["events"]} == {"tocsin.results", "tocsin.available"}
        to = next(one["data"]["to"] for one in again["events"] if one["type"] == "tocsin.results")
        await made.ask("POST", "/v1/acks", {"acks": {inline["interest"]: to}}, user="ada")
        assert [one["type"] for one in (await made.ask("GET", "/v1/poll", user="ada"))[1]["events"]] == [
            "tocsin.available"
        ]


async def test_a_poll_that_does_not_wait_answers_what_has_to_be_fetched(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c")
        kept = [await made.subscribe("ada", "v.c", n) for n in range(3)]
        # Nobody takes what this would bring, and whoever polls does not wait for it.
        await made.ask("PUT", "/v1/webhook", {"url": "http://127.0.0.1:9/"}, user="ada")
        await here.execute(channel, {int(one["interest"]): [place] for place, one in enumerate(kept)})
        core = made.service.machine.core
        await until(lambda: all(core.caches[int(one["interest"])].head[1] == 1 for one in kept))
        for _ in range(2):
            _, said = await made.ask("GET", "/v1/poll", user="ada")
            assert sorted(values(said["events"])) == [0, 1, 2]
        acks = {one["interest"]: one["data"]["to"] for one in said["events"]}
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
        await until(lambda: not made.service.presence.listeners)
        await here.execute(channel, {int(held["interest"]): ["y"]})
        again = await first({"Last-Event-ID": said["id"]})
        assert values([orjson.loads(again["data"])]) == ["y"]


async def test_subscribing_again_is_the_same_and_since_brings_what_was_before(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c", t.POINT)
        await made.user("bob")
        held = await made.subscribe("ada", "v.c", [33.6, -117.8])
        assert await made.subscribe("ada", "v.c", [33.6, -117.8]) == held
        await here.execute(channel, {int(held["interest"]): ["old"]})
        await until(lambda: made.service.machine.core.caches[int(held["interest"])].head[1] == 1)
        async with Listener(made.url, made.tokens["bob"]) as bob:
            # Other words for the same value are the same interest.
            said = await bob.ask(subscribe={"channel": "v.c", "parameters": ["33.6,-117.8"], "since": "0-0-0"})
            assert (said["ok"]["interest"], said["ok"]["recovered"]) == (held["interest"], True)
            assert await bob.values_until(1) == ["old"]
            listed = await bob.ask(list={})
            assert [one["id"] for one in listed["ok"]["subscriptions"]] == [said["ok"]["id"]]
            assert (await bob.ask(unsubscribe={"id": held["id"]}))["error"]["code"] == "not_found"
            assert (await bob.ask(unsubscribe={"id": said["ok"]["id"]}))["ok"] == {}
            assert (await bob.ask(pull={"interest": held["interest"]}))["error"]["code"] == "not_found"


async def test_one_bad_subscription_among_many_hurts_no_other(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        await here.channel("c")
        asked = [
            made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [each]}, user="ada")
            for each in (1, 2, "no number", 3, [4], 5)
        ]
        statuses = [status for status, _ in await asyncio.gather(*asked)]
        assert statuses == [201, 201, 400, 201, 400, 201]
        status, said = await made.ask("POST", "/v1/subscriptions", {"channel": "v.nowhere"}, user="ada")
        assert (status, said["error"]["code"]) == (404, "not_found")


async def test_who_takes_nothing_is_behind_and_gets_everything_later(cluster: Any, tmp_path: Path) -> None:
    settings = {"delivery__buffer_bytes": 2_048, "cache__budget_bytes": 5_000}
    async with cluster as here, both(tmp_path / "broker", here, **settings) as made:
        channel = await here.channel("c")
        await made.user("bob")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await made.subscribe("bob", "v.c", 1)
        service = made.service
        async with Listener(made.url, made.tokens["bob"]) as bob, aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
            slow = await session.ws_connect(f"{made.url}/v1/stream", headers=headers, max_msg_size=0)
            await until(lambda: service.presence.listeners == 2)
            count = 0
            while not service.presence.behind:
                await here.execute(channel, {interest: [{"n": count, "pad": "x" * 100_000}]})
                count += 1
                await bob.values_until(count)
            for _ in range(3):
                await here.execute(channel, {interest: [{"n": count}]})
                count += 1
            # The other one has all of it meanwhile.
            assert [one["n"] for one in await bob.values_until(count)] == list(range(count))
            got: list[Any] = []
            while len(got) < count:
                got += values([orjson.loads((await slow.receive()).data)])
            assert [one["n"] for one in got] == list(range(count))
            await until(lambda: not service.presence.behind)
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
            await until(lambda: made.service.sessions.connections == 2)
            count = 0
            while not made.service.figures.shed:
                await here.execute(channel, {interest: [{"n": count, "pad": "x" * 100_000}]})
                count += 1
                await quick.values_until(count)
            await until(lambda: made.service.sessions.connections == 1)
            assert not made.service.presence.behind
            await slow.close()


async def test_webhooks_are_signed_tried_again_and_acknowledged(cluster: Any, tmp_path: Path) -> None:
    got: list[tuple[dict[str, str], bytes]] = []
    answers = [500, 200, 200, 410]

    async def take(request: web.Request) -> web.Response:
        got.append((dict(request.headers), await request.read()))
        return web.Response(status=answers.pop(0))

    app = web.Application()
    app.add_routes([web.post("/hook", take)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        async with cluster as here, both(tmp_path / "broker", here, webhooks__first_retry_s=0.01) as made:
            channel = await here.channel("c")
            held = await made.subscribe("ada", "v.c", 1)
            status, said = await made.ask("PUT", "/v1/webhook", {"url": url}, user="ada")
            assert (status, said["url"]) == (200, url)
            for n in range(2):
                await here.execute(channel, {int(held["interest"]): [n]})
                await until(lambda n=n: len(got) == n + 2)
            ids = [verify(said["secret"], {k.lower(): v for k, v in h.items()}, b, now_s=_now_s()) for h, b in got]
            assert ids[0] == ids[1] != ids[2]
            assert values([orjson.loads(body) for _, body in got[1:]]) == [0, 1]
            subscription = made.service.desk.subscription_of(1, int(held["interest"]))
            assert subscription is not None
            await until(lambda: made.service.machine.core.marker(subscription).execution == 2)
            await here.execute(channel, {int(held["interest"]): ["last"]})
            await until(lambda: made.service.figures.webhooks.get("gone"))
            await until(lambda: not made.service.presence.listeners)
            async with asyncio.timeout(20):
                while (await made.ask("GET", "/v1/webhook", user="ada"))[0] != 404:
                    await asyncio.sleep(0.01)
            bad = await made.ask("PUT", "/v1/webhook", {"url": "ftp://x"}, user="ada")
            assert bad[0] == 400
    finally:
        await runner.cleanup()


def _now_s() -> float:
    import time

    return time.time()


async def test_announcements_that_the_cluster_did_not_sign_are_refused(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        forged = {"webhook-id": "x", "webhook-timestamp": str(int(_now_s())), "webhook-signature": "v1,AAAA"}
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
            await until(lambda: made.service.presence.listeners)
            for n in range(3):
                await here.execute(channel, {int(held["interest"]): [n, n]})
            assert await ada.values_until(6) == [0, 0, 1, 1, 2, 2]
        assert made.service.figures.fetches == 0


async def test_what_retention_took_is_told_as_a_gap(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c", retention_bytes=60)
        held = await made.subscribe("ada", "v.c", 1)
        for n in range(5):
            await here.execute(channel, {int(held["interest"]): [{"n": n, "pad": "x" * 30}]})
        await until(lambda: made.service.machine.core.caches[int(held["interest"])].head[1] == 5)
        await here.retention.look_over()
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await ada.until(lambda: ada.events and ada.values[-1:] and ada.values[-1]["n"] == 4)
            assert ada.events[0]["data"]["recovered"] is False
            assert ada.events[0]["data"]["gap"] is not None
            assert len(ada.values) < 5


async def test_a_channel_that_is_dropped_ends_its_subscriptions(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as made:
        from tocsin.cluster.catalog import Remove

        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.service.presence.listeners)
            await here.execute(channel, {int(held["interest"]): ["x"]})
            await ada.values_until(1)
            await here.catalog.apply([Remove(channel.ref)])
            await here.store.drop_channel(channel.channel_id)
            made.service.link.gone(int(held["interest"]))
            await ada.until(lambda: ada.events[-1]["type"] == "tocsin.ended")
        assert (await made.ask("GET", "/v1/subscriptions", user="ada"))[1]["subscriptions"] == []


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
            assert key.endswith(":k")
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


async def test_groups_hold_together_and_each_member_has_a_marker_of_its_own(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        for name in ("bob", "eve"):
            await made.user(name)
        group = {"name": "watch", "members": ["ada", "bob"]}
        assert (await made.ask("POST", "/v1/groups", group))[0] == 201
        held = await made.subscribe("ada", "v.c", 1, group="watch")
        assert held["group"] == "watch"
        denied = {"channel": "v.c", "parameters": [1], "group": "watch"}
        assert (await made.ask("POST", "/v1/subscriptions", denied, user="eve"))[0] in (403, 404)
        interest = held["interest"]
        async with Listener(made.url, made.tokens["ada"]) as ada, Listener(made.url, made.tokens["bob"]) as bob:
            await until(lambda: made.service.presence.listeners == 2)
            await here.execute(channel, {int(interest): ["one"]})
            assert await ada.values_until(1) == await bob.values_until(1) == ["one"]
            await ada.ack(interest, ada.events[0]["data"]["to"])
            # Who joins later gets what comes later.
            await made.ask("POST", "/v1/groups/watch/members", {"members": ["eve"]})
            async with Listener(made.url, made.tokens["eve"]) as eve:
                await until(lambda: made.service.presence.listeners == 3)
                await here.execute(channel, {int(interest): ["two"]})
                assert await eve.values_until(1) == ["two"]
        async with Listener(made.url, made.tokens["bob"]) as bob:
            assert await bob.values_until(2) == ["one", "two"]
        _, said = await made.ask("GET", "/v1/groups/watch", user="bob")
        assert said["members"] == ["ada", "bob", "eve"]
        assert [one["interest"] for one in said["subscriptions"]] == [interest]
        async with Listener(made.url, made.tokens["bob"]) as bob, Listener(made.url, made.tokens["eve"]) as eve:
            await until(lambda: made.service.presence.listeners == 2)
            assert (await made.ask("DELETE", "/v1/groups/watch/members/eve"))[0] == 200
            assert (await made.ask("DELETE", "/v1/groups/watch"))[0] == 200
            for one in (eve, bob):
                await one.until(lambda one=one: one.events and one.events[-1]["type"] == "tocsin.ended")
            reasons = [one.events[-1]["data"]["reason"] for one in (eve, bob)]
            assert reasons == ["you are not in the group watch any more", "the group watch is gone"]
        assert (await made.ask("GET", "/v1/subscriptions", user="bob"))[1]["subscriptions"] == []


async def test_subscriptions_to_a_channel_that_an_application_loses_end_and_that_is_told(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        jams, floods = await here.channel("jams"), await here.channel("floods")
        _, said = await made.ask("POST", "/v1/applications", {"name": "traffic"})
        await made.user("eve", "traffic", said["token"])
        await made.ask("POST", "/v1/groups", {"name": "crew", "members": ["eve"]}, token=said["token"])
        kept = await made.subscribe("eve", "v.jams", 1)
        mine = await made.subscribe("eve", "v.floods", 1)
        shared = await made.subscribe("eve", "v.floods", 2, group="crew")
        other = await made.subscribe("ada", "v.floods", 1)
        async with Listener(made.url, made.tokens["eve"]) as eve, Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.service.presence.listeners == 2)
            change = {"channels": ["v.jams"]}
            assert (await made.ask("PATCH", "/v1/applications/traffic", change))[1]["channels"] == ["v.jams"]
            await eve.until(lambda: len(eve.events) == 2)
            assert {(one["type"], one["interest"], one["channel"]) for one in eve.events} == {
                ("tocsin.ended", mine["interest"], "v.floods"), ("tocsin.ended", shared["interest"], "v.floods"),
            }  # fmt: skip
            reason = "the application traffic may not use this channel any more"
            assert {one["data"]["reason"] for one in eve.events} == {reason}
            await here.execute(floods, {int(other["interest"]): ["for ada"]})
            await here.execute(jams, {int(kept["interest"]): ["for eve"]})
            assert (await ada.values_until(1), await eve.values_until(1)) == (["for ada"], ["for eve"])
        _, page = await made.ask("GET", "/v1/subscriptions", user="eve")
        assert [one["id"] for one in page["subscriptions"]] == [kept["id"]]
        assert (await made.ask("GET", "/v1/groups/crew", user="eve"))[1]["subscriptions"] == []
        asked = {"channel": "v.floods", "parameters": [1]}
        assert (await made.ask("POST", "/v1/subscriptions", asked, user="eve"))[0] == 403


async def test_a_subscription_that_is_made_while_its_channel_is_taken_away_ends_too(
    cluster: Any, tmp_path: Path
) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        await here.channel("c")
        _, said = await made.ask("POST", "/v1/applications", {"name": "traffic"})
        await made.user("eve", "traffic", said["token"])
        hold = made.service.desk._hold

        async def slow(asked: Any) -> Any:
            assert (await made.ask("PATCH", "/v1/applications/traffic", {"channels": []}))[0] == 200
            return await hold(asked)

        made.service.desk._hold = slow  # type: ignore[method-assign]
        status, said = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [1]}, user="eve")
        assert (status, said["error"]["code"]) == (403, "forbidden")
        async with Listener(made.url, made.tokens["eve"]) as eve:
            await made.ask("PATCH", "/v1/applications/traffic", {"channels": None})
            assert "ok" in await eve.ask(subscribe={"channel": "v.c", "parameters": [2]})
            await eve.until(lambda: eve.events)
            assert eve.events[0]["type"] == "tocsin.ended"
        assert (await made.ask("GET", "/v1/subscriptions", user="eve"))[1]["subscriptions"] == []


async def test_who_subscribes_again_is_told_that_since_does_not_count(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        first = await made.subscribe("ada", "v.c", 1, since="0-0-0")
        assert (first["since_applied"], first["since"]) == (True, "0-0-0")
        assert "since_applied" not in await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {int(first["interest"]): ["x"]})
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await ada.values_until(1)
            await ada.ack(first["interest"], ada.events[0]["data"]["to"])
            again = await ada.ask(subscribe={"channel": "v.c", "parameters": [1], "since": "0-0-0"})
            assert (again["ok"]["id"], again["ok"]["since_applied"]) == (first["id"], False)
            # What has come can be read again all the same.
            read = await ada.ask(pull={"interest": first["interest"], "after": "0-0-0"})
            assert values(read["ok"]["events"]) == ["x"]


async def test_an_application_reaches_nothing_of_another(cluster: Any, tmp_path: Path) -> None:
    admin = "an operator's token"
    async with cluster as here, broker(tmp_path / "b", here.url, accounts__admin_token=admin) as made:
        await made.idle()
        await here.channel("c")
        await here.channel("d")
        tokens = {}
        for name in ("shop", "bank"):
            asked = {"name": name, "channels": ["v.c", "e"], "limits": {"subscriptions": 2}}
            status, said = await made.ask("POST", "/v1/applications", asked, token=admin)
            assert status == 201, said
            tokens[name] = said["token"]
        await made.user("ann", "shop", tokens["shop"])
        await made.user("ben", "bank", tokens["bank"])
        assert (await made.ask("GET", "/v1/subscribers/ann", token=tokens["shop"]))[1]["user"] == "ann"
        assert (await made.ask("GET", "/v1/subscribers/ann", token=tokens["bank"]))[0] == 404
        assert (await made.ask("GET", "/v1/subscribers?application=shop", token=tokens["bank"]))[0] == 403
        assert (await made.ask("GET", "/v1/subscribers", user="ann"))[0] == 403
        for place in ("/v1/applications", "/v1/policies", "/metrics"):
            assert (await made.ask("GET", place))[0] == 401
        assert (await made.ask("GET", "/v1/policies", token=tokens["shop"]))[0] == 403
        refused = await made.ask("POST", "/v1/subscriptions", {"channel": "v.d", "parameters": [1]}, user="ann")
        assert refused[0] == 403
        assert [one["name"] for one in (await made.ask("GET", "/v1/channels", user="ann"))[1]["channels"]] == ["v.c"]
        for n in range(2):
            await made.subscribe("ann", "v.c", n)
        many = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [9]}, user="ann")
        assert (many[0], many[1]["error"]["code"]) == (429, "limit")
        assert len(made.service.desk._holdings) == 2, "the cluster was not asked for it"
        assert (await made.subscribe("ann", "v.c", 1))["parameters"] == [1]
        changed = {"limits": {"subscriptions": 3}}
        assert (await made.ask("PATCH", "/v1/applications/shop", changed, token=admin))[1]["channels"] == [
            "v.c",
            "Default.e",
        ]
        await made.subscribe("ann", "v.c", 9)
        assert (await made.ask("DELETE", "/v1/applications/shop", token=admin))[0] == 200
        assert (await made.ask("GET", "/v1/subscriptions", user="ann"))[0] == 401
        assert made.service.desk.subscriptions == 0


async def test_a_subscriber_changes_its_password_who_knows_the_old_one(cluster: Any, tmp_path: Path) -> None:
    admin = "an operator's token"
    async with cluster as here, broker(tmp_path / "b", here.url, accounts__admin_token=admin) as made:
        _, shop = await made.ask("POST", "/v1/applications", {"name": "shop"}, token=admin)
        ann = {"user": "ann", "password": "first secret"}
        assert await made.ask("POST", "/v1/register", ann, token=shop["token"]) == (
            201, {"user": "ann", "application": "shop"},
        )  # fmt: skip
        _, said = await made.ask("POST", "/v1/login", {**ann, "application": "shop"})
        place = "/v1/subscribers/ann/password"
        for wrong in ({}, {"old": "wrong secret"}):
            changed = await made.ask("PUT", place, {"password": "second secret", **wrong}, token=said["token"])
            assert changed[0] == 401
        changed = await made.ask(
            "PUT", place, {"password": "second secret", "old": "first secret"}, token=said["token"]
        )
        assert changed == (200, {})
        assert (await made.ask("POST", "/v1/login", {**ann, "application": "shop"}))[0] == 401
        again = {"user": "ann", "password": "second secret", "application": "shop"}
        assert (await made.ask("POST", "/v1/login", again))[0] == 200


async def test_logging_out_ends_the_connections_of_that_token(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        old = made.tokens["ada"]
        new = (await made.ask("POST", "/v1/token", user="ada"))[1]["token"]
        async with Listener(made.url, old) as first, Listener(made.url, new) as second:
            await until(lambda: made.service.sessions.connections == 2)
            assert (await made.ask("POST", "/v1/logout", token=old))[0] == 200
            await first.until(lambda: first.close_code == 4401)
            assert second.close_code is None
            assert (await made.ask("GET", "/v1/subscriptions", token=old))[0] == 401
            assert (await made.ask("GET", "/v1/subscriptions", token=new))[0] == 200


async def test_another_password_ends_every_connection(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        place, new = "/v1/subscribers/ada/password", {"password": "another good one"}
        assert (await made.ask("PUT", place, new, user="ada"))[0] == 401
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.service.sessions.connections == 1)
            assert (await made.ask("PUT", place, {**new, "old": PASSWORD}, user="ada"))[0] == 200
            await ada.until(lambda: ada.close_code == 4401)
        assert (await made.ask("GET", "/v1/subscriptions", user="ada"))[0] == 401


async def test_limits_are_told_clearly(cluster: Any, tmp_path: Path) -> None:
    limits = {"limits__connections": 1, "limits__requests_burst": 5, "limits__requests_per_s": 1}
    async with cluster as here, both(tmp_path / "broker", here, **limits) as made:
        async with Listener(made.url, made.tokens["ada"]) as ada, Listener(made.url, made.tokens["ada"]) as more:
            await more.until(lambda: more.close_code == 4429)
            assert more.errors[0]["code"] == "limit"
            for _ in range(25):
                await ada.socket.send_str("garbage")
            await ada.until(lambda: ada.close_code == 1008)
            assert {one["code"] for one in ada.errors} == {"bad_request"}
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {made.tokens['ada']}"}) as session:
            statuses = []
            for _ in range(7):
                async with session.get(f"{made.url}/v1/subscriptions") as answer:
                    statuses.append((answer.status, answer.headers.get("Retry-After")))
        assert (429, "1") in statuses
        assert statuses[0] == (200, None)


async def test_connections_of_one_address_are_limited(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, http__address_connections_limit=3) as made:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(aiohttp.ClientSession()) for _ in range(4)]
            answers = [await stack.enter_async_context(one.get(f"{made.url}/healthz")) for one in sessions]
            # The cluster may have one of the three.
            assert {one.status for one in answers} == {200, 429}
            refused = answers[-1]
            assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            error = (await refused.json())["error"]
            assert (error["code"], error["message"]) == ("limit", "127.0.0.1 has 3 connections already")
        async with asyncio.timeout(10):
            while (await made.ask("GET", "/healthz"))[0] != 200:
                await asyncio.sleep(0)


def test_an_address_is_one_whatever_it_is_called() -> None:
    assert place_of("10.0.0.7") == place_of("::ffff:10.0.0.7") == "10.0.0.7"
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:0:0:9%eth0") != place_of("2001:db8:0:1::1")
    assert place_of(None) == place_of("") == "unknown"
    assert [is_own(one) for one in ("127.0.0.1", "::1", "::ffff:127.0.0.2", "10.0.0.7", None)] == [True] * 3 + [
        False
    ] * 2


async def test_a_connection_ends_with_its_token_and_asking_for_much_counts_for_more(
    cluster: Any, tmp_path: Path
) -> None:
    limits = {"limits__requests_burst": 12, "limits__requests_per_s": 1, "accounts__token_s": 2.0}
    async with cluster as here, both(tmp_path / "broker", here, **limits) as made:
        await here.channel("c")
        async with Listener(made.url, made.tokens["ada"]) as ada:
            for n in range(6):
                await made.subscribe("ada", "v.c", n)
            await ada.until(lambda: ada.close_code == 4401)
    bucket = Bucket(per_s=10, burst=5, now_s=0.0)
    # More than there ever are at once is taken when all are there, and owed.
    assert [bucket.try_take(0.0, 8.0), bucket.try_take(0.0)] == [0.0, pytest.approx(0.4)]
    assert bucket.try_take(0.4) == 0.0


async def test_policies_are_switched_while_it_runs(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {int(held["interest"]): ["x"]})
        await until(lambda: made.service.machine.core.caches.resident_bytes)
        status, said = await made.ask("PUT", "/v1/policies", {"eviction": "lru", "expiry": "ttl"})
        assert (status, said["policy"]) == (200, "all+lru+ttl")
        assert said["resident_bytes"] > 0
        assert set(said["figures"]) == {"all+lsc+never", "all+lru+ttl"}
        for bad in ({"eviction": "nosuch"}, {"budget_bytes": "1"}, {"nosuch": 1}, []):
            status, said = await made.ask("PUT", "/v1/policies", bad)
            assert (status, said["error"]["code"]) == (400, "bad_request")
        shown = (await made.ask("GET", "/metrics"))[1].decode()
        assert 'tocsin_broker_arrived_total{policy="all+lsc+never"} 1.0' in shown


async def test_interests_that_nobody_needs_are_ended_at_the_cluster(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, delivery__grace_s=0) as made:
        channel = await here.channel("c")
        for _ in range(3):
            held = await made.subscribe("ada", "v.c", 1)
            assert len(await here.store.subscriptions(channel.channel_id)) == 1
            await made.ask("DELETE", f"/v1/subscriptions/{held['id']}", user="ada")
        async with asyncio.timeout(20):
            while await here.store.subscriptions(channel.channel_id):
                await asyncio.sleep(0.01)
        assert len(made.service.desk._holdings) == 0


async def test_the_cluster_is_told_what_everybody_has(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, delivery__report_every_s=0) as made:
        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await here.execute(channel, {interest: ["x"]})
            await ada.values_until(1)
            await ada.ack(str(interest), ada.events[0]["data"]["to"])

            async with asyncio.timeout(20):
                while not [one async for one in here.store.lowest_acknowledged(channel.channel_id) if interest in one]:
                    await asyncio.sleep(0.01)


async def life(made: BrokerHere, here: World, channel: Any, interest: int, n: int) -> None:
    await here.execute(channel, {interest: [n]})
    head = made.service.machine.core.caches
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
    with bound("127.0.0.1", 0) as (sock, _):
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
            await until(lambda: not made.service.link.connected)
            assert (await made.ask("GET", "/readyz"))[0] == 503
            async with world(tmp_path / "cluster", port=port) as here:
                (channel,) = here.catalog.catalog.channels
                await here.execute(channel, {interest: [1]})
                assert await ada.values_until(2) == [0, 1]
                await until(lambda: made.service.link.connected)
    finally:
        await stack.__aexit__(None, None, None)


async def test_a_cluster_that_has_lost_the_broker_is_told_again(tmp_path: Path, cluster: Any) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as made:
        from tests.broker_world import Token
        from tocsin.store.channel_rows import Broker

        channel = await here.channel("c")
        interest = int((await made.subscribe("ada", "v.c", 1))["interest"])
        await here.brokers.remove(Broker("Default", "b"), Token("ada", "admin"))
        async with Listener(made.url, made.tokens["ada"]) as ada:
            async with asyncio.timeout(20):
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
