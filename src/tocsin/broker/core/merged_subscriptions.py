"""Merges the subscriptions to one interest into one backend subscription, and drops it when the last one has ended.

An interest without subscriptions stays for a grace period, because subscribers often come back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Action, EndSubscriptions, RefuseEvent, SubscribeBackend, UnsubscribeBackend
from tocsin.broker.core.cohorts import FrontendState
from tocsin.broker.core.interest_state import CoreState, InterestState
from tocsin.rules.model.cursors import SubscriptionId
from tocsin.wire.errors import ConflictError, NotFoundError

_Activate = Callable[[InterestState, FrontendState, float, list[Action]], None]


class MergedSubscriptions:
    """Handles the events that make and end subscriptions. `activate` attaches a new subscription to its cache."""

    def __init__(self, state: CoreState, activate: _Activate, *, grace_s: float) -> None:
        self._state = state
        self._activate = activate
        self._grace_s = grace_s
        # Interests whose last subscription ended: when the grace period ends, and when the subscription did. All grace
        # periods are equally long, so that these are in the order of time.
        self._emptied: deque[tuple[float, InterestState, float]] = deque()

    @property
    def release_due_s(self) -> float:
        """When the next grace period ends."""
        return self._emptied[0][0] if self._emptied else math.inf

    def subscribe(self, event: ev.SubscribeRequested, now_s: float, actions: list[Action]) -> None:
        existing = self._state.frontends.get(event.subscription)
        if existing is not None:
            requested = (event.subscriber, event.interest, event.mode)
            if requested != (existing.subscriber, existing.interest, existing.mode):
                error = ConflictError(f"there is a subscription {event.subscription} to something else")
                actions.append(RefuseEvent(event.subscription, error))
            return
        state = self._state.interests.get(event.interest)
        if state is None:
            state = self._state.interests[event.interest] = InterestState(event.interest)
            actions.append(SubscribeBackend(event.interest))
        online = event.subscriber in self._state.online
        frontend = FrontendState(
            event.subscription, event.subscriber, state, mode=event.mode, since=event.since, online=online
        )
        self._state.frontends[frontend.id] = frontend
        self._state.of_subscriber.setdefault(frontend.subscriber, {})[frontend.id] = frontend
        state.frontends[frontend.id] = frontend
        state.empty_since_s = None
        self._activate(state, frontend, now_s, actions)

    def unsubscribe(self, event: ev.UnsubscribeRequested, now_s: float, actions: list[Action]) -> None:
        frontend = self._state.frontends.get(event.subscription)
        if frontend is None:
            actions.append(refuse_unknown(event.subscription))
            return
        state = frontend.interest_state
        state.detach(frontend, self._state.caches)
        self._forget(frontend)
        self._state.unreported[state.interest] = state
        if not state.frontends:
            state.empty_since_s = now_s
            self._emptied.append((now_s + self._grace_s, state, now_s))
            self.release_idle(now_s, actions)

    def backend_lost(self, event: ev.BackendSubscriptionLost, _now_s: float, actions: list[Action]) -> None:
        state = self._state.interests.get(event.interest)
        if state is None:
            return
        subscriptions = tuple(state.frontends)
        for frontend in list(state.frontends.values()):
            state.detach(frontend, self._state.caches)
            self._forget(frontend)
        self._let_go(state)
        if subscriptions:
            actions.append(EndSubscriptions(event.interest, subscriptions, event.reason))

    def release_idle(self, now_s: float, actions: list[Action]) -> None:
        """Drops interests that have had no subscription for the whole grace period."""
        while self._emptied and self._emptied[0][0] <= now_s:
            _, state, since_s = self._emptied.popleft()
            if state.empty_since_s == since_s and self._state.interests.get(state.interest) is state:
                self._let_go(state)
                actions.append(UnsubscribeBackend(state.interest))

    def _let_go(self, state: InterestState) -> None:
        """Drops the interest with its cache and its fetches."""
        del self._state.interests[state.interest]
        self._state.unreported.pop(state.interest, None)
        self._state.fetches.forget(state)
        if state.cache is not None:
            self._state.caches.close(state.interest)

    def _forget(self, frontend: FrontendState) -> None:
        del self._state.frontends[frontend.id]
        own_frontends = self._state.of_subscriber[frontend.subscriber]
        del own_frontends[frontend.id]
        if not own_frontends:
            del self._state.of_subscriber[frontend.subscriber]


def refuse_unknown(subscription: SubscriptionId) -> RefuseEvent:
    return RefuseEvent(subscription, NotFoundError(f"no subscription {subscription}"))
