"""The whole way with real processes: published through a broker, matched on Spark, delivered to who comes and goes
while the broker and then the cluster are killed -9. Nothing is lost, and nothing comes twice unknown."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from tests.support.real_brokers import FAILURES, QUICK, Subscriber, free_port
from tests.support.real_processes import ClusterProcess
from tests.support.waiting import WITHIN_S
from tocsin.sdk import Client, Ended

SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE R AS { id: int, kind: string };
CREATE ACTIVE DATASET D(R) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "R"};
CONNECT FEED F TO DATASET D; START FEED F;
CREATE CONTINUOUS CHANNEL c(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
CREATE CONTINUOUS PUSH CHANNEL p(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
"""


class Publisher:
    """Sends record after record through the broker, each until it is acknowledged."""

    def __init__(self, url: str, who: Subscriber) -> None:
        self._url, self._who = url, who
        self.ids: dict[str, list[int]] = {"a": [], "b": []}
        self._next = 0

    async def publish(self, count: int) -> None:
        for _ in range(count):
            self._next += 1
            kind = "ab"[self._next % 2]
            await self._send({"id": self._next, "kind": kind})
            self.ids[kind].append(self._next)

    async def _send(self, record: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self._who.token}", "Idempotency-Key": str(record["id"])}
        while True:
            try:
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session,
                    session.post(f"{self._url}/v1/feeds/v.F", data=orjson.dumps(record), headers=headers) as response,
                ):
                    said = await response.read()
                    if response.status == 200:
                        return
                    assert response.status in (404, 429, 503), said
            except FAILURES:
                pass
            await asyncio.sleep(0.05)


def broker_of(cluster: ClusterProcess) -> psutil.Process | None:
    for child in psutil.Process(cluster.pid).children(recursive=True):
        try:
            if "broker" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


async def test_published_through_a_broker_delivered_to_all_whoever_is_killed(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {**QUICK, "TOCSIN_BROKER__HTTP__PORT": str(port), "TOCSIN_BROKER__CACHE__BUDGET_BYTES": "1000"}
    ann, ben, eve = (Subscriber(url, name) for name in ("ann", "ben", "eve"))
    people = (ann, ben, eve)
    publisher = Publisher(url, eve)
    wanted: dict[str, str] = {}
    with ClusterProcess(tmp_path, "--brokers", "1", **variables) as process:
        cluster = await asyncio.to_thread(process.ready)
        assert (await asyncio.to_thread(cluster.client.run, SETUP)).status == 200
        for person in people:
            await person.enter()
            for channel in ("v.c", "v.p"):
                for kind in "ab" if person is ann else "b":
                    held = await person.subscribe(channel, kind)
                    person.got[held["interest"]] = []
                    wanted[held["interest"]] = kind

        async def all_came(person: Subscriber) -> None:
            made = {interest: publisher.ids[wanted[interest]] for interest in person.got}
            async with asyncio.timeout(WITHIN_S):
                while any(len(person.got[interest]) < len(ids) for interest, ids in made.items()):
                    await asyncio.sleep(0.02)
            # A batch has an order of its own: each exactly once is what counts.
            assert {interest: sorted(got) for interest, got in person.got.items()} == made
            assert person.gaps == []

        ann.listen()
        await publisher.publish(6)
        await all_came(ann)
        # Ben was away; what he missed comes from the small cache and from the cluster.
        ben.listen()
        await all_came(ben)

        # The broker is killed under load, and started again by the cluster's process.
        publishing = asyncio.create_task(publisher.publish(12))
        first = broker_of(cluster)
        assert first is not None
        await asyncio.sleep(0)
        first.kill()
        await publishing
        await all_came(ann)
        second = broker_of(cluster)
        assert second is not None
        assert second.pid != first.pid

        # The cluster is killed under load, and its brokers end with it.
        publishing = asyncio.create_task(publisher.publish(12))
        while len(publisher.ids["a"]) + len(publisher.ids["b"]) < 22:
            await asyncio.sleep(0.01)
        await ann.leave()
        process.kill()
        await asyncio.to_thread(process.wait)
    with ClusterProcess(tmp_path, "--brokers", "1", **variables) as process:
        cluster = await asyncio.to_thread(process.ready)
        await publishing
        for item in (ann, eve):
            item.listen()
        for entry in people:
            await all_came(entry)
            await entry.leave()
        # And a program that uses the client gets the same from the beginning.
        async with Client(url, "zoe", "correct horse battery", register=True) as client:
            await client.subscribe("v.c", ["b"], since="0-0-0")
            told = []
            async for result in client.results():
                told.append(result.result)
                if len(told) == len(publisher.ids["b"]):
                    break
            assert sorted(told) == publisher.ids["b"]
            # Its subscription ends with its channel.
            assert (await asyncio.to_thread(cluster.client.run, "USE v; DROP CHANNEL c;")).status == 200
            async with asyncio.timeout(WITHIN_S):
                async for event in client.results():
                    if isinstance(event, Ended):
                        break
            assert event.channel == "v.c"
        # Told to stop, all of it stops: the broker first, and nothing is left behind.
        assert broker_of(process) is not None
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
