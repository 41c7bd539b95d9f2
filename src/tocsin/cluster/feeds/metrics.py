"""What feeds have done and how far behind they are, in numbers for Prometheus.

Counts are kept by feed for as long as it exists, through STOP and START and through changes of its connections. The
series are made from the catalog when somebody asks, so there are as many as there are feeds, and a dropped feed's go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(slots=True)
class FeedCounts:
    """Since the cluster started."""

    accepted: int = 0
    rejected: int = 0
    taken_bytes: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """Requests that kept nothing, by the status of their answer."""
    batches: int = 0
    landing_s: float = 0.0
    failures: int = 0
    set_aside: int = 0
    sockets_dropped: int = 0
    unframed: int = 0
    polls: int = 0
    polls_unchanged: int = 0
    polls_failed: int = 0


@dataclass(frozen=True, slots=True)
class FeedState:
    """Of a feed that runs, now."""

    unlanded_bytes: int
    lag: int
    lag_age_s: float
    connections: int | None
    """To its sockets; None where it has none."""


@dataclass(frozen=True, slots=True)
class FeedMetrics:
    feed: str
    counts: FeedCounts
    state: FeedState | None


_COUNTS: Final[dict[str, tuple[str, Callable[[FeedCounts], float]]]] = {
    "tocsin_feed_records_accepted": ("Records acknowledged.", lambda one: one.accepted),
    "tocsin_feed_records_rejected": ("Records refused when they came.", lambda one: one.rejected),
    "tocsin_feed_taken_bytes": ("Bytes of the bodies that records came in.", lambda one: one.taken_bytes),
    "tocsin_feed_batches_landed": ("Batches that came from the log into a dataset.", lambda one: one.batches),
    "tocsin_feed_landing_seconds": ("Seconds that those batches took.", lambda one: one.landing_s),
    "tocsin_feed_landing_failures": ("Batches that could not land and were tried again.", lambda one: one.failures),
    "tocsin_feed_records_set_aside": ("Records refused on their way into a dataset.", lambda one: one.set_aside),
    "tocsin_feed_sockets_dropped": ("Socket connections ended by the cluster.", lambda one: one.sockets_dropped),
    "tocsin_feed_socket_records_dropped": ("Records in no readable frame, lost.", lambda one: one.unframed),
    "tocsin_feed_polls": ("Times that the feed's address was asked.", lambda one: one.polls),
    "tocsin_feed_polls_unchanged": ("Times that it said that nothing had changed.", lambda one: one.polls_unchanged),
    "tocsin_feed_polls_failed": ("Times that it gave no answer that could be taken.", lambda one: one.polls_failed),
}
_STATES: Final[dict[str, tuple[str, Callable[[FeedState], float | None]]]] = {
    "tocsin_feed_unlanded_bytes": ("Bytes of the log not yet in every dataset.", lambda one: one.unlanded_bytes),
    "tocsin_feed_lag_records": ("Acknowledged records not yet in every dataset.", lambda one: one.lag),
    "tocsin_feed_lag_seconds": ("Since the oldest of those was acknowledged.", lambda one: one.lag_age_s),
    "tocsin_feed_sockets_open": ("Connections to the feed's sockets.", lambda one: one.connections),
}


class FeedCollector(Collector):
    """`figures` may be asked from any thread."""

    def __init__(self, figures: Callable[[], Iterable[FeedMetrics]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        return self._collected(())

    def collect(self) -> Iterator[Metric]:
        return self._collected(tuple(self._figures()))

    def _collected(self, figures: tuple[FeedMetrics, ...]) -> Iterator[Metric]:
        for name, (said, count) in _COUNTS.items():
            counted = CounterMetricFamily(name, said, labels=["feed"])
            for one in figures:
                counted.add_metric([one.feed], count(one.counts))
            yield counted
        refused = CounterMetricFamily(
            "tocsin_feed_requests_refused", "Requests of which nothing was kept.", labels=["feed", "status"]
        )
        for one in figures:
            for status, times in sorted(one.counts.refused.copy().items()):
                refused.add_metric([one.feed, str(status)], times)
        yield refused
        for name, (said, state) in _STATES.items():
            now = GaugeMetricFamily(name, said, labels=["feed"])
            for one in figures:
                if one.state is not None and (value := state(one.state)) is not None:
                    now.add_metric([one.feed], value)
            yield now
