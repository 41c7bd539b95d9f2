"""Words in which judges of claims speak: comparisons that count only beyond their error."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tocsin.lab.experiments.declaration import Claim, Judged, Value
from tocsin.lab.experiments.results import MissingCellsError, Results
from tocsin.lab.experiments.statistics import Estimate


class UndecidedError(Exception):
    """The error of the results is too large for a verdict."""


def judge(claim: Claim, results: Results) -> Judged:
    """The verdict on a claim; where the run lacks the cells or repetitions it needs, that is said and nothing else."""
    if len({row.cell.seed for row in results.rows}) < 2:
        return Judged("not judged", "", "one run of each point has no error")
    try:
        return claim.judge(results)
    except MissingCellsError as missing:
        return Judged("not judged", "", f"the run has no cells with {missing}")
    except UndecidedError as undecided:
        return Judged("not judged", "", str(undecided))


def several(results: Results, sweep: str, name: str) -> list[Value]:
    """The values that a parameter took in a sweep, of which a comparison needs at least two."""
    found = results.points(sweep, name)
    if len(found) < 2:
        raise MissingCellsError(f"{sweep}: {name} other than {found[0]}")
    return found


def surely_more(
    results: Results, metric: str, sweep: str, one: Mapping[str, Value], other: Mapping[str, Value]
) -> bool:
    """Whether the metric is larger at one point than at the other, beyond the error of the paired differences."""
    return results.difference(metric, sweep, one, other).low > 0


def surely_ordered(
    results: Results, metric: str, sweep: str, points: Sequence[Mapping[str, Value]], *, where: Mapping[str, Value]
) -> bool:
    """Whether the metric grows strictly from point to point, each step beyond its error."""
    steps = itertools.pairwise(points)
    return all(surely_more(results, metric, sweep, {**where, **b}, {**where, **a}) for a, b in steps)


def about(found: Estimate, wanted: float, *, within: float) -> bool:
    """Whether the interval lies within this distance, or outside. `UndecidedError` where it lies astride."""
    low, high = wanted - within, wanted + within
    if low <= found.low and found.high <= high:
        return True
    if found.high < low or high < found.low:
        return False
    raise UndecidedError(
        f"{found} is too wide to tell whether it is {wanted:g} within {within:g}; take more replications"
    )
