"""Measures one run of Table II in the lab, compared with the same core without cohorts.

python -m benchmarks.lab [--small]

The workload is made beforehand, round trips are constant. Subscribers that are notified together and share a marker
pull and acknowledge a range together; a returning subscriber does so for all its subscriptions at once. For comparison
each subscriber does so alone, for a minute of each of the six hours (the first hour has more returns and renewals per
result than later ones). The bars are for single results delivered to single subscribers: a pull, a delivery and an
acknowledgement for each pair. Deliveries of a range of results (all that the subscriber lacks) are shown, too, without
a bar. Returning subscribers are alone in either case, so cohorts do not make them cheaper. The ratio of deliveries is
also shown: it is the most that can be saved as long as a delivery costs the same.

Costs are CPU per result that a subscriber gets.
"""

from __future__ import annotations

import argparse
import gc
import resource
from typing import Final

from benchmarks.harness import Bench, beside, process_cpu_s
from tocsin.lab.simulators.fast_broker import FastBrokerSim, core_settings
from tocsin.lab.workloads.edge_caching import EdgeWorkload, make_edge_events
from tocsin.lab.workloads.events import WorkloadEvents
from tocsin.rules.caching.settings import CachingSettings

BUDGET_BYTES: Final = 200_000_000
HOURS: Final = 6
RANGE: Final = "a range to one subscriber"
RESULT: Final = "a result to one subscriber"
# Who returns gets single results in its other minutes, too, which makes that run ten times as long.
HOURS_OF: Final = {RANGE: HOURS, RESULT: 2}
STRETCH_S: Final = 60.0
BARS: Final = {"whole": 25.0, "renewed": 10.0}
MEMORY_GB: Final = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of the table, one hour instead of six")
    small = parser.parse_args().small
    bench = Bench("lab")
    part = 10 if small else 1
    whole_s = 3600.0 if small else 6 * 3600.0
    took_s = whole_run(bench, part, whole_s)
    for lifetimes, bar in BARS.items():
        stretches(bench, part, lifetimes, whole_s, bar=None if small else bar)
    bench.reached("simulated seconds per second of CPU, six hours", whole_s / took_s, bar=None, unit="")
    bench.finish()


def workload(part: int, span_s: float, lifetimes: str) -> EdgeWorkload:
    return EdgeWorkload(subscribers=10_000 // part, interests=1_000 // part, span_s=span_s, lifetimes=lifetimes)


def edge(part: int, *, page_results: int = 1 << 30) -> FastBrokerSim:
    settings = CachingSettings(budget_bytes=BUDGET_BYTES // part, eviction="lsc")
    return FastBrokerSim(core_settings(settings, page_results=page_results), 1_000 // part)


def whole_run(bench: Bench, part: int, span_s: float) -> float:
    """All of it once; how many CPU seconds that took."""
    events = make_edge_events(workload(part, span_s, "whole"), 1)
    played = edge(part)
    begun = process_cpu_s()
    played.play(events, span_s)
    took_s = process_cpu_s() - begun
    figures = played.broker.caches.counters
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    bench.reached("six hours of Table II", took_s, bar=None, unit="s of CPU")
    bench.bar("six hours of Table II: memory", memory_gb, bar=MEMORY_GB, unit="GB")
    bench.reached("results that subscribers got", figures.hits + figures.misses, bar=None, unit="")
    return took_s


class Stretches:
    """One run of six hours, a stretch of each hour measured: together as all the rest, or each alone."""

    def __init__(self, events: WorkloadEvents, run: FastBrokerSim, hour_s: float, *, together: bool) -> None:
        self._events = events
        self._edge = run
        self._hour_s = hour_s
        self._together = together
        self._hours = self._number = 0

    def fewer(self) -> float:
        """How many times fewer deliveries there were than subscribers who got one."""
        return self._edge.retrievals / max(1, self._edge.deliveries)

    def next(self) -> float:
        """The CPU seconds of the next hour's stretch for each thousand results that subscribers got."""
        run, begin_s = self._edge, (self._hours + 0.5) * self._hour_s
        self._hours += 1
        run.together = True
        self._number = run.play(self._events, begin_s, self._number)
        run.together = self._together
        gc.collect()
        figures = run.broker.caches.counters
        before = figures.hits + figures.misses
        begun = process_cpu_s()
        self._number = run.play(self._events, begin_s + STRETCH_S, self._number)
        return 1_000 * (process_cpu_s() - begun) / (figures.hits + figures.misses - before)


def stretches(bench: Bench, part: int, lifetimes: str, whole_s: float, *, bar: float | None) -> None:
    events = make_edge_events(workload(part, whole_s, lifetimes), 2)
    hour_s = whole_s / HOURS
    fast, again = (Stretches(events, edge(part), hour_s, together=True) for _ in range(2))
    slow = {
        RANGE: Stretches(events, edge(part), hour_s, together=False),
        RESULT: Stretches(events, edge(part, page_results=1), hour_s, together=False),
    }
    first: list[float] = []
    second: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in slow}
    for hour in range(HOURS):
        first.append(fast.next())
        for name, run in slow.items():
            if hour < HOURS_OF[name]:
                taken[name].append(run.next())
        second.append(again.next())
    bench.reached(f"subscriptions {lifetimes}: times fewer deliveries of a range", fast.fewer(), bar=None, unit="×")
    for name, seconds in taken.items():
        found = beside(seconds, first[: len(seconds)], second[: len(seconds)], name=name)
        bench.compared(f"1,000 results, subscriptions {lifetimes}: {name}", found, bar=None, baseline="cohorts")
        wanted = bar if name == RESULT else None
        bench.reached(f"subscriptions {lifetimes}: times less CPU than {name}", found.ratio, bar=wanted, unit="×")


if __name__ == "__main__":
    main()
