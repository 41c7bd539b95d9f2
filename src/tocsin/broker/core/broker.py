"""The broker as a state machine: events in, actions out.

    actions = broker.handle(event, now_s)

It has no clock, no I/O and no randomness; the same object serves sockets and runs under virtual time. Promises:

- a subscription receives every result that is made after it subscribed (or after the `since` that it named), in the
  order of cursors, at least once; it receives nothing of another interest, and nothing that it has acknowledged unless
  it asks again;
- results that no longer exist are reported as a gap;
- a result that arrives causes one Deliver and one NotifyAvailable for any number of subscribers;
- a range that several subscribers lack is fetched once.

Timers that are due by `now_s` run before the event. `next_wake_s` is when the core needs a TimePassed if no other event
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import (
    Action,
    Deliver,
    DeliveryReason,
    EndSubscriptions,
    NotifyAvailable,
    RefuseEvent,
    ReportConsumed,
    SubscribeBackend,
    Subscribed,
    UnsubscribeBackend,
)
from tocsin.broker.core.broker_state import BrokerState
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.delivery import Delivery
from tocsin.broker.core.fetches import PendingFetch
from tocsin.broker.core.interest_state import InterestState
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.core.timers import Timers
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import ConflictError, NotFoundError


class Broker(BrokerState):
    """The core of a broker; `handle` is its only entry, and there is one handler method per event."""

    def __init__(self, settings: CoreSettings, now_s: float) -> None:
        super().__init__()
        self.settings = settings
        self.caches = ResultCaches(settings.caching, now_s)
        self._delivery = Delivery(settings, self.caches)
        # Ends of grace periods: interests whose last subscription ended, and when it did.
        self._emptied: Timers[tuple[InterestState, float]] = Timers()
        # Failed fetches, due for a retry.
        self._failed: Timers[int] = Timers()
        # Interests whose lowest marker may have moved since the last report to the cluster.
        self._unreported: dict[Hashable, InterestState] = {}
        self._report_due_s = now_s + settings.report_every_s
        self._now_s = now_s
        self._handlers: dict[type, Callable[[Any, list[Action]], None]] = {
            ev.SubscribeRequested: self._subscribe,
            ev.UnsubscribeRequested: self._unsubscribe,
            ev.SubscriberLoggedIn: self._logged_in,
            ev.SubscriberLoggedOut: self._logged_out,
            ev.ResultsRequested: self._get_results,
            ev.ResultsRequestedByMany: self._get_each,
            ev.ResultsAcknowledged: self._acked,
            ev.ResultsAcknowledgedByMany: self._acked_each,
            ev.SubscriberFellBehind: self._fell_behind,
            ev.SubscriberReady: self._ready,
            ev.BackendSubscribed: self._backend_ready,
            ev.BackendSubscriptionLost: self._backend_gone,
            ev.ResultArrived: self._arrived,
            ev.ResultsAnnounced: self._announced,
            ev.FetchSucceeded: self._fetched,
            ev.FetchesSucceeded: self._fetched_together,
            ev.FetchFailed: self._fetch_failed,
            ev.TimePassed: lambda _event, _actions: None,
            ev.CachePoliciesChanged: self._policies_chosen,
        }

    def handle(self, event: ev.BrokerEvent, now_s: float) -> list[Action]:
        """Handles the event and returns the actions. Time never runs back: an earlier `now_s` counts as the latest."""
        self._now_s = max(self._now_s, now_s)
        actions: list[Action] = []
        if self._now_s >= self.next_wake_s:
            self._pass_time(actions)
        self._handlers[type(event)](event, actions)
        return actions

    @property
    def next_wake_s(self) -> float:
        due_s = min(self.caches.due_s(), self._emptied.due_s, self._failed.due_s)
        return self._report_due_s if self._report_due_s < due_s and self._unreported else due_s

    # --- subscribers

    def _subscribe(self, event: ev.SubscribeRequested, actions: list[Action]) -> None:
        existing = self._frontends.get(event.subscription)
        if existing is not None:
            requested = (event.subscriber, event.interest, event.mode)
            if requested != (existing.subscriber, existing.interest, existing.mode):
                error = ConflictError(f"there is a subscription {event.subscription} to something else")
                actions.append(RefuseEvent(event.subscription, error))
            elif existing.attached and existing.since is not None:
                actions.append(Subscribed(existing.id, existing.interest, existing.since))
            return
        backend = self._backends.get(event.interest)
        if backend is None:
            backend = self._backends[event.interest] = InterestState(event.interest)
            actions.append(SubscribeBackend(event.interest))
        online = event.subscriber in self._online
        frontend = FrontendState(
            event.subscription, event.subscriber, backend, mode=event.mode, since=event.since, online=online
        )
        self._frontends[frontend.id] = frontend
        self._of_subscriber.setdefault(frontend.subscriber, {})[frontend.id] = frontend
        backend.frontends[frontend.id] = frontend
        backend.empty_since_s = None
        self._attach(backend, frontend, actions)

    def _attach(self, backend: InterestState, one: FrontendState, actions: list[Action]) -> None:
        """Activates the subscription if the broker has received results up to where it begins."""
        if not backend.attach(one, self.caches):
            return
        actions.append(Subscribed(one.id, one.interest, one.marker))
        self._unreported[backend.interest] = backend
        self._delivery.resume(backend, one, self._now_s, actions)

    def _unsubscribe(self, event: ev.UnsubscribeRequested, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        backend = frontend.backend
        backend.detach(frontend, self.caches)
        self._forget(frontend)
        self._unreported[backend.interest] = backend
        if not backend.frontends:
            backend.empty_since_s = self._now_s
            self._emptied.set(self._now_s + self.settings.grace_s, (backend, self._now_s))
            self._release(self._now_s, actions)

    def _logged_in(self, event: ev.SubscriberLoggedIn, actions: list[Action]) -> None:
        self._online.add(event.subscriber)
        for frontend in self._of_subscriber.get(event.subscriber, {}).values():
            if frontend.online:
                continue
            frontend.online, frontend.behind = True, False
            # Results that were sent but not acknowledged may be lost, so send them again.
            frontend.sent = frontend.marker
            self._delivery.resume(frontend.backend, frontend, self._now_s, actions)

    def _logged_out(self, event: ev.SubscriberLoggedOut, actions: list[Action]) -> None:  # noqa: ARG002
        self._online.discard(event.subscriber)
        for frontend in self._of_subscriber.get(event.subscriber, {}).values():
            frontend.online = False
            frontend.backend.leave(frontend)

    def _get_results(self, event: ev.ResultsRequested, actions: list[Action]) -> None:
        """Serves a pull. A whole cohort is served as one; other subscriptions are grouped by their cursors."""
        backend = self._backends.get(event.interest)
        subscriptions: Collection[Hashable] = event.subscriptions
        if backend is not None and event.after is None:
            if subscriptions is backend.notify or subscriptions is backend.inline:
                cohort = backend.notify if subscriptions is backend.notify else backend.inline
                self._ask_together(backend, cohort.together, actions)
                subscriptions = tuple(cohort.own)
            elif type(subscriptions) is CohortSnapshot and backend.together(subscriptions):
                self._ask_together(backend, subscriptions, actions)
                return
        askers_by_cursor: dict[Cursor, list[FrontendState]] = {}
        for subscription in subscriptions:
            frontend = backend.frontends.get(subscription) if backend is not None else None
            if backend is None or frontend is None:
                actions.append(self._unknown(subscription))
            elif not frontend.attached or frontend.since is None:
                actions.append(self._too_early(subscription))
            else:
                after = frontend.acknowledged if event.after is None else max(event.after, frontend.since)
                askers_by_cursor.setdefault(after, []).append(frontend)
        if backend is not None:
            for after, askers in askers_by_cursor.items():
                self._delivery.ask(
                    backend, askers, after, DeliveryReason.PULLED, now_s=self._now_s, actions=actions, limit=event.limit
                )

    def _get_each(self, event: ev.ResultsRequestedByMany, actions: list[Action]) -> None:
        for subscription in event.subscriptions:
            frontend = self._frontends.get(subscription)
            if frontend is None or not frontend.attached:
                actions.append(self._unknown(subscription) if frontend is None else self._too_early(subscription))
                continue
            self._delivery.ask(
                frontend.backend,
                (frontend,),
                frontend.acknowledged,
                DeliveryReason.PULLED,
                now_s=self._now_s,
                actions=actions,
            )

    def _ask_together(self, backend: InterestState, group: CohortSnapshot, actions: list[Action]) -> None:
        if group.names:
            after = group.cohort.marker
            self._delivery.ask(backend, group, after, DeliveryReason.PULLED, now_s=self._now_s, actions=actions)

    def _acked(self, event: ev.ResultsAcknowledged, actions: list[Action]) -> None:  # noqa: ARG002
        backend = self._backends.get(event.interest)
        if backend is not None and backend.cache is not None:
            backend.acknowledge(event.cursor, event.subscriptions, self.caches)
            self._unreported[backend.interest] = backend

    def _acked_each(self, event: ev.ResultsAcknowledgedByMany, actions: list[Action]) -> None:  # noqa: ARG002
        for subscription, cursor in event.acks:
            frontend = self._frontends.get(subscription)
            if frontend is not None and frontend.attached:
                frontend.backend.acknowledge_one(frontend, cursor, self.caches)
                self._unreported[frontend.interest] = frontend.backend

    def _fell_behind(self, event: ev.SubscriberFellBehind, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        frontend.backend.leave(frontend)
        frontend.behind = True
        frontend.sent = frontend.marker if event.sent is None else max(frontend.marker, event.sent)

    def _ready(self, event: ev.SubscriberReady, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        frontend.behind = False
        self._delivery.resume(frontend.backend, frontend, self._now_s, actions)

    # --- the cluster

    def _backend_ready(self, event: ev.BackendSubscribed, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            # All subscribers left before the cluster answered, and we have unsubscribed.
            return
        if backend.cache is None:
            backend.cache = self.caches.open(event.interest, event.since, self._now_s)
            for frontend in list(backend.frontends.values()):
                # These subscriptions precede the cluster's answer, so later announcements are theirs, too.
                frontend.since = event.since if frontend.since is None else frontend.since
                self._attach(backend, frontend, actions)
        else:
            # A repeated answer after a restart: results that were made in between still have to be fetched.
            backend.announced = max(backend.announced, event.since)
        self._fetch_news(backend, actions)

    def _backend_gone(self, event: ev.BackendSubscriptionLost, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            return
        subscriptions = tuple(backend.frontends)
        for frontend in list(backend.frontends.values()):
            backend.detach(frontend, self.caches)
            self._forget(frontend)
        self._let_go(backend)
        if subscriptions:
            actions.append(EndSubscriptions(event.interest, subscriptions, event.reason))

    def _arrived(self, event: ev.ResultArrived, actions: list[Action]) -> None:
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
            self.caches.put(cache, result, self._now_s)
            self._tell(backend, before, (result,), None, actions)

    def _announced(self, event: ev.ResultsAnnounced, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is not None:
            backend.announced = max(backend.announced, event.cursor)
            self._fetch_news(backend, actions)

    def _fetched(self, event: ev.FetchSucceeded, actions: list[Action]) -> None:
        pending = self._delivery.under_way(event.fetch)
        if pending is not None:
            self._land(pending, event, actions)

    def _fetched_together(self, event: ev.FetchesSucceeded, actions: list[Action]) -> None:
        new_results: list[ev.FetchSucceeded] = []
        for answer in event.answers:
            pending = self._delivery.under_way(answer.fetch)
            if pending is not None and not pending.news:
                self._land(pending, answer, actions)
            elif pending is not None:
                # Handle catch-up answers first: they can add members to the cohort that the new results go to.
                new_results.append(answer)
        for answer in new_results:
            self._fetched(answer, actions)

    def _land(self, flight: PendingFetch, event: ev.FetchSucceeded, actions: list[Action]) -> None:
        """Takes the answer to a fetch, or counts it as failed if it brings nothing."""
        if event.to <= flight.after:
            # An answer that makes no progress counts as a failure, so that it is retried after a delay.
            self._fetch_failed(ev.FetchFailed(event.fetch), actions)
            return
        self._delivery.land(flight, event, self._now_s, actions)
        if flight.news:
            self._news(flight.backend, min(event.to, flight.to), event, actions)

    def _fetch_failed(self, event: ev.FetchFailed, actions: list[Action]) -> None:  # noqa: ARG002
        if self._delivery.under_way(event.fetch) is not None:
            self._failed.set(self._now_s + self.settings.fetch_retry_s, event.fetch)

    def _news(self, backend: InterestState, to: Cursor, event: ev.FetchSucceeded, actions: list[Action]) -> None:
        """Puts new results into the cache, delivers them, and attaches subscriptions that waited for them."""
        cache = backend.held
        before = cache.head
        gap = None if event.gap is None or event.gap <= before else min(event.gap, to)
        if gap is not None:
            # Leave the gap out of the cache: a later pull of this range asks the cluster, which reports the gap itself.
            cache.skip(gap)
        new = tuple(result for result in event.results if cache.head < result.cursor <= to)
        for result in new:
            self.caches.put(cache, result, self._now_s)
        cache.reach(to)
        self._tell(backend, before, new, gap, actions)
        for frontend in [
            joiner for joiner in backend.joining.values() if joiner.since is None or joiner.since <= cache.head
        ]:
            del backend.joining[frontend.id]
            self._attach(backend, frontend, actions)
        self._fetch_news(backend, actions)

    def _tell(
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
            counters = self.caches.figures
            counters.pushed += len(new) * len(inline)
            counters.pushed_bytes += sum(result.size_bytes for result in new) * len(inline)
        if backend.notify.members:
            actions.append(NotifyAvailable(backend.interest, head, notify))

    def _fetch_news(self, backend: InterestState, actions: list[Action]) -> None:
        """Fetches announced results after the head, one fetch at a time."""
        cache = backend.cache
        if cache is not None and backend.news is None and backend.announced > cache.head:
            backend.news = self._delivery.begin(backend, cache.head, backend.announced, actions, news=True)

    # --- time and settings

    def _policies_chosen(self, event: ev.CachePoliciesChanged, actions: list[Action]) -> None:  # noqa: ARG002
        self.caches.switch(event.caching, self._now_s)

    def _pass_time(self, actions: list[Action]) -> None:
        """Does everything that is due: expiry, retries, ends of grace periods, and the report to the cluster."""
        now_s = self._now_s
        self.caches.pass_time(now_s)
        for fetch in self._failed.due(now_s):
            self._delivery.again(fetch, actions)
        self._release(now_s, actions)
        if self._unreported and now_s >= self._report_due_s:
            self._report(actions)

    def _release(self, now_s: float, actions: list[Action]) -> None:
        """Drops interests that have had no subscription for the whole grace period."""
        for backend, since_s in self._emptied.due(now_s):
            if backend.empty_since_s == since_s and self._backends.get(backend.interest) is backend:
                self._let_go(backend)
                actions.append(UnsubscribeBackend(backend.interest))

    def _report(self, actions: list[Action]) -> None:
        """Reports the lowest marker of every interest in which it has moved."""
        lowest: dict[Hashable, Cursor] = {}
        for backend in self._unreported.values():
            if backend.cache is not None and (marker := backend.cache.lowest_marker()) != backend.reported:
                lowest[backend.interest] = backend.reported = marker
        self._unreported.clear()
        self._report_due_s = self._now_s + self.settings.report_every_s
        if lowest:
            actions.append(ReportConsumed(lowest))

    # --- helpers

    def _let_go(self, backend: InterestState) -> None:
        """Drops the interest with its cache and its fetches."""
        del self._backends[backend.interest]
        self._unreported.pop(backend.interest, None)
        self._delivery.forget(backend)
        if backend.cache is not None:
            self.caches.close(backend.interest)

    def _forget(self, one: FrontendState) -> None:
        del self._frontends[one.id]
        own_frontends = self._of_subscriber[one.subscriber]
        del own_frontends[one.id]
        if not own_frontends:
            del self._of_subscriber[one.subscriber]

    def _too_early(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(
            subscription, NotFoundError("the cluster does not hold this subscription yet", hint="ask again")
        )

    def _unknown(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(subscription, NotFoundError(f"no subscription {subscription}"))
