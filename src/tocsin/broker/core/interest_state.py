"""The state of one interest at a broker: its backend subscription, its cache, and the frontend subscriptions merged
into it; and the state of all interests together.

Every event of the core concerns one interest. Its parts are found here together, so that an event costs one lookup.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tocsin.broker.core.cohorts import Cohort, CohortSnapshot, FrontendState
from tocsin.broker.core.fetches import AnswerKey, Fetches, PendingAnswer, PendingFetch
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.model.cursors import START, Cursor, InterestId, SubscriptionId


class InterestState:
    """The state of one interest. `cache` is None until the cluster has made the backend subscription; the head of the
    cache is how far the broker has received results."""

    __slots__ = (
        "announced", "announced_fetch", "cache", "empty_since_s", "fetches", "frontends", "inline", "interest",
        "joining", "notify", "reported", "waiting",
    )  # fmt: skip

    def __init__(self, interest: InterestId) -> None:
        self.interest = interest
        self.cache: ResultCache | None = None
        self.frontends: dict[SubscriptionId, FrontendState] = {}
        # Subscriptions that begin after the head; they are attached when the broker has received results up to there.
        self.joining: dict[SubscriptionId, FrontendState] = {}
        self.inline = Cohort(START)
        self.notify = Cohort(START)
        # The cluster has announced results up to here.
        self.announced = START
        # The fetch of newly announced results; at most one at a time, so that they stay in order.
        self.announced_fetch: PendingFetch | None = None
        # The fetches of older results that a subscriber lacks and the cache does not have.
        self.fetches: list[PendingFetch] = []
        self.waiting: dict[AnswerKey, PendingAnswer] = {}
        # When the last subscription ended; the grace period starts then.
        self.empty_since_s: float | None = None
        # The lowest marker that was last reported to the cluster.
        self.reported: Cursor | None = None

    @property
    def open_cache(self) -> ResultCache:
        assert self.cache is not None, f"the cluster does not hold {self.interest} yet"
        return self.cache

    def leave(self, frontend: FrontendState) -> None:
        """Takes the subscription out of its cohort and invalidates the answer that it waits for."""
        if frontend.live:
            frontend.cohort.leave(frontend)
        frontend.waits = False
        frontend.turn += 1

    def together(self, group: CohortSnapshot) -> bool:
        """Whether the snapshot still equals the members that share the marker of one of this interest's cohorts."""
        return group.current and (group.cohort is self.notify or group.cohort is self.inline)

    def attach(self, frontend: FrontendState, caches: ResultCaches) -> bool:
        """Activates the subscription if the broker has received results up to where it begins; otherwise it stays in
        `joining` until the fetch of the new results is back.

        A subscription without `since` begins after everything that the cluster has announced. A `since` beyond that
        (the subscriber was further at another broker) is clamped to it: the client may receive some results again and
        drops them by their ids.
        """
        if self.cache is None:
            return False
        cache = self.cache
        latest = max(self.announced, cache.head)
        frontend.since = latest if frontend.since is None else min(frontend.since, latest)
        if frontend.since > cache.head:
            self.joining[frontend.id] = frontend
            return False
        frontend.attached = True
        frontend.marker = frontend.sent = frontend.since
        caches.attach(cache, frontend.since)
        return True

    def detach(self, frontend: FrontendState, caches: ResultCaches) -> None:
        self.leave(frontend)
        del self.frontends[frontend.id]
        if frontend.attached:
            caches.detach(self.open_cache, frontend.marker)
        else:
            self.joining.pop(frontend.id, None)


@dataclass(frozen=True, slots=True)
class CoreState:
    """What the core's handlers share. `unreported` has the interests whose lowest marker may have moved since the last
    report to the cluster."""

    caches: ResultCaches
    fetches: Fetches
    interests: dict[InterestId, InterestState] = field(default_factory=dict)
    frontends: dict[SubscriptionId, FrontendState] = field(default_factory=dict)
    of_subscriber: dict[Hashable, dict[SubscriptionId, FrontendState]] = field(default_factory=dict)
    online: set[Hashable] = field(default_factory=set)
    unreported: dict[InterestId, InterestState] = field(default_factory=dict)
