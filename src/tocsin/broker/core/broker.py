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

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

from tocsin.broker.core import events as ev
from tocsin.broker.core.acknowledgements import Acknowledgements
from tocsin.broker.core.actions import Action, DeliveryReason, RefuseEvent
from tocsin.broker.core.catch_up import CatchUp
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.fetches import Fetches
from tocsin.broker.core.interest_state import CoreState, InterestState
from tocsin.broker.core.merged_subscriptions import MergedSubscriptions, refuse_unknown
from tocsin.broker.core.result_arrivals import ResultArrivals
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.model.cursors import START, Cursor, InterestId, SubscriptionId
from tocsin.wire.errors import NotFoundError


class Broker:
    """The core of a broker. `handle` is its only entry, and `_handlers` names the handler of each event; queries change
    nothing."""

    def __init__(self, settings: CoreSettings, now_s: float) -> None:
        self.settings = settings
        self.caches = ResultCaches(settings.caching, now_s)
        self._fetches = Fetches(settings)
        self._state = state = CoreState(self.caches, self._fetches)
        self._getter = CatchUp(settings, self.caches, self._fetches)
        arrivals = ResultArrivals(state, self._getter)
        self._merged = merged = MergedSubscriptions(state, arrivals.activate, grace_s=settings.grace_s)
        self._acks = acks = Acknowledgements(state, report_every_s=settings.report_every_s, now_s=now_s)
        self._now_s = now_s
        self._handlers: dict[type, Callable[[Any, float, list[Action]], None]] = {
            ev.SubscribeRequested: merged.subscribe,
            ev.UnsubscribeRequested: merged.unsubscribe,
            ev.SubscriberLoggedIn: self._log_in,
            ev.SubscriberLoggedOut: self._log_out,
            ev.ResultsRequested: self._get_results,
            ev.ResultsRequestedByMany: self._get_each,
            ev.ResultsAcknowledged: acks.acknowledge,
            ev.ResultsAcknowledgedByMany: acks.acknowledge_many,
            ev.SubscriberFellBehind: self._fell_behind,
            ev.SubscriberReady: self._ready,
            ev.BackendSubscribed: arrivals.backend_subscribed,
            ev.BackendSubscriptionLost: merged.backend_lost,
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
        due_s = min(self.caches.due_s(), self._merged.release_due_s)
        if self._fetches.retries:
            due_s = min(due_s, self._fetches.retries[0][0])
        return min(due_s, self._acks.report_due_s) if self._state.unreported else due_s

    # --- queries

    def knows(self, subscription: SubscriptionId) -> bool:
        return subscription in self._state.frontends

    def marker(self, subscription: SubscriptionId) -> Cursor:
        """The cursor up to which this subscription has acknowledged."""
        return self._state.frontends[subscription].acknowledged

    def since(self, subscription: SubscriptionId) -> Cursor | None:
        """Where this subscription begins; None until it is active."""
        frontend = self._state.frontends[subscription]
        return frontend.since if frontend.attached else None

    def holds(self, interest: InterestId) -> bool:
        """Whether the interest has a backend subscription, or one has been requested."""
        return interest in self._state.interests

    def subscriptions_of(self, subscriber: Hashable) -> Sequence[SubscriptionId]:
        return tuple(self._state.of_subscriber.get(subscriber, ()))

    def unacknowledged_interests(self, subscriber: Hashable) -> Iterator[tuple[InterestId, ev.Mode, Cursor]]:
        """Interest, mode and head of every subscription that has unacknowledged results."""
        for frontend in self._state.of_subscriber.get(subscriber, {}).values():
            head = frontend.interest_state.open_cache.head if frontend.attached else START
            if frontend.acknowledged < head:
                yield frontend.interest, frontend.mode, head

    # --- subscribers

    def _log_in(self, event: ev.SubscriberLoggedIn, now_s: float, actions: list[Action]) -> None:
        self._state.online.add(event.subscriber)
        for frontend in self._state.of_subscriber.get(event.subscriber, {}).values():
            if frontend.online:
                continue
            frontend.online, frontend.behind = True, False
            # Results that were sent but not acknowledged may be lost, so send them again.
            frontend.sent = frontend.marker
            self._getter.catch_up(frontend.interest_state, frontend, now_s, actions)

    def _log_out(self, event: ev.SubscriberLoggedOut, _now_s: float, _actions: list[Action]) -> None:
        self._state.online.discard(event.subscriber)
        for frontend in self._state.of_subscriber.get(event.subscriber, {}).values():
            frontend.online = False
            frontend.interest_state.leave(frontend)

    def _get_results(self, event: ev.ResultsRequested, now_s: float, actions: list[Action]) -> None:
        """Serves a pull. A whole cohort is served as one; other subscriptions are grouped by their cursors."""
        state = self._state.interests.get(event.interest)
        subscriptions: Collection[SubscriptionId] = event.subscriptions
        if state is not None and event.after is None:
            if subscriptions is state.notify or subscriptions is state.inline:
                cohort = state.notify if subscriptions is state.notify else state.inline
                self._ask_together(state, cohort.together, now_s, actions)
                subscriptions = tuple(cohort.own)
            elif type(subscriptions) is CohortSnapshot and state.together(subscriptions):
                self._ask_together(state, subscriptions, now_s, actions)
                return
        receivers_by_cursor: dict[Cursor, list[FrontendState]] = {}
        for subscription in subscriptions:
            frontend = state.frontends.get(subscription) if state is not None else None
            if state is None or frontend is None:
                actions.append(refuse_unknown(subscription))
            elif not frontend.attached or frontend.since is None:
                actions.append(_refuse_early(subscription))
            else:
                after = frontend.acknowledged if event.after is None else max(event.after, frontend.since)
                receivers_by_cursor.setdefault(after, []).append(frontend)
        if state is not None:
            for after, receivers in receivers_by_cursor.items():
                self._getter.get(
                    state, receivers, after, DeliveryReason.PULLED, now_s=now_s, actions=actions, limit=event.limit
                )

    def _get_each(self, event: ev.ResultsRequestedByMany, now_s: float, actions: list[Action]) -> None:
        for subscription in event.subscriptions:
            frontend = self._state.frontends.get(subscription)
            if frontend is None or not frontend.attached:
                actions.append(refuse_unknown(subscription) if frontend is None else _refuse_early(subscription))
            else:
                state, after = frontend.interest_state, frontend.acknowledged
                self._getter.get(state, (frontend,), after, DeliveryReason.PULLED, now_s=now_s, actions=actions)

    def _ask_together(self, state: InterestState, group: CohortSnapshot, now_s: float, actions: list[Action]) -> None:
        if group.names:
            after = group.cohort.marker
            self._getter.get(state, group, after, DeliveryReason.PULLED, now_s=now_s, actions=actions)

    def _fell_behind(self, event: ev.SubscriberFellBehind, _now_s: float, actions: list[Action]) -> None:
        frontend = self._state.frontends.get(event.subscription)
        if frontend is None:
            actions.append(refuse_unknown(event.subscription))
            return
        frontend.interest_state.leave(frontend)
        frontend.behind = True
        frontend.sent = frontend.marker if event.sent is None else max(frontend.marker, event.sent)

    def _ready(self, event: ev.SubscriberReady, now_s: float, actions: list[Action]) -> None:
        frontend = self._state.frontends.get(event.subscription)
        if frontend is None:
            actions.append(refuse_unknown(event.subscription))
            return
        frontend.behind = False
        self._getter.catch_up(frontend.interest_state, frontend, now_s, actions)

    # --- time

    def _pass_time(self, now_s: float, actions: list[Action]) -> None:
        """Does everything that is due: expiry, retries, ends of grace periods, and the report to the cluster."""
        self.caches.pass_time(now_s)
        self._fetches.retry(now_s, actions)
        self._merged.release_idle(now_s, actions)
        if self._state.unreported and now_s >= self._acks.report_due_s:
            self._acks.report(now_s, actions)


def _refuse_early(subscription: SubscriptionId) -> RefuseEvent:
    error = NotFoundError("the cluster does not hold this subscription yet", hint="ask again")
    return RefuseEvent(subscription, error)
