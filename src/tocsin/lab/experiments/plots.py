"""Draws a declared plot as PNG and SVG; the same results give the same bytes.

The same seed must give the same bytes in every file of a run. So a file contains no date and no name of a library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.declaration import Experiment, Plot, Value
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS: Final = ("png", "svg")
_STYLE: Final[Any] = {
    "svg.hashsalt": "tocsin",
    "font.family": "DejaVu Sans",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# Eleven markers have no common divisor with ten colours, so 110 lines look different.
_MARKERS: Final = "osD^vP*X<>h"
_COLOURS: Final = 10
_DASHES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx")
# Up to this many labels fit side by side below an axis without rotation.
_UPRIGHT: Final = 5
# Leave out the date and the library, so that the bytes depend on the results alone.
_METADATA: Final[Mapping[str, Mapping[str, Any]]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def draw(plot: Plot, experiment: Experiment, results: RunResults, folder: Path) -> bool:
    """Writes `<name>.png` and `<name>.svg`. Returns False if the run has no data for the plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    try:
        lines = plot_lines(plot, results)
    except MissingCellsError:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context():
        mpl.rcdefaults()  # ignore the user's own settings
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(8 if plot.by or plot.also else 7, 4.2), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        _fill(axes, plot, lines)
        metric = next(declared for declared in experiment.metrics if declared.name == plot.y)
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(metric.title)
        if plot.by is not None or plot.also:
            # Put the legend beside the plot, where it hides nothing.
            figure.legend(title=plot.by, fontsize="small", loc="outside right upper")
        for form in _FORMATS:
            with AtomicFile(folder / f"{plot.name}.{form}") as path:
                figure.savefig(path, format=form, metadata=dict(_METADATA[form]))
    return True


_PlotLine = dict[Value, Estimate]


def plot_lines(plot: Plot, results: RunResults) -> dict[Value, _PlotLine]:
    groups: list[Value] = results.points(plot.sweep, plot.by) if plot.by is not None else [plot.y]
    lines: dict[Value, _PlotLine] = {}
    line_specs = [(group, plot.y, {plot.by: group} if plot.by is not None else {}) for group in groups]
    for metric, values in plot.also:
        line_specs.append((f"{metric} ({', '.join(map(str, values.values()))})", metric, dict(values)))
    for name, metric, values in line_specs:
        line: _PlotLine = {}
        for x in results.points(plot.sweep, plot.x):
            try:
                line[x] = results.mean(metric, plot.sweep, **{**plot.where, **values, plot.x: x})
            except MissingCellsError:
                continue
        if line:
            lines[name] = line
    if not lines:
        raise MissingCellsError(plot.name)
    return lines


def _fill(axes: Axes, plot: Plot, lines: Mapping[Value, _PlotLine]) -> None:
    is_bar_chart = any(isinstance(x, str) for line in lines.values() for x in line)
    places = {x: index for index, x in enumerate(dict.fromkeys(x for line in lines.values() for x in line))}
    for number, (name, line) in enumerate(lines.items()):
        means = [mean_value.mean for mean_value in line.values()]
        errors = [
            mean_value.half_width if math.isfinite(mean_value.half_width) else 0.0 for mean_value in line.values()
        ]
        if is_bar_chart:
            width = 0.8 / len(lines)
            positions = [places[x] + (number - (len(lines) - 1) / 2) * width for x in line]
            axes.bar(positions, means, width, yerr=errors, capsize=2, label=str(name), **bar_style(number))
        else:
            xs = [float(x) for x in line]
            axes.errorbar(xs, means, yerr=errors, markersize=4, capsize=2, label=str(name), **line_style(number))
    if is_bar_chart:
        rotation: dict[str, Any] = {"rotation": 40, "ha": "right"} if len(places) > _UPRIGHT else {}
        axes.set_xticks(list(places.values()), [str(x).replace("-", " ") for x in places], **rotation)
    if plot.log_x and not is_bar_chart:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")


def line_style(number: int) -> dict[str, Any]:
    """Returns the style of a line; no two lines of a plot are alike."""
    return {
        "color": f"C{number % _COLOURS}",
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number // _COLOURS % len(_DASHES)],
    }


def bar_style(number: int) -> dict[str, Any]:
    return {"color": f"C{number % _COLOURS}", "hatch": _HATCHES[number // _COLOURS % len(_HATCHES)]}
