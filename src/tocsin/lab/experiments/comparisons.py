"""Words in which judges of claims speak: comparisons that count only beyond their error."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from tocsin.lab.experiments.declaration import Claim, Judgement, Value
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate


class UndecidedError(Exception):
    """The error of the results is too large for a verdict."""


def judge(claim: Claim, results: RunResults) -> Judgement:
    """The verdict on a claim; where the run lacks the cells or repetitions it needs, that is said and nothing else."""
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


def several(results: RunResults, sweep: str, name: str) -> list[Value]:
    """The values that a parameter took in a sweep, of which a comparison needs at least two."""
    found = results.points(sweep, name)
    if len(found) < 2:
        raise MissingCellsError(f"{sweep}: {name} other than {found[0]}")
    return found


def surely_more(
    results: RunResults, metric: str, sweep: str, one: Mapping[str, Value], other: Mapping[str, Value]
) -> bool | None:
    """Whether the metric is larger at one point than at the other, by the paired differences; None where it is open."""
    return surely([results.difference(metric, sweep, one, other)])


def surely_ordered(
    results: RunResults, metric: str, sweep: str, points: Sequence[Mapping[str, Value]], *, where: Mapping[str, Value]
) -> bool | None:
    """Whether the metric grows strictly from point to point; None where the error of a step leaves it open."""
    steps = itertools.pairwise(points)
    return both(*(surely_more(results, metric, sweep, {**where, **b}, {**where, **a}) for a, b in steps))


def surely(found: Iterable[Estimate], *, than: float = 0.0) -> bool | None:
    """Whether all are more than this; None where an error leaves that open and none is surely less."""
    all_of_them = _some(found)
    if all(one.low > than for one in all_of_them):
        return True
    return False if any(one.high < than for one in all_of_them) else None


def inside(found: Iterable[Estimate], low: float, high: float) -> bool | None:
    """Whether all lie between the two, with their errors; None where an error leaves that open and none is outside."""
    all_of_them = _some(found)
    if all(low <= one.low and one.high <= high for one in all_of_them):
        return True
    return False if any(one.high < low or one.low > high for one in all_of_them) else None


def _some(found: Iterable[Estimate]) -> list[Estimate]:
    """Of nothing everything holds, which is no verdict."""
    if not (all_of_them := list(found)):
        raise MissingCellsError("anything to compare")
    return all_of_them


def both(*found: bool | None) -> bool | None:
    """Whether everything holds; one that surely does not decides, one that is open leaves it open."""
    return False if False in found else None if None in found else True


def verdict(holds: bool | None, figures: str, against: str) -> Judgement:
    """Reproduced, or not and what is against it. `UndecidedError` where it is open."""
    if holds is None:
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    return Judgement("reproduced", figures) if holds else Judgement("not reproduced", figures, against)


def depending(usual: bool | None, other: bool | None, figures: str, *, on: str, against: str) -> Judgement:
    """The same of a claim that was looked at with two choices: where they answer differently, it depends on them."""
    if None not in (usual, other) and usual != other:
        return Judgement("depends", figures, on)
    return verdict(None if None in (usual, other) else usual, figures, against)


def about(found: Estimate, wanted: float, *, within: float) -> bool:
    """Whether the interval lies within this distance, or outside. `UndecidedError` where it lies astride."""
    lies = inside([found], wanted - within, wanted + within)
    if lies is None:
        raise UndecidedError(
            f"{found} is too wide to tell whether it is {wanted:g} within {within:g}; take more replications"
        )
    return lies
