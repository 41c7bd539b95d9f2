"""What the broker holds at the cluster: interests, what they are called there, and how far they were told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tocsin.rules.model.cursors import Cursor
from tocsin.store.broker.rows import BackendRow, NewBackendRow
from tocsin.wire.errors import InputError

# Subscriptions with this in front are a broker's: made by it, and ended by it when nobody needs them.
OURS: Final = "broker:"


@dataclass(slots=True, eq=False)
class BackendSubscription:
    """`head`: the cluster has told of results up to here. `pins`: subscriptions being made that will need it.
    `opened`: the core has known it, and opens it at its head the next time. `shares`: the applications that the cluster
    knows to hold it, and what it calls the subscription of each; `subscription` is the first of them."""

    interest: int
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor
    pins: int = 0
    opened: bool = False
    shares: dict[str, str] = field(default_factory=dict)

    @property
    def application(self) -> str:
        """That of the first subscription; empty where nobody has said."""
        return next((name for name, identity in self.shares.items() if identity == self.subscription), "")

    def new_backend(self) -> NewBackendRow:
        return NewBackendRow(self.interest, self.channel, self.parameters, self.subscription, self.since, self.head)


class BackendSubscriptions:
    """`store`: the id of the broker's store, which tells what it has made from what another broker of its name did."""

    def __init__(self, broker: str, store: str) -> None:
        self._broker = broker
        self.ours = f"{OURS}{store[:12]}:"
        self._by_interest: dict[int, BackendSubscription] = {}
        self._by_values: dict[tuple[str, str], BackendSubscription] = {}
        # Different words for the same values, such as 1 and 1.0: few have any.
        self._others: dict[int, set[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._by_interest)

    def __iter__(self) -> Iterator[BackendSubscription]:
        return iter(list(self._by_interest.values()))

    def get(self, interest: int) -> BackendSubscription | None:
        return self._by_interest.get(interest)

    def find(self, channel: str, parameters: str) -> BackendSubscription | None:
        return self._by_values.get((channel, parameters))

    def channel_of(self, interest: int) -> str:
        holding = self._by_interest.get(interest)
        return holding.channel if holding is not None else ""

    def add(self, holding: BackendSubscription) -> BackendSubscription:
        """The holding of its interest, which may be an older one under other words."""
        words = (holding.channel, holding.parameters)
        there = self._by_interest.setdefault(holding.interest, holding)
        self._by_values[words] = there
        if words != (there.channel, there.parameters):
            self._others.setdefault(there.interest, set()).add(words)
        return there

    def remember(self, stored: BackendRow) -> BackendSubscription:
        words = stored.channel, stored.parameters, stored.subscription
        return self.add(BackendSubscription(stored.interest, *words, stored.since, stored.head, opened=True))

    def remove(self, holding: BackendSubscription) -> None:
        self.hide(holding)
        if self._by_interest.get(holding.interest) is holding:
            del self._by_interest[holding.interest]

    def hide(self, holding: BackendSubscription) -> None:
        """It may go: who wants these values now has to ask the cluster for them."""
        if self._by_interest.get(holding.interest) is holding:
            for words in ((holding.channel, holding.parameters), *self._others.pop(holding.interest, ())):
                self._by_values.pop(words, None)

    def subscription_id(self, channel: str, parameters: str, application: str) -> str:
        """The same for the same, so that asking the cluster twice makes one subscription."""
        words = f"{self._broker}\0{channel}\0{parameters}\0{application}".encode()
        return self.ours + hashlib.sha256(words).hexdigest()[:32]


def values_text(values: Sequence[Any]) -> str:
    """The values of a channel's parameters as one text: the same for the same JSON."""
    try:
        return orjson.dumps(list(values)).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"parameters: {error}") from None
