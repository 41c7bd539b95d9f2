"""The admission experiment: against what can be computed by hand, and the verdicts that its quick run must reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.lab.experiments import registry
from tocsin.lab.experiments.cells import run
from tocsin.lab.experiments.comparisons import judge, verdicts
from tocsin.lab.experiments.declaration import Run, Value
from tocsin.lab.experiments.kafka_admission.experiment import EXPERIMENT
from tocsin.lab.experiments.kafka_admission.model import model
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.results import ResultsRow, RunResults
from tocsin.lab.experiments.run_experiment import run_and_report
from tocsin.lab.experiments.statistics import estimate

DEFAULTS: dict[str, Value] = {parameter.name: parameter.default for parameter in EXPERIMENT.parameters}
# What the whole run says, and the quick one too, beyond its error: see the judges.
VERDICTS = {
    "hit-rates-of-extremes": "reproduced",
    "hit-rate-constant": "reproduced",
    "hit-rate-order": "depends",
    "buffer-hits": "depends",
    "hit-rates": "depends",
    "unlimited-duplication": "reproduced",
    "duplication-high": "depends",
    "follows-share": "reproduced",
    "fluctuates": "not reproduced",
    "shared-kept": "not reproduced",
    "latency-order": "depends",
    "throughput-order": "depends",
    "throughput-far": "not reproduced",
    "hundredfold": "depends",
    "gap-grows": "depends",
    "threshold-best": "reproduced",
    "threshold-worst": "not reproduced",
    "threshold-rates": "reproduced",
    "tuning-mean": "reproduced",
    "tuning-buffer": "depends",
    "buffer-best": "reproduced",
    "buffer-local": "not reproduced",
    "buffer-flat": "depends",
    "equal-value": "not reproduced",
    "ranking": "depends",
}


@pytest.mark.parametrize(
    ("settings", "hit_rate"),
    [
        ({"policy": "mean"}, lambda p: p),
        ({"policy": "buffer", "last": 1.0, "before": 0.0}, lambda p: 1 - (1 - p) * p),
        ({"policy": "buffer", "last": 0.5, "before": 0.5}, lambda p: 1 - (1 - p) * (1 - (1 - p) ** 2)),
        ({"policy": "buffer", "last": 0.5, "before": 0.5, "learns_first": True}, lambda p: 1 - (1 - p) * p),
    ],
    ids=["mean", "buffer-last", "buffer-both", "buffer-learning"],
)
@pytest.mark.parametrize("shared", [0.3, 0.5, 0.7])
def test_hit_rates_are_those_of_independent_records(
    settings: dict[str, Value], hit_rate: object, shared: float
) -> None:
    assert callable(hit_rate)
    records = 4_000
    runs = [
        model(Run({**DEFAULTS, **settings, "shared": shared, "records": records}, seed))["hit_rate"]
        for seed in range(6)
    ]
    found = estimate(runs, confidence=0.999)
    # The first batch, or the first two records, are let in whatever they are.
    assert found.low - 0.02 <= hit_rate(shared) <= found.high + 0.005
    assert found.half_width < 0.05


def test_a_record_that_meets_nobody_on_its_way_takes_what_its_servers_take() -> None:
    # So rare that none waits for another, and polled so often that polling takes nothing.
    alone: dict[str, Value] = {**DEFAULTS, "records": 200, "publish_every_s": 10.0, "poll_s": 1e-6, "shared": 0.0}
    kept, left = (model(Run({**alone, "policy": policy}, 1))["latency_s"] for policy in ("all", "none"))
    assert kept == pytest.approx(0.0005 + 0.0001, abs=1e-5)
    assert left == pytest.approx(0.0005 + 0.001 + 0.002 + 0.0001, abs=1e-5)


def test_every_policy_sees_the_same_records() -> None:
    copies = [
        model(Run({**DEFAULTS, "policy": "all", "database_read_s": read_s}, 3))["duplication"]
        for read_s in (0.001, 0.1)
    ]
    assert copies[0] == copies[1]


STEADY = {500: 1.7, 1_000: 1.7, 2_000: 1.7, 5_000: 1.7, 10_000: 1.7}
SLOW = {500: 500.0, 1_000: 400.0, 2_000: 500.0, 5_000: 500.0, 10_000: 500.0}


@pytest.mark.parametrize(
    ("copies", "per_s", "verdict"),
    [
        ({}, {}, "not reproduced"),
        ({2_000: 1.6}, SLOW, "reproduced"),
        ({2_000: 1.6}, {}, "not reproduced"),
        ({2_000: 1.6, 10_000: 1.8}, SLOW, "not reproduced"),
        ({1_000: 1.8, 2_000: 1.75}, SLOW, "not reproduced"),
    ],
    ids=["steady", "all of it", "throughput steady", "not constant", "falls"],
)
def test_a_dip_lies_below_both_sizes_beside_it(copies: dict[int, float], per_s: dict[int, float], verdict: str) -> None:
    rows = []
    for cell in plan(EXPERIMENT, replications=3).cells():
        size = int(dict(cell.values)["records"])
        # A run of each seed is a little above or below.
        about = 1 + cell.seed / 1_000
        kept = {**STEADY, **copies}[size] * about
        rows.append(ResultsRow(cell, {"duplication": kept, "throughput_per_s": per_s.get(size, 500.0) * about}))
    claim = next(claim for claim in EXPERIMENT.claims if claim.name == "fluctuates")
    assert judge(claim, RunResults(rows)).verdict == verdict
    quick = RunResults([row for row in rows if dict(row.cell.values)["records"] in (500, 2_000)])
    assert judge(claim, quick).verdict == ("not judged" if copies.get(2_000) == 1.6 else "not reproduced")


def test_the_quick_run_reaches_its_verdicts(tmp_path: Path) -> None:
    done = run_and_report(plan(EXPERIMENT, quick=True), registry.reference("kafka-admission"), tmp_path)
    assert {name: judged.verdict for name, judged in done.verdicts.items()} == VERDICTS
    assert all(judged.because for judged in done.verdicts.values() if judged.verdict != "reproduced")
    drawn = {path.stem for path in (done.folder / "plots").iterdir()}
    assert drawn == {plot.name for plot in EXPERIMENT.plots}


@pytest.mark.parametrize(("seed", "replications"), [(1, 2), (1, 3), (50, 2)])
def test_with_few_replications_a_claim_is_at_most_not_judged(tmp_path: Path, seed: int, replications: int) -> None:
    wanted = plan(EXPERIMENT, quick=True, seed=seed, replications=replications)
    results, _ = run(wanted, registry.reference("kafka-admission"), tmp_path)
    found = verdicts(EXPERIMENT, results)
    assert {judgement.verdict for name, judgement in found.items() if judgement.verdict != VERDICTS[name]} == {
        "not judged"
    }
    assert all(judgement.because for judgement in found.values() if judgement.verdict != "reproduced")


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "mean", "records": "100", "batch": "20"},
        {"policy": "threshold", "records": "100", "fall": "0.2"},
        {"policy": "all,none", "records": "100", "publish_every_s": "0.02"},
    ],
    ids=lambda settings: settings["policy"],
)
def test_without_the_cells_it_needs_no_claim_is_judged(tmp_path: Path, settings: dict[str, str]) -> None:
    wanted = plan(EXPERIMENT, quick=True, settings=settings, replications=2)
    results, _ = run(wanted, registry.reference("kafka-admission"), tmp_path)
    judged = {name for name, verdict in verdicts(EXPERIMENT, results).items() if verdict.verdict != "not judged"}
    assert judged == ({"hit-rates-of-extremes"} if settings["policy"] == "all,none" else set())
