"""Draws a declared plot as PNG and SVG; the same results give the same bytes."""

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

FORMATS: Final = ("png", "svg")
_STYLE: Final[Any] = {
    "svg.hashsalt": "tocsin",
    "font.family": "DejaVu Sans",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# As many markers as have no divisor in common with the ten colours: a hundred and ten lines look different.
_MARKERS: Final = "osD^vP*X<>h"
_COLOURS: Final = 10
_DASHES: Final = ("-", "--", ":", "-.")
_HATCHES: Final = ("", "//", "..", "xx")
# So many words stand side by side below an axis.
_UPRIGHT: Final = 5
# When a file was made, and by which library, is no result.
_METADATA: Final[Mapping[str, Mapping[str, Any]]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def draw(plot: Plot, experiment: Experiment, results: RunResults, folder: Path) -> bool:
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
        figure = Figure(figsize=(8 if plot.by or plot.also else 7, 4.2), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        _fill(axes, plot, lines)
        metric = next(each for each in experiment.metrics if each.name == plot.y)
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(f"{metric.name} ({metric.unit})" if metric.unit else metric.name)
        if plot.by is not None or plot.also:
            # Beside the plot, where it hides nothing.
            figure.legend(title=plot.by, fontsize="small", loc="outside right upper")
        for form in FORMATS:
            with AtomicFile(folder / f"{plot.name}.{form}") as path:
                figure.savefig(path, format=form, metadata=dict(_METADATA[form]))
    return True


Line = dict[Value, Estimate]


def _lines(plot: Plot, results: RunResults) -> dict[Value, Line]:
    groups: list[Value] = results.points(plot.sweep, plot.by) if plot.by is not None else [plot.y]
    lines: dict[Value, Line] = {}
    wanted = [(group, plot.y, {plot.by: group} if plot.by is not None else {}) for group in groups]
    for metric, more in plot.also:
        wanted.append((f"{metric} ({', '.join(map(str, more.values()))})", metric, dict(more)))
    for name, metric, more in wanted:
        line: Line = {}
        for x in results.points(plot.sweep, plot.x):
            try:
                line[x] = results.mean(metric, plot.sweep, **{**plot.where, **more, plot.x: x})
            except MissingCellsError:
                continue
        if line:
            lines[name] = line
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
            axes.bar(at, means, width, yerr=errors, capsize=2, label=str(name), **_bar_look(number))
        else:
            xs = [float(x) for x in line]
            axes.errorbar(xs, means, yerr=errors, markersize=4, capsize=2, label=str(name), **_look(number))
    if words:
        slanted: dict[str, Any] = {"rotation": 40, "ha": "right"} if len(places) > _UPRIGHT else {}
        axes.set_xticks(list(places.values()), [str(x) for x in places], **slanted)
    if plot.log_x and not words:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")


def _look(number: int) -> dict[str, Any]:
    """How a line is drawn: no two of a plot alike."""
    return {
        "color": f"C{number % _COLOURS}",
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number // _COLOURS % len(_DASHES)],
    }


def _bar_look(number: int) -> dict[str, Any]:
    return {"color": f"C{number % _COLOURS}", "hatch": _HATCHES[number // _COLOURS % len(_HATCHES)]}
