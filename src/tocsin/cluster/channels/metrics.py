"""Exports what channels do, and how long it takes, as Prometheus metrics.

The series come from the channels that run when Prometheus reads them, so the series of a dropped channel disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(slots=True)
class ChannelCounts:
    """What a channel has done since it started."""

    executions: int = 0
    finding_s: float = 0.0
    keeping_s: float = 0.0
    results: int = 0
    left_out: int = 0
    failures: int = 0
    failing: int = 0
    """Failed executions since the last success."""
    missed_ticks: int = 0
    poison_records: int = 0
    parts: int = 0
    """Parts of executions that the engine could not run as a whole."""
    interests: int = 0
    """Interests in the last execution."""
    last_execution_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChannelMetrics:
    channel: str
    counts: ChannelCounts


_COUNTS: Final[dict[str, tuple[str, Callable[[ChannelCounts], float]]]] = {
    "tocsin_channel_executions": ("Executions of the channel that completed.", lambda one: one.executions),
    "tocsin_channel_finding_seconds": (
        "Time that executions took to find their results, in seconds.",
        lambda one: one.finding_s,
    ),
    "tocsin_channel_keeping_seconds": (
        "Time that executions then took to store their results durably, in seconds.",
        lambda one: one.keeping_s,
    ),
    "tocsin_channel_results": ("Results stored, one for each interest.", lambda one: one.results),
    "tocsin_channel_matches_left_out": (
        "Results not stored: their interest had more than cluster.channels.matches_limit in one execution.",
        lambda one: one.left_out,
    ),
    "tocsin_channel_failures": ("Executions that failed and were retried.", lambda one: one.failures),
    "tocsin_channel_missed_ticks": (
        "Ticks that coalesced with a later one: more than late_ticks had passed, or their state was not kept.",
        lambda one: one.missed_ticks,
    ),
    "tocsin_channel_poison_records": (
        "Poison records and interests set aside because the channel's query fails on them.",
        lambda one: one.poison_records,
    ),
    "tocsin_channel_parts": (
        "Parts of executions that were too large or too slow as a whole; parts that failed count too.",
        lambda one: one.parts,
    ),
}
_STATES: Final[dict[str, tuple[str, Callable[[ChannelCounts], float | None]]]] = {
    "tocsin_channel_failing": (
        "Failed executions since the last success: above 0 while a channel makes no progress.",
        lambda one: one.failing,
    ),
    "tocsin_channel_interests": (
        "Interests (distinct sets of parameters) in the last execution.",
        lambda one: one.interests,
    ),
    "tocsin_channel_last_execution_seconds": (
        "Duration of the last execution, from its beginning to its commit, in seconds.",
        lambda one: one.last_execution_s,
    ),
}


class ChannelCollector(Collector):
    """`figures` may be called from any thread."""

    def __init__(self, figures: Callable[[], Iterable[ChannelMetrics]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        return self._collected(())

    def collect(self) -> Iterator[Metric]:
        return self._collected(tuple(self._figures()))

    def _collected(self, figures: tuple[ChannelMetrics, ...]) -> Iterator[Metric]:
        for name, (help_text, count) in _COUNTS.items():
            counter = CounterMetricFamily(name, help_text, labels=["channel"])
            for channel in figures:
                counter.add_metric([channel.channel], count(channel.counts))
            yield counter
        for name, (help_text, state) in _STATES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=["channel"])
            for channel in figures:
                if (value := state(channel.counts)) is not None:
                    gauge.add_metric([channel.channel], value)
            yield gauge
