"""Exports how announcements to brokers proceed as Prometheus metrics. The series of a dropped broker disappear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tocsin.cluster.channels.announcements.announcer import BrokerCounts

_COUNTS: Final[dict[str, tuple[str, Callable[[BrokerCounts], int]]]] = {
    "tocsin_cluster_announcements": ("Announcements that the broker accepted.", lambda one: one.counts.sent),
    "tocsin_cluster_announcements_failed": (
        "Failed attempts to send an announcement to the broker.",
        lambda one: one.counts.failed,
    ),
}
_STATES: Final[dict[str, tuple[str, Callable[[BrokerCounts], float | None]]]] = {
    "tocsin_broker_lag_results": (
        "Results committed since the last one that was announced to the broker.",
        lambda one: one.lag,
    ),
    "tocsin_broker_behind_seconds": (
        "Time for which announcements to the broker have been pending, in seconds; absent if none is.",
        lambda one: one.behind_s,
    ),
}


class AnnouncementCollector(Collector):
    """`figures` may be called from any thread."""

    def __init__(self, figures: Callable[[], Iterable[BrokerCounts]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        return self._collected(())

    def collect(self) -> Iterator[Metric]:
        return self._collected(tuple(self._figures()))

    def _collected(self, figures: tuple[BrokerCounts, ...]) -> Iterator[Metric]:
        for name, (help_text, count) in _COUNTS.items():
            counter = CounterMetricFamily(name, help_text, labels=["broker"])
            for broker in figures:
                counter.add_metric([broker.broker], count(broker))
            yield counter
        for name, (help_text, state) in _STATES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=["broker"])
            for broker in figures:
                if (value := state(broker)) is not None:
                    gauge.add_metric([broker.broker], value)
            yield gauge
