"""The prototype's hour: what the channels of a city find, and the verdicts of the quick run."""

from __future__ import annotations

from pathlib import Path

from tocsin.lab.experiments import registry
from tocsin.lab.experiments.edge_caching_prototype.experiment import EXPERIMENT
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.run_experiment import run_and_report
from tocsin.lab.scenarios.city import City, city_scenario
from tocsin.lab.scenarios.scenario import (
    LogInStep,
    MoveStep,
    PublishStep,
    Scenario,
    Step,
    SubscribeStep,
    UnsubscribeStep,
)
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import Links, simulate_scenario
from tocsin.lab.workloads.city_channels import find
from tocsin.rules.caching.settings import CachingSettings


def report(kind: str, east_m: float, north_m: float) -> PublishStep:
    return PublishStep(
        "ReportFeed", {"emergencyType": kind, "severity": 1, "east_m": east_m, "north_m": north_m, "radius_m": 100.0}
    )


def test_channels_find_what_matches_since_they_ran_last() -> None:
    here, far = (1000.0, 1000.0), (5000.0, 5000.0)
    steps = [
        Step(0.0, LogInStep("ann")),
        Step(0.0, MoveStep("ann", *far)),
        Step(1.0, SubscribeStep("ann", "emergenciesOfType", ("flood",))),
        Step(1.0, SubscribeStep("ann", "emergenciesAt", here)),
        Step(1.0, SubscribeStep("ann", "emergenciesOfTypeAtWithShelters", ("fire", *here))),
        Step(1.0, SubscribeStep("ann", "emergenciesNearUser", ("ann",))),
        Step(2.0, PublishStep("ShelterFeed", {"name": "s", "east_m": 1010.0, "north_m": 1010.0, "beds": 3})),
        Step(3.0, report("flood", 1050.0, 1000.0)),
        Step(12.0, report("fire", 1000.0, 1000.0)),
        Step(13.0, report("flood", 5000.0, 5050.0)),
        Step(25.0, UnsubscribeStep("ann", "emergenciesOfType", ("flood",))),
        Step(26.0, report("flood", 9000.0, 9000.0)),
    ]
    run = find(Scenario({}, tuple(steps)))
    names = {number: channel for (channel, _), number in run.interests.items()}
    found = [(result.at_s, names[result.interest], len(result.value.get("shelters", ()))) for result in run.found]
    assert found == [
        (10.0, "emergenciesOfType", 0),
        (20.0, "emergenciesOfType", 0),
        (20.0, "emergenciesAt", 0),
        (20.0, "emergenciesAt", 0),
        (20.0, "emergenciesNearUser", 0),
        (60.0, "emergenciesOfTypeAtWithShelters", 1),
    ]


def test_a_channel_that_runs_earlier_finds_what_there_is_by_then_and_the_rest_later() -> None:
    steps = [
        Step(0.0, LogInStep("ann")),
        Step(1.0, SubscribeStep("ann", "emergenciesOfType", ("flood",))),
        Step(3.0, report("flood", 1050.0, 1000.0)),
        Step(5.0, report("flood", 5000.0, 5050.0)),
    ]
    run = find(Scenario({}, tuple(steps)), phases_s={"emergenciesOfType": 4.0})
    assert [result.at_s for result in run.found] == [4.0, 14.0]


def test_a_city_is_played_with_all_that_is_found() -> None:
    made = city_scenario(City(subscribers=20, subscriptions=80, span_s=600.0), 2)
    run = find(made)
    links = Links.of_round_trips(0.01, 0.0)
    town = simulate_scenario(made, run.list_results(), core_settings(CachingSettings()), links, until_s=700.0)
    assert town.broker.caches.counters.arrived == len(run.found) > 0
    assert all(result.size_bytes > 200 for result in run.found)


def test_a_quick_run_reaches_its_verdicts(tmp_path: Path) -> None:
    done = run_and_report(plan(EXPERIMENT, quick=True), registry.reference("edge-caching-prototype"), tmp_path)
    assert all(judged.because for judged in done.verdicts.values() if judged.verdict != "reproduced")
    assert {name: judged.verdict for name, judged in done.verdicts.items()} == {
        "merged-subscriptions": "reproduced",
        "cache-saves": "reproduced",
        "grows-with-size": "reproduced",
        "lsc-over-lru": "not judged",  # half an hour of a city differs too much from seed to seed
        "ttl-small": "not reproduced",
        "half-at-100-kb": "reproduced",
    }
