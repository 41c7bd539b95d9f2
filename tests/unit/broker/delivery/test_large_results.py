"""Results that are large and not in the cache: bounded in bytes on their way, whatever their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.support.in_process_broker import InProcessBroker, both, values
from tests.support.sparkless_cluster import SparklessCluster
from tests.support.waiting import until

LARGE = 50_000
PAGE = 256 << 10
# What a machine's sockets take of what nobody reads.
SOCKETS = 16 << 20


async def large(here: SparklessCluster, made: InProcessBroker, count: int, user: str = "ada") -> str:
    """Subscribes, and makes this many results that no cache has. Returns the subscription's id."""
    channel = await here.channel("c")
    held = await made.subscribe(user, "v.c", 1)
    interest = int(held["interest"])
    for begin in range(0, count, 100):
        pads = [{"n": n, "pad": "x" * LARGE} for n in range(begin, min(count, begin + 100))]
        await here.execute(channel, {interest: pads})
    core = made.parts.runtime.core
    # The news of them were fetched once.
    await until(lambda: core.caches.counters.arrived == count)
    return str(held["id"])


def fetched_bytes(made: InProcessBroker) -> int:
    return made.parts.runtime.core.caches.counters.fetched_bytes


async def test_who_pulls_large_results_has_them_fetched_once(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        name = await large(here, made, 100)
        before = fetched_bytes(made)
        got: list[int] = []
        after, answered = "", 0
        while True:
            _, said = await made.ask("GET", f"/v1/subscriptions/{name}/results?{after}", user="ada")
            answered += len(orjson.dumps(said))
            got += [value["n"] for value in values(said["events"])]
            if not said["more"]:
                break
            after = f"after={said['events'][-1]['data']['to']}"
        assert got == list(range(100))
        assert fetched_bytes(made) - before <= 1.1 * answered
        # And who wants few has few fetched.
        before = fetched_bytes(made)
        _, said = await made.ask("GET", f"/v1/subscriptions/{name}/results?limit=1", user="ada")
        assert ([value["n"] for value in values(said["events"])], said["more"]) == ([0], True)
        assert fetched_bytes(made) - before <= 1.1 * LARGE


async def test_who_reads_nothing_of_much_that_is_not_cached_is_behind(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        await large(here, made, 400)
        parts, before = made.parts, fetched_bytes(made)
        headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
        async with aiohttp.ClientSession() as session:
            slow = await session.ws_connect(f"{made.url}/v1/stream", headers=headers, max_msg_size=0)
            await until(lambda: parts.fan_out.listeners == 1)
            (outlet,) = parts.fan_out.outlets_of(1)
            await until(lambda: outlet.full)
            await until(lambda: parts.fan_out.behind == 1)
            transport = outlet.connection.transport  # type: ignore[attr-defined]
            assert 256 << 10 <= transport.get_write_buffer_size() <= (256 << 10) + 2 * (PAGE + LARGE)
            assert fetched_bytes(made) - before <= SOCKETS
            got: list[Any] = []
            largest = read_bytes = 0
            while len(got) < 400:
                data = (await slow.receive()).data
                read_bytes += len(data)
                got += [value["n"] for value in values([orjson.loads(data)])]
                largest = max(largest, transport.get_write_buffer_size())
            assert got == list(range(400))
            assert largest <= (256 << 10) + 2 * (PAGE + LARGE)
            assert fetched_bytes(made) - before <= 2 * read_bytes
            await until(lambda: not parts.fan_out.behind)
            await slow.close()


async def test_a_result_larger_than_a_page_gets_through(cluster: Any, tmp_path: Path) -> None:
    settings = {"cache__eviction": "none", "delivery__page_bytes": 1_024, "delivery__buffer_bytes": 1_024}
    async with cluster as here, both(tmp_path / "broker", here, **settings) as made:
        name = await large(here, made, 5)
        _, said = await made.ask("GET", f"/v1/subscriptions/{name}/results", user="ada")
        assert ([value["n"] for value in values(said["events"])], said["more"]) == ([0], True)
        headers = {"Authorization": f"Bearer {made.tokens['ada']}"}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{made.url}/v1/stream", headers=headers) as reader,
        ):
            got = [values([orjson.loads((await reader.receive()).data)]) for _ in range(5)]
        assert [[item["n"] for item in some] for some in got] == [[0], [1], [2], [3], [4]]


async def test_a_poll_answers_about_as_much_as_a_buffer_holds(cluster: Any, tmp_path: Path) -> None:
    async with cluster as here, both(tmp_path / "broker", here, cache__eviction="none") as made:
        channel = await here.channel("c")
        interests = [int((await made.subscribe("ada", "v.c", n))["interest"]) for n in range(40)]
        await here.execute(
            channel, {interest: [{"n": n, "pad": "x" * LARGE} for n in range(5)] for interest in interests}
        )
        await until(lambda: made.parts.runtime.core.caches.counters.arrived == 200)
        before = fetched_bytes(made)
        _, said = await made.ask("GET", "/v1/poll", user="ada")
        # Of few subscriptions at first, each with a page at most.
        assert PAGE <= len(orjson.dumps(said)) <= PAGE + 4 * (PAGE + LARGE)
        assert fetched_bytes(made) - before <= 4 * (PAGE + LARGE)
