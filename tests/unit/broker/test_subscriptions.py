"""Subscriptions begin, are shared by groups, and end, and all who hold them are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.in_process_broker import Listener, both, values
from tests.support.waiting import WITHIN_S, until
from tocsin.rules.model import types as t
from tocsin.store.broker.sqlite.store import SqliteBrokerStore


async def test_subscribing_again_is_the_same_and_since_brings_what_was_before(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here) as made:
        channel = await here.channel("c", t.POINT)
        await made.user("bob")
        held = await made.subscribe("ada", "v.c", [33.6, -117.8])
        assert await made.subscribe("ada", "v.c", [33.6, -117.8]) == held
        await here.execute(channel, {int(held["interest"]): ["old"]})
        await until(lambda: made.parts.runtime.core.caches[int(held["interest"])].head[1] == 1)
        async with Listener(made.url, made.tokens["bob"]) as bob:
            # Other words for the same value are the same interest.
            said = await bob.ask(subscribe={"channel": "v.c", "parameters": ["33.6,-117.8"], "since": "0-0-0"})
            assert (said["ok"]["interest"], said["ok"]["recovered"]) == (held["interest"], True)
            assert await bob.values_until(1) == ["old"]
            listed = await bob.ask(list={})
            assert [subscription["id"] for subscription in listed["ok"]["subscriptions"]] == [said["ok"]["id"]]
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


async def test_a_channel_that_is_dropped_ends_its_subscriptions(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cluster__check_every_s=0.05) as made:
        from tocsin.cluster.catalog.catalog import Remove

        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        async with Listener(made.url, made.tokens["ada"]) as ada:
            await until(lambda: made.parts.fan_out.listeners)
            await here.execute(channel, {int(held["interest"]): ["x"]})
            await ada.values_until(1)
            await here.catalog.apply([Remove(channel.ref)])
            await here.store.drop_channel(channel.channel_id)
            made.parts.link.note_unknown_interest(int(held["interest"]))
            await ada.until(lambda: ada.events[-1]["type"] == "tocsin.ended")
        assert (await made.ask("GET", "/v1/subscriptions", user="ada"))[1]["subscriptions"] == []


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
            await until(lambda: made.parts.fan_out.listeners == 2)
            await here.execute(channel, {int(interest): ["one"]})
            assert await ada.values_until(1) == await bob.values_until(1) == ["one"]
            await ada.ack(interest, ada.events[0]["data"]["to"])
            # Who joins later gets what comes later.
            await made.ask("POST", "/v1/groups/watch/members", {"members": ["eve"]})
            async with Listener(made.url, made.tokens["eve"]) as eve:
                await until(lambda: made.parts.fan_out.listeners == 3)
                await here.execute(channel, {int(interest): ["two"]})
                assert await eve.values_until(1) == ["two"]
        async with Listener(made.url, made.tokens["bob"]) as bob:
            assert await bob.values_until(2) == ["one", "two"]
        _, said = await made.ask("GET", "/v1/groups/watch", user="bob")
        assert said["members"] == ["ada", "bob", "eve"]
        assert [subscription["interest"] for subscription in said["subscriptions"]] == [interest]
        async with Listener(made.url, made.tokens["bob"]) as bob, Listener(made.url, made.tokens["eve"]) as eve:
            await until(lambda: made.parts.fan_out.listeners == 2)
            assert (await made.ask("DELETE", "/v1/groups/watch/members/eve"))[0] == 200
            assert (await made.ask("DELETE", "/v1/groups/watch"))[0] == 200
            for client in (eve, bob):
                await client.until(lambda client=client: client.events and client.events[-1]["type"] == "tocsin.ended")
            reasons = [client.events[-1]["data"]["reason"] for client in (eve, bob)]
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
            await until(lambda: made.parts.fan_out.listeners == 2)
            change = {"channels": ["v.jams"]}
            assert (await made.ask("PATCH", "/v1/applications/traffic", change))[1]["channels"] == ["v.jams"]
            await eve.until(lambda: len(eve.events) == 2)
            assert {(event["type"], event["interest"], event["channel"]) for event in eve.events} == {
                ("tocsin.ended", mine["interest"], "v.floods"), ("tocsin.ended", shared["interest"], "v.floods"),
            }  # fmt: skip
            reason = "the application traffic may not use this channel any more"
            assert {event["data"]["reason"] for event in eve.events} == {reason}
            await here.execute(floods, {int(other["interest"]): ["for ada"]})
            await here.execute(jams, {int(kept["interest"]): ["for eve"]})
            assert (await ada.values_until(1), await eve.values_until(1)) == (["for ada"], ["for eve"])
        _, page = await made.ask("GET", "/v1/subscriptions", user="eve")
        assert [subscription["id"] for subscription in page["subscriptions"]] == [kept["id"]]
        assert (await made.ask("GET", "/v1/groups/crew", user="eve"))[1]["subscriptions"] == []
        asked = {"channel": "v.floods", "parameters": [1]}
        assert (await made.ask("POST", "/v1/subscriptions", asked, user="eve"))[0] == 403


async def test_a_subscription_that_is_made_while_its_channel_is_taken_away_ends_too(
    cluster: Any, tmp_path: Path
) -> None:
    class OvertakenStore(SqliteBrokerStore):
        """Loses the application's channels when a subscription is about to be stored."""

        async def subscribe(self, requests: Any, **more: Any) -> Any:  # type: ignore[override]
            assert (await made.ask("PATCH", "/v1/applications/traffic", {"channels": []}))[0] == 200
            return await super().subscribe(requests, **more)

    async with cluster as here, both(tmp_path / "broker", here, store_type=OvertakenStore) as made:
        await here.channel("c")
        _, said = await made.ask("POST", "/v1/applications", {"name": "traffic"})
        await made.user("eve", "traffic", said["token"])
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


async def test_interests_that_nobody_needs_are_ended_at_the_cluster(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, delivery__grace_s=0) as made:
        channel = await here.channel("c")
        for _ in range(3):
            held = await made.subscribe("ada", "v.c", 1)
            assert len(await here.store.subscriptions(channel.channel_id)) == 1
            await made.ask("DELETE", f"/v1/subscriptions/{held['id']}", user="ada")
        async with asyncio.timeout(WITHIN_S):
            while await here.store.subscriptions(channel.channel_id):
                await asyncio.sleep(0.01)
        assert len(made.parts.subscriptions.index) == 0
