"""Exports what the feeds did, and how far behind they are, as Prometheus metrics.

Counts belong to a feed for as long as it exists, across STOP, START and changes of its connections. The series are
built from the catalog at each scrape, so the series of a dropped feed disappear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from tocsin.serving.metrics import SeriesCollector

_REFUSED: Final = "tocsin_feed_requests_refused"


@dataclass(slots=True)
class FeedCounts:
    """Counts since the cluster started."""

    accepted: int = 0
    rejected: int = 0
    taken_bytes: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """Requests that stored no record, by the status of the response."""
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


# By metric: what it says, and the field of FeedCounts that holds it.
_COUNTS: Final = {
    "tocsin_feed_records_accepted": ("Records that the feed acknowledged, over all adapters.", "accepted"),
    "tocsin_feed_records_rejected": ("Records that the feed rejected on arrival.", "rejected"),
    "tocsin_feed_taken_bytes": ("Bytes of the bodies of accepted and rejected records.", "taken_bytes"),
    "tocsin_feed_batches_landed": ("Batches that landed in a dataset.", "batches"),
    "tocsin_feed_landing_seconds": ("Time that the landed batches took, in seconds.", "landing_s"),
    "tocsin_feed_landing_failures": ("Batches that could not land and were retried.", "failures"),
    "tocsin_feed_records_set_aside": (
        "Records rejected while they landed: the dataset's type or the feed's function refused them.",
        "set_aside",
    ),
    "tocsin_feed_sockets_dropped": (
        "Socket connections that the cluster closed: over a limit, or unreadable.",
        "sockets_dropped",
    ),
    "tocsin_feed_socket_records_dropped": (
        "Records from sockets that could not be delimited, or were incomplete.",
        "unframed",
    ),
    "tocsin_feed_polls": ("Polls of the feed's address.", "polls"),
    "tocsin_feed_polls_unchanged": (
        "Polls of the feed's address that were answered with: nothing has changed.",
        "polls_unchanged",
    ),
    "tocsin_feed_polls_failed": (
        "Polls of the feed's address without an answer that could be read and stored.",
        "polls_failed",
    ),
    _REFUSED: (
        "Requests that stored no record, by status: 429 feed is behind, 507 disk full, 409 feed is stopped.",
        "refused",
    ),
}
# The same for the fields of FeedState.
_STATES: Final = {
    "tocsin_feed_unlanded_bytes": (
        "Bytes of the feed's log that have not landed; the limit is 1 GiB.",
        "unlanded_bytes",
    ),
    "tocsin_feed_lag_records": ("Acknowledged records that are not yet in every dataset of the feed.", "lag"),
    "tocsin_feed_lag_seconds": (
        "Time since the oldest acknowledged record that has not landed was acknowledged, in seconds.",
        "lag_age_s",
    ),
    "tocsin_feed_sockets_open": ("Open connections to the feed's sockets.", "connections"),
}


class FeedCollector(SeriesCollector[FeedMetrics]):
    def __init__(self, figures: Callable[[], Iterable[FeedMetrics]]) -> None:
        counts = {name: (help_text, attrgetter(f"counts.{field}")) for name, (help_text, field) in _COUNTS.items()}
        gauges = {name: (help_text, _state_reader(field)) for name, (help_text, field) in _STATES.items()}
        super().__init__("feed", figures, lambda feed: feed.feed, counts, gauges, second_labels={_REFUSED: "status"})


def _state_reader(name: str) -> Callable[[FeedMetrics], float | None]:
    return lambda feed: None if feed.state is None else getattr(feed.state, name)
