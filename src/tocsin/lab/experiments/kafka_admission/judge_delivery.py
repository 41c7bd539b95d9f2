"""The paper's claims about latency and throughput (its Fig. 10 and 11), in our words, and their judges.

Simulated servers have made-up speeds. So these judges compare orders and ratios, and never a time with the paper's.
"""

from __future__ import annotations

import itertools
from typing import Final

from tocsin.lab.experiments.comparisons import all_above, is_ordered, judge_by_choice, several, verdict
from tocsin.lab.experiments.declaration import Judgement, Value, claim
from tocsin.lab.experiments.kafka_admission.judge_admission import (
    SWEEP,
    describe_metric,
    judge_usual_tuning,
    largest_of,
    point,
    points_of,
)
from tocsin.lab.experiments.results import RunResults
from tocsin.lab.experiments.statistics import Estimate, estimate

_BY_LATENCY: Final = ("all", "buffer", "mean", "threshold", "none")


@claim("Latency grows in the order unlimited, buffer, mean, threshold, no caching", "Fig. 10")
def _latency_order(results: RunResults) -> Judgement:
    records = largest_of(results)
    order = [points_of(name) for name in _BY_LATENCY]
    holds = is_ordered(results, "latency_s", SWEEP, order, where={"records": records})
    figures = describe_metric(results, "latency_s", _BY_LATENCY, records=records)
    return judge_usual_tuning(results, holds, figures, "it is the order of the hit rates, and ")


# Throughputs that are closer than this are equal, and have no order.
_FASTER: Final = 1.01


@claim("Throughput falls in the same order", "Fig. 11")
def _throughput_order(results: RunResults) -> Judgement:
    records = largest_of(results)

    def falls(*policies: str) -> bool | None:
        steps = itertools.pairwise(point(name, records) for name in policies)
        return all_above((results.ratio("throughput_per_s", *step) for step in steps), than=_FASTER)

    on = (
        "what throughput is: the paper inverts the latency, which turns the order round by definition; counted as "
        "records per second until the last one is received, policies with which the database keeps up are equal"
    )
    return judge_by_choice(
        falls(*_BY_LATENCY),
        falls("all", "threshold", "none"),
        describe_metric(results, "throughput_per_s", _BY_LATENCY, records=records),
        depends_on=on,
        refuted_by="not even from unlimited caching over threshold to no caching",
    )


@claim("Unlimited caching has far more throughput than any other policy", "Fig. 11")
def _throughput_far(results: RunResults) -> Judgement:
    """Inverts the latency, as the paper does; "far more" means at least twice as much."""
    records = largest_of(results)
    times = {name: results.ratio("latency_s", point(name, records), point("all", records)) for name in _BY_LATENCY[1:]}
    close_policies = " and ".join(name for name, ratio in times.items() if ratio.high < 2)
    return verdict(
        all_above(times.values(), than=2),
        ", ".join(f"{ratio} times that of {name}" for name, ratio in times.items()),
        f"the database keeps up with what {close_policies} leave to it, so that nobody waits in a queue",
    )


@claim("Without caching, latency is a hundred times that of unlimited caching", "Fig. 10")
def hundredfold(results: RunResults) -> Judgement:
    times = {
        float(every_s): results.ratio(
            "latency_s",
            ("load", {"policy": "none", "publish_every_s": every_s}),
            ("load", {"policy": "all", "publish_every_s": every_s}),
        )
        for every_s in several(results, "load", "publish_every_s")
    }
    figures = ", ".join(f"a record per {every_s * 1000:g} ms: {ratio} times" for every_s, ratio in times.items())
    on = "the load: a hundredfold and more where records come faster than the database takes them, else a few times"
    holds = [all_above([ratio], than=100) for ratio in times.values()]
    if True in holds and False in holds:
        return Judgement("depends", figures, on)
    return verdict(None if None in holds else holds[0], figures, "at no load")


# A smaller growth from one size of benchmark to the next does not count.
_GROWN: Final = 1.2


def _gaps(results: RunResults, sweep: str) -> dict[Value, dict[int, float]]:
    """Returns by how much no caching is slower than unlimited caching, by size of benchmark and seed."""
    gaps = {}
    for size in several(results, sweep, "records"):
        none, all_ = (results.select(sweep, {"policy": name, "records": size}) for name in ("none", "all"))
        fast = {row.cell.seed: row.metrics["latency_s"] for row in all_}
        gaps[size] = {row.cell.seed: row.metrics["latency_s"] - fast[row.cell.seed] for row in none}
    return gaps


def _growth(gaps: dict[Value, dict[int, float]]) -> list[Estimate]:
    """Returns the ratio of each gap to the gap of the size before."""
    steps = itertools.pairwise(gaps.values())
    return [estimate([after[seed] / before[seed] for seed in before]) for before, after in steps]


@claim("The gap between the two grows with the number of records", "Fig. 10")
def _gap_grows(results: RunResults) -> Judgement:
    loaded, idle = _gaps(results, SWEEP), _gaps(results, "light-load")
    gaps_by_load = {"above the database's rate": loaded, "below it": idle}
    figures = "; ".join(
        f"{name}: " + ", ".join(f"{size} records {estimate(list(gap.values()))} s" for size, gap in gaps.items())
        for name, gaps in gaps_by_load.items()
    )
    return judge_by_choice(
        all_above(_growth(loaded), than=_GROWN),
        all_above(_growth(idle), than=_GROWN),
        figures,
        depends_on="the load: the gap grows because a queue does, which the database must cause",
        refuted_by="from one size to the next it does not grow by a fifth",
    )
