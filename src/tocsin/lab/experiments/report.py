"""Writes the report of a run: verdicts, plots, tables, and the command that reproduces it.

A report is made from the stored results alone, so that a claim can be judged again without running anything. It names
the command, the seeds and the code, so that a reader can repeat the run.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.comparisons import verdicts
from tocsin.lab.experiments.declaration import Experiment, Judgement, Sweep, Value
from tocsin.lab.experiments.plan import Plan
from tocsin.lab.experiments.plots import draw
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.wire.version import version


def write_report(results: RunResults, plan: Plan, report: Path, plots: Path) -> dict[str, Judgement]:
    """Writes the report as Markdown, and its plots into a folder beside it. Returns the verdicts on the claims."""
    judgements = verdicts(plan.experiment, results)
    drawn = {plot.name for plot in plan.experiment.plots if draw(plot, plan.experiment, results, plots)}
    plot_folder = plots.relative_to(report.parent).as_posix()
    text = "\n".join(
        [
            *_head(plan, results.code),
            *_verdicts(plan.experiment, judgements),
            *_further(plan.experiment, results),
            *_pictures(plan.experiment, plot_folder, drawn),
            *_tables(plan, results),
            *_settings(plan),
        ]
    )
    report.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(report) as path:
        path.write_text(text, encoding="utf-8")
    return judgements


def command(plan: Plan) -> str:
    """Returns the command that repeats this run."""
    words = ["tocsin lab run", plan.experiment.name, *(["--quick"] if plan.quick else []), f"--seed {plan.seed}"]
    words += [
        f"--replications {plan.replications}",
        *(f"--set {shlex.quote(f'{name}={value}')}" for name, value in plan.settings),
    ]
    return " ".join(words)


def _head(plan: Plan, code: str) -> list[str]:
    experiment = plan.experiment
    unit = "replication" if plan.replications == 1 else "replications"
    origin = f"Tocsin {version()}{f', code {code[:8]}' if code else ''}"
    provenance = f"{origin}; {plan.replications} {unit} per point, seeds from {plan.seed} on"
    return [
        f"# {experiment.title}",
        "",
        paragraph(experiment.about),
        "",
        paragraph(f"Source: {experiment.source}. {provenance}{', a quick run' if plan.quick else ''}."),
        "Errors are 95 % confidence intervals (Student t). This file is generated; to reproduce it:",
        "",
        f"    {command(plan)}",
        "",
        *([paragraph(experiment.notes), ""] if experiment.notes else []),
    ]


def _verdicts(experiment: Experiment, judgements: Mapping[str, Judgement]) -> list[str]:
    if not experiment.claims:
        return []
    rows = [
        (claim.says, claim.where, f"**{(judged := judgements[claim.name]).verdict}**", judged.figures, judged.because)
        for claim in experiment.claims
    ]
    return ["## Claims", "", *markdown_table(("claim", "where", "verdict", "figures", "reason or condition"), rows), ""]


def _further(experiment: Experiment, results: RunResults) -> list[str]:
    lines: list[str] = []
    for table in experiment.tables:
        try:
            head, rows = table.made(results)
        except (MissingCellsError, ArithmeticError):
            continue
        if rows:
            lines += [f"## {table.title}", "", paragraph(table.about), "", *markdown_table(head, rows), ""]
    return lines


def _pictures(experiment: Experiment, beside: str, drawn: set[str]) -> list[str]:
    drawn_plots = [plot for plot in experiment.plots if plot.name in drawn]
    lines = [f"![{plot.title}]({beside}/{plot.name}.svg)\n" for plot in drawn_plots]
    return ["## Plots", "", *lines] if lines else []


def _tables(plan: Plan, results: RunResults) -> list[str]:
    lines = ["## Results", ""]
    for sweep in plan.sweeps:
        lines += [f"### {sweep.name}", "", paragraph(sweep.about), *_list_fixed_values(sweep), ""]
        lines += [*_sweep_table(sweep, plan.experiment, results), ""]
    return lines


def _list_fixed_values(sweep: Sweep) -> list[str]:
    settings = ", ".join(f"`{name}` = {value}" for name, value in sweep.fixed.items())
    return ["", paragraph(f"All points with {settings}.")] if settings else []


def _sweep_table(sweep: Sweep, experiment: Experiment, results: RunResults) -> list[str]:
    names = sweep.names()
    try:
        rows = results.select(sweep.name, {})
    except MissingCellsError:
        return ["No cell was run."]
    points = dict.fromkeys(tuple(dict(row.cell.values)[name] for name in names) for row in rows)
    table_rows = []
    for point in points:
        where = dict(zip(names, point, strict=True))
        means = [_mean(results, metric.name, sweep.name, where) for metric in experiment.metrics]
        table_rows.append([*map(str, point), *means])
    return markdown_table((*names, *(metric.title for metric in experiment.metrics)), table_rows, len(names))


def _mean(results: RunResults, metric: str, sweep: str, where: Mapping[str, Value]) -> str:
    try:
        return str(results.mean(metric, sweep, **where))
    except MissingCellsError:
        return "–"


def _settings(plan: Plan) -> list[str]:
    about = {parameter.name: parameter.about for parameter in plan.experiment.parameters}
    several = {name: ", ".join(map(str.strip, text.split(","))) for name, text in plan.settings if "," in text}
    rows = [(f"`{name}`", several.get(name, str(value)), about[name]) for name, value in plan.values]
    metrics = [(f"`{metric.name}`", metric.unit, metric.about) for metric in plan.experiment.metrics]
    return [
        "## Parameters",
        "",
        "The table of a sweep lists the parameters that it varies; other values of a sweep stand above its table.",
        "",
        *markdown_table(("parameter", "value", "what it is"), rows),
        "",
        "## Metrics",
        "",
        *markdown_table(("metric", "unit", "what it is"), metrics),
        "",
    ]


_WIDTH: Final = 120
_SHORT: Final = 30  # shorter cells of a list share a line


def paragraph(text: str) -> str:
    return _wrap_text(text, "", "")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], keys: int = 1) -> list[str]:
    """Returns the lines of a table. If it is split, each part repeats the first columns, which are its `keys`."""
    parts: list[list[int]] = [[]]
    for column in range(keys, len(head)):
        if parts[-1] and not _fits(_table(head, rows, [*range(keys), *parts[-1], column])):
            parts.append([])
        parts[-1].append(column)
    tables = [_table(head, rows, [*range(keys), *part]) for part in parts]
    if not all(map(_fits, tables)):
        return _list(head, rows)
    return [line for table in tables for line in ("", *table)][1:]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(_cell(line[column]) for column in columns)} |" for line in lines]


def _fits(lines: Sequence[str]) -> bool:
    return max(map(len, lines)) <= _WIDTH


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", r"\|")


def _list(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lists the rows: the first cell as an item, the others below it under their heads, without empty ones."""
    lines = []
    for first, *others in rows:
        cells = [(name, text) for name, text in zip(head[1:], others, strict=True) if text]
        short = " · ".join(f"{name}: {text}" for name, text in cells if len(text) < _SHORT)
        long = [f"{name}: {text}" for name, text in cells if len(text) >= _SHORT]
        lines.append(_wrap_text(first, "- ", "  "))
        lines += [_wrap_text(text, "  - ", "    ") for text in (short, *long) if text]
    return lines


def _wrap_text(text: str, first: str, further: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
