"""No file can be opened any more: who is connected is served all the same, and all goes on once there are files again.

The limit (RLIMIT_NOFILE) is set from outside while the process runs; connections that say nothing take what is left.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from tests.support.real_brokers import Subscriber, broker_process, free_port
from tests.support.real_processes import ClusterHttpClient, cluster
from tests.support.sparkless_cluster import world
from tests.support.waiting import WITHIN_S, wait_until

SPARE = 20


@contextmanager
def files_of(pid: int, more: int) -> Iterator[None]:
    """Meanwhile the process can open this many files more than it has open."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # A descriptor is the lowest number that is free, and the limit is one on numbers.
    used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + more, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def answers(url: str, within_s: float = 5.0) -> bool:
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within_s)) as session,
            session.get(f"{url}/healthz") as response,
        ):
            return response.status == 200
    return False


async def test_a_broker_without_files_serves_whom_it_has_and_recovers(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster") as here, broker_process(tmp_path / "broker", here.url, free_port()) as made:
        channel = await here.channel("c")
        ann = Subscriber(made.url, "ann")
        await ann.enter()
        interest = (await ann.subscribe("v.c", 1))["interest"]
        ann.listen()
        await here.execute(channel, {int(interest): [0]})
        await ann.until({interest: [0]}, within_s=WITHIN_S)
        place, writers = urlsplit(made.url), []
        try:
            for round_ in range(3):
                with files_of(made.process.pid, SPARE):
                    for _ in range(5 * SPARE):
                        with suppress(OSError):
                            writers.append((await asyncio.open_connection(place.hostname, place.port))[1])
                    await asyncio.sleep(0.5)  # for all of them to be taken, or refused
                    await here.execute(channel, {int(interest): [round_ + 1]})
                    await ann.until({interest: list(range(round_ + 2))}, within_s=WITHIN_S)
                async with asyncio.timeout(WITHIN_S):
                    while not await answers(made.url):
                        await asyncio.sleep(0.05)
        finally:
            for writer in writers:
                writer.transport.abort()
        assert (ann.connections, ann.gaps) == (1, [])
        await ann.leave()


async def test_a_broker_that_is_started_with_few_files_takes_as_many_as_it_may(tmp_path: Path) -> None:
    few, connections = 256, 400
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with world(tmp_path / "cluster") as here, AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            made = await stack.enter_async_context(broker_process(tmp_path / "broker", here.url, free_port()))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
        asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        place, said, writers = urlsplit(made.url), [], []
        async with asyncio.timeout(WITHIN_S):
            for _ in range(connections):
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                writers.append(writer)
                stack.callback(writer.transport.abort)
                writer.write(asked)
                said.append((await reader.readline())[:12])
            assert said == [b"HTTP/1.1 200"] * connections
        assert len(os.listdir(f"/proc/{made.process.pid}/fd")) > connections


FEED = """
CREATE TYPE News AS { id: int };
CREATE DATASET Reports(News) PRIMARY KEY id;
CREATE FEED ReportFeed WITH { "adapter-name": "http_adapter", "type-name": "News", "format": "json" };
CONNECT FEED ReportFeed TO DATASET Reports;
START FEED ReportFeed;
"""


def test_a_cluster_without_files_loses_nothing_that_it_acknowledged_and_recovers(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    numbers = itertools.count()

    def publish(connection: http.client.HTTPConnection, query: str = "") -> int:
        number = next(numbers)
        connection.request("POST", f"/v1/feeds/ReportFeed{query}", json.dumps({"id": number}).encode())
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            acknowledged.add(number)
        return response.status

    with cluster(tmp_path / "data") as made, ExitStack() as stack:
        client = made.client
        assert client.run(FEED).status == 200
        held = client.connection()
        assert publish(held, "?wait=visible") == 200
        for _ in range(2):
            with files_of(made.pid, 4):
                for _ in range(20):
                    with suppress(OSError):
                        place = (client.host, client.port)
                        stack.enter_context(socket.create_connection(place, timeout=WITHIN_S))
                for _ in range(20):
                    # Told that it cannot be, or acknowledged: nothing between.
                    try:
                        assert publish(held) in (200, 429, 503, 507, 500)
                    except (OSError, http.client.HTTPException):
                        held.close()
            held.close()
            held = client.connection()
            wait_until(lambda: _is_served(client), "there are files again")
            assert publish(held, "?wait=visible") == 200
        held.close()
        found = {row["id"] for row in client.rows("SELECT VALUE r FROM Reports r;")}
        assert acknowledged <= found


def _is_served(client: ClusterHttpClient) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return client.run("SELECT VALUE 1;").status == 200
    return False
