"""Writes the report of a live run: the stated intervals, the measured figures, and whether they agree.

The intervals were written before the live run, so that the tolerance cannot follow the result. If the machine was too
slow for the speed, the report judges nothing.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell, LiveOptions
from tocsin.lab.experiments.edge_caching_prototype.live.stated_figures import (
    CONFIDENCE,
    FETCH_S,
    RUNS,
    SPREAD,
    SUBSCRIBER_S,
    TOLERANCE,
    StatedFigures,
)
from tocsin.lab.experiments.report import markdown_table, paragraph
from tocsin.lab.scenarios.city import City
from tocsin.wire.version import version

_FIGURE_TITLES: Final = {
    "found": "results that the channels found",
    "hit_ratio": "hit ratio",
    "miss_kb": "bytes that subscribers got after a fetch from the cluster (KB)",
    "fetch_kb": "all bytes from the cluster (KB)",
}


@dataclass(frozen=True, slots=True)
class MeasuredFigures:
    """A cell that ran live, and the intervals stated for it."""

    cell: LiveCell
    numbers: Mapping[str, float]
    stated: Mapping[str, StatedFigures]

    def agrees(self, name: str) -> bool:
        return self.stated[name].holds(self.numbers[name])


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """`in_time`: executions were no later than the stated error allows. `replayed`: every broker's trace, replayed,
    gave the same figures."""

    report: Path
    agreed: int
    compared: int
    in_time: bool
    replayed: bool

    @property
    def verdict(self) -> str:
        if not self.compared:
            return "nothing was run"
        if not self.in_time:
            return "not judged: the machine was too slow for this speed"
        return "agree" if self.agreed == self.compared else "DISAGREE"

    @property
    def good(self) -> bool:
        return self.verdict == "agree" and self.replayed


def write(
    options: LiveOptions, rows: Sequence[MeasuredFigures], path: Path, *, quick: bool, table: Path | None
) -> LiveOutcome:
    """Writes the report, and the figures as CSV if a path is given."""
    agreed = sum(row.agrees(name) for row in rows for name in TOLERANCE)
    in_time = all(row.numbers["lag_95_s"] <= options.late_s for row in rows)
    replayed = all(row.numbers["replayed"] for row in rows)
    outcome = LiveOutcome(path, agreed, len(rows) * len(TOLERANCE), in_time, replayed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as temporary:
        temporary.write_text("\n".join(_lines(options, rows, outcome, quick=quick)) + "\n", "utf-8")
    if table is not None:
        _write_csv(rows, table)
    return outcome


def _lines(options: LiveOptions, rows: Sequence[MeasuredFigures], outcome: LiveOutcome, *, quick: bool) -> list[str]:
    city = options.city
    words = [*(["--quick"] if quick else []), f"--seed {options.seed}"]
    words += [f"--set {shlex.quote(setting)}" for setting in options.given]
    about = (
        "An hour of the city of [the simulated sweep](edge-caching-prototype.md) on the live system: a cluster with "
        f"Spark and the seven channels of Table III, a broker for each policy, and {city.subscribers} subscribers with "
        f"{city.subscriptions:,} subscriptions at every broker. Each subscriber is a client of the SDK, notified "
        f"over a WebSocket, that pulls its results. The scenario has {city.span_s:g} seconds and is played "
        f"{options.speed:g} times as fast; settings in seconds are divided by that speed. The stated intervals come "
        "from simulations of the same scenario file, with the same core."
    )
    stated = (
        f"The intervals were stated before the live run: one more run lies in all of them with {CONFIDENCE:.0%} "
        f"confidence. They come from {RUNS} simulations of the scenario whose timing varies as it does live: when a "
        f"channel's periods begin, how late each execution is (up to {options.late_s:g} s), how long a fetch takes. A "
        f"tolerance of {TOLERANCE['hit_ratio']:g} of the hit ratio and {TOLERANCE['fetch_kb']:.0%} of the others is "
        "added. The upper end for the bytes from the cluster assumes that no fetch is shared: in the simulation, "
        "subscribers that are notified together request at the same moment and share a fetch; live they request "
        "moments apart."
    )
    lines = [
        "# Edge caching: the prototype's hour on the live system",
        "",
        paragraph(about),
        "",
        paragraph(_unlike_the_sweep(options)),
        "",
        f"Tocsin {version()}, code {options.code[:8]}. This file is generated; to reproduce it:",
        "",
        f"    tocsin lab run edge-caching-prototype --live {' '.join(words)}",
        "",
        "## Do the simulation and the live run agree?",
        "",
        f"**{outcome.verdict}**: {outcome.agreed} of {outcome.compared} figures lie in the stated intervals.",
        "",
        paragraph(stated),
        "",
    ]
    head = ("policy", "KB", "figure", "stated", "simulated", "live", "agrees")
    body = [
        (
            row.cell.policy,
            f"{row.cell.size_kb:g}",
            _FIGURE_TITLES[name],
            f"{stated.low:.4g} to {stated.high:.4g}",
            f"{stated.mean:.4g}",
            f"{row.numbers[name]:.4g}",
            "yes" if row.agrees(name) else "**no**",
        )
        for row in rows
        for name, stated in row.stated.items()
    ]
    lines += [
        *markdown_table(head, body, 3),
        "",
        *_replay_lines(rows, outcome),
        "",
        *_time(options, rows),
        "",
        *_figure_7(rows),
    ]
    return lines


def _unlike_the_sweep(options: LiveOptions) -> str:
    defaults = asdict(City())
    changed = [
        f"`{name}` is {value} (there {defaults[name]})"
        for name, value in asdict(options.city).items()
        if value != defaults[name]
    ]
    return (
        "The figures differ from those of that sweep for these reasons. "
        + "".join(f"{change}. " for change in changed)
        + f"This is one scenario (seed {options.seed}), played for {options.end_s - options.city.span_s:g} s beyond "
        "its end; there each point is a mean over several scenarios without that time. Live executions are late, and "
        "the periods of a channel begin at any moment; there executions take no time and periods begin at once. "
        "The stated simulations have the same city and the same links to subscribers, on which messages queue, with a "
        f"round trip of {SUBSCRIBER_S:g} s. The round trip to the cluster, there {FETCH_S:g} s, takes no time, because "
        "all servers are on one machine. Instead the cluster's work for a fetch takes time: a lognormal duration with "
        f"a median of {FETCH_S:g} s and a sigma of {SPREAD:g}, as live brokers measured it. Hit ratios, counts and "
        "bytes are compared with the simulations; latencies are not compared."
    )


def _replay_lines(rows: Sequence[MeasuredFigures], outcome: LiveOutcome) -> list[str]:
    same_figures = "the same hits, misses, evictions and bytes as the live broker"
    different = [row.cell.name for row in rows if not row.numbers["replayed"]]
    return [
        paragraph(
            "Each broker's trace was replayed by the core under virtual time (`tocsin lab replay-trace`): "
            + (
                f"each replay had {same_figures}."
                if outcome.replayed
                else f"not all replays had {same_figures}: {', '.join(different)} differ."
            )
        )
    ]


def _time(options: LiveOptions, rows: Sequence[MeasuredFigures]) -> list[str]:
    hours = dict.fromkeys((row.numbers["lag_50_s"], row.numbers["lag_95_s"], row.numbers["late_s"]) for row in rows)
    lines = ["## Was the run in time?", "", *_cost(options, rows), ""]
    for half_s, most_s, late_s in hours:
        lines.append(
            paragraph(
                f"In seconds of the scenario ({options.speed:g} per real second): half of the online subscribers had a "
                f"result within {half_s:.2g} s after its execution was due, 95 % within {most_s:.2g} s; no step of the "
                f"driver was more than {late_s:.2g} s late. The stated intervals assume at most {options.late_s:g} s."
            )
        )
    return lines


def _cost(options: LiveOptions, rows: Sequence[MeasuredFigures]) -> list[str]:
    """Reports processor time, which shows better than the clock how fast the run could have been."""
    if not rows:
        return []
    together = max(row.numbers["together"] for row in rows)
    cluster_s, broker_s, clients_s = (
        sum(row.numbers[f"{name}_cpu_s"] for row in rows) / len(rows) for name in ("cluster", "broker", "clients")
    )
    all_s = cluster_s + together * (broker_s + clients_s)
    cost = (
        f"The hour took {all_s:.0f} s of processor time with {together:.0f} brokers: the cluster with Spark "
        f"{cluster_s:.0f} s, each broker {broker_s:.0f} s, and the clients of each broker {clients_s:.0f} s. An "
        f"otherwise idle processor can play the scenario at most {options.city.span_s / all_s:.2g} times as fast."
    )
    return [paragraph(cost)]


def _figure_7(rows: Sequence[MeasuredFigures]) -> list[str]:
    without_cache = next((row.numbers for row in rows if row.cell.policy == "nc"), None)
    about = (
        "Latency is the time from a request until a result is received, as the clients measured it: on one machine, "
        "where all servers and clients share the processors. A miss costs a fetch over loopback, so a cache saves less "
        "than with a remote cluster, and these latencies can be compared neither with the paper's nor with simulated "
        "ones."
    )
    lines = ["## Figure 7, live", "", paragraph(about), ""]
    all_s = without_cache["latency_s"] if without_cache else 0.0
    head = "policy, KB, hit ratio, latency (ms), share of nc's latency, fetched (KB), results, interests".split(", ")
    body = []
    for row in rows:
        latency_s, share = row.numbers["latency_s"], f"{row.numbers['latency_s'] / all_s:.0%}" if all_s else ""
        figures = [f"{row.numbers['hit_ratio']:.4g}", f"{1e3 * latency_s:.3g}", share, f"{row.numbers['fetch_kb']:.4g}"]
        counts = [f"{row.numbers[name]:,.0f}" for name in ("results", "interests")]
        body.append((row.cell.policy, f"{row.cell.size_kb:g}", *figures, *counts))
    return [*lines, *markdown_table(head, body, 2)]


def _write_csv(rows: Sequence[MeasuredFigures], path: Path) -> None:
    with AtomicFile(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = sorted(rows[0].numbers) if rows else []
        writer.writerow(
            ("policy", "size_kb", *names, *(f"{figure}_{end}" for figure in TOLERANCE for end in ("low", "high")))
        )
        for row in rows:
            stated = [value for name in TOLERANCE for value in (row.stated[name].low, row.stated[name].high)]
            writer.writerow((row.cell.policy, row.cell.size_kb, *(row.numbers[name] for name in names), *stated))
