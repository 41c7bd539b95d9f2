"""Exports what channels do, how long it takes, and how announcements to brokers proceed, as Prometheus metrics.

The time of the query and the time of the store are counted apart, because they have different remedies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tocsin.cluster.channels.announcements.announcer import BrokerCounts
from tocsin.serving.metrics import SeriesCollector, SeriesTable


@dataclass(slots=True)
class ChannelCounts:
    """What a channel has done since it started."""

    executions: int = 0
    query_s: float = 0.0
    storing_s: float = 0.0
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


_COUNTS: Final[SeriesTable[ChannelMetrics]] = {
    "tocsin_channel_executions": (
        "Executions of the channel that completed.",
        lambda channel: channel.counts.executions,
    ),
    "tocsin_channel_query_seconds": (
        "Time that the channel's query took in its executions, in seconds.",
        lambda channel: channel.counts.query_s,
    ),
    "tocsin_channel_storing_seconds": (
        "Time that executions took to store their results durably, in seconds.",
        lambda channel: channel.counts.storing_s,
    ),
    "tocsin_channel_results": ("Results stored, one for each interest.", lambda channel: channel.counts.results),
    "tocsin_channel_matches_left_out": (
        "Results not stored: their interest had more than cluster.channels.matches_limit in one execution.",
        lambda channel: channel.counts.left_out,
    ),
    "tocsin_channel_failures": ("Executions that failed and were retried.", lambda channel: channel.counts.failures),
    "tocsin_channel_missed_ticks": (
        "Ticks that coalesced with a later one: more than late_ticks had passed, or their state was not kept.",
        lambda channel: channel.counts.missed_ticks,
    ),
    "tocsin_channel_poison_records": (
        "Poison records and interests set aside because the channel's query fails on them.",
        lambda channel: channel.counts.poison_records,
    ),
    "tocsin_channel_parts": (
        "Parts of executions that were too large or too slow as a whole; parts that failed count too.",
        lambda channel: channel.counts.parts,
    ),
}
_STATES: Final[SeriesTable[ChannelMetrics]] = {
    "tocsin_channel_failing": (
        "Failed executions since the last success: above 0 while a channel makes no progress.",
        lambda channel: channel.counts.failing,
    ),
    "tocsin_channel_interests": (
        "Interests (distinct sets of parameters) in the last execution.",
        lambda channel: channel.counts.interests,
    ),
    "tocsin_channel_last_execution_seconds": (
        "Duration of the last execution, from its beginning to its commit, in seconds.",
        lambda channel: channel.counts.last_execution_s,
    ),
}


_ANNOUNCEMENT_COUNTS: Final[SeriesTable[BrokerCounts]] = {
    "tocsin_cluster_announcements": ("Announcements that the broker accepted.", lambda broker: broker.counts.sent),
    "tocsin_cluster_announcements_failed": (
        "Failed attempts to send an announcement to the broker.",
        lambda broker: broker.counts.failed,
    ),
}
_ANNOUNCEMENT_STATES: Final[SeriesTable[BrokerCounts]] = {
    "tocsin_cluster_broker_lag_results": (
        "Results committed since the last one that was announced to the broker.",
        lambda broker: broker.lag,
    ),
    "tocsin_cluster_broker_behind_seconds": (
        "Time for which announcements to the broker have been pending, in seconds; absent if none is.",
        lambda broker: broker.behind_s,
    ),
}


class ChannelCollector(SeriesCollector[ChannelMetrics]):
    def __init__(self, figures: Callable[[], Iterable[ChannelMetrics]]) -> None:
        super().__init__("channel", figures, lambda channel: channel.channel, _COUNTS, _STATES)


class AnnouncementCollector(SeriesCollector[BrokerCounts]):
    def __init__(self, figures: Callable[[], Iterable[BrokerCounts]]) -> None:
        super().__init__("broker", figures, lambda broker: broker.broker, _ANNOUNCEMENT_COUNTS, _ANNOUNCEMENT_STATES)
