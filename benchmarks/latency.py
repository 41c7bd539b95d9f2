"""Measures the latency from publishing a record to the subscriber that has its result: a cluster with Spark, a
broker, a hundred thousand interests.

python -m benchmarks.latency [--small] [--interests N] [--push]

Each publication is a request of its own with one record, which matches one interest. Every interest has an online
subscriber, which acknowledges. With --push the cluster sends results with its announcements; otherwise the broker
fetches them. All processes share one clock, on one machine, which should do nothing else. The stages:

    ack           sent → acknowledged: the record is safe
    micro-batch   → waits for the batch, and for the execution, that run already
    commit        → a batch with it is in the dataset
    channel       → an execution that sees it has found its results
    keeping       → they are durable
    announcement  → the broker knows, has them, and writes them to the subscriber
    delivery      → the subscriber has them
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import running, stand_in
from benchmarks.crowd import frame, many_files, upgrade
from benchmarks.harness import Bench
from tocsin.pipeline.java import ensure_java

PER_SUBSCRIBER: Final = 1_000
PUBLISHERS: Final = 32
STAGES: Final = ("ack", "micro-batch", "commit", "channel", "keeping", "announcement", "delivery")
P50_S, P99_S = 0.4, 1.2
SCRIPT: Final = """
CREATE TYPE News AS {{id: bigint, kind: string, sent: bigint, text: string}};
CREATE ACTIVE DATASET Reports(News) PRIMARY KEY id;
CREATE FEED ReportFeed WITH {{"adapter-name": "http_adapter", "type-name": "News", "format": "json"}};
CONNECT FEED ReportFeed TO DATASET Reports;
START FEED ReportFeed;
CREATE CONTINUOUS {push} CHANNEL OfKind(kind: string) {{
  SELECT r.id, r.sent, r.text FROM Reports r WHERE is_new(r) AND r.kind = kind
}};
"""


@dataclass(frozen=True, slots=True)
class Size:
    interests: int = 100_000
    rates: tuple[tuple[int, float], ...] = ((1, 60.0), (100, 30.0), (1_000, 20.0))
    warm_up_s: float = 20.0


SMALL: Final = Size(interests=2_000, rates=((1, 5.0), (100, 5.0)), warm_up_s=4.0)


@dataclass(frozen=True, slots=True)
class Arrived:
    """When a result was found, written by the broker, and received."""

    execution: int
    executed_s: float
    written_s: float
    received_s: float


@dataclass(slots=True)
class Seen:
    """What publishers and subscribers saw, by record; times since 1970."""

    sent_s: dict[int, float] = field(default_factory=dict)
    acked_s: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, Arrived] = field(default_factory=dict)
    twice: int = 0


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of CPU, by process, and when."""

    at_s: float
    seconds: dict[str, float]

    @classmethod
    def now(cls, cluster: running.RunningCluster, broker: stand_in.Server) -> Used:
        own = cluster.process.cpu_times()
        python_s = float(own.user + own.system)
        return cls(
            time.monotonic(),
            {
                "the cluster": python_s,
                "Spark": cluster.cpu_s() - python_s,
                "the broker": broker.cpu_s(),
                "publishers and subscribers": time.process_time(),
            },
        )

    def since(self, before: Used) -> str:
        took_s = self.at_s - before.at_s
        parts = [f"{name} {(used - before.seconds[name]) / took_s:.2f}" for name, used in self.seconds.items()]
        return "cores used: " + ", ".join(parts)


class Subscriber(asyncio.Protocol):
    """Subscribes, reads envelopes and acknowledges them."""

    def __init__(self, seen: Seen, token: str, kinds: Sequence[str]) -> None:
        self._seen = seen
        self._token = token
        self._wanted = [{"channel": "Default.OfKind", "parameters": [kind]} for kind in kinds]
        self._missing = len(kinds)
        self._rest = b""
        self._open = False
        self._transport: Any = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(upgrade("/v1/stream", self._token))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if not self._open:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return
            if b" 101 " not in head[:20]:
                raise RuntimeError(head[:500].decode())
            self._open = True
            for ref, request in enumerate(self._wanted):
                self._transport.write(frame(orjson.dumps({"ref": ref, "subscribe": request})))
        at = 0
        while len(data) - at >= 2:
            head_bytes, size = 2, data[at + 1]
            if size == 126:
                head_bytes, size = 4, int.from_bytes(data[at + 2 : at + 4], "big")
            elif size == 127:
                head_bytes, size = 10, int.from_bytes(data[at + 2 : at + 10], "big")
            if len(data) - at < head_bytes + size:
                break
            message = data[at + head_bytes : at + head_bytes + size]
            if data[at] & 0xF == 1:
                self._take(orjson.loads(message))
            else:
                self._transport.write(frame(message, 0xA))
            at += head_bytes + size
        self._rest = data[at:]

    def _take(self, said: dict[str, Any]) -> None:
        if "specversion" not in said:
            if "error" in said:
                raise RuntimeError(str(said))
            self._missing -= 1
            if not self._missing:
                self.ready.set_result(None)
            return
        now_s, written_s = time.time(), _seconds(said["time"])
        for result in said["data"]["results"]:
            number = result["result"]["id"]
            self._seen.twice += number in self._seen.arrived
            self._seen.arrived[number] = Arrived(
                int(result["cursor"].split("-")[1]), _seconds(result["executed_at"]), written_s, now_s
            )
        self._transport.write(frame(orjson.dumps({"ack": {said["interest"]: said["data"]["to"]}})))


class Line(asyncio.Protocol):
    """A publisher's connection, which is kept open: one request at a time."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._rest = b""
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def post(self, record: bytes) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        head = f"POST /v1/feeds/ReportFeed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(record)}\r\n\r\n"
        self._transport.write(head.encode() + record)
        await self._answer

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:") + 15
        if not found or len(body) < int(head[at:].split(b"\r\n", 1)[0]):
            return
        self._rest = b""
        assert self._answer is not None
        if head.startswith(b"HTTP/1.1 200 "):
            self._answer.set_result(None)
        else:
            self._answer.set_exception(RuntimeError(body[:300].decode()))


class Publishers:
    """Each record goes at its time, by the next connection that is free. Leaner than a client is: it works on the same
    cores."""

    def __init__(self, seen: Seen, interests: int) -> None:
        self._seen = seen
        self._interests = interests
        self._chance = random.Random(1)
        self._number = 0
        self._free: asyncio.Queue[Line] = asyncio.Queue()

    async def open(self, address: str) -> None:
        for _ in range(PUBLISHERS):
            line = Line()
            port = int(address.rsplit(":", 1)[1])
            await asyncio.get_running_loop().create_connection(lambda: line, "127.0.0.1", port)  # noqa: B023
            self._free.put_nowait(line)

    async def publish(self, per_s: int, seconds: float) -> list[int]:
        """So many a second, each at its time; which records."""
        loop = asyncio.get_running_loop()
        begun_s, first, tasks = loop.time(), self._number, []
        while (place := self._number - first) < int(per_s * seconds):
            due_s = begun_s + place / per_s
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            self._number += 1
            tasks.append(asyncio.create_task(self._one(self._number)))
        await asyncio.gather(*tasks)
        return list(range(first + 1, self._number + 1))

    async def _one(self, number: int) -> None:
        kind, sent_s = f"k{self._chance.randrange(self._interests)}", time.time()
        record = {"id": number, "kind": kind, "sent": int(sent_s * 1e6), "text": "x" * 200}
        line = await self._free.get()
        await line.post(orjson.dumps(record))
        self._free.put_nowait(line)
        self._seen.sent_s[number], self._seen.acked_s[number] = sent_s, time.time()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="2,000 interests, up to 100 a second: to see that it runs")
    parser.add_argument("--interests", type=int, help="the number of interests")
    parser.add_argument("--push", action="store_true", help="the cluster pushes results")
    given = parser.parse_args()
    size = SMALL if given.small else Size()
    if given.interests:
        size = replace(size, interests=given.interests)
    many_files()
    bench = Bench("latency")
    bench.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    ensure_java()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-bench-")))
        cluster = stack.enter_context(running.cluster(folder / "cluster"))
        cluster.run(SCRIPT.format(push="PUSH" if given.push else ""))
        tokens = await stand_in.accounts(folder / "broker", size.interests // PER_SUBSCRIBER)
        chosen = {"limits__requests_per_s": 1_000_000, "limits__messages_per_s": 1_000_000}
        broker = await stack.enter_async_context(stand_in.broker(folder / "broker", cluster.address, **chosen))
        seen = Seen()
        begun_s = time.monotonic()
        await everybody(broker.address, tokens, seen)
        bench.note(f"{size.interests:,} subscriptions over WebSockets in {time.monotonic() - begun_s:.0f} s")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        publishers = Publishers(seen, size.interests)
        await publishers.open(cluster.address)
        await all_arrived(seen, await publishers.publish(10, size.warm_up_s))
        await all_arrived(seen, await publishers.publish(100, size.warm_up_s / 2))
        for per_s, seconds in size.rates:
            before, used = await figures(session, cluster.address), Used.now(cluster, broker)
            numbers = await publishers.publish(per_s, seconds)
            await all_arrived(seen, numbers)
            bench.note(f"{per_s:,}/s: {Used.now(cluster, broker).since(used)}")
            counted = since(before, await figures(session, cluster.address))
            report(bench, seen, numbers, per_s, counted, executions(cluster))
        if seen.twice:
            bench.note(f"{seen.twice} results came twice")
    bench.finish()


async def everybody(address: str, tokens: Sequence[str], seen: Seen) -> None:
    loop, port = asyncio.get_running_loop(), int(address.rsplit(":", 1)[1])
    # Some at a time: each waits for a thousand answers.
    for begin in range(0, len(tokens), 10):
        made = []
        for number, token in enumerate(tokens[begin : begin + 10], begin):
            kinds = [f"k{number * PER_SUBSCRIBER + own}" for own in range(PER_SUBSCRIBER)]
            subscriber = Subscriber(seen, token, kinds)
            await loop.create_connection(lambda subscriber=subscriber: subscriber, "127.0.0.1", port)  # type: ignore[misc]
            made.append(subscriber)
        await asyncio.gather(*[subscriber.ready for subscriber in made])


async def all_arrived(seen: Seen, numbers: Sequence[int]) -> None:
    async with asyncio.timeout(300):
        while any(number not in seen.arrived for number in numbers):
            await asyncio.sleep(0.05)


async def figures(session: aiohttp.ClientSession, address: str) -> dict[str, float]:
    async with session.get(f"{address}/metrics") as answer:
        text = await answer.text()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("tocsin_feed_", "tocsin_channel_"))
    }


def executions(cluster: running.RunningCluster) -> dict[int, float]:
    """Seconds that each execution took to find its results."""
    rows = cluster.run(
        "SELECT e.Execution AS number, e.Started AS started, e.Ended AS ended FROM Metadata.ChannelExecution e;"
    )["results"][0]["rows"]
    return {row["number"]: _seconds(row["ended"]) - _seconds(row["started"]) for row in rows}


def since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def report(
    bench: Bench, seen: Seen, numbers: Sequence[int], per_s: int, counted: dict[str, float], took_s: dict[int, float]
) -> None:
    whole = sorted(seen.arrived[number].received_s - seen.sent_s[number] for number in numbers)
    bench.bar(f"{per_s:,}/s: publish → client, p50", statistics.median(whole), bar=P50_S, unit="s")
    bench.bar(f"{per_s:,}/s: publish → client, p99", whole[int(0.99 * (len(whole) - 1))], bar=P99_S, unit="s")

    def mean(name: str, count: str) -> float:
        return counted[f"tocsin_{name}_seconds_total"] / max(1.0, counted[f"tocsin_{count}_total"])

    landing, keeping = mean("feed_landing", "feed_batches_landed"), mean("channel_keeping", "channel_executions")
    known = [number for number in numbers if seen.arrived[number].execution in took_s]
    finding = statistics.fmean(took_s[seen.arrived[number].execution] for number in known)
    acked = statistics.fmean(seen.acked_s[number] - seen.sent_s[number] for number in numbers)
    executed = statistics.fmean(seen.arrived[number].executed_s - seen.acked_s[number] for number in numbers)
    written = statistics.fmean(seen.arrived[number].written_s - seen.arrived[number].executed_s for number in numbers)
    received = statistics.fmean(seen.arrived[number].received_s - seen.arrived[number].written_s for number in numbers)
    shares = (acked, executed - landing, landing, finding, keeping, written - finding - keeping, received)
    mean_s = statistics.fmean(whole)
    bench.note(
        f"{per_s:,}/s, mean {mean_s * 1e3:.0f} ms of {len(whole):,}: "
        + ", ".join(f"{name} {number * 1e3:.0f} ms" for name, number in zip(STAGES, shares, strict=True))
        + f"; {counted['tocsin_feed_batches_landed_total']:.0f} batches, "
        f"{counted['tocsin_channel_executions_total']:.0f} executions"
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


if __name__ == "__main__":
    uvloop.run(main())
