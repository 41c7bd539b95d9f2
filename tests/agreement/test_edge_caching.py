"""The edge-caching experiment: the simulated broker against what can be known, and the verdicts of its quick run."""

from __future__ import annotations

import gc
import io
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.engine.engine import TraceFile
from tocsin.lab.experiments import registry
from tocsin.lab.experiments.cells import run
from tocsin.lab.experiments.comparisons import judge
from tocsin.lab.experiments.declaration import Run, Value
from tocsin.lab.experiments.edge_caching.experiment import EXPERIMENT
from tocsin.lab.experiments.edge_caching.model import CHOICES, MODERN, answer_time_s, model
from tocsin.lab.experiments.edge_caching.optimum import Requests, find_upper_bound, requests
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.results import ResultsRow, RunResults
from tocsin.lab.experiments.run_experiment import run_and_report
from tocsin.lab.simulators.fast_broker import (
    OURS,
    PAPER,
    FastBrokerSim,
    RoundTrips,
    core_settings,
    make_caching_settings,
)
from tocsin.lab.workloads.edge_caching import EdgeWorkload, make_edge_events
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents, in_order
from tocsin.rules.caching.settings import CachingSettings

SMALL = EdgeWorkload(subscribers=60, subscriptions_each=5, interests=12, span_s=1500.0)
ANSWERED_S = answer_time_s(RoundTrips())
DEFAULTS: dict[str, Value] = {
    **{parameter.name: parameter.default for parameter in EXPERIMENT.parameters},
    "scale": 0.012, "span_s": 900.0, "warm_up_s": 300.0, "size_mb": 300,
}  # fmt: skip


# What the quick run says beyond its error: see the judges. It is 3 % of the table, so the whole run may say otherwise.
VERDICTS = {
    "grows-with-size": "reproduced",
    "ttl-highest": "depends",
    "ttl-superior": "not reproduced",
    # It holds under uniform popularity, and surely not under zipf.
    "lsc-over-lru": "depends",
    "exp-lowest": "not reproduced",
    "lscz-like-lsd": "reproduced",
    "together": "depends",
    # LSCz and LSD drop newcomers that many wait for, and one fetch serves them all.
    "fetches": "not reproduced",
    "latency-order": "not reproduced",
    "holding": "not reproduced",
    "within-budget": "reproduced",
    # Eight runs leave no doubt that it does.
    "slightly-more": "not judged",
    "expected-size": "reproduced",
    "lives": "reproduced",
    "lives-contrast": "reproduced",
    "worth-beats": "reproduced",
    "saving-beats": "reproduced",
    "optimum": "reproduced",
}


def test_the_quick_run_reaches_its_verdicts(tmp_path: Path) -> None:
    done = run_and_report(plan(EXPERIMENT, quick=True), registry.reference("edge-caching"), tmp_path, processes=2)
    assert {name: judged.verdict for name, judged in done.verdicts.items()} == VERDICTS
    assert all(judged.because for judged in done.verdicts.values() if judged.verdict != "reproduced")
    assert {path.stem for path in (done.folder / "plots").iterdir()} == {plot.name for plot in EXPERIMENT.plots}


@pytest.mark.parametrize("policy", [*PAPER, *MODERN, *OURS])
def test_who_pulls_together_gets_what_each_would_get_alone(policy: str) -> None:
    settings = spelled(policy, 2_000_000)
    events = make_edge_events(SMALL, 3)
    found = []
    for together in (True, False):
        edge = FastBrokerSim(core_settings(settings), SMALL.interests, together=together)
        edge.play(events, SMALL.span_s)
        figures = edge.broker.caches.counters
        found.append((figures.hits, figures.misses, figures.evicted, figures.expired, figures.consumed))
    # Whoever loses its connection or is told while it asks is told again: a handful of thousands may differ.
    one, other = np.array(found, dtype=float)
    assert one.sum() > 1_000
    assert np.abs(one - other).max() <= 0.01 * one.sum()


@pytest.mark.parametrize("policy", [*PAPER, *MODERN, *OURS])
def test_a_run_leaves_nothing_to_a_collector(policy: str) -> None:
    """It plays without one."""
    edge = FastBrokerSim(core_settings(spelled(policy, 2_000_000)), SMALL.interests)
    events = make_edge_events(replace(SMALL, lifetimes="renewed"), 3)
    gc.collect()
    gc.disable()
    try:
        edge.play(events, SMALL.span_s)
        assert not gc.isenabled(), "who had none has none afterwards"
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert edge.retrievals > 1_000


def test_what_is_made_when_everybody_has_left_for_good_concerns_nobody() -> None:
    """The core lets go of an interest some time after its last subscription: just before the next result, here."""
    at_s = CoreSettings().grace_s + 1.0
    one = {"subscriber": np.array([0]), "interest": np.array([0])}
    events = in_order(
        [
            (WorkloadEventKind.SUBSCRIBED, {"at_s": np.array([0.0]), **one}),
            (WorkloadEventKind.UNSUBSCRIBED, {"at_s": np.array([0.5]), **one}),
            (
                WorkloadEventKind.PRODUCED,
                {"at_s": np.array([at_s]), "interest": np.array([0]), "size_bytes": np.array([10])},
            ),
        ],
        {},
    )
    edge = FastBrokerSim(core_settings(CachingSettings(budget_bytes=1_000)), 1)
    edge.play(events, at_s + 1.0)
    assert edge.broker.caches.counters.arrived == 0
    assert edge.lives_s == 0


def test_every_result_that_is_due_is_asked_for_once() -> None:
    """What the simulated subscribers retrieve is what the bound counts from the workload alone."""
    events = make_edge_events(SMALL, 5)
    edge = FastBrokerSim(core_settings(CachingSettings(budget_bytes=1 << 40)), SMALL.interests)
    edge.play(events, SMALL.span_s)
    figures = edge.broker.caches.counters
    assert figures.misses == 0, "a cache that holds everything misses nothing"
    asked = requests(events, ANSWERED_S, 0.0, SMALL.span_s)
    assert sum(point.sure_requests for point in asked) <= figures.hits <= sum(point.requests for point in asked)
    assert figures.hits == pytest.approx(sum(point.requests for point in asked), rel=0.005)


def test_the_bound_is_that_of_trying_everything() -> None:
    """One byte-second constraint, tiny: the best of all choices lies below the bound, and close to it."""
    rng = np.random.default_rng(1)
    results, asks = 6, 3
    size = rng.integers(1, 6, results).astype(float)
    room = np.sort(rng.uniform(0.1, 5.0, (results, asks)), axis=1)
    counted = np.tile(np.arange(1, asks + 1, dtype=np.float32), (results, 1))
    one = Requests(size, room.astype(np.float32), counted, np.full(results, float(asks)))
    budget, span_s = 4.0, 6.0
    best = best_bytes = 0.0
    for kept in product(range(asks + 1), repeat=results):
        taken = sum(size[i] * room[i, k - 1] for i, k in enumerate(kept) if k)
        if taken <= budget * span_s:
            best = max(best, sum(kept))
            best_bytes = max(best_bytes, sum(size[i] * k for i, k in enumerate(kept)))
    found = find_upper_bound([one], budget, span_s)
    total = results * asks
    assert best / total <= found.hit_ratio <= best / total + 2 / total
    assert best_bytes <= found.hit_bytes * 1.000001 <= best_bytes + 2 * size.max()


def spelled(policy: str, budget_bytes: int) -> CachingSettings:
    return make_caching_settings(policy, budget_bytes)


def assert_below_the_bound(policy: str, events: WorkloadEvents, budget: int, window: tuple[float, float]) -> None:
    """The same trace, played: hits, hit ratio and saved bytes of the window stay below what was computed for it."""
    begin_s, end_s = window
    asked = requests(events, ANSWERED_S, begin_s, end_s)
    found = find_upper_bound(asked, budget, end_s - begin_s)
    edge = FastBrokerSim(core_settings(spelled(policy, budget)), int(events.interest.max()) + 1)
    number = edge.play(events, begin_s)
    before, area = replace(edge.broker.caches.counters), edge.area_bytes_s
    edge.play(events, end_s, number)
    after = edge.broker.caches.counters
    hits, misses = after.hits - before.hits, after.misses - before.misses
    # Who holds more than the budget on average may have as much more: the bound is concave.
    more = max(1.0, (edge.area_bytes_s - area) / (end_s - begin_s) / budget)
    assert sum(point.sure_requests for point in asked) <= hits + misses <= sum(point.requests for point in asked)
    assert hits <= more * found.hits
    assert hits / (hits + misses) <= more * found.hit_ratio
    assert after.hit_bytes - before.hit_bytes <= more * found.hit_bytes
    assert after.miss_bytes - before.miss_bytes >= found.miss_bytes or more > 1


@pytest.mark.parametrize("policy", [*PAPER, *MODERN, *OURS])
def test_no_policy_that_is_played_a_trace_passes_the_bound_of_it(policy: str) -> None:
    for law, lifetimes in (("uniform", "whole"), ("zipf", "renewed"), ("zipf", "once")):
        events = make_edge_events(replace(SMALL, popularity=law, lifetimes=lifetimes), 3)
        for budget in (300_000, 10_000_000):
            assert_below_the_bound(policy, events, budget, (300.0, SMALL.span_s))


@pytest.mark.parametrize("policy", ["lru", "lsc", "worth", "saving", "gdsf"])
def test_the_bound_knows_that_who_asks_gets_what_was_made_a_moment_ago(policy: str) -> None:
    """A small result, and 0.24 s later a large one: both are asked for 0.25 s after the first. Nobody logs out."""
    many, large = 100, 100_000
    people, at_s = np.arange(many), 1.0 + 0.0101 * np.arange(many)
    sizes = np.concatenate([np.full(many, 10), np.full(many, large)])
    events = in_order(
        [
            (WorkloadEventKind.SUBSCRIBED, {"at_s": np.zeros(many), "subscriber": people, "interest": people}),
            (WorkloadEventKind.LOGGED_IN, {"at_s": np.full(many, 0.5), "subscriber": people}),
            (
                WorkloadEventKind.PRODUCED,
                {"at_s": np.concatenate([at_s, at_s + 0.24]), "interest": np.tile(people, 2), "size_bytes": sizes},
            ),
        ],
        {},
    )
    assert_below_the_bound(policy, events, large + 400, (0.9, float(at_s[-1]) + 0.251))


def test_a_policy_that_passes_the_bound_is_told_and_not_passed_over() -> None:
    claim = next(claim for claim in EXPERIMENT.claims if claim.name == "optimum")
    cells = list(plan(EXPERIMENT, settings={"policy": "lru,ttl,optimum", "size_mb": "50"}, replications=2).cells())

    def judged(lru: float, ttl: float) -> str:
        found = {"lru": lru, "ttl": ttl, "optimum": 0.5}
        rows = []
        for cell in cells:
            value = found[str(dict(cell.values)["policy"])] if cell.sweep == "sizes" else 0.1
            held = 55.0 if value == ttl else 50.0
            rows.append(ResultsRow(cell, {"hit_ratio": value, "hit_gb": value, "mean_mb": held}))
        return judge(claim, RunResults(rows)).verdict

    assert judged(0.4, 0.54) == "reproduced", "a tenth more bytes may have a tenth more hits"
    assert judged(0.4, 0.56) == "not reproduced"
    assert judged(0.51, 0.4) == "not reproduced"


@pytest.mark.parametrize("choice", CHOICES)
def test_every_open_choice_runs(choice: str) -> None:
    metrics = model(Run({**DEFAULTS, "policy": "ttl", "choice": choice}, 2))
    assert 0 < metrics["hit_ratio"] < 1
    assert metrics["fetch_gb"] >= metrics["vol_gb"] > 0
    assert metrics["holding_s"] > 0


def test_what_is_fetched_and_kept_is_held_as_well() -> None:
    """By Little's law: as many results as are held on average, divided by how many came in each second."""
    events = make_edge_events(SMALL, 3)
    edge = FastBrokerSim(core_settings(replace(spelled("lru", 2_000_000), fetched_enters=True)), SMALL.interests)
    edge.play(events, SMALL.span_s)
    figures, caches = edge.broker.caches.counters, edge.broker.caches
    assert figures.filled > 0
    left = figures.admitted + figures.filled - figures.consumed - figures.evicted - figures.expired
    assert left == sum(cache.residents for cache in caches)


def test_a_trace_of_a_run_is_the_same_bytes_each_time_and_tells_of_what_expires() -> None:
    told = []
    for _ in range(2):
        file = io.StringIO()
        values = {**DEFAULTS, "policy": "ttl", "span_s": 400.0, "warm_up_s": 100.0}
        model(Run(values, 2, trace=TraceFile(file, seed=2, about={})))
        told.append(file.getvalue())
    assert " at 0x" not in told[0]
    assert told[0] == told[1]
    assert "TimePassed" in told[0]


def test_the_same_bytes_on_any_number_of_processes(tmp_path: Path) -> None:
    settings = {"policy": "lsc,worth,optimum", "size_mb": "300", "scale": "0.02", "choice": "usual"}
    settings |= {"span_s": "600", "warm_up_s": "300"}
    wanted = plan(EXPERIMENT, quick=True, settings=settings, replications=2)
    for processes in (1, 2):
        run(wanted, registry.reference("edge-caching"), tmp_path / str(processes), processes=processes)
    one, other = (
        sorted((tmp_path / str(processes) / "cells.jsonl").read_text("utf-8").splitlines()) for processes in (1, 2)
    )
    assert one == other


def test_the_policies_of_the_paper_are_those_of_the_table() -> None:
    assert set(PAPER) == {"nc", "lru", "lsc", "lscz", "lsd", "exp", "ttl"}
    assert set(MODERN) == {"s3fifo", "sieve", "gdsf", "wtinylfu"}
    assert set(OURS) == {"worth", "saving"}
