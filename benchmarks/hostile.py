"""Whether one client can harm the others: their p99 of delivery with and without three that try to.

python -m benchmarks.hostile [--small]

One never reads and wants much, one sends garbage, one opens a thousand subscriptions a second. Stretches without, with
and again without them follow each other, round after round; the second without against the first is the noise.
Delivery is from the execution at a cluster (one without Spark) to the client that has it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks import stand_in
from benchmarks.crowd import Crowd, many_files
from benchmarks.harness import Bench, Compared
from benchmarks.hostile_clients import Hostile
from tests.broker_world import World, world
from tocsin.cli.logs import log_to_stderr
from tocsin.cluster.entries import ChannelEntry

RESULT_BYTES: Final = 300
EVERY_S: Final = 0.05
BAR: Final = 1.25
HOSTILE: Final = 3
# What the one that never reads asks for: far more than all buffers on the way to it hold.
HEAVY_BYTES: Final = 10_000
HEAVY_TOGETHER: Final = 100
STANDING: Final = ("tocsin_broker_subscriptions ", "tocsin_broker_interests ")


@dataclass(frozen=True, slots=True)
class Size:
    clients: int = 500
    stretch_s: float = 8.0
    rounds: int = 7
    heavy: int = 2_000


SMALL: Final = Size(clients=100, stretch_s=2.0, rounds=3, heavy=1_000)


@dataclass(slots=True)
class Place:
    """Everything that stands."""

    cluster: World
    channel: ChannelEntry
    interest: int
    crowd: Crowd
    size: Size
    broker: stand_in.Server

    async def stretch(self) -> tuple[list[float], float]:
        """How late each delivery of this stretch was, in order, and the part of a core that the broker used."""
        loop = asyncio.get_running_loop()
        cpu_s = self.broker.cpu_s()
        await asyncio.to_thread(self.crowd.ask, do="measure", on=True)
        begun_s = loop.time()
        count = int(self.size.stretch_s / EVERY_S)
        for each in range(count):
            await asyncio.sleep(begun_s + each * EVERY_S - loop.time())
            await stand_in.publish(self.cluster, self.channel, self.interest, RESULT_BYTES)
        late_s: list[float] = []
        async with asyncio.timeout(60):
            while len(late_s) < count * self.size.clients:
                await asyncio.sleep(0.05)
                late_s += (await asyncio.to_thread(self.crowd.ask, do="measure", on=True))["late_s"]
        return sorted(late_s), (self.broker.cpu_s() - cpu_s) / (loop.time() - begun_s)


async def main() -> None:
    size = SMALL if "--small" in sys.argv[1:] else Size()
    many_files()
    log_to_stderr(False)
    bench = Bench("hostile")
    bench.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        folder = Path(scratch)
        async with world(folder / "cluster") as cluster:
            channel = await cluster.channel("c", push=True)
            heavy = await cluster.channel("heavy")
            await cluster.channel("many")
            tokens = await stand_in.accounts(folder / "broker", size.clients)
            (keeper,) = await stand_in.accounts(folder / "broker", 1, "keeper")
            # New ones in each round, so that each time all that a subscriber may do is still to be had.
            bad = await stand_in.accounts(folder / "broker", HOSTILE * (size.rounds + 1), "bad")
            (folder / "tokens").write_text("\n".join(tokens))
            async with stand_in.broker(folder / "broker", cluster.url, delivery__grace_s=0) as broker:
                with Crowd() as crowd, Hostile(broker.address) as hostile:
                    subscribe = {"ref": 1, "subscribe": {"channel": "v.c", "parameters": [17]}}
                    args = (broker.address, "/v1/stream", folder / "tokens", size.clients, [subscribe])
                    await asyncio.to_thread(crowd.connect, *args)
                    interest = await stand_in.interest(broker.address, tokens[0], "v.c", 17)
                    place = Place(cluster, channel, interest, crowd, size, broker)
                    await fill(broker, keeper, cluster, heavy, size)
                    await measured(bench, place, hostile, bad)
    bench.finish()


async def fill(broker: stand_in.Server, token: str, cluster: World, heavy: ChannelEntry, size: Size) -> None:
    interest = await stand_in.interest(broker.address, token, "v.heavy", 1)
    for _ in range(size.heavy // HEAVY_TOGETHER):
        await cluster.execute(heavy, {interest: [stand_in.result(HEAVY_BYTES)] * HEAVY_TOGETHER})


async def standing(address: str) -> dict[str, float]:
    """What the broker has at this moment."""
    async with aiohttp.ClientSession() as session, session.get(f"{address}/metrics") as answer:
        lines = [line.split() for line in (await answer.text()).splitlines() if line.startswith(STANDING)]
    return {name: float(value) for name, value in lines}


async def cleared(address: str, users: dict[str, str], before: dict[str, float]) -> None:
    """The three are gone with all that they held, here and at the cluster: who is without them is without it."""
    async with aiohttp.ClientSession() as session:
        for user, token in users.items():
            headers = {"Authorization": f"Bearer {token}"}
            async with session.delete(f"{address}/v1/subscribers/{user}", headers=headers) as answer:
                answer.raise_for_status()
    async with asyncio.timeout(60):
        while await standing(address) != before:
            await asyncio.sleep(0.05)


async def measured(bench: Bench, place: Place, hostile: Hostile, bad: list[str]) -> None:
    size = place.size
    greedy: list[dict[str, Any]] = [
        {"channel": "v.heavy", "parameters": [1], "since": "0-0-0"},
        {"channel": "v.c", "parameters": [17]},
    ]
    seen: Counter[str] = Counter()
    cores: list[tuple[float, float]] = []
    rows: dict[str, list[list[float]]] = {"before": [], "with": [], "after": []}
    takes_s = 3 * size.stretch_s * (size.rounds + 1)
    progress(f"{size.rounds} rounds and one to warm up, about {takes_s / 60:.1f} minutes")
    there = await standing(place.broker.address)
    for turn in range(size.rounds + 1):
        without, used = await place.stretch()
        three = {f"bad{each}": bad[each] for each in range(HOSTILE * turn, HOSTILE * (turn + 1))}
        hostile.begin(list(three.values()), greedy, "v.many")
        among, used_among = await place.stretch()
        seen.update(await asyncio.to_thread(hostile.end))
        await cleared(place.broker.address, three, there)
        again, _ = await place.stretch()
        named = (("without", without), ("with", among), ("without", again))
        shown = ", ".join(f"{name} {at(late_s, 0.99) * 1e3:.1f}" for name, late_s in named)
        progress(f"{f'round {turn} of {size.rounds}' if turn else 'warm-up'}: p99 in ms {shown}")
        if turn > 0:  # the first warms up
            cores.append((used, used_among))
            for name, late_s in (("before", without), ("with", among), ("after", again)):
                rows[name].append(late_s)
    for name, share, bar in (("p50", 0.50, None), ("p99", 0.99, BAR)):
        first, taken, last = ([at(one, share) for one in rows[name]] for name in ("before", "with", "after"))
        beside = [(one + other) / 2 for one, other in zip(first, last, strict=True)]
        found = Compared(
            name,
            statistics.median(taken),
            statistics.median(beside),
            statistics.median(mine / theirs for mine, theirs in zip(taken, beside, strict=True)),
            statistics.median(later / earlier for earlier, later in zip(first, last, strict=True)),
        )
        what = f"{size.clients:,} others' delivery, {name} (wall time)"
        bench.compared(what, found, bar=bar, baseline="without the three")
    used, used_among = (statistics.median(each) for each in zip(*cores, strict=True))
    bench.note(f"the broker uses {used:.2f} of a core without the three, {used_among:.2f} with them")
    bench.note("the three, in all rounds: " + ", ".join(f"{count:,} {what}" for what, count in sorted(seen.items())))


def progress(words: str) -> None:
    """For who waits; the figures come at the end."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    asyncio.run(main())
