"""How the paper's claims of tuning its three policies are judged (its Fig. 12 to 14)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from tocsin.lab.experiments.declaration import Judged, Value
from tocsin.lab.experiments.judging import about, several, surely_more, surely_ordered
from tocsin.lab.experiments.results import MissingCellsError, Results
from tocsin.lab.experiments.statistics import Estimate

_T: Final = "tuning-threshold"
_BUFFER: Final = "tuning-buffer"


def _tunings(results: Results) -> dict[tuple[Value, Value], Estimate]:
    """The latency of the threshold policy by (μ, λ)."""
    rows = [dict(row.cell.values) for row in results.select(_T, {})]
    pairs = dict.fromkeys((values["fall"], values["rise"]) for values in rows)
    return {pair: results.mean("latency_s", _T, fall=pair[0], rise=pair[1]) for pair in pairs}


def threshold_best(results: Results) -> Judged:
    latency = _tunings(results)
    figures = ", ".join(f"({fall}, {rise}) {one} s" for (fall, rise), one in latency.items())
    first, second = (0.8, 0.2), (0.3, 0.1)
    holds = all(_slower(results, pair, second) for pair in latency if pair not in (first, second))
    holds = holds and _slower(results, second, first)
    return Judged("reproduced" if holds else "not reproduced", figures)


def threshold_worst(results: Results) -> Judged:
    latency = _tunings(results)
    worst = max(latency, key=lambda pair: latency[pair].mean)
    said = results.mean("latency_s", _T, fall=0.8, rise=0.8)
    figures = f"{worst} {latency[worst]} s, (0.8, 0.8) {said} s"
    if not _slower(results, worst, (0.8, 0.8)):
        return Judged("reproduced", figures)
    why = f"a high μ lowers latency, as the paper itself explains; the slowest of its list is {worst}"
    return Judged("not reproduced", figures, why)


def threshold_rates(results: Results) -> Judged:
    """All pairs of the list that differ in one of the two."""
    both = list(itertools.permutations(_tunings(results), 2))
    by_rise = [(fast, slow) for fast, slow in both if fast[0] == slow[0] and float(fast[1]) < float(slow[1])]
    by_fall = [(fast, slow) for fast, slow in both if fast[1] == slow[1] and float(fast[0]) > float(slow[0])]
    if not (by_rise and by_fall):
        raise MissingCellsError(f"{_T}: pairs that differ in μ alone and in λ alone")
    steps = by_rise + by_fall
    against = [
        f"{fast} and {slow}"
        for fast, slow in steps
        if not (_slower(results, slow, fast) and surely_more(results, "hit_rate", _T, _pair(fast), _pair(slow)))
    ]
    figures = f"{len(steps) - len(against)} of {len(steps)} pairs of tunings"
    if against:
        return Judged("not reproduced", figures, f"not surely: {', '.join(against)}")
    return Judged("reproduced", figures)


def _pair(pair: tuple[Value, Value]) -> Mapping[str, Value]:
    return {"fall": pair[0], "rise": pair[1]}


def _slower(results: Results, one: tuple[Value, Value], other: tuple[Value, Value]) -> bool:
    return surely_more(results, "latency_s", _T, _pair(one), _pair(other))


def mean(results: Results) -> Judged:
    points: list[Mapping[str, Value]] = [{"batch": batch} for batch in several(results, "tuning-mean", "batch")]
    rates = ", ".join(f"batch {one['batch']}: {results.mean('hit_rate', 'tuning-mean', **one)}" for one in points)
    rises = surely_ordered(results, "hit_rate", "tuning-mean", points, where={})
    falls = surely_ordered(results, "latency_s", "tuning-mean", points[::-1], where={})
    return Judged("reproduced" if falls and rises else "not reproduced", f"hit rates: {rates}")


def buffer_all(results: Results) -> Judged:
    figures, best = [], {}
    for first in (False, True):
        one, half = (
            results.mean("hit_rate", "tuning-buffer", learns_first=first, last=last, before=before)
            for last, before in ((1.0, 0.0), (0.5, 0.5))
        )
        best[first] = one
        figures.append(f"{'learning' if first else 'deciding'} first: (1, 0) {one}, (0.5, 0.5) {half}")
    text = "; ".join(figures)
    if best[True].mean == 1 and best[False].high < 1:
        why = "the order of deciding and learning: all is let in only by a policy that learns from a record first"
        return Judged("depends", text, why)
    return Judged("not reproduced", text)


_ORDERS: Final = {False: "deciding", True: "learning"}


def _latencies(results: Results, first: bool) -> dict[tuple[Value, Value], Estimate]:
    """Of the buffer policy by (γ, α)."""
    rows = [dict(row.cell.values) for row in results.select(_BUFFER, {"learns_first": first})]
    pairs = dict.fromkeys((values["last"], values["before"]) for values in rows)
    return {pair: results.mean("latency_s", _BUFFER, learns_first=first, **_weights(pair)) for pair in pairs}


def _weights(pair: tuple[Value, Value]) -> dict[str, Value]:
    return {"last": pair[0], "before": pair[1]}


def _gap(results: Results, first: bool, one: tuple[Value, Value], other: tuple[Value, Value]) -> Estimate:
    """By how much slower the buffer policy is with one pair than with the other."""
    where, there = ({"learns_first": first, **_weights(pair)} for pair in (one, other))
    return results.difference("latency_s", _BUFFER, where, there)


def _by_order(holds: Mapping[bool, bool], figures: str, because: str = "") -> Judged:
    good = [_ORDERS[first] for first, one in holds.items() if one]
    if len(good) == len(holds):
        return Judged("reproduced", figures)
    if good:
        return Judged("depends", figures, f"the order of deciding and learning: it holds {good[0]} first")
    return Judged("not reproduced", figures, because)


def buffer_best(results: Results) -> Judged:
    holds, said = {}, []
    for first, word in _ORDERS.items():
        gaps = {pair: _gap(results, first, pair, (1.0, 0.0)) for pair in _latencies(results, first) if pair[0] != 1}
        holds[first] = all(one.low > 0 for one in gaps.values())
        nearest = min(gaps, key=lambda pair: gaps[pair].mean)
        said.append(f"{word} first: {nearest} slower by {gaps[nearest]} s")
    return _by_order(holds, "; ".join(said))


def buffer_local(results: Results) -> Judged:
    holds, said = {}, []
    for first, word in _ORDERS.items():
        gaps = {pair: _gap(results, first, pair, (0.8, 0.2)) for pair in ((0.9, 0.1), (0.7, 0.3))}
        holds[first] = all(one.low > 0 for one in gaps.values())
        said.append(f"{word} first: " + ", ".join(f"{pair} slower by {one} s" for pair, one in gaps.items()))
    why = "where a record has one consumer or two, all weights between 0 and 1 decide alike"
    return _by_order(holds, "; ".join(said), why)


def buffer_flat(results: Results) -> Judged:
    """Not much is at most a tenth more than the least."""
    holds, said = {}, []
    for first, word in _ORDERS.items():
        found = _latencies(results, first)
        least, most = (pick(found, key=lambda pair: found[pair].mean) for pick in (min, max))
        slow, fast = ((_BUFFER, {"learns_first": first, **_weights(pair)}) for pair in (most, least))
        ratio = results.ratio("latency_s", slow, fast)
        holds[first] = about(ratio, 1, within=0.1)
        said.append(f"{word} first: most {ratio} times the least")
    return _by_order(holds, "; ".join(said))
