"""The harness of all benchmarks: interleaved measurements, a baseline, a table, bars, and one JSON line at the end.

Times are CPU times, which swing far less than wall times on a shared machine. Candidates and the baseline are measured
in turn, round after round; a figure is the median over the rounds, and a ratio is the median of the ratios within a
round, so that a slow minute slows both sides. The baseline is measured twice per round: its ratio against itself is the
noise. Work that leaves something behind (a table that grows) begins anew in each call, so that both sides are equally
old.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil
from rich.console import Console
from rich.table import Table


def read_options(description: str, **flags: str) -> argparse.Namespace:
    """Reads the command line of a benchmark: `flags` are its switches with their help."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, explanation in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=explanation)
    return parser.parse_args()


def process_cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    return time.process_time()


def with_children_cpu_s() -> float:
    """CPU seconds of this process and all processes below it (a JVM, for one)."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


@dataclass(frozen=True, slots=True)
class Compared:
    """One candidate beside the baseline; times per operation."""

    name: str
    seconds: float
    baseline_s: float
    ratio: float
    noise: float


Work = Callable[[], object]


def compare(
    baseline: Work,
    candidates: Mapping[str, Work],
    *,
    rounds: int,
    operations: int = 1,
    clock: Callable[[], float] = process_cpu_s,
    warm_up: int = 1,
) -> list[Compared]:
    """Measure the baseline and the candidates in turn. Each call does `operations` operations."""

    def measured(work: Work) -> float:
        gc.collect()
        begun = clock()
        work()
        return clock() - begun

    for _ in range(warm_up):
        for work in (baseline, *candidates.values()):
            work()
    first: list[float] = []
    again: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        first.append(measured(baseline))
        # Every other round in the opposite order: who comes after whom must not matter.
        for name in list(candidates)[:: -1 if turn % 2 else 1]:
            seconds[name].append(measured(candidates[name]))
        again.append(measured(baseline))
    return [beside(taken, first, again, name=name, operations=operations) for name, taken in seconds.items()]


def beside(
    taken: Sequence[float], first: Sequence[float], again: Sequence[float], *, name: str, operations: int = 1
) -> Compared:
    """Figures from seconds taken in the same rounds: by the candidate, and by the baseline before and after it."""
    between = [(before + after) / 2 for before, after in zip(first, again, strict=True)]
    return Compared(
        name=name,
        seconds=statistics.median(taken) / operations,
        baseline_s=statistics.median(between) / operations,
        ratio=statistics.median(mine / theirs for mine, theirs in zip(taken, between, strict=True)),
        noise=statistics.median(later / earlier for earlier, later in zip(first, again, strict=True)),
    )


@dataclass(slots=True)
class Bench:
    """Collects the rows of the table and the bars."""

    name: str
    _rows: list[Sequence[str]] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _bars: dict[str, dict[str, float | bool]] = field(default_factory=dict)

    def compared(self, what: str, found: Compared, *, bar: float | None, baseline: str) -> None:
        """A ratio that must not exceed the bar; one without a bar is only shown."""
        row = (what, _ms(found.seconds), baseline, _ms(found.baseline_s), f"{found.ratio:.2f}", f"{found.noise:.2f}")
        marks = ("", "") if bar is None else (f"≤ {bar:g}", self._mark(what, found.ratio, bar))
        self._rows.append((*row, *marks))

    def bar(self, what: str, value: float, *, bar: float, unit: str) -> None:
        """A value that must not exceed the bar."""
        self._rows.append(
            (
                what,
                f"{value:.3g} {unit}".rstrip(),
                "",
                "",
                "",
                "",
                f"≤ {bar:g} {unit}".rstrip(),
                self._mark(what, value, bar),
            )
        )

    def reached(self, what: str, value: float, *, bar: float | None, unit: str) -> None:
        """A value that must reach the bar; one without a bar is only shown."""
        marks = ("", "") if bar is None else (f"≥ {bar:,g} {unit}", self._mark(what, value, bar, least=True))
        shown = f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
        self._rows.append((what, f"{shown} {unit}", "", "", "", "", *marks))

    def note(self, words: str) -> None:
        """Something that a reader of the figures must know."""
        self._notes.append(words)

    def finish(self) -> None:
        """Print everything; exit 1 where a bar does not hold."""
        table = Table(title=f"bench {self.name} (CPU time per operation, medians)")
        for column in ("what", "tocsin", "baseline", "takes", "ratio", "noise", "bar", "holds"):
            table.add_column(column, justify="left" if column in ("what", "baseline") else "right")
        for row in self._rows:
            table.add_row(*row)
        # A pipe has no width of its own: wide enough that no row breaks.
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(table)
        for words in self._notes:
            console.print(words)
        print(json.dumps({"bench": self.name, "bars": self._bars}), flush=True)
        sys.exit(0 if all(bar["holds"] for bar in self._bars.values()) else 1)

    def _mark(self, what: str, value: float, bar: float, *, least: bool = False) -> str:
        holds = value >= bar if least else value <= bar
        self._bars[what] = {"value": round(value, 4), "bar": bar, "holds": holds}
        return "PASS" if holds else "FAIL"


def _ms(seconds: float) -> str:
    if seconds < 1e-4:
        return f"{seconds * 1e6:.2f} µs"
    return f"{seconds * 1000:.2f} ms" if seconds < 10 else f"{seconds:.1f} s"
