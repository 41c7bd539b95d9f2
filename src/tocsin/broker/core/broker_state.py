"""The state that a broker core holds, with queries that do not change it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from tocsin.broker.core.cohorts import FrontendState
from tocsin.broker.core.events import Mode
from tocsin.broker.core.interest_state import InterestState
from tocsin.rules.model.cursors import START, Cursor


class BrokerState:
    """Interests, the subscriptions to them, and the subscribers that hold them."""

    def __init__(self) -> None:
        self._backends: dict[Hashable, InterestState] = {}
        self._frontends: dict[Hashable, FrontendState] = {}
        self._of_subscriber: dict[Hashable, dict[Hashable, FrontendState]] = {}
        self._online: set[Hashable] = set()

    def marker(self, subscription: Hashable) -> Cursor:
        """The cursor up to which this subscription has acknowledged."""
        return self._frontends[subscription].acknowledged

    def knows(self, subscription: Hashable) -> bool:
        return subscription in self._frontends

    def since(self, subscription: Hashable) -> Cursor:
        """Where this subscription begins; START until the cluster has made the backend subscription."""
        return self._frontends[subscription].since or START

    def holds(self, interest: Hashable) -> bool:
        """Whether the interest has a backend subscription, or one has been requested."""
        return interest in self._backends

    def subscriptions_of(self, subscriber: Hashable) -> Sequence[Hashable]:
        return tuple(self._of_subscriber.get(subscriber, ()))

    def lacking(self, subscriber: Hashable) -> Iterator[tuple[Hashable, Hashable, Mode, Cursor]]:
        """Subscription, interest, mode and head of every subscription that has unacknowledged results."""
        for frontend in self._of_subscriber.get(subscriber, {}).values():
            head = frontend.backend.held.head if frontend.attached else START
            if frontend.acknowledged < head:
                yield frontend.id, frontend.interest, frontend.mode, head
