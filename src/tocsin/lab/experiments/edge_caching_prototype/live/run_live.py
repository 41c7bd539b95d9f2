"""Runs a live experiment from start to end: states the expected figures, runs the missing cells, and reports.

edge-caching-prototype-live/ (or …-live-quick/)
  scenario.jsonl     what the driver plays, to the live system and to the simulated one
  stated.json        what the simulation expects of each cell, with its error; written before the live run
  cells.jsonl        finished cells, saved when their hours end
  traces/            the events of each broker, as `tocsin lab replay-trace` reads them
  results.csv  report.md
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.edge_caching_prototype.live.hour_run import LiveHour, Say, run_hour
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell, LiveOptions, parse_options
from tocsin.lab.experiments.edge_caching_prototype.live.report import LiveOutcome, MeasuredFigures, write
from tocsin.lab.experiments.edge_caching_prototype.live.stated_figures import StatedFigures, expect
from tocsin.lab.experiments.journal import Journal
from tocsin.lab.experiments.results import write_json
from tocsin.lab.scenarios.city import city_scenario
from tocsin.lab.scenarios.scenario import Scenario, save
from tocsin.wire.errors import InputError, NotFoundError

_NAME: Final = "edge-caching-prototype-live"
_RUN: Final = "run.json"
_STATED: Final = "stated.json"

_HourRunner = Callable[..., Coroutine[Any, Any, dict[LiveCell, LiveHour]]]


def run(
    settings: Mapping[str, str],
    out: Path,
    *,
    quick: bool,
    seed: int,
    fresh: bool,
    say: Say,
    run_hour: _HourRunner = run_hour,
) -> LiveOutcome:
    """Runs the cells that the folder does not have yet, then writes the report. Finished hours are saved at once."""
    live_options = parse_options(settings, quick=quick, seed=seed)
    folder = _folder(out, quick=quick).resolve()
    cells = live_options.cells()
    scenario = city_scenario(live_options.city, live_options.seed)
    with Journal(folder, fresh=fresh) as journal:
        with AtomicFile(folder / "scenario.jsonl") as path:
            save(scenario, path)
        stated = _state(scenario, live_options, cells, folder, say)
        missing = [cell for cell in cells if journal.find(live_options.key(cell)) is None]
        if len(missing) < len(cells):
            say(f"{len(cells) - len(missing)} of {len(cells)} were finished before")
        hours = [
            missing[start : start + live_options.at_once] for start in range(0, len(missing), live_options.at_once)
        ]
        for number, together in enumerate(hours, 1):
            say(f"hour {number} of {len(hours)}: {', '.join(cell.name for cell in together)}")
            with _stop_cleanly(say):
                (folder / "traces").mkdir(exist_ok=True)
                results = asyncio.run(
                    run_hour(
                        scenario,
                        live_options.end_s,
                        together,
                        live_options.speed,
                        folder=folder / "servers",
                        traces=folder / "traces",
                        say=say,
                    )
                )
            for cell, hour in results.items():
                journal.keep(live_options.key(cell), numbers(hour, len(together)))
        write_json(folder / _RUN, {"settings": dict(settings), "quick": quick, "seed": seed, "code": live_options.code})
        return _report(live_options, stated, journal, folder / "report.md", quick=quick, table=folder / "results.csv")


def report(out: Path, *, quick: bool, to: Path | None) -> LiveOutcome:
    """Writes the report of a finished run again. Raises `NotFoundError` if there is none."""
    folder = _folder(out, quick=quick)
    if not (folder / _RUN).exists():
        raise NotFoundError(f"{folder}: no finished live run", hint="tocsin lab run edge-caching-prototype --live")
    try:
        saved = json.loads((folder / _RUN).read_text("utf-8"))
        live_options = replace(parse_options(saved["settings"], quick=quick, seed=saved["seed"]), code=saved["code"])
        stated = _read_stated(live_options, live_options.cells(), folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "tocsin lab run edge-caching-prototype --live writes them anew"
        raise InputError(f"{folder}: {_RUN} or {_STATED} is broken: {error}", hint=hint) from None
    path = folder / "report.md" if to is None else to / f"{_NAME}.md"
    with Journal(folder) as journal:
        return _report(live_options, stated, journal, path, quick=quick, table=None)


def _folder(out: Path, *, quick: bool) -> Path:
    return out / (f"{_NAME}-quick" if quick else _NAME)


def _state(
    scenario: Scenario, options: LiveOptions, cells: Sequence[LiveCell], folder: Path, say: Say
) -> dict[LiveCell, dict[str, StatedFigures]]:
    """Returns the simulation's expectations: saved before the first hour begins, and reused by a resumed run."""
    stated = _read_stated(options, cells, folder)
    new = [cell for cell in cells if cell not in stated]
    if new:
        say(f"simulating the hour for {', '.join(cell.name for cell in new)}, to state the expected figures")
        stated |= expect(scenario, options.end_s, new, late_s=options.late_s, seed=options.seed)
        cells_json = [
            {
                "key": options.key(cell),
                "cell": asdict(cell),
                "stated": {name: asdict(stated_figure) for name, stated_figure in figures.items()},
            }
            for cell, figures in stated.items()
        ]
        write_json(folder / _STATED, {"cells": cells_json})
    for cell in cells:
        intervals = ", ".join(
            f"{name} {stated_figure.low:.4g} to {stated_figure.high:.4g}"
            for name, stated_figure in stated[cell].items()
        )
        say(f"stated of {cell.name}: {intervals}")
    return stated


def _read_stated(
    options: LiveOptions, cells: Sequence[LiveCell], folder: Path
) -> dict[LiveCell, dict[str, StatedFigures]]:
    path = folder / _STATED
    if not path.exists():
        return {}
    saved_cells: list[Mapping[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    by_key = {
        saved["key"]: {name: StatedFigures(**bounds) for name, bounds in saved["stated"].items()}
        for saved in saved_cells
    }
    return {cell: by_key[key] for cell in cells if (key := options.key(cell)) in by_key}


def _report(
    options: LiveOptions,
    stated: Mapping[LiveCell, Mapping[str, StatedFigures]],
    journal: Journal,
    path: Path,
    *,
    quick: bool,
    table: Path | None,
) -> LiveOutcome:
    # Journals of version 0.1.0 have the key "relived".
    rows = [
        MeasuredFigures(cell, {"replayed": figures.get("relived", 0.0), **figures}, stated[cell])
        for cell in options.cells()
        if (figures := journal.find(options.key(cell))) is not None
    ]
    return write(options, rows, path, quick=quick, table=table)


def numbers(hour: LiveHour, together: int) -> dict[str, float]:
    """Returns all figures of an hour at one broker; `together` brokers ran in that hour."""
    client_figures = hour.seen
    figures = {name: value for name, value in hour.figures.items() if name not in ("most_bytes", "hit_ratio")}
    requested = figures["hits"] + figures["misses"]
    return {
        **figures,
        "found": figures["arrived"],
        "hit_ratio": figures["hits"] / requested if requested else 0.0,
        "miss_kb": figures["miss_bytes"] / 1e3,
        "fetch_kb": figures["fetched_bytes"] / 1e3,
        "retrievals": float(client_figures.retrievals),
        "results": float(client_figures.results),
        "latency_s": client_figures.waited_s / max(1, client_figures.results),
        "interests": float(len(client_figures.interests)),
        "late_s": hour.late_s,
        "lag_50_s": hour.lag_s[0],
        "lag_95_s": hour.lag_s[1],
        "lag_100_s": hour.lag_s[2],
        "cluster_cpu_s": hour.cpu_s[0],
        "broker_cpu_s": hour.cpu_s[1],
        "clients_cpu_s": hour.cpu_s[2],
        "replayed": float(hour.replayed),
        "together": float(together),
    }


@contextmanager
def _stop_cleanly(say: Say) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; no server is left running, and finished hours are kept")
        raise
