"""The results of a run: rows to ask, and the files they are kept in."""

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
Place = tuple[str, Mapping[str, Value]]


class MissingCellsError(LookupError):
    """The run has no such cells, because its settings left them out or nothing happened in them."""


@dataclass(frozen=True, slots=True)
class ResultsRow:
    """A finished cell."""

    cell: Cell
    metrics: Mapping[str, float]


class RunResults:
    """All finished cells of a run, in the plan's order; `code` is the digest of what made them, where it is known."""

    def __init__(self, rows: Sequence[ResultsRow], code: str = "") -> None:
        self.rows = tuple(rows)
        self.code = code
        self._values = [dict(row.cell.values) for row in self.rows]
        self._selected: dict[tuple[str, frozenset[tuple[str, Value]]], list[ResultsRow]] = {}

    def select(self, sweep: str, where: Mapping[str, Value]) -> list[ResultsRow]:
        """The rows of a sweep whose parameters have these values; never none."""
        asked = sweep, frozenset(where.items())
        if asked not in self._selected:  # judges ask for the same points again and again
            self._selected[asked] = [
                row
                for row, values in zip(self.rows, self._values, strict=True)
                if row.cell.sweep == sweep and all(values[name] == value for name, value in where.items())
            ]
        found = self._selected[asked]
        if not found:
            raise MissingCellsError(f"{sweep}: {', '.join(f'{name} = {value}' for name, value in where.items())}")
        return found

    def mean(self, metric: str, sweep: str, **where: Value) -> Estimate:
        """The mean over the replications at one point of a sweep. A metric that is not a number there is missing."""
        found = [row.metrics[metric] for row in self.select(sweep, where)]
        if any(map(math.isnan, found)):
            raise MissingCellsError(f"{sweep}: {metric} of {', '.join(map(str, where.values()))}")
        return estimate(found)

    def difference(self, metric: str, sweep: str, one: Mapping[str, Value], other: Mapping[str, Value]) -> Estimate:
        """How much more the metric is at one point than at the other, seed by seed: they saw the same trace."""
        return self.between(metric, (sweep, one), (sweep, other))

    def between(self, metric: str, one: Place, other: Place) -> Estimate:
        """The same between points of different sweeps."""
        mine, theirs = ({row.cell.seed: row.metrics[metric] for row in self.select(*place)} for place in (one, other))
        return estimate([value - theirs[seed] for seed, value in mine.items() if seed in theirs])

    def ratio(self, metric: str, one: Place, other: Place) -> Estimate:
        """How many times as much the metric is, seed by seed."""
        mine, theirs = ({row.cell.seed: row.metrics[metric] for row in self.select(*place)} for place in (one, other))
        what = f"{other[0]}: {metric} of {', '.join(map(str, other[1].values()))}"
        return estimate([quotient(value, theirs[seed], what) for seed, value in mine.items() if seed in theirs])

    def points(self, sweep: str, name: str) -> list[Value]:
        """The values that a parameter took in a sweep, in order."""
        return list(dict.fromkeys(dict(row.cell.values)[name] for row in self.select(sweep, {})))


def quotient(value: float, by: float, what: str) -> float:
    """`MissingCellsError` where there is nothing to divide by."""
    if not by:
        raise MissingCellsError(f"{what} other than 0")
    return value / by


def write(results: RunResults, experiment: Experiment, folder: Path) -> None:
    """`results.csv` and `results.parquet`: a row per cell, parameters first."""
    columns = _columns(results, experiment)
    names = list(columns)
    with AtomicFile(folder / "results.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(["" if _nothing(one) else one for one in row] for row in zip(*columns.values(), strict=True))

    import pyarrow as pa
    from pyarrow import parquet

    with AtomicFile(folder / "results.parquet") as path:
        parquet.write_table(pa.table(columns), path, compression="zstd")


def read(folder: Path, experiment: Experiment) -> RunResults:
    """What `write` wrote. `NotFoundError` where nothing was."""
    from pyarrow import ArrowException, parquet

    path = folder / "results.parquet"
    if not path.exists():
        hint = f"tocsin lab run {experiment.name} makes them"
        raise NotFoundError(f"{folder}: no finished results of {experiment.name}", hint=hint)
    names = [parameter.name for parameter in experiment.parameters]
    hint = f"tocsin lab run {experiment.name} makes them anew"
    try:
        return RunResults([_row(one, names, experiment) for one in parquet.read_table(path).to_pylist()])
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint=hint) from None
    except KeyError as error:
        raise InputError(f"{path}: made by another version of {experiment.name}, without {error}", hint=hint) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    with AtomicFile(path) as place:
        place.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


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
