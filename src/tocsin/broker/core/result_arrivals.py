"""Takes what the cluster sends: pushed results, announcements, and the answers to fetches.

New results go into the cache and on to the cohorts. They stay in order: while announced results are being fetched, a
pushed result waits for them.
"""

from __future__ import annotations

from collections.abc import Collection

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Action, Deliver, DeliveryReason, NotifyAvailable
from tocsin.broker.core.catch_up import CatchUp
from tocsin.broker.core.cohorts import FrontendState
from tocsin.broker.core.fetches import PendingFetch
from tocsin.broker.core.interest_state import CoreState, InterestState
from tocsin.rules.caching.entries import BrokerResult, size_bytes
from tocsin.rules.model.cursors import Cursor, SubscriptionId


class ResultArrivals:
    """Handles the cluster's events."""

    def __init__(self, state: CoreState, getter: CatchUp) -> None:
        self._interests = state.interests
        self._caches = state.caches
        self._fetches = state.fetches
        self._unreported = state.unreported
        self._getter = getter

    def backend_subscribed(self, event: ev.BackendSubscribed, now_s: float, actions: list[Action]) -> None:
        state = self._interests.get(event.interest)
        if state is None:
            # All subscribers left before the cluster answered, and we have unsubscribed.
            return
        if state.cache is None:
            state.cache = self._caches.open(event.interest, event.since, now_s)
            for frontend in list(state.frontends.values()):
                # These subscriptions precede the cluster's answer, so later announcements are theirs, too.
                frontend.since = event.since if frontend.since is None else frontend.since
                self.activate(state, frontend, now_s, actions)
        else:
            # A repeated answer after a restart: results that were made in between still have to be fetched.
            state.announced = max(state.announced, event.since)
        self._fetch_announced(state, actions)

    def activate(self, state: InterestState, frontend: FrontendState, now_s: float, actions: list[Action]) -> None:
        """Activates the subscription if the broker has received results up to where it begins."""
        if state.attach(frontend, self._caches):
            self._unreported[state.interest] = state
            self._getter.catch_up(state, frontend, now_s, actions)

    def result_arrived(self, event: ev.ResultArrived, now_s: float, actions: list[Action]) -> None:
        """Takes a pushed result, unless results before it still have to be fetched."""
        state = self._interests.get(event.interest)
        if state is None:
            return
        cache = state.cache
        if cache is None or state.announced > cache.head:
            # Results before this one still have to be fetched. Fetch this one with them, so that results stay in order.
            state.announced = max(state.announced, event.cursor)
        elif event.cursor > cache.head:
            before = cache.head
            result = BrokerResult(event.cursor, event.size_bytes, event.payload)
            self._caches.put(cache, result, now_s)
            self._deliver(state, before, (result,), None, actions)

    def results_announced(self, event: ev.ResultsAnnounced, _now_s: float, actions: list[Action]) -> None:
        state = self._interests.get(event.interest)
        if state is not None:
            state.announced = max(state.announced, event.cursor)
            self._fetch_announced(state, actions)

    def fetch_succeeded(self, event: ev.FetchSucceeded, now_s: float, actions: list[Action]) -> None:
        pending = self._fetches.get(event.fetch)
        if pending is not None:
            self._take_answer(pending, event, now_s, actions)

    def fetches_succeeded(self, event: ev.FetchesSucceeded, now_s: float, actions: list[Action]) -> None:
        announced: list[ev.FetchSucceeded] = []
        for answer in event.answers:
            pending = self._fetches.get(answer.fetch)
            if pending is not None and not pending.is_announced:
                self._take_answer(pending, answer, now_s, actions)
            elif pending is not None:
                # Handle catch-up answers first: they can add members to the cohort that the new results go to.
                announced.append(answer)
        for answer in announced:
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
        state = pending.interest_state
        pending.answer = answer
        pending.answer_bytes = size_bytes(answer.results) if answer.size_bytes is None else answer.size_bytes
        self._caches.count_fetch(state.open_cache, len(answer.results), pending.answer_bytes, answer.took_s)
        if not pending.is_announced:
            self._getter.take_answer(pending, answer, now_s, actions)
            return
        state.announced_fetch = None
        self._take_announced(state, min(answer.to, pending.to), answer, now_s, actions)

    def _take_announced(
        self, state: InterestState, to: Cursor, answer: ev.FetchSucceeded, now_s: float, actions: list[Action]
    ) -> None:
        """Puts new results into the cache, delivers them, and attaches subscriptions that waited for them."""
        cache = state.open_cache
        before = cache.head
        gap = None if answer.gap is None or answer.gap <= before else min(answer.gap, to)
        if gap is not None:
            # Leave the gap out of the cache: a later pull of this range asks the cluster, which reports the gap itself.
            cache.skip(gap)
        new = tuple(result for result in answer.results if cache.head < result.cursor <= to)
        for result in new:
            self._caches.put(cache, result, now_s)
        cache.reach(to)
        self._deliver(state, before, new, gap, actions)
        for frontend in [
            joiner for joiner in state.joining.values() if joiner.since is None or joiner.since <= cache.head
        ]:
            del state.joining[frontend.id]
            self.activate(state, frontend, now_s, actions)
        self._fetch_announced(state, actions)

    def _deliver(
        self,
        state: InterestState,
        before: Cursor,
        new: tuple[BrokerResult, ...],
        gap: Cursor | None,
        actions: list[Action],
    ) -> None:
        """Delivers new results to the cohorts: the results themselves inline, a notification to the others."""
        head = state.open_cache.head
        self._unreported[state.interest] = state
        if not new and gap is None:
            return
        inline: Collection[SubscriptionId] = state.inline
        notify: Collection[SubscriptionId] = state.notify
        if state.joining:
            # Copy the audiences: joining subscriptions enter the cohorts before this action is performed, and these
            # results are not for them.
            inline, notify = tuple(inline), tuple(notify)
        if state.inline.members:
            actions.append(Deliver(state.interest, before, head, new, inline, DeliveryReason.LIVE, gap))
            counters = self._caches.counters
            counters.pushed += len(new) * len(inline)
            counters.pushed_bytes += size_bytes(new) * len(inline)
        if state.notify.members:
            actions.append(NotifyAvailable(state.interest, head, notify))

    def _fetch_announced(self, state: InterestState, actions: list[Action]) -> None:
        """Fetches announced results after the head, one fetch at a time."""
        cache = state.cache
        if cache is not None and state.announced_fetch is None and state.announced > cache.head:
            state.announced_fetch = self._fetches.begin(state, cache.head, state.announced, actions, is_announced=True)
