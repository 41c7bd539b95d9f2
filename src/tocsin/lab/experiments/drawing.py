"""Draws a declared plot as PNG and SVG; the same results give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.lab.experiments.declaration import Experiment, Plot, Value
from tocsin.lab.experiments.results import MissingCellsError, Results, replacing
from tocsin.lab.experiments.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = ("png", "svg")
_STYLE: Final[Any] = {
    "svg.hashsalt": "tocsin",
    "font.family": "DejaVu Sans",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MARKERS: Final = "osD^vP*X<>"
# When a file was made, and by which library, is no result.
_METADATA: Final[Mapping[str, Mapping[str, Any]]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def draw(plot: Plot, experiment: Experiment, results: Results, folder: Path) -> bool:
    """Write `<name>.png` and `<name>.svg`; False where the run has nothing to show in it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    try:
        lines = _lines(plot, results)
    except MissingCellsError:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the reader's own settings are
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        _fill(axes, plot, lines)
        metric = next(each for each in experiment.metrics if each.name == plot.y)
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(f"{metric.name} ({metric.unit})" if metric.unit else metric.name)
        if plot.by is not None:
            axes.legend(title=plot.by, fontsize="small")
        for form in FORMATS:
            with replacing(folder / f"{plot.name}.{form}") as path:
                figure.savefig(path, format=form, metadata=dict(_METADATA[form]))
    return True


Line = dict[Value, Estimate]


def _lines(plot: Plot, results: Results) -> dict[Value, Line]:
    groups: list[Value] = results.points(plot.sweep, plot.by) if plot.by is not None else [""]
    lines: dict[Value, Line] = {}
    for group in groups:
        where = {**plot.where, **({plot.by: group} if plot.by is not None else {})}
        line: Line = {}
        for x in results.points(plot.sweep, plot.x):
            try:
                line[x] = results.mean(plot.y, plot.sweep, **where, **{plot.x: x})
            except MissingCellsError:
                continue
        if line:
            lines[group] = line
    if not lines:
        raise MissingCellsError(plot.name)
    return lines


def _fill(axes: Axes, plot: Plot, lines: Mapping[Value, Line]) -> None:
    words = any(isinstance(x, str) for line in lines.values() for x in line)
    places = {x: at for at, x in enumerate(dict.fromkeys(x for line in lines.values() for x in line))}
    for number, (name, line) in enumerate(lines.items()):
        means = [one.mean for one in line.values()]
        errors = [one.half_width if math.isfinite(one.half_width) else 0.0 for one in line.values()]
        if words:
            width = 0.8 / len(lines)
            at = [places[x] + (number - (len(lines) - 1) / 2) * width for x in line]
            axes.bar(at, means, width, yerr=errors, capsize=2, label=str(name))
        else:
            xs = [float(x) for x in line]
            marker = _MARKERS[number % len(_MARKERS)]
            axes.errorbar(xs, means, yerr=errors, marker=marker, markersize=4, capsize=2, label=str(name))
    if words:
        axes.set_xticks(list(places.values()), [str(x) for x in places])
    if plot.log_x and not words:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
