"""The cluster knows which applications of a broker hold an interest, and takes room from those that use too much."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.in_process_broker import InProcessBroker, Listener, both, broker
from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import WITHIN_S, until
from tocsin.store.channels.rows import BrokerName

NAME = BrokerName("Default", "b")


async def told(here: SparklessCluster) -> dict[str, list[str]]:
    """The applications that hold each interest at the cluster, by its parameters."""
    found: dict[str, list[str]] = {}
    for subscription in await here.store.subscriptions_of(NAME):
        found.setdefault(subscription.parameters, []).append(subscription.application)
    return {parameters: sorted(names) for parameters, names in found.items()}


async def application(made: InProcessBroker, name: str, user: str) -> None:
    _, said = await made.ask("POST", "/v1/applications", {"name": name})
    await made.user(user, name, said["token"])


async def until_told(here: SparklessCluster, wanted: dict[str, list[str]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await told(here) != wanted:
            await asyncio.sleep(0.01)


async def test_every_application_that_holds_an_interest_is_told_and_none_when_nobody_does(
    cluster: Any, tmp_path: Path
) -> None:
    quick = {"delivery__grace_s": 0.0}
    async with cluster as here:
        await here.channel("c")
        async with both(tmp_path / "broker", here, **quick) as made:
            await application(made, "traffic", "eve")
            first = await made.subscribe("ada", "v.c", 1)
            await made.subscribe("eve", "v.c", 1)
            await made.subscribe("eve", "v.c", 2)
            await until_told(here, {"[1]": ["default", "traffic"], "[2]": ["traffic"]})
            await made.ask("DELETE", f"/v1/subscriptions/{first['id']}", user="ada")
        async with broker(tmp_path / "broker", here.url, **quick) as made:
            await made.idle()
            # What was told before is known again, and not taken for somebody else's.
            assert await told(here) == {"[1]": ["default", "traffic"], "[2]": ["traffic"]}
            await made.login("eve", "traffic")
            _, said = await made.ask("GET", "/v1/subscriptions", user="eve")
            for subscription in said["subscriptions"]:
                await made.ask("DELETE", f"/v1/subscriptions/{subscription['id']}", user="eve")
            await until_told(here, {})


async def test_what_an_application_floods_its_neighbours_with_pushes_out_its_own(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster") as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c", retention_bytes=20_000)
        await application(made, "flood", "eve")
        quiet = int((await made.subscribe("ada", "v.c", 0))["interest"])
        flood = [int((await made.subscribe("eve", "v.c", n))["interest"]) for n in range(1, 21)]
        await here.execute(channel, {quiet: ["kept"], **{interest: ["x" * 500] for interest in flood}})
        for n in range(50):
            await here.execute(channel, {interest: [f"{n}" * 200] for interest in flood})
        await until(lambda: made.parts.runtime.core.caches[flood[-1]].head[1] == 51)
        await here.retention.look_over()
        assert (await here.store.state(channel.channel_id)).result_bytes <= 20_000
        async with Listener(made.url, made.tokens["ada"]) as ada:
            assert await ada.values_until(1) == ["kept"]
            assert ada.events[0]["data"]["gap"] is None
        async with Listener(made.url, made.tokens["eve"]) as eve:
            await eve.until(lambda: eve.events)
            assert eve.events[0]["data"]["gap"] is not None


async def test_an_application_with_too_many_interests_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster", interests_limit=2) as here, both(tmp_path / "broker", here) as made:
        await here.channel("c")
        await application(made, "traffic", "eve")
        for n in range(2):
            await made.subscribe("eve", "v.c", n)
        status, said = await made.ask("POST", "/v1/subscriptions", {"channel": "v.c", "parameters": [9]}, user="eve")
        assert (status, said["error"]["code"]) == (429, "limit")
        assert "cluster.channels.interests_limit" in said["error"]["hint"]
        await made.subscribe("ada", "v.c", 9)
