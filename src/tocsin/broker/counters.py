"""Counters of a broker, other than those of its caches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class BrokerCounters:
    """Plain counters, read by the metrics. `latencies` is a histogram of deliveries by the time since the execution,
    one bucket more than BUCKETS_S."""

    def __init__(self) -> None:
        self.delivered = 0
        self.latencies = [0] * (len(BUCKETS_S) + 1)
        self.latency_sum_s = 0.0
        self.announcements: dict[str, int] = {}
        self.acknowledged = 0
        self.shed = 0
        self.fetches = 0
        self.fetch_failures = 0
        self.webhooks: dict[str, int] = {}
        self.webhooks_waiting = 0
        self.published: dict[str, int] = {}

    def reached(self, executed_us: Sequence[int], listeners: int, now_us: int) -> None:
        """Counts results that were written to `listeners` subscribers as soon as they arrived."""
        self.delivered += len(executed_us) * listeners
        for made_us in executed_us:
            took_s = (now_us - made_us) / 1e6
            self.latencies[bisect_left(BUCKETS_S, took_s)] += listeners
            self.latency_sum_s += took_s * listeners

    def announced(self, how: str) -> None:
        self.announcements[how] = self.announcements.get(how, 0) + 1
