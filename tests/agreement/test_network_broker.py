"""The broker's core under the engine, with links: the same as under constant round trips, and what waiting adds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.support.run_traces import TraceList
from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.engine.network import LinkSettings
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell
from tocsin.lab.scenarios.city import City, city_scenario
from tocsin.lab.scenarios.scenario import LogInStep, LogOutStep, Scenario, Step, SubscribeStep, UnsubscribeStep
from tocsin.lab.simulators.fast_broker import FastBrokerSim, RoundTrips, core_settings
from tocsin.lab.simulators.network_broker import BROKER, CLUSTER, Links, Made, NetworkBrokerSim, simulate_scenario
from tocsin.lab.workloads.city_channels import CityRun, find
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents
from tocsin.rules.caching.settings import CachingSettings

CITY = City(subscribers=60, subscriptions=500, span_s=1200.0, join_s=30.0, publish_every_s=5.0, zone_every_s=60.0)
# Times that a computer adds without error: a policy that weighs measured times ranks by their last bit.
TRIPS = RoundTrips(1 / 64, 1 / 8, math.inf, math.inf)
CONSTANT = Links(LinkSettings(1 / 128), LinkSettings(1 / 128), LinkSettings(1 / 8), LinkSettings(0.0))
FAST = LinkSettings(0.0)


def events(made: Scenario, run: CityRun) -> WorkloadEvents:
    """The same as arrays."""
    rows = [(result.at_s, WorkloadEventKind.PRODUCED, -1, result.interest, result.size_bytes) for result in run.found]
    for step in made.steps:
        match step.act:
            case LogInStep(name):
                rows.append((step.at_s, WorkloadEventKind.LOGGED_IN, run.subscriber(name), -1, 0))
            case LogOutStep(name):
                rows.append((step.at_s, WorkloadEventKind.LOGGED_OUT, run.subscriber(name), -1, 0))
            case SubscribeStep(name, channel, parameters):
                rows.append(
                    (
                        step.at_s,
                        WorkloadEventKind.SUBSCRIBED,
                        run.subscriber(name),
                        run.interest(channel, parameters),
                        0,
                    )
                )
            case UnsubscribeStep(name, channel, parameters):
                rows.append(
                    (
                        step.at_s,
                        WorkloadEventKind.UNSUBSCRIBED,
                        run.subscriber(name),
                        run.interest(channel, parameters),
                        0,
                    )
                )
            case _:
                pass
    rows.sort(key=lambda row: row[:2])
    return WorkloadEvents(*map(np.array, zip(*rows, strict=True)), about={})


@pytest.mark.parametrize("policy", ["nc", "lru", "lsc", "lscz", "lsd", "exp", "worth", "saving"])
def test_with_the_same_constant_times_a_town_has_what_two_queues_give(policy: str) -> None:
    made = city_scenario(CITY, 2)
    made = replace(made, steps=tuple(replace(step, at_s=round(step.at_s * 1024) / 1024) for step in made.steps))
    run = find(made)
    cell = LiveCell(policy, 10.0)
    settings = core_settings(cell.to_caching_settings())
    edge = FastBrokerSim(settings, len(run.interests), trips=TRIPS)
    edge.play(events(made, run), 1260.0)
    town = simulate_scenario(made, run.list_results(), settings, CONSTANT, until_s=1260.0)
    figures = edge.broker.caches.counters
    assert asdict(town.broker.caches.counters) == asdict(figures)
    assert figures.misses > 100
    assert policy == "nc" or figures.evicted > 100
    # All that was asked for came, but for what was under way to somebody who left.
    assert town.results == pytest.approx(figures.hits + figures.misses, abs=5)
    # An answer comes whole: what was cached of it waits for what was not. So the mean is above that of hits and misses.
    hit_s, miss_s = 1 / 64, 1 / 64 + 1 / 8
    apart_s = figures.hit_ratio * hit_s + (1 - figures.hit_ratio) * miss_s
    assert apart_s - 1e-9 <= town.waited_s / town.results <= miss_s + 1e-9


def ann_and_ben(
    made: list[Made], links: Links, budget_bytes: int = 0, looks_up_s: Callable[[], float] | None = None
) -> tuple[NetworkBrokerSim, dict[str, float]]:
    """Both are online and hold a and b; how long each waited in all."""
    steps = [Step(0.0, LogInStep(name)) for name in ("ann", "ben")]
    steps += [Step(1.0, SubscribeStep(name, interest, ())) for name in ("ann", "ben") for interest in ("a", "b")]
    settings = CoreSettings(CachingSettings(budget_bytes=budget_bytes, eviction="lru"))
    trace, told = TraceList(), Scenario({}, tuple(steps))
    town = simulate_scenario(told, made, settings, links, until_s=100.0, trace=trace, looks_up_s=looks_up_s)
    waited_s = {"ann": 0.0, "ben": 0.0}
    for note in trace.notes:
        if note.what == "Got":
            waited_s[note.fields["subscriber"]] += note.fields["waited_s"]
    return town, waited_s


def test_what_comes_from_the_cluster_at_the_same_time_waits_for_each_other() -> None:
    narrow = Links(FAST, FAST, FAST, LinkSettings(0.5, 1_000.0), message_bytes=0)
    one, alone_s = ann_and_ben([(10.0, ("a", ()), 2_000)], narrow)
    assert alone_s == {"ann": 2.5, "ben": 2.5}  # fetched once for both
    assert one.network.link(CLUSTER, BROKER).waited_s == 0
    two, both_s = ann_and_ben([(10.0, ("a", ()), 2_000), (10.0, ("b", ()), 2_000)], narrow)
    # Pushed at 12.5 s and 14.5 s. The second push is on the link when the first is asked for again.
    assert two.network.link(CLUSTER, BROKER).waited_s > 0
    assert both_s["ann"] == both_s["ben"] > 2 * 2.5


def test_what_goes_to_a_subscriber_waits_for_what_it_gets_already_and_for_nobody_else_s() -> None:
    made = [(10.0, ("a", ()), 3_000), (10.0, ("b", ()), 1_000)]
    narrow = Links(LinkSettings(0.0, 1_000.0), FAST, FAST, FAST, message_bytes=0)
    town, waited_s = ann_and_ben(made, narrow, budget_bytes=10_000)
    assert waited_s == {"ann": 3.0 + 4.0, "ben": 3.0 + 4.0}
    assert town.network.link(BROKER, "ann").waited_s == 3.0
    assert town.waited_s / town.results == 3.5
    assert ann_and_ben(made, Links(FAST, FAST, FAST, FAST), budget_bytes=10_000)[0].waited_s == 0


def test_a_fetch_takes_as_long_as_the_cluster_looks_it_up_and_the_core_is_told() -> None:
    made: list[Made] = [(10.0, ("a", ()), 100), (10.0, ("b", ()), 100)]
    links = Links(FAST, FAST, FAST, FAST)
    town, waited_s = ann_and_ben(made, links, looks_up_s=iter([3.0, 1.0]).__next__)
    # Each is fetched once for both, and what is asked for later may be there earlier.
    assert waited_s == {"ann": 4.0, "ben": 4.0}
    assert {name: town.broker.caches[name, ()].latency_s for name in "ab"} == {"a": 3.0, "b": 1.0}


def test_what_was_on_its_way_to_somebody_who_left_comes_when_it_is_back() -> None:
    links = Links(LinkSettings(2.0), FAST, FAST, FAST)
    steps = [
        Step(0.0, LogInStep("ann")),
        Step(0.0, SubscribeStep("ann", "a", ())),
        Step(0.0, SubscribeStep("ann", "b", ())),
    ]
    steps += [Step(13.0, LogOutStep("ann")), Step(13.5, UnsubscribeStep("ann", "b", ())), Step(20.0, LogInStep("ann"))]
    settings = CoreSettings(CachingSettings(budget_bytes=10_000))
    made = [(10.0, ("a", ()), 100), (10.0, ("b", ()), 100)]
    town = simulate_scenario(Scenario({}, tuple(steps)), made, settings, links, until_s=30.0)
    # Told at 12 s, answered until 14 s; told again at 22 s, had at 24 s.
    assert (town.retrievals, town.waited_s) == (1, 2.0)
    assert town.broker.caches.counters.hits == 3


def test_a_long_absence_is_made_up_for_page_by_page() -> None:
    steps = [Step(0.0, SubscribeStep("ann", "a", ())), Step(50.0, LogInStep("ann"))]
    settings = CoreSettings(CachingSettings(budget_bytes=0), page_results=2)
    made: list[Made] = [(float(at_s), ("a", ()), 10) for at_s in range(10, 15)]
    town = simulate_scenario(Scenario({}, tuple(steps)), made, settings, Links.of_round_trips(0.25, 0.5), until_s=90.0)
    assert (town.results, town.retrievals, town.broker.caches.counters.fetched) == (5, 3, 5)
