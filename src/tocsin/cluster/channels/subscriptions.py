"""Manages the subscriptions of brokers: many in one call, with parameter values from JSON.

A broker that starts has thousands of subscriptions to make, so one call adds many: all of them, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from tocsin.clock import to_us
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.channels.virtual_datasets import all_subscriptions
from tocsin.settings import ChannelSettings
from tocsin.store.channels.interface import ChannelStore, WhenTaken
from tocsin.store.channels.rows import BackendRequest, BrokerName, SubscribeOutcome, SubscriptionRow, UnsubscribeOutcome
from tocsin.wire.cluster import SUBSCRIPTIONS_LIMIT, SubscriptionRequest
from tocsin.wire.errors import InputError, LimitError, NotFoundError

PAGE_LIMIT: Final = 10_000


class Subscriptions:
    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        interests_limit: int = ChannelSettings().interests_limit,
        *,
        subscribed: Callable[[int], None] = lambda _channel_id: None,
    ) -> None:
        """`subscribed` is called with the number of a channel after each change that may have added an interest."""
        self._catalog = catalog
        self._store = store
        self._interests_limit = interests_limit
        self._subscribed = subscribed

    def channel(self, dataverse: str, name: str) -> ChannelEntry:
        return self._catalog.catalog.channel(dataverse, name)

    async def subscribe(
        self, entry: ChannelEntry, broker: BrokerName, requests: Sequence[SubscriptionRequest]
    ) -> list[SubscribeOutcome]:
        """Adds all subscriptions, or none if one of them is invalid."""
        check_many(len(requests))
        # Check on a thread: ten thousand take a while, and the event loop has other work.
        return await self.request(entry, await asyncio.to_thread(_read_requests, entry, broker, requests))

    async def request(
        self, entry: ChannelEntry, requests: Sequence[BackendRequest], *, when_taken: WhenTaken = "repeat"
    ) -> list[SubscribeOutcome]:
        """Adds all subscriptions, whose parameters have been checked, or none."""
        check_many(len(requests))
        outcomes = await self._store.subscribe(
            entry.channel_id, requests, created_us=to_us(datetime.now(UTC)),
            interests_at_most=self._interests_limit, when_taken=when_taken,
        )  # fmt: skip
        self._subscribed(entry.channel_id)
        return outcomes

    async def ids(self, entry: ChannelEntry) -> list[str]:
        """Returns the ids of all subscriptions to a channel. Raises LimitError if one call cannot end them all."""
        check_many((await self._store.state(entry.channel_id)).subscriptions)
        return [subscription.id for subscription in await all_subscriptions(self._store, entry.channel_id)]

    async def unsubscribe(self, entry: ChannelEntry, ids: Sequence[str]) -> UnsubscribeOutcome:
        check_many(len(ids))
        return await self._store.unsubscribe(entry.channel_id, ids)

    async def change(
        self, entry: ChannelEntry, subscription_id: str, broker: BrokerName, parameters: str | None = None
    ) -> SubscriptionRow:
        """Moves a subscription to another broker, and to other parameters if they are given (see ChannelStore)."""
        changed = await self._store.change_subscription(
            entry.channel_id, subscription_id, broker, parameters=parameters, interests_at_most=self._interests_limit
        )
        self._subscribed(entry.channel_id)
        return changed

    async def one(self, entry: ChannelEntry, subscription_id: str) -> SubscriptionRow:
        subscription = await self._store.subscription(entry.channel_id, subscription_id)
        if subscription is None:
            raise NotFoundError(f'the channel {entry.name} has no subscription "{subscription_id[:200]}"')
        return subscription

    async def page(self, entry: ChannelEntry, after: str, limit: int) -> list[SubscriptionRow]:
        return await self._store.subscriptions(entry.channel_id, after=after, limit=limit)

    async def page_of(self, broker: BrokerName, after: tuple[int, str], limit: int) -> list[SubscriptionRow]:
        return await self._store.subscriptions_of(broker, after=after, limit=limit)

    def channels(self) -> tuple[ChannelEntry, ...]:
        """Returns all channels."""
        return tuple(self._catalog.catalog.channels)

    def names(self) -> dict[int, str]:
        """Returns the full names of all channels by channel id."""
        return {entry.channel_id: full_name(entry) for entry in self._catalog.catalog.channels}


def check_many(count: int) -> None:
    if count > SUBSCRIPTIONS_LIMIT:
        raise LimitError(f"{count} subscriptions, at most {SUBSCRIPTIONS_LIMIT} in one call", hint="send them in parts")


def _read_requests(
    entry: ChannelEntry, broker: BrokerName, requests: Sequence[SubscriptionRequest]
) -> list[BackendRequest]:
    parameters = ParameterValues(entry.parameters, entry.types)
    backend_requests = []
    for number, request in enumerate(requests):
        try:
            text = parameters.text(parameters.from_json(request.parameters))
        except InputError as error:
            raise InputError(f"subscription {number}: {error.message}", hint=error.hint) from None
        backend_requests.append(BackendRequest(text, broker, request.id, request.application))
    return backend_requests
