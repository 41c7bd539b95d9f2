"""What a broker holds, to be looked at without changing it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from tocsin.broker.core.cohorts import FrontendState
from tocsin.broker.core.events import Mode
from tocsin.broker.core.interest_state import InterestState
from tocsin.rules.model.cursors import START, Cursor


class BrokerState:
    """Interests, the subscriptions to them, and who holds which."""

    def __init__(self) -> None:
        self._backends: dict[Hashable, InterestState] = {}
        self._frontends: dict[Hashable, FrontendState] = {}
        self._of_subscriber: dict[Hashable, dict[Hashable, FrontendState]] = {}
        self._online: set[Hashable] = set()

    def marker(self, subscription: Hashable) -> Cursor:
        """What this subscription has acknowledged."""
        return self._frontends[subscription].acknowledged

    def knows(self, subscription: Hashable) -> bool:
        return subscription in self._frontends

    def since(self, subscription: Hashable) -> Cursor:
        """Where this subscription begins; before the cluster holds it, before everything."""
        return self._frontends[subscription].since or START

    def holds(self, interest: Hashable) -> bool:
        """Whether there is a backend subscription, or will be."""
        return interest in self._backends

    def subscriptions_of(self, subscriber: Hashable) -> Sequence[Hashable]:
        return tuple(self._of_subscriber.get(subscriber, ()))

    def lacking(self, subscriber: Hashable) -> Iterator[tuple[Hashable, Hashable, Mode, Cursor]]:
        """Subscription, interest, mode and the newest result, where this is not acknowledged."""
        for one in self._of_subscriber.get(subscriber, {}).values():
            head = one.backend.held.head if one.attached else START
            if one.acknowledged < head:
                yield one.id, one.interest, one.mode, head
