"""How the paper's claims of latency and throughput are judged (its Fig. 10 and 11)."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Judged, Value
from tocsin.lab.experiments.judging import UndecidedError, several, surely_ordered
from tocsin.lab.experiments.kafka_admission.keeping import B, largest_of, of, told, unless_tuned
from tocsin.lab.experiments.results import Results
from tocsin.lab.experiments.statistics import Estimate

_BY_LATENCY: Final = ("all", "buffer", "mean", "threshold", "none")


def latency_order(results: Results) -> Judged:
    records = largest_of(results)
    order = [of(name) for name in _BY_LATENCY]
    holds = surely_ordered(results, "latency_s", B, order, where={"records": records})
    figures = told(results, "latency_s", _BY_LATENCY, records=records)
    return unless_tuned(results, holds, figures, "it is the order of the hit rates, and ")


def throughput_order(results: Results) -> Judged:
    records = largest_of(results)
    ends_ = [of(name) for name in ("none", "threshold", "all")]
    whole = [of(name) for name in reversed(_BY_LATENCY)]
    figures = told(results, "throughput_per_s", _BY_LATENCY, records=records)
    if surely_ordered(results, "throughput_per_s", B, whole, where={"records": records}):
        return Judged("reproduced", figures)
    if surely_ordered(results, "throughput_per_s", B, ends_, where={"records": records}):
        why = (
            "what throughput is: the paper inverts the latency, which turns the order round by definition; counted as "
            "records per second until the last one is received, policies with which the database keeps up are equal"
        )
        return Judged("depends", figures, why)
    return Judged("not reproduced", figures)


def throughput_far(results: Results) -> Judged:
    """As the paper counts it, inverting the latency: far above is at least twice as much."""
    records = largest_of(results)
    times = {
        name: results.ratio(
            "latency_s", (B, {"policy": name, "records": records}), (B, {"policy": "all", "records": records})
        )
        for name in _BY_LATENCY[1:]
    }
    figures = ", ".join(f"{one} times that of {name}" for name, one in times.items())
    if all(one.low >= 2 for one in times.values()):
        return Judged("reproduced", figures)
    near = [name for name, one in times.items() if one.high < 2]
    if not near:
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    why = f"the database keeps up with what {' and '.join(near)} leave to it, so that nobody waits in a queue"
    return Judged("not reproduced", figures, why)


def hundredfold(results: Results) -> Judged:
    least, most = {}, {}
    for every_s in several(results, "load", "publish_every_s"):
        none, all_ = (
            results.mean("latency_s", "load", policy=name, publish_every_s=every_s) for name in ("none", "all")
        )
        least[float(every_s)], most[float(every_s)] = none.low / all_.high, none.high / all_.low
    figures = ", ".join(
        f"a record per {every_s * 1000:g} ms: {least[every_s]:.3g} to {most[every_s]:.3g} times" for every_s in least
    )
    if min(least.values()) >= 100:
        return Judged("reproduced", figures)
    if max(least.values()) >= 100 and min(most.values()) < 100:
        why = (
            "the load: a hundredfold and more where records come faster than the database takes them, else a few times"
        )
        return Judged("depends", figures, why)
    return Judged("not reproduced", figures)


def _gaps(results: Results, sweep: str) -> dict[Value, Estimate]:
    """By how much no caching is slower than unlimited caching, for each size of benchmark."""
    return {
        size: results.difference(
            "latency_s", sweep, {"policy": "none", "records": size}, {"policy": "all", "records": size}
        )
        for size in several(results, sweep, "records")
    }


def grows(results: Results) -> Judged:
    loaded, idle = _gaps(results, B), _gaps(results, "light-load")
    said = {"above the database's rate": loaded, "below it": idle}
    figures = "; ".join(
        f"{name}: " + ", ".join(f"{size} records {gap} s" for size, gap in gaps.items()) for name, gaps in said.items()
    )
    first, *_, last = loaded.values()
    if last.low <= first.high:
        return Judged("not reproduced", figures)
    first, *_, last = idle.values()
    if last.low > 1.2 * first.high:
        return Judged("reproduced", figures)
    return Judged("depends", figures, "the load: the gap grows because a queue does, which the database must cause")
