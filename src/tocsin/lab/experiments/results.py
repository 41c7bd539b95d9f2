"""The results of a run: queries over the finished cells, and the files that store them.

Differences and ratios are paired by seed: both points had the same workload, so that its chance does not count as a
difference between policies.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.declaration import Experiment, Value
from tocsin.lab.experiments.plan import Cell
from tocsin.lab.experiments.statistics import Estimate, estimate
from tocsin.wire.errors import InputError, NotFoundError

# A sweep and a point of it.
SweepPoint = tuple[str, Mapping[str, Value]]


class MissingCellsError(LookupError):
    """The run has no such cells: the settings left them out, or nothing happened in them."""


@dataclass(frozen=True, slots=True)
class ResultsRow:
    """A finished cell."""

    cell: Cell
    metrics: Mapping[str, float]


class RunResults:
    """All finished cells of a run, in the plan's order; `code` is the digest of their code, if known."""

    def __init__(self, rows: Sequence[ResultsRow], code: str = "") -> None:
        self.rows = tuple(rows)
        self.code = code
        self._values = [dict(row.cell.values) for row in self.rows]
        self._selected: dict[tuple[str, frozenset[tuple[str, Value]]], list[ResultsRow]] = {}

    def select(self, sweep: str, where: Mapping[str, Value]) -> list[ResultsRow]:
        """Returns the rows of a sweep whose parameters have these values; at least one, or MissingCellsError."""
        key = sweep, frozenset(where.items())
        if key not in self._selected:  # judges request the same points again and again
            self._selected[key] = [
                row
                for row, values in zip(self.rows, self._values, strict=True)
                if row.cell.sweep == sweep and all(values[name] == value for name, value in where.items())
            ]
        rows = self._selected[key]
        if not rows:
            raise MissingCellsError(f"{sweep}: {', '.join(f'{name} = {value}' for name, value in where.items())}")
        return rows

    def mean(self, metric: str, sweep: str, **where: Value) -> Estimate:
        """Returns the mean over the replications at one point of a sweep. A NaN counts as missing."""
        values = [row.metrics[metric] for row in self.select(sweep, where)]
        if any(map(math.isnan, values)):
            raise MissingCellsError(f"{sweep}: {metric} of {', '.join(map(str, where.values()))}")
        return estimate(values)

    def difference(self, metric: str, sweep: str, one: Mapping[str, Value], other: Mapping[str, Value]) -> Estimate:
        """How much larger the metric is at one point than at the other, paired by seed (the same workload)."""
        return self.between(metric, (sweep, one), (sweep, other))

    def between(self, metric: str, one: SweepPoint, other: SweepPoint) -> Estimate:
        """Returns the same difference between points of different sweeps."""
        return estimate([value - other_value for value, other_value in self._pairs(metric, one, other)])

    def ratio(self, metric: str, one: SweepPoint, other: SweepPoint) -> Estimate:
        """Returns the ratio of the metric at two points, paired by seed."""
        what = f"{other[0]}: {metric} of {', '.join(map(str, other[1].values()))}"
        return estimate([quotient(value, other_value, what) for value, other_value in self._pairs(metric, one, other)])

    def _pairs(self, metric: str, one: SweepPoint, other: SweepPoint) -> list[tuple[float, float]]:
        """Returns the values at two points of each seed that both have."""
        values, other_values = (
            {row.cell.seed: row.metrics[metric] for row in self.select(*place)} for place in (one, other)
        )
        return [(value, other_values[seed]) for seed, value in values.items() if seed in other_values]

    def points(self, sweep: str, name: str) -> list[Value]:
        """Returns the values that a parameter took in a sweep, in order."""
        return list(dict.fromkeys(dict(row.cell.values)[name] for row in self.select(sweep, {})))


def quotient(value: float, by: float, what: str) -> float:
    """Divides; raises `MissingCellsError` for a division by zero."""
    if not by:
        raise MissingCellsError(f"{what} other than 0")
    return value / by


def write(results: RunResults, experiment: Experiment, folder: Path) -> None:
    """Writes `results.csv` and `results.parquet`: a row per cell, parameters first."""
    columns = _columns(results, experiment)
    names = list(columns)
    with AtomicFile(folder / "results.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(
            ["" if _nothing(value) else value for value in row] for row in zip(*columns.values(), strict=True)
        )

    import pyarrow as pa
    from pyarrow import parquet

    with AtomicFile(folder / "results.parquet") as path:
        parquet.write_table(pa.table(columns), path, compression="zstd")


def read(folder: Path, experiment: Experiment) -> RunResults:
    """Reads the results that `write` wrote. Raises `NotFoundError` if there are none."""
    from pyarrow import ArrowException, parquet

    path = folder / "results.parquet"
    if not path.exists():
        hint = f"tocsin lab run {experiment.name} makes them"
        raise NotFoundError(f"{folder}: no finished results of {experiment.name}", hint=hint)
    names = [parameter.name for parameter in experiment.parameters]
    hint = f"tocsin lab run {experiment.name} makes them anew"
    try:
        return RunResults([_row(record, names, experiment) for record in parquet.read_table(path).to_pylist()])
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint=hint) from None
    except KeyError as error:
        raise InputError(f"{path}: made by another version of {experiment.name}, without {error}", hint=hint) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    with AtomicFile(path) as temporary:
        temporary.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _nothing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _columns(results: RunResults, experiment: Experiment) -> dict[str, list[Any]]:
    rows = results.rows
    columns: dict[str, list[Any]] = {"sweep": [row.cell.sweep for row in rows]}
    for parameter in experiment.parameters:
        columns[parameter.name] = [dict(row.cell.values)[parameter.name] for row in rows]
    columns["replication"] = [row.cell.replication for row in rows]
    columns["seed"] = [row.cell.seed for row in rows]
    for metric in experiment.metrics:
        columns[metric.name] = [row.metrics[metric.name] for row in rows]
    return columns


def _row(one: Mapping[str, Any], names: Sequence[str], experiment: Experiment) -> ResultsRow:
    cell = Cell(one["sweep"], tuple((name, one[name]) for name in names), one["replication"], one["seed"])
    return ResultsRow(cell, {metric.name: one[metric.name] for metric in experiment.metrics})
