"""The edge-caching experiment: the simulated broker against what can be known, and the verdicts of its quick run."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tocsin.lab.bodies.edge import Edge, core_settings
from tocsin.lab.experiments import registry
from tocsin.lab.experiments.conducting import conduct
from tocsin.lab.experiments.declaration import Run, Value
from tocsin.lab.experiments.edge_caching.declared import EXPERIMENT
from tocsin.lab.experiments.edge_caching.model import CHOICES, MODERN, OURS, PAPER, model
from tocsin.lab.experiments.edge_caching.optimum import Requests, bound, requests
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.running import run
from tocsin.lab.workloads.edge_caching import EdgeWorkload, make_edge_events
from tocsin.rules.caching.settings import CachingSettings

SMALL = EdgeWorkload(subscribers=60, subscriptions_each=5, interests=12, span_s=1500.0)
DEFAULTS: dict[str, Value] = {
    **{parameter.name: parameter.default for parameter in EXPERIMENT.parameters},
    "scale": 0.012, "span_s": 900.0, "warm_up_s": 300.0, "size_mb": 300,
}  # fmt: skip


def test_the_quick_run_reaches_its_verdicts(tmp_path: Path) -> None:
    done = conduct(plan(EXPERIMENT, quick=True), registry.reference("edge-caching"), tmp_path, processes=2)
    # Each verdict was reached beyond the error of the run: see the judges. What the error leaves open is not judged.
    sure = {
        "grows": {"reproduced"},
        "exp-lowest": {"not reproduced"},
        # It holds under uniform popularity, if not beyond the error of three runs, and surely not under zipf.
        "lsc-over-lru": {"depends", "not reproduced"},
        "within-budget": {"reproduced"},
        "expected-size": {"reproduced"},
        "lives": {"reproduced"},
        "worth-beats": {"reproduced"},
        "saving-beats": {"reproduced"},
        "optimum": {"reproduced"},
    }
    for name, wanted in sure.items():
        assert done.verdicts[name].verdict in wanted, done.verdicts[name]
    for name in ("ttl-highest", "latency-order"):
        assert done.verdicts[name].verdict != "reproduced"
    assert all(judged.because for judged in done.verdicts.values() if judged.verdict != "reproduced")
    assert {path.stem for path in (done.folder / "plots").iterdir()} == {plot.name for plot in EXPERIMENT.plots}


@pytest.mark.parametrize("policy", [*PAPER, *MODERN, *OURS])
def test_who_pulls_together_gets_what_each_would_get_alone(policy: str) -> None:
    spelled = {"nc": {"eviction": "none"}, "ttl": {"eviction": "exp", "expiry": "ttl"}}
    settings = CachingSettings(budget_bytes=2_000_000, **spelled.get(policy, {"eviction": policy}))  # type: ignore[arg-type]
    events = make_edge_events(SMALL, 3)
    found = []
    for together in (True, False):
        edge = Edge(core_settings(settings), SMALL.interests, together=together)
        edge.play(events, SMALL.span_s)
        figures = edge.broker.caches.figures
        found.append((figures.hits, figures.misses, figures.evicted, figures.expired, figures.consumed))
    # Whoever loses its connection or is told while it asks is told again: a handful of thousands may differ.
    one, other = np.array(found, dtype=float)
    assert one.sum() > 1_000
    assert np.abs(one - other).max() <= 0.01 * one.sum()


def test_every_result_that_is_due_is_asked_for_once() -> None:
    """What the simulated subscribers retrieve is what the bound counts from the workload alone."""
    events = make_edge_events(SMALL, 5)
    edge = Edge(core_settings(CachingSettings(budget_bytes=1 << 40)), SMALL.interests)
    edge.play(events, SMALL.span_s)
    figures = edge.broker.caches.figures
    assert figures.misses == 0, "a cache that holds everything misses nothing"
    due = sum(one.requests for one in requests(events, 0.25, 0.0, SMALL.span_s))
    assert figures.hits == pytest.approx(due, rel=0.005)


def test_the_bound_is_that_of_trying_everything() -> None:
    """One byte-second constraint, tiny: the best of all choices lies below the bound, and close to it."""
    rng = np.random.default_rng(1)
    results, asks = 6, 3
    size = rng.integers(1, 6, results).astype(float)
    room = np.sort(rng.uniform(0.1, 5.0, (results, asks)), axis=1)
    counted = np.tile(np.arange(1, asks + 1, dtype=np.float32), (results, 1))
    one = Requests(size, room.astype(np.float32), counted)
    budget, span_s = 4.0, 6.0
    best = best_bytes = 0.0
    for kept in product(range(asks + 1), repeat=results):
        taken = sum(size[i] * room[i, k - 1] for i, k in enumerate(kept) if k)
        if taken <= budget * span_s:
            best = max(best, sum(kept))
            best_bytes = max(best_bytes, sum(size[i] * k for i, k in enumerate(kept)))
    found = bound([one], budget, span_s)
    total = results * asks
    assert best / total <= found.hit_ratio <= best / total + 2 / total
    assert best_bytes <= found.hit_bytes * 1.000001 <= best_bytes + 2 * size.max()


@pytest.mark.parametrize("choice", CHOICES)
def test_every_open_choice_runs(choice: str) -> None:
    metrics = model(Run({**DEFAULTS, "policy": "ttl", "choice": choice}, 2))
    assert 0 < metrics["hit_ratio"] < 1
    assert metrics["fetch_gb"] >= metrics["vol_gb"] > 0


def test_the_same_bytes_on_any_number_of_processes(tmp_path: Path) -> None:
    settings = {"policy": "lsc,worth,optimum", "size_mb": "300", "scale": "0.012", "span_s": "600", "choice": "usual"}
    wanted = plan(EXPERIMENT, quick=True, settings=settings, replications=2)
    for processes in (1, 2):
        run(wanted, registry.reference("edge-caching"), tmp_path / str(processes), processes=processes)
    one, other = (
        sorted((tmp_path / str(processes) / "cells.jsonl").read_text("utf-8").splitlines()) for processes in (1, 2)
    )
    assert one == other


def test_the_policies_of_the_paper_are_those_of_the_table() -> None:
    assert {"lru", "lsc", "lscz", "lsd", "exp"} <= set(PAPER)
    assert set(OURS) | set(MODERN) <= {"worth", "saving", "s3fifo", "sieve", "gdsf", "wtinylfu"}
