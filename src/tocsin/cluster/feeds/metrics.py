"""Exports what the feeds did, and how far behind they are, as Prometheus metrics.

Counts belong to a feed for as long as it exists, across STOP, START and changes of its connections. The series are
built from the catalog at each scrape, so the series of a dropped feed disappear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.serving.metrics import SeriesCollector, SeriesTable

_REFUSED: Final = "tocsin_feed_requests_refused"


@dataclass(slots=True)
class FeedCounts:
    """Counts since the cluster started."""

    accepted: int = 0
    rejected: int = 0
    taken_bytes: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """Requests of which no record was stored, by the status of the response."""
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
    """The current state of a running feed."""

    unlanded_bytes: int
    lag: int
    lag_age_s: float
    connections: int | None
    """Open connections to the feed's sockets; None for a feed without sockets."""


@dataclass(frozen=True, slots=True)
class FeedMetrics:
    feed: str
    counts: FeedCounts
    state: FeedState | None


_COUNTS: Final[SeriesTable[FeedMetrics]] = {
    "tocsin_feed_records_accepted": (
        "Records that the feed acknowledged, over all adapters.",
        lambda feed: feed.counts.accepted,
    ),
    "tocsin_feed_records_rejected": ("Records that the feed rejected on arrival.", lambda feed: feed.counts.rejected),
    "tocsin_feed_taken_bytes": (
        "Bytes of the bodies of accepted and rejected records.",
        lambda feed: feed.counts.taken_bytes,
    ),
    "tocsin_feed_batches_landed": ("Batches that landed in a dataset.", lambda feed: feed.counts.batches),
    "tocsin_feed_landing_seconds": (
        "Time that the landed batches took, in seconds.",
        lambda feed: feed.counts.landing_s,
    ),
    "tocsin_feed_landing_failures": (
        "Batches that could not land and were retried.",
        lambda feed: feed.counts.failures,
    ),
    "tocsin_feed_records_set_aside": (
        "Records rejected while they landed: the dataset's type or the feed's function refused them.",
        lambda feed: feed.counts.set_aside,
    ),
    "tocsin_feed_sockets_dropped": (
        "Socket connections that the cluster closed: over a limit, or unreadable.",
        lambda feed: feed.counts.sockets_dropped,
    ),
    "tocsin_feed_socket_records_dropped": (
        "Records from sockets that could not be delimited, or were incomplete.",
        lambda feed: feed.counts.unframed,
    ),
    "tocsin_feed_polls": ("Polls of the feed's address.", lambda feed: feed.counts.polls),
    "tocsin_feed_polls_unchanged": (
        "Polls of the feed's address that were answered with: nothing has changed.",
        lambda feed: feed.counts.polls_unchanged,
    ),
    "tocsin_feed_polls_failed": (
        "Polls of the feed's address without an answer that could be read and stored.",
        lambda feed: feed.counts.polls_failed,
    ),
    _REFUSED: (
        "Requests of which no record was stored, by status: 429 behind, 507 disk full, 409 stopped.",
        lambda feed: feed.counts.refused,
    ),
}
_STATES: Final[SeriesTable[FeedState]] = {
    "tocsin_feed_unlanded_bytes": (
        "Bytes of the feed's log that have not landed; the limit is 1 GiB.",
        lambda state: state.unlanded_bytes,
    ),
    "tocsin_feed_lag_records": (
        "Acknowledged records that are not yet in every dataset of the feed.",
        lambda state: state.lag,
    ),
    "tocsin_feed_lag_seconds": (
        "Time since the oldest acknowledged record that has not landed was acknowledged, in seconds.",
        lambda state: state.lag_age_s,
    ),
    "tocsin_feed_sockets_open": (
        "Open connections to the feed's sockets.",
        lambda state: state.connections,
    ),
}


class FeedCollector(SeriesCollector[FeedMetrics]):
    def __init__(self, figures: Callable[[], Iterable[FeedMetrics]]) -> None:
        gauges = {name: (help_text, _of_state(read)) for name, (help_text, read) in _STATES.items()}
        super().__init__("feed", figures, lambda feed: feed.feed, _COUNTS, gauges, second_labels={_REFUSED: "status"})


def _of_state(read: Callable[[FeedState], Any]) -> Callable[[FeedMetrics], Any]:
    return lambda feed: None if feed.state is None else read(feed.state)
