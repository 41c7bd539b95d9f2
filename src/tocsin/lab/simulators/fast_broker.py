"""Simulates a broker between a cluster and subscribers with constant round trips: fast enough for long workloads.

The core is the live broker's; none of its rules is repeated here. This module simulates the environment: a cluster that
keeps every result and pushes each as it is made, and clients that pull one round trip after a notification, acknowledge
what they got, and pull again while there is more. Round trips are constant, so messages under way are in two queues in
order of time, and no heap is needed.

Clients of a cohort pull and acknowledge together. A returning client asks for everything it lacks at once, and
acknowledges everything at once. With `together=False` each subscription is notified, pulls and acknowledges by itself:
nearly the same hits, misses and evictions, with more events. With a page of one result (`core_settings`) each result is
an event for each subscription as well.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Action, Deliver, Fetch, NotifyAvailable, SubscribeBackend
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.cohorts import Cohort, CohortSnapshot
from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.engine.engine import RunTrace
from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import START, Cursor, InterestId, SubscriptionId

_Pull = tuple[float, InterestId, Collection[SubscriptionId]]
_Return = tuple[float, int, tuple[SubscriptionId, ...], int]
_NEVER: Final = math.inf
# The policies of the edge-caching paper by its names, and ours.
PAPER: Final = ("nc", "lru", "lsc", "lscz", "lsd", "exp", "ttl")
OURS: Final = ("worth", "saving")
_NAMED: Final = {"nc": {"eviction": "none"}, "ttl": {"eviction": "exp", "expiry": "ttl"}}
POLICIES: Final = (*_NAMED, *(name for name in EVICTION if name != "none"))


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Constant times. Transfer times count in the latency of subscribers, but do not delay events."""

    to_subscriber_s: float = 0.25
    to_cluster_s: float = 0.5
    subscriber_bytes_per_s: float = 1e6
    cluster_bytes_per_s: float = 10e6


def make_caching_settings(policy: str, budget_bytes: int, **settings: Any) -> CachingSettings:
    """Returns the settings of one of `POLICIES`: `nc` is no cache, `ttl` an eviction with an expiry; the name of an
    eviction means itself."""
    named = _NAMED.get(policy, {"eviction": policy})
    return CachingSettings(budget_bytes=budget_bytes, **{**named, **settings})


def core_settings(caching: CachingSettings, *, page_results: int = 1 << 30) -> CoreSettings:
    """Puts everything that is asked for into one answer, as in the paper; never reports markers to the cluster."""
    return CoreSettings(caching=caching, page_results=page_results, page_bytes=1 << 60, report_every_s=1e9)


class FastBrokerSim:
    """One run. `area_*` are integrals over time, for means; `lives_s` sums the times to live of arriving results.

    A delivery with results counts once in `deliveries`, and once per subscriber in `retrievals`. `together` may change
    between two calls of `play`.
    """

    def __init__(
        self,
        settings: CoreSettings,
        interests: int,
        *,
        trips: RoundTrips | None = None,
        together: bool = True,
        trace: RunTrace | None = None,
    ) -> None:
        self.broker = Broker(settings, 0.0)
        self.now_s = 0.0
        self.trips = trips or RoundTrips()
        self.area_bytes_s = 0.0
        self.area_results_s = 0.0
        self.most_bytes = 0
        self.lives_s = 0.0
        self.deliveries = 0
        self.retrievals = 0
        self.retrievals_missed = 0
        self._caches = self.broker.caches
        self._expires = settings.caching.expiry != "never"
        self._interests = interests
        self.together = together
        self._trace = trace
        # The cluster's results of each interest, and the cumulative bytes before each and in all.
        self._results: list[list[BrokerResult]] = [[] for _ in range(interests)]
        self._made_bytes: list[list[int]] = [[0] for _ in range(interests)]
        self._heads = [START] * interests
        # Messages under way, in order of time: pulls (of a cohort, or of subscriptions of an interest, or of all
        # subscriptions of a returning subscriber with its session), and answers to fetches that were sent together.
        self._pulls: deque[_Pull | _Return] = deque()
        self._answers: deque[tuple[float, list[Fetch]]] = deque()
        # Subscriptions that wait for an answer of their own, and their session: they ask again only after it.
        self._asks: dict[SubscriptionId, int] = {}
        self._session: dict[int, int] = {}
        # The fetch that a cohort waits for.
        self._cohort_waits: dict[int, int] = {}
        self._perform: dict[type, Callable[..., None]] = {
            NotifyAvailable: self._receive_notification,
            Deliver: self._record_delivery,
            Fetch: self._fetch,
            SubscribeBackend: self._subscribe_backend,
        }

    # --- workload

    def play(self, events: WorkloadEvents, until_s: float = _NEVER, begin: int = 0) -> int:
        """Plays the events from number `begin` on up to this moment. Returns the number of the next event."""
        handlers = {
            int(WorkloadEventKind.PRODUCED): self._produce,
            int(WorkloadEventKind.LOGGED_IN): self._log_in,
            int(WorkloadEventKind.LOGGED_OUT): self._log_out,
            int(WorkloadEventKind.SUBSCRIBED): self._subscribe,
            int(WorkloadEventKind.UNSUBSCRIBED): self._unsubscribe,
        }
        pulls, answers, happen = self._pulls, self._answers, self._happen
        with _no_collector():
            for at_s, kind, subscriber, interest, size in events.rows(begin):
                if at_s >= until_s:
                    break
                if (pulls and pulls[0][0] <= at_s) or (answers and answers[0][0] <= at_s):
                    happen(at_s)
                handlers[kind](at_s, subscriber, interest, size)
                begin += 1
            if until_s < _NEVER:
                happen(until_s)
                self._pass(until_s)
        return begin

    def _produce(self, at_s: float, _subscriber: int, interest: InterestId, size: int) -> None:
        results, bytes_ = self._results[interest], self._made_bytes[interest]
        cursor = Cursor(1, len(results) + 1, 0)
        results.append(BrokerResult(cursor, size))
        bytes_.append(bytes_[-1] + size)
        if interest in self._caches:
            self._heads[interest] = cursor
            self._handle(ev.ResultArrived(interest, cursor, size), at_s)
            # The core may just have dropped the interest, because it had no subscription for long enough.
            if interest in self._caches:
                self.lives_s += self._caches[interest].ttl_s

    def _log_in(self, at_s: float, subscriber: int, _interest: InterestId, _size: int) -> None:
        session = self._session[subscriber] = self._session.get(subscriber, 0) + 1
        names = []
        for action in self._step(ev.SubscriberLoggedIn(subscriber), at_s):
            if type(action) is NotifyAvailable and self.together:
                (name,) = action.audience
                self._asks[name] = session
                names.append(name)
            else:
                self._do(action)
        if names:
            self._pulls.append((at_s + self.trips.to_subscriber_s, subscriber, tuple(names), session))

    def _log_out(self, at_s: float, subscriber: int, _interest: InterestId, _size: int) -> None:
        self._session[subscriber] = self._session.get(subscriber, 0) + 1
        self._handle(ev.SubscriberLoggedOut(subscriber), at_s)

    def _subscribe(self, at_s: float, subscriber: int, interest: InterestId, _size: int) -> None:
        name = SubscriptionId(subscriber * self._interests + interest)
        self._handle(ev.SubscribeRequested(name, subscriber, interest, None, ev.Mode.NOTIFY), at_s)

    def _unsubscribe(self, at_s: float, subscriber: int, interest: InterestId, _size: int) -> None:
        name = SubscriptionId(subscriber * self._interests + interest)
        self._asks.pop(name, None)
        self._handle(ev.UnsubscribeRequested(name), at_s)

    # --- time

    def _happen(self, until_s: float) -> None:
        """Runs everything that is under way and due."""
        pulls, answers = self._pulls, self._answers
        while True:
            pull_s = pulls[0][0] if pulls else _NEVER
            answer_s = answers[0][0] if answers else _NEVER
            if answer_s <= pull_s:
                if answer_s > until_s or answer_s == _NEVER:
                    return
                self._answer(*answers.popleft())
            else:
                if pull_s > until_s:
                    return
                pull = pulls.popleft()
                if len(pull) == 4:
                    self._pull_returned(*pull)
                elif isinstance(audience := pull[2], Cohort):
                    self._pull_cohort(pull_s, pull[1], audience)
                else:
                    self._pull(*pull)

    def _pass(self, now_s: float) -> None:
        """Integrates over the time since the last event."""
        passed_s = now_s - self.now_s
        if passed_s > 0:
            figures, bytes_ = self._caches.counters, self._caches.resident_bytes
            self.area_bytes_s += bytes_ * passed_s
            entered, left = figures.admitted + figures.filled, figures.consumed + figures.evicted + figures.expired
            self.area_results_s += passed_s * (entered - left)
            self.most_bytes = max(self.most_bytes, bytes_)
            self.now_s = now_s

    def _handle(self, event: ev.BrokerEvent, now_s: float) -> None:
        for action in self._step(event, now_s):
            self._do(action)

    def _step(self, event: ev.BrokerEvent, now_s: float) -> list[Action]:
        # Expire results when they are due, not at the next event.
        while self._expires and (due_s := self._caches.due_s()) < now_s:
            self._pass(due_s)
            if self._trace is not None:
                self._trace.note(due_s, "TimePassed", {"event": "Tick()"})
            self.broker.handle(ev.TimePassed(), due_s)
        self._pass(now_s)
        if self._trace is not None:
            self._trace.note(now_s, type(event).__name__, {"event": _describe_event(event)})
        return self.broker.handle(event, now_s)

    def _do(self, action: Action) -> None:
        perform = self._perform.get(type(action))
        if perform is not None:
            perform(action)

    # --- cluster

    def _subscribe_backend(self, action: SubscribeBackend) -> None:
        interest = action.interest
        self._heads[interest] = self._results[interest][-1].cursor if self._results[interest] else START
        self._handle(ev.BackendSubscribed(interest, self._heads[interest]), self.now_s)

    def _fetch(self, action: Fetch) -> None:
        self._answers.append((self.now_s + self.trips.to_cluster_s, [action]))

    def _answer(self, at_s: float, fetches: list[Fetch]) -> None:
        trips, answers = self.trips, []
        for fetch in fetches:
            interest = fetch.interest
            after, to = fetch.after.execution, fetch.to.execution
            if to - after > fetch.limit:
                to = after + fetch.limit
            bytes_ = self._made_bytes[interest]
            size_bytes = bytes_[to] - bytes_[after]
            results = tuple(self._results[interest][after:to])
            end = fetch.to if to == fetch.to.execution else results[-1].cursor
            took_s = trips.to_cluster_s + size_bytes / trips.cluster_bytes_per_s
            answers.append(ev.FetchSucceeded(fetch.fetch, end, results, took_s, None, size_bytes))
            if self._cohort_waits.get(interest) == fetch.fetch:
                del self._cohort_waits[interest]
        retrievals = self.retrievals
        self._do_each(self._step(ev.FetchesSucceeded(tuple(answers)), at_s))
        self.retrievals_missed += self.retrievals - retrievals

    # --- subscribers

    def _receive_notification(self, action: NotifyAvailable) -> None:
        interest, audience = action.interest, action.audience
        pull_s = self.now_s + self.trips.to_subscriber_s
        if isinstance(audience, Cohort) and self.together:
            self._pulls.append((pull_s, interest, audience))
            return
        for name in audience:
            # A subscription that still waits for an answer will pull the newer results too.
            if self._asks.get(name) != (session := self._session_of(name)):
                self._asks[name] = session
                self._pulls.append((pull_s, interest, (name,)))

    def _session_of(self, name: SubscriptionId) -> int:
        return self._session.get(name // self._interests, 0)

    def _pull_cohort(self, at_s: float, interest: InterestId, cohort: Cohort) -> None:
        head = self._heads[interest]
        if cohort.sharing and cohort.marker < head and interest not in self._cohort_waits:
            retrievals, begun = self.retrievals, len(self._answers)
            for action in self._step(ev.ResultsRequested(interest, cohort.together), at_s):
                if type(action) is Deliver and not action.more and action.results:
                    self.deliveries += 1
                    self.retrievals += len(action.audience)
                    self._step(ev.ResultsAcknowledged(interest, action.to, action.audience), at_s)
                else:
                    self._do(action)
            if self.retrievals == retrievals:
                # The cohort waits for the fetch that it began, or for the last one of this interest that others began.
                self._cohort_waits[interest] = self._last_fetch(interest, begun)
        if cohort.own:
            for name, marker in tuple(cohort.own.items()):
                if marker < head and self._asks.get(name) != self._session_of(name):
                    self._asks[name] = self._session_of(name)
                    self._handle(ev.ResultsRequested(interest, (name,)), at_s)

    def _last_fetch(self, interest: InterestId, begun: int) -> int:
        if len(self._answers) > begun:
            return self._answers[-1][1][-1].fetch
        return next(
            fetch.fetch
            for _, fetches in reversed(self._answers)
            for fetch in reversed(fetches)
            if fetch.interest == interest
        )

    def _pull_returned(self, at_s: float, subscriber: int, names: tuple[SubscriptionId, ...], session: int) -> None:
        if self._session[subscriber] == session:
            self._do_each(self._step(ev.ResultsRequestedByMany(names), at_s))

    def _do_each(self, actions: list[Action]) -> None:
        """Performs the actions. Fetches are answered together, and single subscriptions acknowledge together."""
        fetches, acks = [], []
        for action in actions:
            if type(action) is Fetch:
                fetches.append(action)
            elif type(action) is Deliver and type(action.audience) is not CohortSnapshot and len(action.audience) == 1:
                (name,) = action.audience
                self._got(action, name)
                acks.append((name, action.to))
            else:
                self._do(action)
        if fetches:
            self._answers.append((self.now_s + self.trips.to_cluster_s, fetches))
        if acks:
            self._handle(ev.ResultsAcknowledgedByMany(tuple(acks)), self.now_s)

    def _got(self, action: Deliver, name: SubscriptionId) -> None:
        if action.results:
            self.deliveries += 1
            self.retrievals += 1
        if action.more:
            interest = action.interest
            self._pulls.append((self.now_s + self.trips.to_subscriber_s, interest, (name,)))
        else:
            self._asks.pop(name, None)

    def _pull(self, at_s: float, interest: InterestId, who: Collection[SubscriptionId]) -> None:
        if len(who) == 1:
            (name,) = who
            if self._asks.get(name) != self._session_of(name):
                return  # it has left, or has a new session, which was notified by itself
        elif interest in self._cohort_waits:
            return
        self._handle(ev.ResultsRequested(interest, who), at_s)

    def _record_delivery(self, action: Deliver) -> None:
        interest, audience = action.interest, action.audience
        if action.results:
            self.deliveries += 1
            self.retrievals += len(audience)
        self._handle(ev.ResultsAcknowledged(interest, action.to, audience), self.now_s)
        is_single = type(audience) is not CohortSnapshot
        if action.more:
            self._pulls.append((self.now_s + self.trips.to_subscriber_s, interest, audience))
        elif is_single:
            for name in audience:
                self._asks.pop(name, None)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disables the garbage collector: there are no cycles, and each collection would scan a million objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _describe_event(event: ev.BrokerEvent) -> str:
    """Describes an event in the same words in every run: a cohort by its members, not by its address."""
    if isinstance(event, ev.ResultsRequested | ev.ResultsAcknowledged) and isinstance(
        event.subscriptions, CohortSnapshot | Cohort
    ):
        return repr(replace(event, subscriptions=tuple(event.subscriptions)))
    return repr(event)
