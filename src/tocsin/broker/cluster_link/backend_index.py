"""Finds the broker's backend subscriptions by interest and by parameter values, with their heads and ids.

Every announcement and every new subscription needs one of these lookups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.store.broker.rows import BackendRow, NewBackendRow
from tocsin.wire.errors import InputError

# The prefix of subscription ids that a broker made, and that it ends when it no longer needs them.
OURS: Final = "broker:"


@dataclass(slots=True, eq=False)
class BackendSubscription:
    """A broker's subscription to one interest at the cluster.

    `head`: the cursor up to which the cluster has announced results. `pins`: the number of frontend subscriptions in
    the making that need it. `opened`: the core has had it before, so that it opens at its head the next time. `shares`:
    the applications that hold it at the cluster, each with its subscription id there; `subscription` is the first of
    these ids.
    """

    interest: InterestId
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
        """The application of the first subscription; empty if it is not known."""
        return next((name for name, identity in self.shares.items() if identity == self.subscription), "")

    def new_backend(self) -> NewBackendRow:
        return NewBackendRow(self.interest, self.channel, self.parameters, self.subscription, self.since, self.head)


class BackendIndex:
    """All backend subscriptions of a broker, by interest and by parameter values.

    `store` is the id of the broker's store. It distinguishes our subscriptions from those of another broker of our
    name.
    """

    def __init__(self, broker: str, store: str) -> None:
        self._broker = broker
        self.ours = f"{OURS}{store[:12]}:"
        self._by_interest: dict[InterestId, BackendSubscription] = {}
        self._by_values: dict[tuple[str, str], BackendSubscription] = {}
        # Other spellings of the same values, such as 1 and 1.0; few interests have any.
        self._others: dict[int, set[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._by_interest)

    def __iter__(self) -> Iterator[BackendSubscription]:
        return iter(list(self._by_interest.values()))

    def get(self, interest: InterestId) -> BackendSubscription | None:
        return self._by_interest.get(interest)

    def find(self, channel: str, parameters: str) -> BackendSubscription | None:
        return self._by_values.get((channel, parameters))

    def channel_of(self, interest: InterestId) -> str:
        backend = self._by_interest.get(interest)
        return backend.channel if backend is not None else ""

    def add(self, backend: BackendSubscription) -> BackendSubscription:
        """Returns the backend subscription of the interest, which may exist under another spelling of the values."""
        key = (backend.channel, backend.parameters)
        existing = self._by_interest.setdefault(backend.interest, backend)
        self._by_values[key] = existing
        if key != (existing.channel, existing.parameters):
            self._others.setdefault(existing.interest, set()).add(key)
        return existing

    def remember(self, stored: BackendRow) -> BackendSubscription:
        identity = stored.channel, stored.parameters, stored.subscription
        return self.add(BackendSubscription(stored.interest, *identity, stored.since, stored.head, opened=True))

    def remove(self, backend: BackendSubscription) -> None:
        self.hide(backend)
        if self._by_interest.get(backend.interest) is backend:
            del self._by_interest[backend.interest]

    def hide(self, backend: BackendSubscription) -> None:
        """Hides a subscription that may end from the lookup by values: a new request asks the cluster."""
        if self._by_interest.get(backend.interest) is backend:
            for key in ((backend.channel, backend.parameters), *self._others.pop(backend.interest, ())):
                self._by_values.pop(key, None)

    def subscription_id(self, channel: str, parameters: str, application: str) -> str:
        """A deterministic id, so that a repeated request to the cluster makes no second subscription."""
        identity = f"{self._broker}\0{channel}\0{parameters}\0{application}".encode()
        return self.ours + hashlib.sha256(identity).hexdigest()[:32]


def values_text(values: Sequence[Any]) -> str:
    """The values of a channel's parameters as canonical text: equal JSON gives equal text."""
    try:
        return orjson.dumps(list(values)).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"parameters: {error}") from None
