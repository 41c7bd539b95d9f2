"""Runs a whole experiment: cells, files and report. Also reads a finished run from its folder.

NAME/ or NAME-quick/
  cells.jsonl        finished cells, saved during the run and reused by the next
  run.json           seed, replications, settings and code of the results
  results.csv  results.parquet
  report.md  plots/
  traces/CODE/       workloads that cells share, by the code that made them; recomputable from the seed
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.lab.engine.engine import RunTrace
from tocsin.lab.experiments import results as files
from tocsin.lab.experiments.cells import OnFinished, code_digest, run
from tocsin.lab.experiments.declaration import Experiment, Judgement, Run
from tocsin.lab.experiments.journal import look
from tocsin.lab.experiments.plan import Cell, Plan, plan
from tocsin.lab.experiments.report import write_report
from tocsin.lab.experiments.results import RunResults
from tocsin.wire.errors import InputError, NotFoundError

_RUN: Final = "run.json"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The outcome of a run: its folder, its cells, how many of them were there before, and the verdicts."""

    folder: Path
    cells: int
    finished_before: int
    verdicts: Mapping[str, Judgement]


def folder_of(out: Path, name: str, *, quick: bool) -> Path:
    return out / (f"{name}-quick" if quick else name)


def run_and_report(
    plan: Plan,
    reference: str,
    out: Path,
    *,
    processes: int = 1,
    fresh: bool = False,
    on_finished: OnFinished = lambda _cell, _finished, _total: None,
) -> FinishedRun:
    """Runs the missing cells, then writes every file anew. The same plan writes the same bytes, interrupted or not."""
    ready()
    folder = folder_of(out, plan.experiment.name, quick=plan.quick)
    results, known_before = run(plan, reference, folder, processes=processes, fresh=fresh, on_finished=on_finished)
    files.write(results, plan.experiment, folder)
    files.write_json(folder / _RUN, {**plan.to_json(), "code": results.code})
    verdicts = write_report(results, plan, folder / "report.md", folder / "plots")
    return FinishedRun(folder, len(results.rows), known_before, verdicts)


def ready() -> None:
    """Imports what the files need, so that a missing package fails now and not after a night's run."""
    for module in ("matplotlib.figure", "pyarrow.parquet"):
        importlib.import_module(module)


def load_finished_run(experiment: Experiment, folder: Path) -> tuple[Plan, RunResults]:
    """Returns the plan and the results of a finished run. Raises `NotFoundError` if there is none."""
    results = files.read(folder, experiment)
    try:
        saved: Mapping[str, Any] = json.loads((folder / _RUN).read_text("utf-8"))
        settings = {str(name): str(value) for name, value in saved["set"].items()}
        loaded_plan = plan(
            experiment,
            quick=bool(saved["quick"]),
            seed=int(saved["seed"]),
            replications=int(saved["replications"]),
            settings=settings,
        )
    except FileNotFoundError:
        hint = f"tocsin lab run {experiment.name} finishes it"
        raise NotFoundError(f"{folder}: the run of {experiment.name} there did not finish", hint=hint) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / _RUN}: {error}") from None
    return loaded_plan, RunResults(results.rows, str(saved.get("code", "")))


def replay(plan: Plan, *, trace: RunTrace | None = None, shared: Path | None = None) -> dict[str, float]:
    """Runs one cell with the plan's seed and values, and writes the trace."""
    return dict(plan.experiment.model(Run(dict(plan.values), plan.seed, trace=trace, shared=shared)))


def find_finished_run(plan: Plan, folder: Path) -> Mapping[str, float] | None:
    """Returns the saved metrics of exactly this cell and code, if any; another process may be working in the folder."""
    cell = Cell("", plan.values, 0, plan.seed)
    return look(folder).get(cell.key(plan.experiment.name, code_digest(plan.experiment)))
