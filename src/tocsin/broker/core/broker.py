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

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import (
    Action,
    DeliveryReason,
    EndSubscriptions,
    RefuseEvent,
    ReportConsumed,
    SubscribeBackend,
    UnsubscribeBackend,
)
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.fetches import Fetches
from tocsin.broker.core.interest_state import InterestState
from tocsin.broker.core.missed_results import MissedResults
from tocsin.broker.core.result_arrivals import ResultArrivals
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.model.cursors import START, Cursor, InterestId
from tocsin.wire.errors import ConflictError, NotFoundError


class Broker:
    """The core of a broker; `handle` is its only entry, and there is one handler method per event. The queries below
    it change nothing."""

    def __init__(self, settings: CoreSettings, now_s: float) -> None:
        self.settings = settings
        self.caches = ResultCaches(settings.caching, now_s)
        self._backends: dict[InterestId, InterestState] = {}
        self._frontends: dict[Hashable, FrontendState] = {}
        self._of_subscriber: dict[Hashable, dict[Hashable, FrontendState]] = {}
        self._online: set[Hashable] = set()
        # Interests whose last subscription ended: when the grace period ends, and when the subscription did. All grace
        # periods are equally long, so that these are in the order of time.
        self._emptied: deque[tuple[float, InterestState, float]] = deque()
        # Interests whose lowest marker may have moved since the last report to the cluster.
        self._unreported: dict[InterestId, InterestState] = {}
        self._report_due_s = now_s + settings.report_every_s
        self._now_s = now_s
        self._fetches = Fetches(settings)
        self._missed = MissedResults(settings, self.caches, self._fetches)
        self._arrivals = arrivals = ResultArrivals(
            self._backends, self.caches, self._fetches, self._missed, self._unreported
        )
        self._handlers: dict[type, Callable[[Any, float, list[Action]], None]] = {
            ev.SubscribeRequested: self._subscribe,
            ev.UnsubscribeRequested: self._unsubscribe,
            ev.SubscriberLoggedIn: self._logged_in,
            ev.SubscriberLoggedOut: self._logged_out,
            ev.ResultsRequested: self._get_results,
            ev.ResultsRequestedByMany: self._get_each,
            ev.ResultsAcknowledged: self._acknowledged,
            ev.ResultsAcknowledgedByMany: self._acknowledged_each,
            ev.SubscriberFellBehind: self._fell_behind,
            ev.SubscriberReady: self._ready,
            ev.BackendSubscribed: arrivals.backend_subscribed,
            ev.BackendSubscriptionLost: self._backend_lost,
            ev.ResultArrived: arrivals.result_arrived,
            ev.ResultsAnnounced: arrivals.results_announced,
            ev.FetchSucceeded: arrivals.fetch_succeeded,
            ev.FetchesSucceeded: arrivals.fetches_succeeded,
            ev.FetchFailed: arrivals.fetch_failed,
            ev.TimePassed: lambda _event, _now_s, _actions: None,
            ev.CachePoliciesChanged: lambda event, now_s, _actions: self.caches.switch(event.caching, now_s),
        }

    def handle(self, event: ev.BrokerEvent, now_s: float) -> list[Action]:
        """Handles the event and returns the actions. Time never runs back: an earlier `now_s` counts as the latest."""
        self._now_s = now_s = max(self._now_s, now_s)
        actions: list[Action] = []
        if now_s >= self.next_wake_s:
            self._pass_time(now_s, actions)
        self._handlers[type(event)](event, now_s, actions)
        return actions

    @property
    def next_wake_s(self) -> float:
        due_s = self.caches.due_s()
        if self._emptied:
            due_s = min(due_s, self._emptied[0][0])
        if self._fetches.retries:
            due_s = min(due_s, self._fetches.retries[0][0])
        return self._report_due_s if self._report_due_s < due_s and self._unreported else due_s

    # --- queries

    def knows(self, subscription: Hashable) -> bool:
        return subscription in self._frontends

    def marker(self, subscription: Hashable) -> Cursor:
        """The cursor up to which this subscription has acknowledged."""
        return self._frontends[subscription].acknowledged

    def since(self, subscription: Hashable) -> Cursor | None:
        """Where this subscription begins; None until it is active."""
        frontend = self._frontends[subscription]
        return frontend.since if frontend.attached else None

    def holds(self, interest: InterestId) -> bool:
        """Whether the interest has a backend subscription, or one has been requested."""
        return interest in self._backends

    def subscriptions_of(self, subscriber: Hashable) -> Sequence[Hashable]:
        return tuple(self._of_subscriber.get(subscriber, ()))

    def lacking(self, subscriber: Hashable) -> Iterator[tuple[InterestId, ev.Mode, Cursor]]:
        """Interest, mode and head of every subscription that has unacknowledged results."""
        for frontend in self._of_subscriber.get(subscriber, {}).values():
            head = frontend.backend.held.head if frontend.attached else START
            if frontend.acknowledged < head:
                yield frontend.interest, frontend.mode, head

    # --- subscribers

    def _subscribe(self, event: ev.SubscribeRequested, now_s: float, actions: list[Action]) -> None:
        existing = self._frontends.get(event.subscription)
        if existing is not None:
            requested = (event.subscriber, event.interest, event.mode)
            if requested != (existing.subscriber, existing.interest, existing.mode):
                error = ConflictError(f"there is a subscription {event.subscription} to something else")
                actions.append(RefuseEvent(event.subscription, error))
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
        self._arrivals.activate(backend, frontend, now_s, actions)

    def _unsubscribe(self, event: ev.UnsubscribeRequested, now_s: float, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        backend = frontend.backend
        backend.detach(frontend, self.caches)
        self._forget(frontend)
        self._unreported[backend.interest] = backend
        if not backend.frontends:
            backend.empty_since_s = now_s
            self._emptied.append((now_s + self.settings.grace_s, backend, now_s))
            self._release(now_s, actions)

    def _logged_in(self, event: ev.SubscriberLoggedIn, now_s: float, actions: list[Action]) -> None:
        self._online.add(event.subscriber)
        for frontend in self._of_subscriber.get(event.subscriber, {}).values():
            if frontend.online:
                continue
            frontend.online, frontend.behind = True, False
            # Results that were sent but not acknowledged may be lost, so send them again.
            frontend.sent = frontend.marker
            self._missed.catch_up(frontend.backend, frontend, now_s, actions)

    def _logged_out(self, event: ev.SubscriberLoggedOut, _now_s: float, _actions: list[Action]) -> None:
        self._online.discard(event.subscriber)
        for frontend in self._of_subscriber.get(event.subscriber, {}).values():
            frontend.online = False
            frontend.backend.leave(frontend)

    def _get_results(self, event: ev.ResultsRequested, now_s: float, actions: list[Action]) -> None:
        """Serves a pull. A whole cohort is served as one; other subscriptions are grouped by their cursors."""
        backend = self._backends.get(event.interest)
        subscriptions: Collection[Hashable] = event.subscriptions
        if backend is not None and event.after is None:
            if subscriptions is backend.notify or subscriptions is backend.inline:
                cohort = backend.notify if subscriptions is backend.notify else backend.inline
                self._ask_together(backend, cohort.together, now_s, actions)
                subscriptions = tuple(cohort.own)
            elif type(subscriptions) is CohortSnapshot and backend.together(subscriptions):
                self._ask_together(backend, subscriptions, now_s, actions)
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
                self._missed.ask(
                    backend, askers, after, DeliveryReason.PULLED, now_s=now_s, actions=actions, limit=event.limit
                )

    def _get_each(self, event: ev.ResultsRequestedByMany, now_s: float, actions: list[Action]) -> None:
        for subscription in event.subscriptions:
            frontend = self._frontends.get(subscription)
            if frontend is None or not frontend.attached:
                actions.append(self._unknown(subscription) if frontend is None else self._too_early(subscription))
            else:
                backend, after = frontend.backend, frontend.acknowledged
                self._missed.ask(backend, (frontend,), after, DeliveryReason.PULLED, now_s=now_s, actions=actions)

    def _ask_together(self, backend: InterestState, group: CohortSnapshot, now_s: float, actions: list[Action]) -> None:
        if group.names:
            after = group.cohort.marker
            self._missed.ask(backend, group, after, DeliveryReason.PULLED, now_s=now_s, actions=actions)

    def _acknowledged(self, event: ev.ResultsAcknowledged, _now_s: float, _actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is not None and backend.cache is not None:
            backend.acknowledge(event.cursor, event.subscriptions, self.caches)
            self._unreported[backend.interest] = backend

    def _acknowledged_each(self, event: ev.ResultsAcknowledgedByMany, _now_s: float, _actions: list[Action]) -> None:
        for subscription, cursor in event.acks:
            frontend = self._frontends.get(subscription)
            if frontend is not None and frontend.attached:
                frontend.backend.acknowledge_one(frontend, cursor, self.caches)
                self._unreported[frontend.interest] = frontend.backend

    def _fell_behind(self, event: ev.SubscriberFellBehind, _now_s: float, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        frontend.backend.leave(frontend)
        frontend.behind = True
        frontend.sent = frontend.marker if event.sent is None else max(frontend.marker, event.sent)

    def _ready(self, event: ev.SubscriberReady, now_s: float, actions: list[Action]) -> None:
        frontend = self._frontends.get(event.subscription)
        if frontend is None:
            actions.append(self._unknown(event.subscription))
            return
        frontend.behind = False
        self._missed.catch_up(frontend.backend, frontend, now_s, actions)

    # --- the cluster

    def _backend_lost(self, event: ev.BackendSubscriptionLost, _now_s: float, actions: list[Action]) -> None:
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

    # --- time

    def _pass_time(self, now_s: float, actions: list[Action]) -> None:
        """Does everything that is due: expiry, retries, ends of grace periods, and the report to the cluster."""
        self.caches.pass_time(now_s)
        self._fetches.retry(now_s, actions)
        self._release(now_s, actions)
        if self._unreported and now_s >= self._report_due_s:
            self._report(now_s, actions)

    def _release(self, now_s: float, actions: list[Action]) -> None:
        """Drops interests that have had no subscription for the whole grace period."""
        while self._emptied and self._emptied[0][0] <= now_s:
            _, backend, since_s = self._emptied.popleft()
            if backend.empty_since_s == since_s and self._backends.get(backend.interest) is backend:
                self._let_go(backend)
                actions.append(UnsubscribeBackend(backend.interest))

    def _report(self, now_s: float, actions: list[Action]) -> None:
        """Reports the lowest marker of every interest in which it has moved."""
        lowest: dict[InterestId, Cursor] = {}
        for backend in self._unreported.values():
            if backend.cache is not None and (marker := backend.cache.lowest_marker()) != backend.reported:
                lowest[backend.interest] = backend.reported = marker
        self._unreported.clear()
        self._report_due_s = now_s + self.settings.report_every_s
        if lowest:
            actions.append(ReportConsumed(lowest))

    # --- helpers

    def _let_go(self, backend: InterestState) -> None:
        """Drops the interest with its cache and its fetches."""
        del self._backends[backend.interest]
        self._unreported.pop(backend.interest, None)
        self._fetches.forget(backend)
        if backend.cache is not None:
            self.caches.close(backend.interest)

    def _forget(self, frontend: FrontendState) -> None:
        del self._frontends[frontend.id]
        own_frontends = self._of_subscriber[frontend.subscriber]
        del own_frontends[frontend.id]
        if not own_frontends:
            del self._of_subscriber[frontend.subscriber]

    def _too_early(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(
            subscription, NotFoundError("the cluster does not hold this subscription yet", hint="ask again")
        )

    def _unknown(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(subscription, NotFoundError(f"no subscription {subscription}"))
