"""Simulation against theory, with the error that is stated beside the claim."""

from __future__ import annotations

import pytest

from tocsin.lab.experiments.declaration import Run
from tocsin.lab.experiments.queues import model
from tocsin.lab.experiments.statistics import estimate


@pytest.mark.parametrize("service", ["exponential", "constant"])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_mean_wait_of_a_simulated_queue_is_that_of_theory(service: str, load: float) -> None:
    values = {"service": service, "load": load, "customers": 20_000, "warm_up": 1_000}
    ratio = estimate([model(Run(values, seed))["ratio"] for seed in range(8)], confidence=0.99)
    # The interval holds the truth, and is narrow enough to notice if it did not.
    assert ratio.low - 0.02 <= 1 <= ratio.high + 0.02
    assert ratio.half_width < 0.12
