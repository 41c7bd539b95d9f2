"""One scenario of a city, played to a live broker through the SDK and to the simulated one: both agree."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process_broker import PASSWORD, InProcessBroker, both
from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import until
from tocsin.lab.engine.network import LinkSettings
from tocsin.lab.scenarios.city import City, city_scenario
from tocsin.lab.scenarios.scenario import LogInStep, LogOutStep, Scenario, SubscribeStep, UnsubscribeStep
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import Links, simulate_scenario
from tocsin.lab.workloads.city_channels import CityResult, CityRun, find
from tocsin.rules.caching.settings import CachingSettings
from tocsin.sdk.client import Client

CITY = City(
    subscribers=8, subscriptions=30, span_s=900.0, places=4, near_share=0.05, churn=0.1, join_s=30.0,
    publish_every_s=12.0, zone_every_s=60.0, shelter_share=0.2,
)  # fmt: skip
BUDGET_BYTES = 4_000
FRESH_S = 0.001


class Live:
    """The scenario's people, each a client of the broker while it is online, who pulls when there is something."""

    def __init__(self, here: SparklessCluster, made: InProcessBroker, run: CityRun, stack: AsyncExitStack) -> None:
        self._here, self._made, self._run, self._stack = here, made, run, stack
        self._clients: dict[str, Client] = {}
        self._online: set[str] = set()
        self._held: dict[str, dict[int, Any]] = {}
        self._made_of: dict[int, int] = {}

    async def begin(self) -> None:
        self._channel = await self._here.channel("c")
        for name in self._run.subscribers:
            client = Client(self._made.url, name, PASSWORD, register=True)
            self._clients[name] = await self._stack.enter_async_context(client)
            self._held[name] = {}

    async def perform(self, act: Any) -> None:
        match act:
            case LogInStep(name):
                self._online.add(name)
                for number in list(self._held[name]):
                    await self._pull(name, number)
            case LogOutStep(name):
                self._online.discard(name)
            case SubscribeStep(name, channel, parameters):
                number = self._run.interest(channel, parameters)
                self._held[name][number] = await self._clients[name].subscribe("v.c", [number], mode="notify")
            case UnsubscribeStep(name, channel, parameters):
                number = self._run.interest(channel, parameters)
                await self._clients[name].unsubscribe(self._held[name].pop(number))
            case CityResult():
                await self._execute(act)
            case _:
                pass

    async def _execute(self, found: CityResult) -> None:
        holders = [name for name, held in self._held.items() if found.interest in held]
        assert holders, "only what somebody holds is found"
        figures = self._made.parts.runtime.core.caches.counters
        arrived = figures.arrived
        interest = self._held[holders[0]][found.interest].interest
        await self._here.execute(self._channel, {interest: [found.value]})
        await until(lambda: figures.arrived == arrived + 1)
        for name in holders:
            if name in self._online:
                await self._pull(name, found.interest)

    async def _pull(self, name: str, number: int) -> None:
        async for _ in self._clients[name].pull(self._held[name][number]):
            pass


def in_order(made: Scenario, run: CityRun) -> list[Any]:
    """Steps and results as the simulated broker has them: results last among what happens at one moment."""
    steps = [(step.at_s, 0, step.act) for step in made.steps]
    return [
        what
        for _, _, what in sorted([*steps, *((result.at_s, 1, result) for result in run.found)], key=lambda one: one[:2])
    ]


# The live hour is over in seconds, so what a policy measures in seconds must shrink with it: with the two seconds in
# which `worth` spares what has just come, it would spare nearly everything there.
@pytest.mark.parametrize("policy", ["lsc", "lru", "worth"])
async def test_the_live_broker_and_the_simulated_one_agree_on_a_city(policy: str, tmp_path: Path) -> None:
    made = city_scenario(CITY, 4)
    run = find(made)
    caching = CachingSettings(budget_bytes=BUDGET_BYTES, eviction=policy, fresh_s=FRESH_S)
    links = Links(*[LinkSettings(0.0)] * 4)
    # One after the other, each had before the next one comes, as below. On a thread: the driver has a loop of its own.
    results = [
        (at_s + number * 1e-5, interest, size) for number, (at_s, interest, size) in enumerate(run.list_results())
    ]
    town = await asyncio.to_thread(simulate_scenario, made, results, core_settings(caching), links, until_s=CITY.span_s)
    simulated = town.broker.caches.counters
    assert simulated.evicted > 10

    flags = {"cache__budget_bytes": BUDGET_BYTES, "cache__eviction": policy, "cache__fresh_s": FRESH_S}
    async with (
        world(tmp_path / "cluster") as here,
        both(tmp_path / "broker", here, **flags) as broker,
        AsyncExitStack() as stack,
    ):
        live = Live(here, broker, run, stack)
        await live.begin()
        for what in in_order(made, run):
            if not isinstance(what, CityResult) or what.at_s < CITY.span_s:
                await live.perform(what)
        measured = broker.parts.runtime.core.caches.counters
    assert measured.arrived == simulated.arrived
    assert measured.arrived_bytes == pytest.approx(simulated.arrived_bytes, rel=0.01)
    assert measured.hits + measured.misses == pytest.approx(simulated.hits + simulated.misses, rel=0.01)
    # The stated error: two hundredths of the hit ratio. Who reads first at one moment is chance in the live one.
    assert measured.hit_ratio == pytest.approx(simulated.hit_ratio, abs=0.02)
    assert measured.evicted == pytest.approx(simulated.evicted, rel=0.05)
