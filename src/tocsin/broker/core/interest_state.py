"""One interest at a broker: the backend subscription, its cache, and the frontend subscriptions merged into it."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tocsin.broker.core.cohorts import Cohort, CohortSnapshot, FrontendState
from tocsin.broker.core.fetches import Asked, PendingAnswer, PendingFetch
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.model.cursors import START, Cursor


class InterestState:
    """`cache` is None until the cluster holds the subscription; its head is how far the broker has come."""

    __slots__ = (
        "announced", "cache", "empty_since_s", "flights", "frontends", "inline", "interest", "joining", "news",
        "notify", "reported", "waiting",
    )  # fmt: skip

    def __init__(self, interest: Hashable) -> None:
        self.interest = interest
        self.cache: ResultCache | None = None
        self.frontends: dict[Hashable, FrontendState] = {}
        self.joining: dict[Hashable, FrontendState] = {}
        self.inline = Cohort(START)
        self.notify = Cohort(START)
        self.announced = START
        self.news: PendingFetch | None = None
        self.flights: list[PendingFetch] = []
        self.waiting: dict[Asked, PendingAnswer] = {}
        self.empty_since_s: float | None = None
        self.reported: Cursor | None = None

    @property
    def held(self) -> ResultCache:
        assert self.cache is not None, f"the cluster does not hold {self.interest} yet"
        return self.cache

    def leave(self, one: FrontendState) -> None:
        """Out of its cohort, if it was in one; what it waited for no longer concerns it."""
        if one.live:
            one.cohort.leave(one)
        one.waits = False
        one.turn += 1

    def together(self, group: CohortSnapshot) -> bool:
        """Whether these are just those who share the marker of a cohort of this interest."""
        return group.current and (group.cohort is self.notify or group.cohort is self.inline)

    def attach(self, one: FrontendState, caches: ResultCaches) -> bool:
        """From here on the subscription counts, if the broker has come to where it begins. Else it joins with the news.

        Who asks from nowhere begins after everything that the cluster has announced. Who asks from beyond that (it was
        further elsewhere) begins there too: it may get something again, and knows it by its id.
        """
        if self.cache is None:
            return False
        cache = self.cache
        latest = max(self.announced, cache.head)
        one.since = latest if one.since is None else min(one.since, latest)
        if one.since > cache.head:
            self.joining[one.id] = one
            return False
        one.attached = True
        one.marker = one.sent = one.since
        caches.attach(cache, one.since)
        return True

    def detach(self, one: FrontendState, caches: ResultCaches) -> None:
        self.leave(one)
        del self.frontends[one.id]
        if one.attached:
            caches.detach(self.held, one.marker)
        else:
            self.joining.pop(one.id, None)

    def acknowledge(self, to: Cursor, names: Collection[Hashable], caches: ResultCaches) -> None:
        """Cumulative, never beyond what the broker has. Names that are not here (any more) are passed over."""
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

    def acknowledge_one(self, one: FrontendState, to: Cursor, caches: ResultCaches) -> None:
        """The same for one that is attached."""
        cache, before = self.held, one.acknowledged
        to = min(to, cache.head)
        if before >= to:
            return
        if one.live:
            one.cohort.move(one.id, to)
        else:
            one.marker = to
            one.sent = max(one.sent, to)
        caches.advance(cache, before, to)

    def _move(self, to: Cursor, names: Collection[Hashable]) -> dict[Cursor, int]:
        """Whoever of these is attached and not so far yet: how many came from which marker."""
        moved: dict[Cursor, int] = {}
        live: dict[Cohort, list[Hashable]] = {}
        for name in dict.fromkeys(names):
            one = self.frontends.get(name)
            if one is None or not one.attached:
                continue
            if one.live:
                live.setdefault(one.cohort, []).append(name)
            elif one.marker < to:
                moved[one.marker] = moved.get(one.marker, 0) + 1
                one.marker = to
                one.sent = max(one.sent, to)
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
