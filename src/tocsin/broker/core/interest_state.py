"""The state of one interest at a broker: its backend subscription, its cache, and the frontend subscriptions merged
into it."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tocsin.broker.core.cohorts import Cohort, CohortSnapshot, FrontendState
from tocsin.broker.core.fetches import AnswerKey, PendingAnswer, PendingFetch
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.model.cursors import START, Cursor, InterestId


class InterestState:
    """The state of one interest. `cache` is None until the cluster has made the backend subscription; the head of the
    cache is how far the broker has received results."""

    __slots__ = (
        "announced", "cache", "empty_since_s", "fetches", "frontends", "inline", "interest", "joining", "news",
        "notify", "reported", "waiting",
    )  # fmt: skip

    def __init__(self, interest: InterestId) -> None:
        self.interest = interest
        self.cache: ResultCache | None = None
        self.frontends: dict[Hashable, FrontendState] = {}
        # Subscriptions that begin after the head; they are attached when the broker has received results up to there.
        self.joining: dict[Hashable, FrontendState] = {}
        self.inline = Cohort(START)
        self.notify = Cohort(START)
        # The cluster has announced results up to here.
        self.announced = START
        # The fetch of newly announced results; at most one at a time, so that they stay in order.
        self.news: PendingFetch | None = None
        # The fetches of older results that a subscriber lacks and the cache does not have.
        self.fetches: list[PendingFetch] = []
        self.waiting: dict[AnswerKey, PendingAnswer] = {}
        # When the last subscription ended; the grace period starts then.
        self.empty_since_s: float | None = None
        # The lowest marker that was last reported to the cluster.
        self.reported: Cursor | None = None

    @property
    def held(self) -> ResultCache:
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
            caches.detach(self.held, frontend.marker)
        else:
            self.joining.pop(frontend.id, None)

    def acknowledge(self, to: Cursor, names: Collection[Hashable], caches: ResultCaches) -> None:
        """Moves markers forward, never beyond the head. Subscriptions that are unknown or have ended are ignored."""
        cache = self.held
        to = min(to, cache.head)
        moved: dict[Cursor, int]
        if type(names) is CohortSnapshot and self.together(names):
            before = names.cohort.marker
            if before < to and names.names:
                names.cohort.move_together(to)
                caches.advance(cache, before, to, len(names.names))
            return
        if names is self.inline or names is self.notify:
            assert isinstance(names, Cohort)
            moved = names.move_all(to)
        else:
            moved = self._move(to, names)
        for before, count in moved.items():
            caches.advance(cache, before, to, count)

    def acknowledge_one(self, frontend: FrontendState, to: Cursor, caches: ResultCaches) -> None:
        """Does the same for one attached subscription."""
        cache, before = self.held, frontend.acknowledged
        to = min(to, cache.head)
        if before >= to:
            return
        if frontend.live:
            frontend.cohort.move(frontend.id, to)
        else:
            frontend.marker = to
            frontend.sent = max(frontend.sent, to)
        caches.advance(cache, before, to)

    def _move(self, to: Cursor, names: Collection[Hashable]) -> dict[Cursor, int]:
        """Moves the attached subscriptions that are before `to`; returns how many came from each marker."""
        moved: dict[Cursor, int] = {}
        live: dict[Cohort, list[Hashable]] = {}
        for name in dict.fromkeys(names):
            frontend = self.frontends.get(name)
            if frontend is None or not frontend.attached:
                continue
            if frontend.live:
                live.setdefault(frontend.cohort, []).append(name)
            elif frontend.marker < to:
                moved[frontend.marker] = moved.get(frontend.marker, 0) + 1
                frontend.marker = to
                frontend.sent = max(frontend.sent, to)
        for cohort, members in live.items():
            if len(members) == 1:
                (name,) = members
                if (before := cohort.marker_of(name)) < to:
                    cohort.move(name, to)
                    moved[before] = moved.get(before, 0) + 1
                continue
            for before, count in cohort.move_several(members, to).items():
                moved[before] = moved.get(before, 0) + count
        return moved
