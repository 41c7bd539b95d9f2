"""Words in which judges of claims speak: comparisons that count only beyond their error."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tocsin.lab.experiments.declaration import Claim, Judged, Value
from tocsin.lab.experiments.results import MissingCellsError, Results
from tocsin.lab.experiments.statistics import Estimate


def judge(claim: Claim, results: Results) -> Judged:
    """The verdict on a claim; where the run lacks the cells or repetitions it needs, that is said and nothing else."""
    if len({row.cell.seed for row in results.rows}) < 2:
        return Judged("not judged", "", "one run of each point has no error")
    try:
        return claim.judge(results)
    except MissingCellsError as missing:
        return Judged("not judged", "", f"the run has no cells with {missing}")


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
    """Whether the whole interval lies so close to the wanted value."""
    return wanted - within <= found.low and found.high <= wanted + within
