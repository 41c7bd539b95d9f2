"""Comparisons for the judges of claims: a difference counts only beyond its error, otherwise it is open (None).

A figure within its error of a threshold shows nothing, so an open answer counts neither for nor against a claim. Fewer
replications therefore leave more claims unjudged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tocsin.lab.experiments.declaration import Claim, Experiment, Judgement, Value
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate


class UndecidedError(Exception):
    """The error of the results is too large for a verdict."""


def judge(claim: Claim, results: RunResults) -> Judgement:
    """Returns the verdict on a claim. If the run lacks cells or repetitions, the claim is not judged."""
    if len({row.cell.seed for row in results.rows}) < 2:
        return Judgement("not judged", "", "one run of each point has no error")
    try:
        return claim.judge(results)
    except MissingCellsError as missing:
        return Judgement("not judged", "", f"the run has no cells with {missing}")
    except UndecidedError as undecided:
        return Judgement("not judged", "", str(undecided))
    except ArithmeticError as error:
        return Judgement("not judged", "", f"its figures cannot be computed from this run: {error}")


def verdicts(experiment: Experiment, results: RunResults) -> dict[str, Judgement]:
    """Judges every claim of an experiment."""
    return {claim.name: judge(claim, results) for claim in experiment.claims}


def several(results: RunResults, sweep: str, name: str) -> list[Value]:
    """Returns the values that a parameter took in a sweep; a comparison needs at least two."""
    values = results.points(sweep, name)
    if len(values) < 2:
        raise MissingCellsError(f"{sweep}: {name} other than {values[0]}")
    return values


def is_more(
    results: RunResults, metric: str, sweep: str, point: Mapping[str, Value], other: Mapping[str, Value]
) -> bool | None:
    """Whether the metric is larger at one point than at the other, by paired differences; None if open."""
    return all_above([results.difference(metric, sweep, point, other)])


def is_ordered(
    results: RunResults, metric: str, sweep: str, points: Sequence[Mapping[str, Value]], *, where: Mapping[str, Value]
) -> bool | None:
    """Whether the metric grows strictly from point to point; None if the error of a step leaves it open."""
    steps = itertools.pairwise(points)
    return all_hold(
        *(is_more(results, metric, sweep, {**where, **upper}, {**where, **lower}) for lower, upper in steps)
    )


def all_above(estimates: Iterable[Estimate], *, than: float = 0.0) -> bool | None:
    """Whether all are greater than this; None if an error leaves that open and none is less."""
    estimates = _at_least_one(estimates)
    if all(estimate.low > than for estimate in estimates):
        return True
    return False if any(estimate.high < than for estimate in estimates) else None


def all_within(estimates: Iterable[Estimate], low: float, high: float) -> bool | None:
    """Whether all lie between the two, with their errors; None if an error leaves that open and none is outside."""
    estimates = _at_least_one(estimates)
    if all(low <= estimate.low and estimate.high <= high for estimate in estimates):
        return True
    return False if any(estimate.high < low or estimate.low > high for estimate in estimates) else None


def _at_least_one(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Returns the estimates as a list. An empty comparison is vacuously true, so it is refused."""
    if not (listed := list(estimates)):
        raise MissingCellsError("anything to compare")
    return listed


def all_hold(*answers: bool | None) -> bool | None:
    """Whether all hold. A single False decides; otherwise a single None leaves it open."""
    return False if False in answers else None if None in answers else True


def verdict(holds: bool | None, figures: str, against: str) -> Judgement:
    """Returns "reproduced", or "not reproduced" with the reason against it. Raises `UndecidedError` if open."""
    if holds is None:
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    return Judgement("reproduced", figures) if holds else Judgement("not reproduced", figures, against)


def judge_by_choice(
    usual: bool | None, other: bool | None, figures: str, *, depends_on: str, refuted_by: str
) -> Judgement:
    """Judges a claim under two choices: if the answers differ, it depends on the choice, in these words."""
    if None not in (usual, other) and usual != other:
        return Judgement("depends", figures, depends_on)
    return verdict(None if None in (usual, other) else usual, figures, refuted_by)


def is_near(estimate: Estimate, expected: float, *, within: float) -> bool:
    """Whether the interval lies within this distance. Raises `UndecidedError` if it lies partly within."""
    near = all_within([estimate], expected - within, expected + within)
    if near is None:
        raise UndecidedError(
            f"{estimate} is too wide to tell whether it is {expected:g} within {within:g}; take more replications"
        )
    return near
