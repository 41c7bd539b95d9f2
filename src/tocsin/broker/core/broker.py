"""The broker as a state machine: events in, actions out.

    actions = broker.handle(event, now_s)

It has no clock, no I/O and no randomness; the same object serves sockets and runs under virtual time. Promises:

- a subscription gets every result made after it subscribed (or after the `since` it asked for), in the order of
  cursors, at least once; nothing of another interest, and what it acknowledged not again, unless it asks;
- what is gone for good is told as a gap;
- one result that arrives is one Deliver and one Notify, whatever the number of subscribers;
- the same range is fetched once at a time, whoever lacks it.

Whatever is due by `now_s` happens before the event. `next_wake_s` says when a Tick is wanted if nothing else comes.
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
    def __init__(self, settings: CoreSettings, now_s: float) -> None:
        super().__init__()
        self.settings = settings
        self.caches = ResultCaches(settings.caching, now_s)
        self._delivery = Delivery(settings, self.caches)
        self._emptied: Timers[tuple[InterestState, float]] = Timers()
        self._failed: Timers[int] = Timers()
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
        """What has to be done now. Time never goes back: an earlier `now_s` counts as the latest one seen."""
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
        known = self._frontends.get(event.subscription)
        if known is not None:
            asked = (event.subscriber, event.interest, event.mode)
            if asked != (known.subscriber, known.interest, known.mode):
                error = ConflictError(f"there is a subscription {event.subscription} to something else")
                actions.append(RefuseEvent(event.subscription, error))
            elif known.attached and known.since is not None:
                actions.append(Subscribed(known.id, known.interest, known.since))
            return
        backend = self._backends.get(event.interest)
        if backend is None:
            backend = self._backends[event.interest] = InterestState(event.interest)
            actions.append(SubscribeBackend(event.interest))
        online = event.subscriber in self._online
        one = FrontendState(
            event.subscription, event.subscriber, backend, mode=event.mode, since=event.since, online=online
        )
        self._frontends[one.id] = one
        self._of_subscriber.setdefault(one.subscriber, {})[one.id] = one
        backend.frontends[one.id] = one
        backend.empty_since_s = None
        self._attach(backend, one, actions)

    def _attach(self, backend: InterestState, one: FrontendState, actions: list[Action]) -> None:
        if not backend.attach(one, self.caches):
            return
        actions.append(Subscribed(one.id, one.interest, one.marker))
        self._unreported[backend.interest] = backend
        self._delivery.resume(backend, one, self._now_s, actions)

    def _unsubscribe(self, event: ev.UnsubscribeRequested, actions: list[Action]) -> None:
        one = self._frontends.get(event.subscription)
        if one is None:
            actions.append(self._unknown(event.subscription))
            return
        backend = one.backend
        backend.detach(one, self.caches)
        self._forget(one)
        self._unreported[backend.interest] = backend
        if not backend.frontends:
            backend.empty_since_s = self._now_s
            self._emptied.set(self._now_s + self.settings.grace_s, (backend, self._now_s))
            self._release(self._now_s, actions)

    def _logged_in(self, event: ev.SubscriberLoggedIn, actions: list[Action]) -> None:
        self._online.add(event.subscriber)
        for one in self._of_subscriber.get(event.subscriber, {}).values():
            if one.online:
                continue
            one.online, one.behind = True, False
            # What was sent and not acknowledged before may be lost: it is sent again.
            one.sent = one.marker
            self._delivery.resume(one.backend, one, self._now_s, actions)

    def _logged_out(self, event: ev.SubscriberLoggedOut, actions: list[Action]) -> None:  # noqa: ARG002
        self._online.discard(event.subscriber)
        for one in self._of_subscriber.get(event.subscriber, {}).values():
            one.online = False
            one.backend.leave(one)

    def _get_results(self, event: ev.ResultsRequested, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        names: Collection[Hashable] = event.subscriptions
        if backend is not None and event.after is None:
            if names is backend.notify or names is backend.inline:
                cohort = backend.notify if names is backend.notify else backend.inline
                self._ask_together(backend, cohort.together, actions)
                names = tuple(cohort.own)
            elif type(names) is CohortSnapshot and backend.together(names):
                self._ask_together(backend, names, actions)
                return
        asking: dict[Cursor, list[FrontendState]] = {}
        for name in names:
            one = backend.frontends.get(name) if backend is not None else None
            if backend is None or one is None:
                actions.append(self._unknown(name))
            elif not one.attached or one.since is None:
                actions.append(self._too_early(name))
            else:
                after = one.acknowledged if event.after is None else max(event.after, one.since)
                asking.setdefault(after, []).append(one)
        if backend is not None:
            for after, askers in asking.items():
                self._delivery.ask(
                    backend, askers, after, DeliveryReason.PULLED, now_s=self._now_s, actions=actions, limit=event.limit
                )

    def _get_each(self, event: ev.ResultsRequestedByMany, actions: list[Action]) -> None:
        for name in event.subscriptions:
            one = self._frontends.get(name)
            if one is None or not one.attached:
                actions.append(self._unknown(name) if one is None else self._too_early(name))
                continue
            self._delivery.ask(
                one.backend, (one,), one.acknowledged, DeliveryReason.PULLED, now_s=self._now_s, actions=actions
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
        for name, cursor in event.acks:
            one = self._frontends.get(name)
            if one is not None and one.attached:
                one.backend.acknowledge_one(one, cursor, self.caches)
                self._unreported[one.interest] = one.backend

    def _fell_behind(self, event: ev.SubscriberFellBehind, actions: list[Action]) -> None:
        one = self._frontends.get(event.subscription)
        if one is None:
            actions.append(self._unknown(event.subscription))
            return
        one.backend.leave(one)
        one.behind = True
        one.sent = one.marker if event.sent is None else max(one.marker, event.sent)

    def _ready(self, event: ev.SubscriberReady, actions: list[Action]) -> None:
        one = self._frontends.get(event.subscription)
        if one is None:
            actions.append(self._unknown(event.subscription))
            return
        one.behind = False
        self._delivery.resume(one.backend, one, self._now_s, actions)

    # --- the cluster

    def _backend_ready(self, event: ev.BackendSubscribed, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            # Everybody left before the cluster answered, and so did we.
            return
        if backend.cache is None:
            backend.cache = self.caches.open(event.interest, event.since, self._now_s)
            for one in list(backend.frontends.values()):
                # They came before the cluster's answer: whatever was announced since then is theirs, too.
                one.since = event.since if one.since is None else one.since
                self._attach(backend, one, actions)
        else:
            # Told again, after a restart: whatever came meanwhile is news.
            backend.announced = max(backend.announced, event.since)
        self._fetch_news(backend, actions)

    def _backend_gone(self, event: ev.BackendSubscriptionLost, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            return
        names = tuple(backend.frontends)
        for one in list(backend.frontends.values()):
            backend.detach(one, self.caches)
            self._forget(one)
        self._let_go(backend)
        if names:
            actions.append(EndSubscriptions(event.interest, names, event.reason))

    def _arrived(self, event: ev.ResultArrived, actions: list[Action]) -> None:
        backend = self._backends.get(event.interest)
        if backend is None:
            return
        cache = backend.cache
        if cache is None or backend.announced > cache.head:
            # Something before it is still to be fetched, and this with it: results come in order.
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
        flight = self._delivery.under_way(event.fetch)
        if flight is not None:
            self._land(flight, event, actions)

    def _fetched_together(self, event: ev.FetchesSucceeded, actions: list[Action]) -> None:
        news: list[ev.FetchSucceeded] = []
        for answer in event.answers:
            flight = self._delivery.under_way(answer.fetch)
            if flight is not None and not flight.news:
                self._land(flight, answer, actions)
            elif flight is not None:
                # They go to a cohort as it is when they are delivered: whoever joins it by the others does so before.
                news.append(answer)
        for answer in news:
            self._fetched(answer, actions)

    def _land(self, flight: PendingFetch, event: ev.FetchSucceeded, actions: list[Action]) -> None:
        if event.to <= flight.after:
            # An answer that says nothing is no answer.
            self._fetch_failed(ev.FetchFailed(event.fetch), actions)
            return
        self._delivery.land(flight, event, self._now_s, actions)
        if flight.news:
            self._news(flight.backend, min(event.to, flight.to), event, actions)

    def _fetch_failed(self, event: ev.FetchFailed, actions: list[Action]) -> None:  # noqa: ARG002
        if self._delivery.under_way(event.fetch) is not None:
            self._failed.set(self._now_s + self.settings.fetch_retry_s, event.fetch)

    def _news(self, backend: InterestState, to: Cursor, event: ev.FetchSucceeded, actions: list[Action]) -> None:
        cache = backend.held
        before = cache.head
        gap = None if event.gap is None or event.gap <= before else min(event.gap, to)
        if gap is not None:
            # Who asks for this later is told of the gap by the cluster, which knows it best.
            cache.skip(gap)
        new = tuple(one for one in event.results if cache.head < one.cursor <= to)
        for one in new:
            self.caches.put(cache, one, self._now_s)
        cache.reach(to)
        self._tell(backend, before, new, gap, actions)
        for arrived in [one for one in backend.joining.values() if one.since is None or one.since <= cache.head]:
            del backend.joining[arrived.id]
            self._attach(backend, arrived, actions)
        self._fetch_news(backend, actions)

    def _tell(
        self,
        backend: InterestState,
        before: Cursor,
        new: tuple[BrokerResult, ...],
        gap: Cursor | None,
        actions: list[Action],
    ) -> None:
        """The cohorts hear of what has just come."""
        head = backend.held.head
        self._unreported[backend.interest] = backend
        if not new and gap is None:
            return
        inline: Collection[Hashable] = backend.inline
        notify: Collection[Hashable] = backend.notify
        if backend.joining:
            # Some of them will be in the cohorts before this is performed, and this is not for them.
            inline, notify = tuple(inline), tuple(notify)
        if backend.inline.members:
            actions.append(Deliver(backend.interest, before, head, new, inline, DeliveryReason.LIVE, gap))
            figures = self.caches.figures
            figures.pushed += len(new) * len(inline)
            figures.pushed_bytes += sum(one.size_bytes for one in new) * len(inline)
        if backend.notify.members:
            actions.append(NotifyAvailable(backend.interest, head, notify))

    def _fetch_news(self, backend: InterestState, actions: list[Action]) -> None:
        cache = backend.cache
        if cache is not None and backend.news is None and backend.announced > cache.head:
            backend.news = self._delivery.begin(backend, cache.head, backend.announced, actions, news=True)

    # --- time and change

    def _policies_chosen(self, event: ev.CachePoliciesChanged, actions: list[Action]) -> None:  # noqa: ARG002
        self.caches.switch(event.caching, self._now_s)

    def _pass_time(self, actions: list[Action]) -> None:
        now_s = self._now_s
        self.caches.pass_time(now_s)
        for fetch in self._failed.due(now_s):
            self._delivery.again(fetch, actions)
        self._release(now_s, actions)
        if self._unreported and now_s >= self._report_due_s:
            self._report(actions)

    def _release(self, now_s: float, actions: list[Action]) -> None:
        """Lets go of interests that have had no subscription for the whole grace period."""
        for backend, since_s in self._emptied.due(now_s):
            if backend.empty_since_s == since_s and self._backends.get(backend.interest) is backend:
                self._let_go(backend)
                actions.append(UnsubscribeBackend(backend.interest))

    def _report(self, actions: list[Action]) -> None:
        lowest: dict[Hashable, Cursor] = {}
        for backend in self._unreported.values():
            if backend.cache is not None and (mine := backend.cache.lowest_marker()) != backend.reported:
                lowest[backend.interest] = backend.reported = mine
        self._unreported.clear()
        self._report_due_s = self._now_s + self.settings.report_every_s
        if lowest:
            actions.append(ReportConsumed(lowest))

    # --- inside

    def _let_go(self, backend: InterestState) -> None:
        del self._backends[backend.interest]
        self._unreported.pop(backend.interest, None)
        self._delivery.forget(backend)
        if backend.cache is not None:
            self.caches.close(backend.interest)

    def _forget(self, one: FrontendState) -> None:
        del self._frontends[one.id]
        mine = self._of_subscriber[one.subscriber]
        del mine[one.id]
        if not mine:
            del self._of_subscriber[one.subscriber]

    def _too_early(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(
            subscription, NotFoundError("the cluster does not hold this subscription yet", hint="ask again")
        )

    def _unknown(self, subscription: Hashable) -> RefuseEvent:
        return RefuseEvent(subscription, NotFoundError(f"no subscription {subscription}"))
