"""An experiment that adds numbers, for tests of the frame around experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tocsin.lab.experiments.cells import run
from tocsin.lab.experiments.comparisons import is_more
from tocsin.lab.experiments.declaration import (
    Axis,
    Claim,
    Experiment,
    ExperimentParameter,
    Judgement,
    Metric,
    Plot,
    Run,
    Sweep,
    along,
)
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.results import RunResults


def toy_model(given: Run) -> Mapping[str, float]:
    if given.text("policy") == "bad" and given.seed == 2:
        raise RuntimeError("the toy broke")
    lift = {"low": 0.0, "high": 10.0, "bad": 0.0}[given.text("policy")]
    return {"score": given.number("size") + lift + given.seed % 3}


TOY = Experiment(
    name="toy",
    title="A toy",
    about="Adds numbers.",
    source="nowhere",
    model=toy_model,
    parameters=(
        ExperimentParameter("policy", "low", "a word"),
        ExperimentParameter("size", 1.0, "a number", quick=2.0),
        ExperimentParameter("on", True, "?"),
    ),
    sweeps=(
        Sweep(
            "sizes", "By size.", (along("policy", ("low", "high")), along("size", (1.0, 2.0, 3.0), quick=(1.0, 2.0)))
        ),
        Sweep("pairs", "Pairs.", (Axis(("policy", "size"), (("low", 5.0), ("high", 6.0))),), fixed={"on": False}),
    ),
    metrics=(Metric("score", "points", "the sum"),),
    plots=(
        Plot("score", "Score", "sizes", x="size", y="score", by="policy"),
        Plot("bars", "Bars", "sizes", x="policy", y="score"),
    ),
    claims=(
        Claim(
            "high-wins",
            "High scores | more",
            "p. 1",
            lambda r: Judgement("reproduced" if is_more(r, "score", "sizes", HIGH, LOW) else "not reproduced", "10"),
        ),
    ),
    replications=3,
    quick_replications=2,
)
HIGH: Mapping[str, str | float] = {"policy": "high", "size": 1.0}
LOW: Mapping[str, str | float] = {"policy": "low", "size": 1.0}
TOY_PLACE = f"{__name__}:TOY"


def toy_results(tmp_path: Path) -> RunResults:
    return run(plan(TOY), TOY_PLACE, tmp_path)[0]
