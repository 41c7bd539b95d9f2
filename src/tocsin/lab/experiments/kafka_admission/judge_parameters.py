"""The paper's claims about tuning its three policies (its Fig. 12 to 14) and its conclusion, and their judges.

A value of a parameter is neither good nor bad by itself, so these judges compare the points of a sweep with each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from tocsin.lab.experiments.comparisons import all_above, all_hold, all_within, is_more, is_ordered, several, verdict
from tocsin.lab.experiments.declaration import Judgement, Value, claim
from tocsin.lab.experiments.kafka_admission.judge_admission import (
    PROPOSED,
    SWEEP,
    describe_metric,
    judge_usual_tuning,
    largest_of,
    lead_over,
    points_of,
)
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate

_TUNING: Final = "tuning-threshold"
_BUFFER: Final = "tuning-buffer"


def _tunings(results: RunResults) -> dict[tuple[Value, Value], Estimate]:
    """Returns the latency of the threshold policy by (μ, λ)."""
    rows = [dict(row.cell.values) for row in results.select(_TUNING, {})]
    pairs = dict.fromkeys((values["fall"], values["rise"]) for values in rows)
    return {pair: results.mean("latency_s", _TUNING, fall=pair[0], rise=pair[1]) for pair in pairs}


@claim("The threshold policy is fastest with μ = 0.8, λ = 0.2, and then with 0.3 and 0.1", "Fig. 12")
def _threshold_best(results: RunResults) -> Judgement:
    latency = _tunings(results)
    figures = ", ".join(f"({fall}, {rise}) {estimate} s" for (fall, rise), estimate in latency.items())
    first, second = (0.8, 0.2), (0.3, 0.1)
    holds = [_slower(results, pair, second) for pair in latency if pair not in (first, second)]
    fastest = sorted(latency, key=lambda pair: latency[pair].mean)[:2]
    against = f"the fastest of its list are {fastest[0]} and {fastest[1]}"
    return verdict(all_hold(_slower(results, second, first), *holds), figures, against)


@claim("It is slowest with μ = 0.8, λ = 0.8", "Analysis of Fig. 12")
def _threshold_worst(results: RunResults) -> Judgement:
    latency = _tunings(results)
    claimed = (0.8, 0.8)
    worst = max(latency, key=lambda pair: latency[pair].mean)
    figures = f"{worst} {latency[worst]} s, {claimed} {results.mean('latency_s', _TUNING, **_pair(claimed))} s"
    holds = all_hold(*(_slower(results, claimed, pair) for pair in latency if pair != claimed))
    reason = f"a high μ lowers latency, as the paper itself explains; the slowest of its list is {worst}"
    return verdict(holds, figures, reason)


@claim("A higher λ means fewer hits and a higher latency, a higher μ more hits and a lower one", "Analysis of Fig. 12")
def _threshold_rates(results: RunResults) -> Judgement:
    """Compares all pairs of tunings that differ in one of the two parameters."""
    pairs = list(itertools.permutations(_tunings(results), 2))
    by_rise = [(fast, slow) for fast, slow in pairs if fast[0] == slow[0] and float(fast[1]) < float(slow[1])]
    by_fall = [(fast, slow) for fast, slow in pairs if fast[1] == slow[1] and float(fast[0]) > float(slow[0])]
    if not (by_rise and by_fall):
        raise MissingCellsError(f"{_TUNING}: pairs that differ in μ alone and in λ alone")
    holds = {
        f"{fast} and {slow}": all_hold(
            _slower(results, slow, fast), is_more(results, "hit_rate", _TUNING, _pair(fast), _pair(slow))
        )
        for fast, slow in by_rise + by_fall
    }
    figures = f"{sum(answer is True for answer in holds.values())} of {len(holds)} pairs of tunings"
    against = f"not so: {', '.join(name for name, answer in holds.items() if answer is False)}"
    return verdict(all_hold(*holds.values()), figures, against)


def _pair(pair: tuple[Value, Value]) -> dict[str, Value]:
    return {"fall": pair[0], "rise": pair[1]}


def _slower(results: RunResults, one: tuple[Value, Value], other: tuple[Value, Value]) -> bool | None:
    return is_more(results, "latency_s", _TUNING, _pair(one), _pair(other))


@claim("The mean policy's latency falls as its batch grows, since the first batch is let in whole", "Fig. 13")
def _tuning_mean(results: RunResults) -> Judgement:
    points: list[Mapping[str, Value]] = [{"batch": batch} for batch in several(results, "tuning-mean", "batch")]
    rates = ", ".join(f"batch {point['batch']}: {results.mean('hit_rate', 'tuning-mean', **point)}" for point in points)
    rises = is_ordered(results, "hit_rate", "tuning-mean", points, where={})
    falls = is_ordered(results, "latency_s", "tuning-mean", points[::-1], where={})
    against = "from one batch to the next, hits do not rise or latency does not fall"
    return verdict(all_hold(falls, rises), f"hit rates: {rates}", against)


@claim("The buffer policy with γ = 1 lets in everything", "Analysis of Fig. 14")
def _tuning_buffer(results: RunResults) -> Judgement:
    """Lets in everything means every record in every run, so no error is needed."""
    figures: list[str] = []
    holds: dict[bool, bool | None] = {}
    for first, word in _ORDERS.items():
        full, half = (
            results.mean("hit_rate", "tuning-buffer", learns_first=first, last=last, before=before)
            for last, before in ((1.0, 0.0), (0.5, 0.5))
        )
        holds[first] = full.mean == 1
        figures.append(f"{word} first: (1, 0) {full}, (0.5, 0.5) {half}")
    return _by_order(holds, "; ".join(figures), "neither deciding nor learning first")


_ORDERS: Final = {False: "deciding", True: "learning"}


def _latencies(results: RunResults, first: bool) -> dict[tuple[Value, Value], Estimate]:
    """Returns the latency of the buffer policy by (γ, α)."""
    rows = [dict(row.cell.values) for row in results.select(_BUFFER, {"learns_first": first})]
    pairs = dict.fromkeys((values["last"], values["before"]) for values in rows)
    return {pair: results.mean("latency_s", _BUFFER, learns_first=first, **_weights(pair)) for pair in pairs}


def _weights(pair: tuple[Value, Value]) -> dict[str, Value]:
    return {"last": pair[0], "before": pair[1]}


def _gap(results: RunResults, first: bool, one: tuple[Value, Value], other: tuple[Value, Value]) -> Estimate:
    """Returns how much slower the buffer policy is with one pair than with the other."""
    point, other_point = ({"learns_first": first, **_weights(pair)} for pair in (one, other))
    return results.difference("latency_s", _BUFFER, point, other_point)


def _by_order(holds: Mapping[bool, bool | None], figures: str, against: str) -> Judgement:
    holding_orders = [_ORDERS[first] for first, answer in holds.items() if answer]
    if None not in holds.values() and len(holding_orders) == 1:
        return Judgement("depends", figures, f"the order of deciding and learning: it holds {holding_orders[0]} first")
    return verdict(None if None in holds.values() else bool(holding_orders), figures, against)


@claim("It is fastest with (γ, α) = (1, 0)", "Fig. 14")
def _buffer_best(results: RunResults) -> Judgement:
    holds, figures = {}, []
    for first, word in _ORDERS.items():
        gaps = {pair: _gap(results, first, pair, (1.0, 0.0)) for pair in _latencies(results, first) if pair[0] != 1}
        holds[first] = all_above(gaps.values())
        nearest = min(gaps, key=lambda pair: gaps[pair].mean)
        figures.append(f"{word} first: {nearest} slower by {gaps[nearest]} s")
    return _by_order(holds, "; ".join(figures), "another pair is faster")


@claim("It is faster with (0.8, 0.2) than with the pairs beside it", "Fig. 14")
def _buffer_local(results: RunResults) -> Judgement:
    holds, figures = {}, []
    for first, word in _ORDERS.items():
        gaps = {pair: _gap(results, first, pair, (0.8, 0.2)) for pair in ((0.9, 0.1), (0.7, 0.3))}
        is_equal = any(gap.low == gap.high == 0 for gap in gaps.values())
        holds[first] = False if is_equal else all_above(gaps.values())
        figures.append(f"{word} first: " + ", ".join(f"{pair} slower by {gap} s" for pair, gap in gaps.items()))
    reason = "where a record has one consumer or two, all weights between 0 and 1 decide alike"
    return _by_order(holds, "; ".join(figures), reason)


@claim("Its latency does not vary much with γ and α", "Analysis of Fig. 14")
def _buffer_flat(results: RunResults) -> Judgement:
    """ "Not much" means at most a tenth more than the least."""
    holds, figures = {}, []
    for first, word in _ORDERS.items():
        latencies = _latencies(results, first)
        least, most = (pick(latencies, key=lambda pair: latencies[pair].mean) for pick in (min, max))
        slow, fast = ((_BUFFER, {"learns_first": first, **_weights(pair)}) for pair in (most, least))
        ratio = results.ratio("latency_s", slow, fast)
        holds[first] = all_within([ratio], 0.9, 1.1)
        figures.append(f"{word} first: most {ratio} times the least")
    return _by_order(holds, "; ".join(figures), "it varies by more than a tenth")


@claim("Hit rate × duplication is almost equal for the three policies", "Analysis")
def _equal_value(results: RunResults) -> Judgement:
    records = largest_of(results)
    gaps = [lead_over(results, "value", first, other, records) for first, other in itertools.combinations(PROPOSED, 2)]
    reason = "duplication is nearly the same and hit rates are not, as the paper's own 0.3, 0.5 and 0.7 say"
    return verdict(all_within(gaps, -0.1, 0.1), describe_metric(results, "value", PROPOSED, records=records), reason)


# A smaller difference in copies per record does not count.
_AS_MANY: Final = 0.02


@claim(
    "Threshold is the best policy, then mean, then buffer: it keeps fewest records, and those most shared", "Conclusion"
)
def _ranking(results: RunResults) -> Judgement:
    records = largest_of(results)
    figures = "; ".join(
        f"{name} keeps {results.mean('hit_rate', SWEEP, policy=name, records=records)} of the records, "
        f"each {results.mean('duplication', SWEEP, policy=name, records=records)} times"
        for name in PROPOSED
    )
    fewer = is_ordered(results, "hit_rate", SWEEP, [points_of(name) for name in PROPOSED], where={"records": records})
    shared = [lead_over(results, "duplication", first, other, records) for first, other in itertools.pairwise(PROPOSED)]
    return judge_usual_tuning(results, all_hold(fewer, all_above(shared, than=-_AS_MANY)), figures)
