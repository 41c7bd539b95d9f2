"""Turns a declaration and the user's settings into the list of cells to run.

All points of a replication have the same seed, and with it the same workload, so that differences between policies can
be computed seed by seed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.lab.experiments.declaration import Axis, Experiment, ExperimentParameter, Sweep, Value
from tocsin.wire.errors import InputError

_DEFAULT_SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a point of a sweep with a seed. All points of a replication share a seed, and so a workload."""

    sweep: str
    values: tuple[tuple[str, Value], ...]
    replication: int
    seed: int

    def __str__(self) -> str:
        return f"{self.sweep}, seed {self.seed}, {', '.join(f'{name}={value}' for name, value in self.values)}"

    def key(self, experiment: str, code: str) -> str:
        """Returns a key that is equal for equal work, so that a cell runs once even if two sweeps include it."""
        text = json.dumps([experiment, code, self.values, self.seed], ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells to run, with the values they are made of."""

    experiment: Experiment
    quick: bool
    seed: int
    replications: int
    settings: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, Value], ...]
    sweeps: tuple[Sweep, ...]

    def cells(self) -> Iterator[Cell]:
        """Yields the cells in the order of the results, whichever finishes first."""
        for sweep in self.sweeps:
            for point in itertools.product(*(axis.points for axis in sweep.axes)):
                chosen = dict(zip(sweep.names(), itertools.chain.from_iterable(point), strict=True))
                values = tuple((name, chosen.get(name, sweep.fixed.get(name, value))) for name, value in self.values)
                for replication in range(self.replications):
                    yield Cell(sweep.name, values, replication, self.seed + replication)

    def check(self) -> None:
        """Checks every cell before the run. `InputError` names the sweep that the settings make impossible."""
        if self.experiment.check is None:
            return
        for cell in self.cells():
            try:
                self.experiment.check(dict(cell.values))
            except InputError as error:
                raise InputError(f"sweep {cell.sweep}: {error.message}", hint=error.hint) from None

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "quick": self.quick,
            "seed": self.seed,
            "replications": self.replications,
            "set": dict(self.settings),
        }


def plan(
    experiment: Experiment,
    *,
    quick: bool = False,
    seed: int = _DEFAULT_SEED,
    replications: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Plan:
    """Makes the plan with the user's settings: one value for a parameter, or several with commas for a swept one.

    A sweep is left out if the settings leave it no point, or contradict a value that it fixes.
    """
    given_settings = dict(settings or {})
    parameters = {parameter.name: parameter for parameter in experiment.parameters}
    for name in given_settings:
        if name not in parameters:
            raise InputError(f"{experiment.name} has no parameter {name}", hint=f"it has: {', '.join(parameters)}")
    replication_count = replications if replications is not None else _replications(experiment, quick)
    if replication_count < 1:
        raise InputError(f"replications: must be 1 or more, got {replication_count}")
    if seed < 0:
        raise InputError(f"seed: must not be negative, got {seed}")
    chosen = {name: _values(parameters[name], text) for name, text in given_settings.items()}
    swept = {name for sweep in experiment.sweeps for name in sweep.names()}
    for name, values in chosen.items():
        if len(values) > 1 and name not in swept:
            raise InputError(f"{name}: one value only, since no sweep of {experiment.name} varies it")
    defaults = tuple(
        (parameter.name, chosen.get(parameter.name, (_default(parameter, quick),))[0])
        for parameter in experiment.parameters
    )
    fitted = (_sweep(sweep, quick, chosen) for sweep in experiment.sweeps)
    sweeps = tuple(sweep for sweep in fitted if sweep is not None)
    if not sweeps:
        raise InputError(f"no sweep of {experiment.name} is left with these settings")
    return Plan(experiment, quick, seed, replication_count, tuple(given_settings.items()), defaults, sweeps)


def _parse_value(parameter: ExperimentParameter, text: str) -> Value:
    """Parses a value of the parameter's kind and range. `InputError` names the parameter."""
    value = _of_kind(parameter, text)
    if parameter.among and value not in parameter.among:
        choices = ", ".join(word for word in parameter.among if word)
        raise InputError(f"{parameter.name}: no {value!r}", hint=f"there are: {choices}")
    if parameter.least is not None and not parameter.least <= float(value) <= parameter.most:
        least, most = f"{parameter.least:g}", f"{parameter.most:g}"
        word = f"at least {least}" if parameter.most == math.inf else f"from {least} to {most}"
        raise InputError(f"{parameter.name}: must be {word}, got {text}")
    return value


def _of_kind(parameter: ExperimentParameter, text: str) -> Value:
    kind = type(parameter.default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text.replace("_", ""))
        return float(text) if kind is float else text
    except (ValueError, KeyError):
        word = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise InputError(f"{parameter.name}: must be {word}, got {text!r}") from None


def _values(parameter: ExperimentParameter, text: str) -> tuple[Value, ...]:
    values = tuple(_parse_value(parameter, part.strip()) for part in text.split(","))
    if len(set(values)) < len(values):
        raise InputError(f"{parameter.name}: each value once, got {text}")
    return values


def _default(parameter: ExperimentParameter, quick: bool) -> Value:
    return parameter.quick if quick and parameter.quick is not None else parameter.default


def _replications(experiment: Experiment, quick: bool) -> int:
    return experiment.quick_replications if quick else experiment.replications


def _sweep(sweep: Sweep, quick: bool, chosen: Mapping[str, Sequence[Value]]) -> Sweep | None:
    axes = tuple(_axis(axis, quick, chosen) for axis in sweep.axes)
    fixed = sweep.quick_fixed if quick and sweep.quick_fixed is not None else sweep.fixed
    contradicted = any(name in chosen and value not in chosen[name] for name, value in fixed.items())
    if contradicted or not all(axis.points for axis in axes):
        return None
    # A parameter with several chosen values that this sweep does not vary takes the first of them.
    first = {name: values[0] for name, values in chosen.items() if len(values) > 1 and name not in sweep.names()}
    return Sweep(sweep.name, sweep.about, axes, {**first, **fixed})


def _axis(axis: Axis, quick: bool, chosen: Mapping[str, Sequence[Value]]) -> Axis:
    points = axis.quick if quick and axis.quick else axis.points
    if len(axis.names) == 1 and axis.names[0] in chosen:
        points = tuple((value,) for value in chosen[axis.names[0]])
    elif constrained := [name for name in axis.names if name in chosen]:
        # Parameters that vary together keep the points that fit.
        points = tuple(
            point for point in points if all(point[axis.names.index(name)] in chosen[name] for name in constrained)
        )
    return Axis(axis.names, points)
