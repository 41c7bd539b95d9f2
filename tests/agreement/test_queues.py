"""Simulation against theory, with the error that is stated beside the claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.lab.experiments import registry
from tocsin.lab.experiments.declaration import Run
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.queues import EXPERIMENT, model
from tocsin.lab.experiments.run_experiment import run_and_report
from tocsin.lab.experiments.statistics import estimate


@pytest.mark.parametrize("service", ["exponential", "constant"])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_mean_wait_of_a_simulated_queue_is_that_of_theory(service: str, load: float) -> None:
    values = {"service": service, "load": load, "customers": 20_000, "warm_up": 1_000}
    ratio = estimate([model(Run(values, seed))["ratio"] for seed in range(8)], confidence=0.99)
    # The interval holds the truth, and is narrow enough to notice if it did not.
    assert ratio.low - 0.02 <= 1 <= ratio.high + 0.02
    assert ratio.half_width < 0.12


def test_the_quick_run_reaches_its_verdicts(tmp_path: Path) -> None:
    done = run_and_report(plan(EXPERIMENT, quick=True), registry.reference("queues"), tmp_path, processes=2)
    found = {name: judged.verdict for name, judged in done.verdicts.items()}
    assert found == {"exponential-service": "reproduced", "constant-service": "reproduced"}
