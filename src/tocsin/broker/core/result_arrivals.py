"""Takes what the cluster sends: pushed results, announcements, and the answers to fetches.

New results go into the cache and on to the cohorts. They stay in order: while announced results are being fetched, a
pushed result waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Action, Deliver, DeliveryReason, NotifyAvailable
from tocsin.broker.core.cohorts import FrontendState
from tocsin.broker.core.fetches import PendingFetch
from tocsin.broker.core.interest_state import CoreState, InterestState
from tocsin.broker.core.result_getter import ResultGetter
from tocsin.rules.caching.entries import BrokerResult, size_bytes
from tocsin.rules.model.cursors import Cursor


class ResultArrivals:
    """Handles the cluster's events."""

    def __init__(self, state: CoreState, getter: ResultGetter) -> None:
        self._backends = state.backends
        self._caches = state.caches
        self._fetches = state.fetches
        self._unreported = state.unreported
        self._getter = getter

    def backend_subscribed(self, event: ev.BackendSubscribed, now_s: float, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            # All subscribers left before the cluster answered, and we have unsubscribed.
            return
        if backend.cache is None:
            backend.cache = self._caches.open(event.interest, event.since, now_s)
            for frontend in list(backend.frontends.values()):
                # These subscriptions precede the cluster's answer, so later announcements are theirs, too.
                frontend.since = event.since if frontend.since is None else frontend.since
                self.activate(backend, frontend, now_s, actions)
        else:
            # A repeated answer after a restart: results that were made in between still have to be fetched.
            backend.announced = max(backend.announced, event.since)
        self._fetch_news(backend, actions)

    def activate(self, backend: InterestState, frontend: FrontendState, now_s: float, actions: list[Action]) -> None:
        """Activates the subscription if the broker has received results up to where it begins."""
        if backend.attach(frontend, self._caches):
            self._unreported[backend.interest] = backend
            self._getter.catch_up(backend, frontend, now_s, actions)

    def result_arrived(self, event: ev.ResultArrived, now_s: float, actions: list[Action]) -> None:
        """Takes a pushed result, unless results before it still have to be fetched."""
        backend = self._backends.get(event.interest)
        if backend is None:
            return
        cache = backend.cache
        if cache is None or backend.announced > cache.head:
            # Results before this one still have to be fetched. Fetch this one with them, so that results stay in order.
            backend.announced = max(backend.announced, event.cursor)
        elif event.cursor > cache.head:
            before = cache.head
            result = BrokerResult(event.cursor, event.size_bytes, event.payload)
            self._caches.put(cache, result, now_s)
            self._deliver(backend, before, (result,), None, actions)

    def results_announced(self, event: ev.ResultsAnnounced, _now_s: float, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is not None:
            backend.announced = max(backend.announced, event.cursor)
            self._fetch_news(backend, actions)

    def fetch_succeeded(self, event: ev.FetchSucceeded, now_s: float, actions: list[Action]) -> None:
        pending = self._fetches.get(event.fetch)
        if pending is not None:
            self._take_answer(pending, event, now_s, actions)

    def fetches_succeeded(self, event: ev.FetchesSucceeded, now_s: float, actions: list[Action]) -> None:
        news: list[ev.FetchSucceeded] = []
        for answer in event.answers:
            pending = self._fetches.get(answer.fetch)
            if pending is not None and not pending.news:
                self._take_answer(pending, answer, now_s, actions)
            elif pending is not None:
                # Handle catch-up answers first: they can add members to the cohort that the new results go to.
                news.append(answer)
        for answer in news:
            self.fetch_succeeded(answer, now_s, actions)

    def fetch_failed(self, event: ev.FetchFailed, now_s: float, _actions: list[Action]) -> None:
        self._fetches.fail(event.fetch, now_s)

    def _take_answer(
        self, pending: PendingFetch, answer: ev.FetchSucceeded, now_s: float, actions: list[Action]
    ) -> None:
        """Takes the answer to a fetch. One that makes no progress counts as a failure: it is retried after a delay."""
        if answer.to <= pending.after:
            self._fetches.fail(answer.fetch, now_s)
            return
        self._fetches.end(answer.fetch)
        backend = pending.backend
        pending.answer = answer
        pending.answer_bytes = size_bytes(answer.results) if answer.size_bytes is None else answer.size_bytes
        self._caches.fetched(backend.held, len(answer.results), pending.answer_bytes, answer.took_s)
        if not pending.news:
            self._getter.take_answer(pending, answer, now_s, actions)
            return
        backend.news = None
        self._take_news(backend, min(answer.to, pending.to), answer, now_s, actions)

    def _take_news(
        self, backend: InterestState, to: Cursor, answer: ev.FetchSucceeded, now_s: float, actions: list[Action]
    ) -> None:
        """Puts new results into the cache, delivers them, and attaches subscriptions that waited for them."""
        cache = backend.held
        before = cache.head
        gap = None if answer.gap is None or answer.gap <= before else min(answer.gap, to)
        if gap is not None:
            # Leave the gap out of the cache: a later pull of this range asks the cluster, which reports the gap itself.
            cache.skip(gap)
        new = tuple(result for result in answer.results if cache.head < result.cursor <= to)
        for result in new:
            self._caches.put(cache, result, now_s)
        cache.reach(to)
        self._deliver(backend, before, new, gap, actions)
        for frontend in [
            joiner for joiner in backend.joining.values() if joiner.since is None or joiner.since <= cache.head
        ]:
            del backend.joining[frontend.id]
            self.activate(backend, frontend, now_s, actions)
        self._fetch_news(backend, actions)

    def _deliver(
        self,
        backend: InterestState,
        before: Cursor,
        new: tuple[BrokerResult, ...],
        gap: Cursor | None,
        actions: list[Action],
    ) -> None:
        """Delivers new results to the cohorts: the results themselves inline, a notification to the others."""
        head = backend.held.head
        self._unreported[backend.interest] = backend
        if not new and gap is None:
            return
        inline: Collection[Hashable] = backend.inline
        notify: Collection[Hashable] = backend.notify
        if backend.joining:
            # Copy the audiences: joining subscriptions enter the cohorts before this action is performed, and these
            # results are not for them.
            inline, notify = tuple(inline), tuple(notify)
        if backend.inline.members:
            actions.append(Deliver(backend.interest, before, head, new, inline, DeliveryReason.LIVE, gap))
            counters = self._caches.counters
            counters.pushed += len(new) * len(inline)
            counters.pushed_bytes += size_bytes(new) * len(inline)
        if backend.notify.members:
            actions.append(NotifyAvailable(backend.interest, head, notify))

    def _fetch_news(self, backend: InterestState, actions: list[Action]) -> None:
        """Fetches announced results after the head, one fetch at a time."""
        cache = backend.cache
        if cache is not None and backend.news is None and backend.announced > cache.head:
            backend.news = self._fetches.begin(backend, cache.head, backend.announced, actions, news=True)
