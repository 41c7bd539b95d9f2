"""Measures the CPU of choosing a victim, with 10³ and 10⁵ result caches, compared with a scan of all caches.

python -m benchmarks.cache
"""

from __future__ import annotations

import gc
from random import Random
from typing import Final

from benchmarks.baselines.caching import PlainCaches
from benchmarks.harness import Bench, Compared, beside, process_cpu_s, read_options
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import START, Cursor

FEW: Final = 1_000
MANY: Final = 100_000
OPERATIONS: Final = 5_000
SCANS: Final = 5
ROUNDS: Final = 3
RESULTS_EACH: Final = 3  # how many results a cache holds on average when all are full
MEAN_SIZE: Final = 250
SUBSCRIBERS: Final = 20
FOR_EVER_S: Final = 1e6
SETTLED: Final = 3  # operations per cache before the first measurement


def main() -> None:
    read_options(__doc__)
    bench = Bench("cache")
    policies(bench)
    bench.finish()


class Full:
    """`count` caches that are full. An operation is a result that comes, a read and an acknowledgement elsewhere; and
    with times to live, dropping what is due by then."""

    def __init__(self, eviction: str, count: int, *, expiry: str = "never") -> None:
        self._rng = Random(7)
        budget = count * RESULTS_EACH * MEAN_SIZE
        self.caches = ResultCaches(
            CachingSettings(budget_bytes=budget, eviction=eviction, expiry=expiry, ceiling=1, ttl_every_s=FOR_EVER_S),
            0.0,
        )
        self._expires = expiry == "ttl"
        self._all = [self.caches.open(interest, START, 0.0) for interest in range(count)]
        for cache in self._all:
            self.caches.attach(cache, START, self._rng.randint(1, SUBSCRIBERS))
        self._number = 0
        self._now_s = 0.0
        while not self.caches.counters.evicted:
            self._arrive()
        self.refresh_ranks()
        # Until what a policy prefers is what is there: few caches and many are compared at the same age.
        self.operate(SETTLED * count)

    def _arrive(self) -> None:
        self._number += 1
        self._now_s += 0.001
        result = BrokerResult(Cursor(1, self._number, 0), 1 + int(self._rng.random() * 2 * MEAN_SIZE))
        self.caches.put(self._rng.choice(self._all), result, self._now_s)

    def refresh_ranks(self) -> None:
        """Times to live anew. Told apart, for a broker does it seldom: the measurement adds the share of it."""
        if self._expires:
            is_under_way = True
            while is_under_way:
                self.caches.ttl.due_s = self._now_s
                self.caches.pass_time(self._now_s)
                is_under_way = self.caches.ttl.is_under_way

    def operate(self, operations: int) -> None:
        caches = self.caches
        for _ in range(operations):
            self._arrive()
            if self._expires and caches.due_s() <= self._now_s:
                caches.pass_time(self._now_s)
            read = self._rng.choice(self._all)
            caches.get(read, read.floor, read.head, self._now_s)
            # Who lacks the most takes the oldest that is here: so it goes on for ever, with few caches as with many.
            if (tail := read.tail) is not None:
                caches.advance(read, read.lowest_marker(), tail.cursor)


def scanned(count: int) -> float:
    """CPU seconds for a result for which there is no room, when every cache is looked at."""
    rng = Random(7)
    plain = PlainCaches(count * RESULTS_EACH * MEAN_SIZE)
    for interest in range(count):
        plain.open(interest, range(rng.randint(1, SUBSCRIBERS)))
    number = 0
    while plain.used < plain.budget - 2 * MEAN_SIZE:
        number += 1
        plain.put(rng.randrange(count), number, 1 + int(rng.random() * 2 * MEAN_SIZE))
    begun = process_cpu_s()
    for _ in range(SCANS):
        number += 1
        plain.put(rng.randrange(count), number, 2 * MEAN_SIZE)
    return (process_cpu_s() - begun) / SCANS


def at_same_age(eviction: str, expiry: str) -> Compared:
    """An operation on many caches beside one on few, made anew each time: they age a hundred times faster."""

    def measured(full: Full) -> float:
        gc.collect()
        begun = process_cpu_s()
        full.operate(OPERATIONS)
        operated = process_cpu_s()
        # Once in as many operations as it takes to fill all caches: their share.
        full.refresh_ranks()
        share = OPERATIONS / (RESULTS_EACH * len(full.caches))
        taken_s = operated - begun + (process_cpu_s() - operated) * share
        assert expiry == "never" or full.caches.counters.expired, "dropping at the end of a time to live is measured"
        return taken_s

    many = Full(eviction, MANY, expiry=expiry)
    first, taken, again = [], [], []
    for _ in range(ROUNDS):
        first.append(measured(Full(eviction, FEW, expiry=expiry)))
        taken.append(measured(many))
        again.append(measured(Full(eviction, FEW, expiry=expiry)))
    return beside(taken, first, again, name=eviction, operations=OPERATIONS)


def policies(bench: Bench) -> None:
    scan_s = scanned(MANY)
    for name in [*(policy for policy in EVICTION if policy != "none"), "exp+ttl"]:
        eviction, _, expiry = name.partition("+")
        found = at_same_age(eviction, expiry or "never")
        bench.compared(f"{name}: an operation at 10⁵ caches", found, bar=2.5, baseline="at 10³ caches")
        bench.reached(f"{name}: operations at 10⁵ caches", 1 / found.seconds, bar=None, unit="/s")
        bench.reached(f"{name}: times quicker than a scan", scan_s / found.seconds, bar=100, unit="×")
    bench.reached("a scan of all 10⁵ caches for each victim", 1 / scan_s, bar=None, unit="/s")


if __name__ == "__main__":
    main()
