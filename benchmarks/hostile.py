"""Measures whether a hostile client harms the others: their latency during an attack, and beside a process that only
burns CPU.

python -m benchmarks.hostile [--small] [--only NAME …]

`clients` is a broker with a cluster without Spark: one client has many results and never reads, one sends garbage, one
opens a thousand subscriptions a second. Each round has a stretch without them, one with them, and one without; the last
compared with the first is the noise. Delivery is the time from the execution to the client.

The other attacks (see benchmarks/hostile_attacks.py) are against a cluster with Spark and a broker. The attacker has a
token of its own, and so have the other clients. First the clients warm the servers up, until their CPU is constant. A
round has three stretches: no attack; the attack; and, instead of it, processes that burn as much CPU as the attack and
the servers used for it, step by step, so that a burst is compared with a burst. The bars are for p99 of all rounds,
compared with p99 beside those processes; "noise" compares the latter with p99 without any. On a machine that is busy
otherwise, the figures are meaningless.

The CPU of an attack is what it and the servers use beyond what they use for the other clients. On a machine without
free CPU that figure is too small, so each attack also runs while the other clients are silent, and the larger of both
figures is burnt. That run is made twice, and the second counts: in the first the JVM compiles new code.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from benchmarks import running, stand_in
from benchmarks.busy import Busy
from benchmarks.cpu_steps import CpuMeter, extra_steps, is_flat, steps_used
from benchmarks.crowd import Crowd, many_files
from benchmarks.harness import Bench, Compared
from benchmarks.hostile_attacks import ATTACKS, WEBHOOKS, Attack
from benchmarks.hostile_clients import Hostile
from benchmarks.hostile_others import CHANNELS, SCRIPT, Late, Others
from tests.support.sparkless_cluster import SparklessCluster, world
from tocsin import compose
from tocsin.cli.logs import log_to_stderr
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.pipeline.java import ensure_java
from tocsin.settings import Settings

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
    attack_s: float = 9.0
    quiet_s: float = 4.0
    attacks: int = 5
    warm_ups: int = 20


SMALL: Final = Size(clients=100, stretch_s=2.0, rounds=3, heavy=1_000, attack_s=4.0, quiet_s=2.0, attacks=1, warm_ups=3)
FLAT: Final = 0.1
"""The servers are warm when three stretches use the same CPU, but for this part of it."""
SILENT: Final = 2
"""How often each attack runs while the others are silent; the last run counts."""
GRACE_S: Final = 10.0
"""After a stretch, for what has not come; and for the others to be served again."""
BARRED: Final[Mapping[str, tuple[str, ...]]] = {
    "gzip-members": ("acknowledged", "delivered"),
    "empty-objects": ("acknowledged", "delivered"),
    "like": ("delivered",),
    "match-all": ("delivered",),
    "silent-webhooks": ("by webhook", "delivered"),
    "unread-streams": ("scripts", "acknowledged", "delivered"),
    "endless-rows": ("scripts", "acknowledged", "delivered"),
}
"""What of the others each attack is aimed at."""


@dataclass(slots=True)
class Place:
    """Everything that stands."""

    cluster: SparklessCluster
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
        for number in range(count):
            await asyncio.sleep(begun_s + number * EVERY_S - loop.time())
            await stand_in.publish(self.cluster, self.channel, self.interest, RESULT_BYTES)
        late_s: list[float] = []
        async with asyncio.timeout(60):
            while len(late_s) < count * self.size.clients:
                await asyncio.sleep(0.05)
                late_s += (await asyncio.to_thread(self.crowd.ask, do="measure", on=True))["late_s"]
        return sorted(late_s), (self.broker.cpu_s() - cpu_s) / (loop.time() - begun_s)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few and short rounds: to see that it runs")
    parser.add_argument("--only", action="append", choices=["clients", *ATTACKS], help="only this; may be repeated")
    given = parser.parse_args()
    size = SMALL if given.small else Size()
    wanted: list[str] = given.only or ["clients", *ATTACKS]
    many_files()
    log_to_stderr(False)
    bench = Bench("hostile")
    bench.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "clients" in wanted:
        await clients(bench, size)
    attacks = [name for name in wanted if name != "clients"]
    if attacks:
        ensure_java()
    while attacks:
        # One that leaves the servers unable to serve anybody has them to itself; the next finds new ones.
        attacks = await attacked(bench, attacks, size)
    bench.finish()


async def clients(bench: Bench, size: Size) -> None:
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


# ---------------------------------------------------------------- against a cluster with Spark


@dataclass(slots=True)
class Servers:
    """Everything that stands, and the others in front of it."""

    cluster: running.RunningCluster
    broker: stand_in.Server
    others: Others
    busy: list[Busy]
    token: str
    """Of those who attack, for the cluster."""
    tokens: list[str]

    def burn(self, steps: Sequence[float]) -> None:
        for process in self.busy:
            process.burn([min(1.0, cores / len(self.busy)) for cores in steps])

    async def alone(self, seconds: float, attack: Attack | None = None) -> list[float]:
        """How many cores the servers and the attack use in each step; nobody else does anything by this."""
        attacking = [] if attack is None else [psutil.Process(attack.pid)]
        meter = CpuMeter([*self.cluster.processes(), self.broker.process, *attacking])
        return await steps_used(meter.used_s, seconds)

    async def stretch(self, seconds: float, attack: Attack | None = None) -> tuple[Late, list[float]]:
        """How late the others were, and how many cores the servers and the attack used, step by step."""
        # Only as long as the others begin something: what is to come then is waited for, however long that takes.
        metering = asyncio.create_task(self.alone(seconds, attack))
        late = await self.others.stretch(seconds, GRACE_S)
        return late, await metering

    async def warm_up(self, size: Size) -> str:
        """What became of it, in words."""
        used: list[float] = []
        while len(used) < size.warm_ups and not is_flat(used, FLAT):
            _, steps = await self.stretch(size.quiet_s)
            used.append(statistics.mean(steps))
            progress(f"warm-up, {len(used)} of at most {size.warm_ups}: {used[-1]:.2f} cores")
        flat = "flat" if is_flat(used, FLAT) else "not yet flat"
        return f"warmed up for {len(used) * size.quiet_s:g} s, from {used[0]:.2f} to {used[-1]:.2f} cores, {flat}"


async def attacked(bench: Bench, names: list[str], size: Size) -> list[str]:
    """Runs these attacks, until one leaves nobody served; those that were not run."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-bench-")))
        progress("starting a cluster and a broker")
        async with compose.tokens(Settings.load(None, {}, {"data": folder / "cluster"}), make_folder=True) as made:
            good, bad = [(await made.create(name, "writer"))[1] for name in ("good", "bad")]
            own = (await made.create("broker", "broker"))[1]
        cluster = stack.enter_context(running.cluster(folder / "cluster", {"TOCSIN_CLUSTER__AUTH__MODE": "on"}))
        await asyncio.to_thread(cluster.run, SCRIPT, good)
        mine, hooked = await stand_in.accounts(folder / "broker", 2, "good")
        # New ones for each attack and round: what the last ones subscribed to goes with them.
        tokens = await stand_in.accounts(folder / "broker", WEBHOOKS * (size.attacks + SILENT) * len(names), "bad")
        chosen = {"limits__requests_per_s": 1_000_000, "delivery__grace_s": 0, "cluster__token": own}
        broker = await stack.enter_async_context(stand_in.broker(folder / "broker", cluster.address, **chosen))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))
        )
        others = Others(session, cluster.address, broker.address, good)
        await others.fill()
        await stack.enter_async_context(others.listening(mine, hooked))
        busy = [stack.enter_context(Busy()) for _ in range(os.cpu_count() or 1)]
        servers = Servers(cluster, broker, others, busy, bad, tokens)
        if not await others.are_served(60.0):
            raise RuntimeError("nobody is served, and nobody has done anything yet")
        bench.note(await servers.warm_up(size))
        for place, name in enumerate(names):
            if not await one_attack(bench, servers, name, size):
                return names[place + 1 :]
    return []


async def one_attack(bench: Bench, servers: Servers, name: str, size: Size) -> bool:
    """Whether the others are served again afterwards."""
    quiet: list[Late] = []
    beside_attack: list[Late] = []
    beside_busy: list[Late] = []
    usual: list[float] = []
    cores: list[float] = []
    seen: Counter[str] = Counter()
    served = True
    idle = statistics.mean(await servers.alone(size.quiet_s))
    for turn in range(SILENT):
        theirs = [servers.tokens.pop() for _ in range(WEBHOOKS)]
        with Attack(name, servers.cluster.address, servers.broker.address) as attack:
            await asyncio.to_thread(attack.begin, servers.token, theirs, CHANNELS)
            alone = extra_steps(await servers.alone(size.attack_s, attack), idle)
            await asyncio.to_thread(attack.end)
        await left(servers.broker.address, theirs)
        progress(f"{name}, with the others silent, {turn + 1} of {SILENT}: {statistics.mean(alone):.2f} cores")
    for turn in range(size.attacks):
        without, used = await servers.stretch(size.quiet_s)
        quiet.append(without)
        usual += used
        theirs = [servers.tokens.pop() for _ in range(WEBHOOKS)]
        with Attack(name, servers.cluster.address, servers.broker.address) as attack:
            await asyncio.to_thread(attack.begin, servers.token, theirs, CHANNELS)
            among, used_among = await servers.stretch(size.attack_s, attack)
            seen.update(await asyncio.to_thread(attack.end))
        beside_attack.append(among)
        await left(servers.broker.address, theirs)
        extra = max(alone, extra_steps(used_among, statistics.mean(usual)), key=sum)
        cores.append(statistics.mean(extra))
        progress(f"{name}, round {turn + 1} of {size.attacks}: {cores[-1]:.2f} cores, {shown(among)}")
        served = await servers.others.are_served(GRACE_S)
        if not served:
            break
        servers.burn(extra)
        burnt, _ = await servers.stretch(size.attack_s)
        beside_busy.append(burnt)
        progress(f"{name}, beside as much CPU: {shown(burnt)}")
    bench.bar(f"{name}: others are not served afterwards", float(not served), bar=0.0, unit="")
    baseline = f"busy {statistics.median(cores):.2f} cores" if beside_busy else "nobody hostile"
    for measure in quiet[0]:
        with_s, against_s = p99(beside_attack, measure), p99(beside_busy or quiet, measure)
        found = Compared(measure, with_s, against_s, with_s / against_s, against_s / p99(quiet, measure))
        # Where they are not served in time anyhow, a ratio says nothing.
        is_judged = measure in BARRED[name] and against_s < GRACE_S
        what = f"{name}: others, {measure}, p99 (wall time)"
        bench.compared(what, found, bar=BAR if is_judged else None, baseline=baseline)
        if measure in BARRED[name] and not is_judged:
            bench.note(f"{what}: not judged, they are not served within {GRACE_S:g} s beside {baseline} either")
    counts = ", ".join(f"{len(of):,} {measure}" for measure, of in together(beside_attack).items())
    bench.note(f"{name}: beside {statistics.mean(usual):.2f} cores for the others alone; p99 of {counts}")
    bench.note(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(seen.items())))
    return served


def together(stretches: list[Late]) -> Late:
    return {measure: sorted(late_s for stretch in stretches for late_s in stretch[measure]) for measure in stretches[0]}


def p99(stretches: list[Late], measure: str) -> float:
    return at(together(stretches)[measure], 0.99)


def shown(late: Late) -> str:
    return "p99 in ms: " + ", ".join(f"{measure} {at(late_s, 0.99) * 1e3:.0f}" for measure, late_s in late.items())


async def left(address: str, tokens: list[str]) -> None:
    """These subscribers are gone with all that they held."""
    async with aiohttp.ClientSession() as session:
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{address}/v1/subscriptions", headers=headers) as answer:
                subscriptions = (await answer.json())["subscriptions"] if answer.status == 200 else []
            if not subscriptions:
                continue
            async with session.delete(f"{address}/v1/webhook", headers=headers):
                pass
            for subscription in subscriptions:
                async with session.delete(f"{address}/v1/subscriptions/{subscription['id']}", headers=headers):
                    pass


# ---------------------------------------------------------------- a broker without Spark behind it


async def fill(broker: stand_in.Server, token: str, cluster: SparklessCluster, heavy: ChannelEntry, size: Size) -> None:
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
        three = {f"bad{number}": bad[number] for number in range(HOSTILE * turn, HOSTILE * (turn + 1))}
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
        first, taken, last = ([at(stretch, share) for stretch in rows[name]] for name in ("before", "with", "after"))
        beside = [(before + after) / 2 for before, after in zip(first, last, strict=True)]
        found = Compared(
            name,
            statistics.median(taken),
            statistics.median(beside),
            statistics.median(mine / theirs for mine, theirs in zip(taken, beside, strict=True)),
            statistics.median(later / earlier for earlier, later in zip(first, last, strict=True)),
        )
        what = f"{size.clients:,} others' delivery, {name} (wall time)"
        bench.compared(what, found, bar=bar, baseline="without the three")
    used, used_among = (statistics.median(figures) for figures in zip(*cores, strict=True))
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
