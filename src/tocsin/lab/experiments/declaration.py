"""The declaration of an experiment: parameters, sweeps, metrics, plots and the claims it judges.

An experiment is data and one function. The function gets the values of one cell and a seed, and returns the metrics. It
knows nothing of processes, files or the other cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from tocsin.lab.engine.engine import RunTrace

if TYPE_CHECKING:
    from tocsin.lab.experiments.results import RunResults

Value = str | int | float | bool
_Verdict = Literal["reproduced", "not reproduced", "depends", "not judged"]


@dataclass(frozen=True, slots=True)
class ExperimentParameter:
    """A parameter of an experiment; `quick` is its value in a quick run, if that differs.

    `among` lists the allowed words; `least` and `most` bound a number.
    """

    name: str
    default: Value
    about: str
    quick: Value | None = None
    among: tuple[str, ...] = ()
    least: float | None = None
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that every cell returns."""

    name: str
    unit: str
    about: str

    @property
    def title(self) -> str:
        """The name with the unit, if it has one."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Axis:
    """Parameters that a sweep varies together, point by point; `quick` are the points of a quick run."""

    names: tuple[str, ...]
    points: tuple[tuple[Value, ...], ...]
    quick: tuple[tuple[Value, ...], ...] = ()


def along(name: str, values: Iterable[Value], *, quick: Iterable[Value] = ()) -> Axis:
    """Returns an axis of one parameter."""
    return Axis((name,), tuple((value,) for value in values), tuple((value,) for value in quick))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The product of its axes. Other parameters keep their values, or take those of `fixed`.

    `quick_fixed` replaces `fixed` in a quick run, if given.
    """

    name: str
    about: str
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    quick_fixed: Mapping[str, Value] | None = None

    def names(self) -> tuple[str, ...]:
        """Returns the swept parameters."""
        return tuple(name for axis in self.axes for name in axis.names)


@dataclass(frozen=True, slots=True)
class Plot:
    """A metric over a swept parameter, one line per value of another parameter. Over words it is a bar chart.

    `also` adds lines: another metric with the same unit, and at which values.
    """

    name: str
    title: str
    sweep: str
    x: str
    y: str
    by: str | None = None
    where: Mapping[str, Value] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    also: tuple[tuple[str, Mapping[str, Value]], ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its figures; `because` has the reason or the setting, unless the verdict is a plain yes."""

    verdict: _Verdict
    figures: str
    because: str = ""


_ClaimJudge: TypeAlias = "Callable[[RunResults], Judgement]"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the source, in our words, and its judge, which raises if cells are missing or errors too large."""

    name: str
    says: str
    where: str
    judge: _ClaimJudge


def claim(says: str, where: str) -> Callable[[_ClaimJudge], Claim]:
    """Turns a judge into the claim that it judges, with the judge's name."""
    return lambda judge: Claim(judge.__name__.removeprefix("_").replace("_", "-"), says, where, judge)


def claims_of(*modules: ModuleType) -> tuple[Claim, ...]:
    """Returns the claims that these modules define, in their order."""
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Claim))


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of the report: computes head and rows from the results. It is left out if cells are missing."""

    title: str
    about: str
    made: Callable[[RunResults], tuple[Sequence[str], Sequence[Sequence[str]]]]


@dataclass(frozen=True, slots=True)
class Run:
    """One cell to run. `shared` is a folder for data that cells share and can recompute, such as workload traces."""

    values: Mapping[str, Value]
    seed: int
    trace: RunTrace | None = None
    shared: Path | None = None

    def text(self, name: str) -> str:
        return str(self.values[name])

    def whole(self, name: str) -> int:
        return int(self.values[name])

    def number(self, name: str) -> float:
        return float(self.values[name])


_Model = Callable[[Run], Mapping[str, float]]
# Raises `InputError` if values that are valid one by one do not go together.
_CellCheck = Callable[[Mapping[str, Value]], None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The whole declaration of an experiment. `model` is a function of a module, so that worker processes find it.

    `check` runs for every cell before the first cell runs.
    """

    name: str
    title: str
    about: str
    source: str
    model: _Model
    parameters: tuple[ExperimentParameter, ...]
    sweeps: tuple[Sweep, ...]
    metrics: tuple[Metric, ...]
    plots: tuple[Plot, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    replications: int = 10
    quick_replications: int = 3
    notes: str = ""
    check: _CellCheck | None = None

    def __post_init__(self) -> None:
        parameter_names = {parameter.name for parameter in self.parameters}
        metrics = {metric.name for metric in self.metrics}
        sweeps = {sweep.name: sweep for sweep in self.sweeps}
        for sweep in self.sweeps:
            for name in (*sweep.names(), *sweep.fixed, *(sweep.quick_fixed or ())):
                if name not in parameter_names:
                    raise ValueError(f"{self.name}: sweep {sweep.name} varies {name}, which is no parameter")
        for plot in self.plots:
            swept = sweeps[plot.sweep].names()
            unknown = [name for name in (plot.x, plot.by, *plot.where) if name is not None and name not in swept]
            unknown += [name for _, where in plot.also for name in where if name not in swept]
            metric_names = [plot.y, *(metric for metric, _ in plot.also)]
            if unknown or not metrics.issuperset(metric_names):
                raise ValueError(f"{self.name}: plot {plot.name} shows {', '.join([*unknown, *metric_names])}")
