"""kill -9 of real brokers under load: no subscriber loses a result, by its own count and by the broker's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_brokers import BrokerProcess, Subscriber, broker_process, free_port
from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import WITHIN_S
from tocsin import faults
from tocsin.cluster.catalog.entries import ChannelEntry

POINTS = [
    *(f"{point}:3" for point in faults.POINTS if point.startswith("delivery.")),
    "broker-store.written:9",
    "broker-store.committed:9",
]


class Load:
    """Executions one after the other, and what each interest must have got since it was held."""

    def __init__(self, here: SparklessCluster, channels: list[ChannelEntry]) -> None:
        self._here = here
        self.channels = channels
        self.interests: list[tuple[ChannelEntry, int]] = []
        self.made: dict[str, list[Any]] = {}
        self._number = 0

    def add(self, channel: ChannelEntry, interest: str) -> None:
        self.interests.append((channel, int(interest)))
        self.made.setdefault(interest, [])

    async def once(self) -> None:
        for channel in self.channels:
            found: dict[int, list[Any]] = {}
            for of, interest in self.interests:
                if of is channel:
                    self._number += 1
                    found[interest] = [{"n": self._number}, {"n": -self._number}]
            if found:
                await self._here.execute(channel, found)
                for interest, values in found.items():
                    self.made[str(interest)] += values

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()

        async def run() -> None:
            while not stop.is_set():
                await self.once()
                await asyncio.sleep(0.01)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            stop.set()
            await task


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_any_point_a_broker_goes_on_and_nobody_loses_anything(point: str, tmp_path: Path) -> None:
    port = free_port()
    async with world(tmp_path / "cluster") as here:
        channels = [await here.channel("c"), await here.channel("p", push=True)]
        load = Load(here, channels)
        people = [Subscriber(f"http://127.0.0.1:{port}", name) for name in ("ada", "bob")]

        async def arrive(one: Subscriber, number: int) -> None:
            await one.enter()
            one.listen()
            for channel in channels:
                for value in (1, 10 + number):
                    held = await one.subscribe(f"v.{channel.name}", value)
                    if held["interest"] not in load.made:
                        load.add(channel, held["interest"])
                    one.got.setdefault(held["interest"], [])
                    # Who shares an interest begins when it comes.
                    base[one.user, held["interest"]] = len(load.made[held["interest"]])

        base: dict[tuple[str, str], int] = {}
        # While they come nothing is made that somebody might or might not be told.
        async with broker_process(tmp_path / "broker", here.url, port, crash_at=point) as first:
            coming = asyncio.create_task(_in_turn(people, arrive))
            died = asyncio.create_task(first.died())
            await asyncio.wait({coming, died}, return_when=asyncio.FIRST_COMPLETED)
            if not died.done():
                async with load.running():
                    await died
            await died
        async with broker_process(tmp_path / "broker", here.url, port) as second:
            await coming
            for _ in range(3):
                await load.once()
            for item in people:
                await item.until({
                    interest: load.made[interest][base[item.user, interest] :] for interest in item.got
                })  # fmt: skip
                assert item.connections >= 1
                assert item.gaps == []
            assert await second.stop() == 0
        for person in people:
            await person.leave()


async def _in_turn(people: list[Subscriber], arrive: Any) -> None:
    for number, person in enumerate(people):
        await arrive(person, number)


async def test_killed_again_and_again_under_load_with_people_who_come_and_go(tmp_path: Path) -> None:
    port = free_port()
    async with world(tmp_path / "cluster") as here:
        channels = [await here.channel("c"), await here.channel("p", push=True)]
        load = Load(here, channels)
        people = [Subscriber(f"http://127.0.0.1:{port}", f"user{n}") for n in range(4)]
        small = {"TOCSIN_BROKER__CACHE__BUDGET_BYTES": "2000"}
        process: BrokerProcess
        async with broker_process(tmp_path / "broker", here.url, port, **small) as process:
            for number, item in enumerate(people):
                await item.enter()
                for channel in channels:
                    held = await item.subscribe(f"v.{channel.name}", number // 2)
                    item.got[held["interest"]] = []
                    if held["interest"] not in load.made:
                        load.add(channel, held["interest"])
            for entry in people[:2]:
                entry.listen()
            async with load.running():
                await _more(load, 20)
                await process.kill()
        for turn in range(2):
            async with broker_process(tmp_path / "broker", here.url, port, **small) as process, load.running():
                # One who was there leaves, one who was away comes.
                await people[turn].leave()
                people[2 + turn].listen()
                await _more(load, 40)
                await process.kill()
                # What is made while there is no broker counts, too.
                await _more(load, 20)
        async with broker_process(tmp_path / "broker", here.url, port, "--trace", str(tmp_path / "trace")) as process:
            for member in people[:2]:
                member.listen()
            for thing in people:
                await thing.until({interest: load.made[interest] for interest in thing.got})
                assert thing.gaps == []
            assert await process.stop() == 0
        for person in people:
            await person.leave()
    lines = (tmp_path / "trace").read_text().splitlines()
    assert '"settings"' in lines[0]
    assert '"counters"' in lines[-1]


async def _more(load: Load, results: int) -> None:
    """Returns when this many more results have been made."""
    wanted = sum(map(len, load.made.values())) + results
    async with asyncio.timeout(WITHIN_S):
        while sum(map(len, load.made.values())) < wanted:
            await asyncio.sleep(0.01)
