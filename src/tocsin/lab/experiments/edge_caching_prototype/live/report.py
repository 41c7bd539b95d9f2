"""Writes the report of a live run: the stated intervals, the measured figures, and whether they agree."""

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
from tocsin.lab.experiments.report import markdown_table
from tocsin.lab.scenarios.city import City
from tocsin.wire.version import version

_TOLD: Final = {
    "found": "results that the channels found",
    "hit_ratio": "hit ratio",
    "miss_kb": "bytes that subscribers got because they were fetched for them (KB)",
    "fetch_kb": "fetched from the cluster in all (KB)",
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
            return "nothing was lived through"
        if not self.in_time:
            return "not judged: the machine was too slow for this speed"
        return "agree" if self.agreed == self.compared else "DISAGREE"

    @property
    def good(self) -> bool:
        return self.verdict == "agree" and self.replayed


def write(
    wanted: LiveOptions, rows: Sequence[MeasuredFigures], path: Path, *, quick: bool, table: Path | None
) -> LiveOutcome:
    """Writes the report, and the figures as CSV if a path is given."""
    agreed = sum(row.agrees(name) for row in rows for name in TOLERANCE)
    in_time = all(row.numbers["lag_95_s"] <= wanted.late_s for row in rows)
    replayed = all(row.numbers["relived"] for row in rows)
    outcome = LiveOutcome(path, agreed, len(rows) * len(TOLERANCE), in_time, replayed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as temporary:
        temporary.write_text("\n".join(_lines(wanted, rows, outcome, quick=quick)) + "\n", "utf-8")
    if table is not None:
        _write_csv(rows, table)
    return outcome


def _lines(wanted: LiveOptions, rows: Sequence[MeasuredFigures], outcome: LiveOutcome, *, quick: bool) -> list[str]:
    city = wanted.city
    words = [*(["--quick"] if quick else []), f"--seed {wanted.seed}"]
    words += [f"--set {shlex.quote(setting)}" for setting in wanted.given]
    about = (
        "An hour of the city that [the simulated sweep](edge-caching-prototype.md) has, on the live system: a cluster "
        f"with Spark and the seven channels of Table III, a broker for each policy, and {city.subscribers} subscribers "
        f"with {city.subscriptions:,} subscriptions at every broker, each a client of the SDK, told by WebSocket, that "
        f"pulls. {city.span_s:g} seconds, {wanted.speed:g} times as fast; what policies measure in seconds shrinks "
        "with them. What was stated below comes from simulations of this very scenario file, with the same core."
    )
    stated = (
        f"Stated before: the intervals that one more run lies in with {CONFIDENCE:.0%} confidence, with all figures at "
        f"once, from {RUNS} simulations of the scenario that differ as live runs do (when in its period a channel "
        f"begins, each execution late by up to {wanted.late_s:g} s, fetches that take now more and now less time), and "
        "a tolerance of "
        f"{TOLERANCE['hit_ratio']:g} of the hit ratio and {TOLERANCE['fetch_kb']:.0%} of the others. Of all that is "
        "fetched the upper end is what it would be if nobody shared a fetch with others: in the simulation all who "
        "are told together ask at one moment, live moments apart."
    )
    lines = [
        "# Edge caching: the prototype's hour, lived",
        "",
        about,
        "",
        _unlike_the_sweep(wanted),
        "",
        f"Tocsin {version()}, code {wanted.code[:8]}. This file is generated; to live through it again:",
        "",
        f"    tocsin lab run edge-caching-prototype --live {' '.join(words)}",
        "",
        "## Do both agree?",
        "",
        f"**{outcome.verdict}**: {outcome.agreed} of {outcome.compared} figures lie where they had been stated.",
        "",
        stated,
        "",
    ]
    head = ("policy", "KB", "figure", "stated", "simulated", "live", "agrees")
    body = [
        (
            row.cell.policy,
            f"{row.cell.size_kb:g}",
            _TOLD[name],
            f"{stated.low:.4g} to {stated.high:.4g}",
            f"{stated.mean:.4g}",
            f"{row.numbers[name]:.4g}",
            "yes" if row.agrees(name) else "**no**",
        )
        for row in rows
        for name, stated in row.stated.items()
    ]
    lines += [
        *markdown_table(head, body),
        "",
        *_replayed(rows, outcome),
        "",
        *_time(wanted, rows),
        "",
        *_figure_7(rows),
    ]
    return lines


def _unlike_the_sweep(wanted: LiveOptions) -> str:
    defaults = asdict(City())
    changed = [
        f"`{name}` is {value} (there {defaults[name]})"
        for name, value in asdict(wanted.city).items()
        if value != defaults[name]
    ]
    return (
        "So the figures here are not those of that sweep, which differs in this: "
        + "".join(f"{change}; " for change in changed)
        + f"this is one scenario (seed {wanted.seed}), of which {wanted.end_s - wanted.city.span_s:g} s beyond its end "
        "are played as well, and there each point is a mean over several that end when their time is over; executions "
        "are late, and begin at any moment of a period, where there they take no time and begin with it. The stated "
        "simulations are of the same town, with the same links, on which messages wait for each other: "
        f"{SUBSCRIBER_S:g} s to a subscriber and back. But the way to the cluster and back, there {FETCH_S:g} s, takes "
        "none, as within one machine; what takes time is the cluster's work at a fetch, half of them longer than "
        f"{FETCH_S:g} s, with a lognormal law whose sigma is {SPREAD:g}, as live brokers measured it. Hit ratios, "
        "counts and bytes are compared, with the simulations of the same file; latencies are compared with nothing."
    )


def _replayed(rows: Sequence[MeasuredFigures], outcome: LiveOutcome) -> list[str]:
    same_figures = "the same hits, misses, evictions and bytes as its live broker had"
    different = [row.cell.name for row in rows if not row.numbers["relived"]]
    return [
        "Each broker's trace was given to the core again under virtual time (`tocsin lab replay-trace`): "
        + (
            f"every one had {same_figures}."
            if outcome.replayed
            else f"not all had {same_figures}: {', '.join(different)} differ."
        )
    ]


def _time(wanted: LiveOptions, rows: Sequence[MeasuredFigures]) -> list[str]:
    hours = dict.fromkeys((row.numbers["lag_50_s"], row.numbers["lag_95_s"], row.numbers["late_s"]) for row in rows)
    lines = ["## Did it keep its time?", "", *_cost(wanted, rows), ""]
    for half_s, most_s, late_s in hours:
        lines.append(
            f"In seconds of the scenario, {wanted.speed:g} to each real one: half of the subscribers who were there "
            f"had a result {half_s:.2g} s after its execution was due, 95 % within {most_s:.2g} s; the driver began "
            f"no step more than {late_s:.2g} s late. The stated error counts on {wanted.late_s:g} s."
        )
    return lines


def _cost(wanted: LiveOptions, rows: Sequence[MeasuredFigures]) -> list[str]:
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
        f"{cluster_s:.0f} s, each broker {broker_s:.0f} s, and everybody who is its client {clients_s:.0f} s. A "
        f"processor that does nothing else keeps up with {wanted.city.span_s / all_s:.2g} times the scenario's speed "
        "at most."
    )
    return [cost]


def _figure_7(rows: Sequence[MeasuredFigures]) -> list[str]:
    without_cache = next((row.numbers for row in rows if row.cell.policy == "nc"), None)
    about = (
        "Latency is from asking until a result is there, as the clients measured it: within one machine, where all "
        "servers and clients share the processors. So a miss costs a fetch over the loopback, what a cache saves is "
        "less than with a cluster that is away, and neither the paper's latencies nor simulated ones can be compared "
        "with these."
    )
    lines = ["## Figure 7, lived", "", about, ""]
    all_s = without_cache["latency_s"] if without_cache else 0.0
    head = "policy, KB, hit ratio, latency (ms), of that without a cache, fetched (KB), results, interests".split(", ")
    body = []
    for row in rows:
        latency_s, share = row.numbers["latency_s"], f"{row.numbers['latency_s'] / all_s:.0%}" if all_s else ""
        figures = [f"{row.numbers['hit_ratio']:.4g}", f"{1e3 * latency_s:.3g}", share, f"{row.numbers['fetch_kb']:.4g}"]
        counts = [f"{row.numbers[name]:,.0f}" for name in ("results", "interests")]
        body.append((row.cell.policy, f"{row.cell.size_kb:g}", *figures, *counts))
    return [*lines, *markdown_table(head, body)]


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
