"""Results that were made up, for judges of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tocsin.lab.experiments import registry
from tocsin.lab.experiments.comparisons import judge
from tocsin.lab.experiments.declaration import Judgement, Value
from tocsin.lab.experiments.plan import Plan, plan
from tocsin.lab.experiments.results import ResultsRow, RunResults

Figures = Callable[[str, Mapping[str, Value], int], dict[str, float]]


def made_up(wanted: Plan, figures: Figures) -> RunResults:
    """By sweep, values and replication; a metric that is not told is 1."""
    every = dict.fromkeys((metric.name for metric in wanted.experiment.metrics), 1.0)
    cells = wanted.cells()
    return RunResults(
        [ResultsRow(cell, {**every, **figures(cell.sweep, dict(cell.values), cell.replication)}) for cell in cells]
    )


def judged(experiment: str, claim: str, figures: Figures, **settings: str) -> Judgement:
    """The verdict of a quick run with these results."""
    declared = registry.experiment(experiment)
    results = made_up(plan(declared, quick=True, settings=settings, replications=3), figures)
    return judge(next(item for item in declared.claims if item.name == claim), results)
