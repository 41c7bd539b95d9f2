"""Measures a broker's fan-out: CPU per delivered message and memory per connection, compared with a bare server that
writes the same bytes to all clients, and with one in the style of the original prototype.

python -m benchmarks.fanout [--small] [--clients N]

Each server is a process of its own, and so are its clients. A result goes the whole way: it is executed at a cluster
without Spark, announced and signed, made durable, cached, put into an envelope and written to all clients. The next
result follows when all clients have it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from benchmarks import stand_in
from benchmarks.crowd import Crowd, many_files
from benchmarks.harness import Bench, beside
from tests.support.sparkless_cluster import world
from tocsin.cli.logs import log_to_stderr
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.envelopes import EnvelopeWriter, item

RESULT_BYTES: Final = 300
LEAN_BAR: Final = 1.5
TORNADO_BAR: Final = 4.0
MEMORY_BAR: Final = 25.0


@dataclass(frozen=True, slots=True)
class Size:
    clients: tuple[int, ...] = (1_000, 5_000, 10_000)
    deliveries: int = 40_000
    rounds: int = 5


SMALL: Final = Size(clients=(1_000,), deliveries=20_000, rounds=3)


@dataclass(slots=True)
class Contender:
    """A server with its clients."""

    server: stand_in.Server
    crowd: Crowd
    publish: Callable[[], Awaitable[object]]
    kilobytes: float = 0.0
    taken: list[float] = field(default_factory=list)

    async def run(self, messages: int) -> float:
        """CPU seconds of the server for these messages to all clients. A few go before that and do not count:
        after another server the processor's caches are full of that one's connections (a third more CPU), which the
        baseline, measured twice in a row, would not pay."""
        await self._deliver(max(1, messages // 4))
        begun_s = self.server.cpu_s()
        await self._deliver(messages)
        return self.server.cpu_s() - begun_s

    async def _deliver(self, messages: int) -> None:
        for _ in range(messages):
            await self.publish()
            await asyncio.to_thread(self.crowd.read)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="1,000 clients only: to see that it runs")
    parser.add_argument("--clients", type=int, help="the number of clients")
    given = parser.parse_args()
    size = SMALL if given.small else Size()
    if given.clients:
        size = replace(size, clients=(given.clients,))
    many_files()
    log_to_stderr(False)
    bench = Bench("fanout")
    bench.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for clients in size.clients:
        with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
            await measure(bench, Path(scratch), clients, size)
    bench.finish()


async def measure(bench: Bench, folder: Path, clients: int, size: Size) -> None:
    async with AsyncExitStack() as stack:
        bare = await baseline(stack, "bare", clients)
        tornado = await baseline(stack, "tornado", clients)
        ours = await broker(stack, folder, clients)
        messages = max(1, size.deliveries // clients)
        first: list[float] = []
        again: list[float] = []
        for server in (bare, ours, tornado):
            await server.run(max(1, messages // 4))
        for turn in range(size.rounds):
            first.append(await bare.run(messages))
            for server in (ours, tornado) if turn % 2 == 0 else (tornado, ours):
                # It takes so long that fewer will do.
                few = max(1, messages // 4) if server is tornado else messages
                server.taken.append(await server.run(few) * messages / few)
            again.append(await bare.run(messages))
        of_ours = beside(ours.taken, first, again, name="", operations=messages * clients)
        bench.compared(f"{clients:,} clients: delivered", of_ours, bar=LEAN_BAR, baseline="bare")
        cheaper = statistics.median(theirs / mine for theirs, mine in zip(tornado.taken, ours.taken, strict=True))
        bench.reached(f"{clients:,} clients: cheaper than Tornado style", cheaper, bar=TORNADO_BAR, unit="×")
        tornado_us = statistics.median(tornado.taken) / messages / clients * 1e6
        bench.note(f"{clients:,} clients: {tornado_us:.1f} µs of CPU per message in Tornado style")
        await acknowledged(bench, bare, ours, messages, size)
        bench.bar(f"{clients:,} clients: memory per connection", ours.kilobytes, bar=MEMORY_BAR, unit="KB")
        bench.note(
            f"{clients:,} clients: a connection takes {bare.kilobytes:.1f} KB in the bare server and "
            f"{tornado.kilobytes:.1f} KB in Tornado style"
        )


async def acknowledged(bench: Bench, bare: Contender, ours: Contender, messages: int, size: Size) -> None:
    """The same when everybody answers every message, as dear as it can be: clients acknowledge many together."""
    for server in (bare, ours):
        server.crowd.ask(do="acknowledge", on=True)
    first: list[float] = []
    again: list[float] = []
    taken: list[float] = []
    for _ in range(size.rounds):
        first.append(await bare.run(messages))
        taken.append(await ours.run(messages))
        again.append(await bare.run(messages))
    clients = ours.crowd.count
    found = beside(taken, first, again, name="", operations=messages * clients)
    bench.compared(f"{clients:,} clients: each message acknowledged", found, bar=None, baseline="bare, reads and drops")


async def baseline(stack: AsyncExitStack, name: str, clients: int) -> Contender:
    started = await stack.enter_async_context(stand_in.server("benchmarks.baselines.fanout", name))
    session = await stack.enter_async_context(aiohttp.ClientSession())
    crowd = stack.enter_context(Crowd())
    message = envelope()

    async def publish() -> None:
        async with session.post(f"{started.address}/publish", data=message) as answer:
            answer.raise_for_status()

    before_bytes = started.memory_bytes()
    await asyncio.to_thread(crowd.connect, started.address, "/", None, clients, [])
    return Contender(started, crowd, publish, (started.memory_bytes() - before_bytes) / clients / 1_000)


def envelope() -> bytes:
    """What the broker makes of such a result."""
    now_us = time.time_ns() // 1_000
    after, to = Cursor(now_us // 1_000_000, 12, 0), Cursor(now_us // 1_000_000, 13, 0)
    result = item(to, now_us, orjson.dumps(stand_in.result(RESULT_BYTES)))
    return EnvelopeWriter("Default.broker").results("v.c", 17, after, to, [result], at_us=now_us)


async def broker(stack: AsyncExitStack, folder: Path, clients: int) -> Contender:
    cluster = await stack.enter_async_context(world(folder / "cluster"))
    channel = await cluster.channel("c", push=True)
    tokens = await stand_in.accounts(folder / "broker", clients)
    (folder / "tokens").write_text("\n".join(tokens))
    started = await stack.enter_async_context(stand_in.broker(folder / "broker", cluster.url))
    crowd = stack.enter_context(Crowd())
    before_bytes = started.memory_bytes()
    subscribe = {"ref": 1, "subscribe": {"channel": "v.c", "parameters": [17]}}
    await asyncio.to_thread(crowd.connect, started.address, "/v1/stream", folder / "tokens", clients, [subscribe])
    kilobytes = (started.memory_bytes() - before_bytes) / clients / 1_000
    interest = await stand_in.interest(started.address, tokens[0], "v.c", 17)
    return Contender(started, crowd, lambda: stand_in.publish(cluster, channel, interest, RESULT_BYTES), kilobytes)


if __name__ == "__main__":
    asyncio.run(main())
