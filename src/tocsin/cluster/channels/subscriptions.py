"""Subscriptions as brokers make them: many in one call, with values as JSON has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.channels.executions.running_channel import micros
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.settings import ChannelSettings
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import (
    BackendRequest,
    BrokerName,
    SubscribeOutcome,
    SubscriptionRow,
    UnsubscribeOutcome,
)
from tocsin.wire.errors import InputError, LimitError, NotFoundError

SUBSCRIPTIONS_LIMIT: Final = 100_000
PAGE_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """`values` as JSON has them; `id` is the client's own key, `application` one of the broker's."""

    values: Sequence[Any]
    id: str | None = None
    application: str = ""


class Subscriptions:
    def __init__(
        self, catalog: CatalogStore, store: ChannelStore, interests_limit: int = ChannelSettings().interests_limit
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._interests_limit = interests_limit

    def channel(self, dataverse: str, name: str) -> ChannelEntry:
        return self._catalog.catalog.channel(dataverse, name)

    async def subscribe(
        self, entry: ChannelEntry, broker: BrokerName, requests: Sequence[SubscriptionRequest]
    ) -> list[SubscribeOutcome]:
        """All of them or, when one does not fit, none."""
        check_many(len(requests))
        # On a thread: ten thousand take a while to check, and others are waiting.
        wanted = await asyncio.to_thread(_wanted, entry, broker, requests)
        return await self._store.subscribe(
            entry.channel_id, wanted, created_us=micros(datetime.now(UTC)), interests_at_most=self._interests_limit
        )

    async def unsubscribe(self, entry: ChannelEntry, ids: Sequence[str]) -> UnsubscribeOutcome:
        check_many(len(ids))
        return await self._store.unsubscribe(entry.channel_id, ids)

    async def change_broker(self, entry: ChannelEntry, subscription_id: str, broker: BrokerName) -> SubscriptionRow:
        return await self._store.change_broker(entry.channel_id, subscription_id, broker)

    async def one(self, entry: ChannelEntry, subscription_id: str) -> SubscriptionRow:
        found = await self._store.subscription(entry.channel_id, subscription_id)
        if found is None:
            raise NotFoundError(f'the channel {entry.name} has no subscription "{subscription_id[:200]}"')
        return found

    async def page(self, entry: ChannelEntry, after: str, limit: int) -> list[SubscriptionRow]:
        return await self._store.subscriptions(entry.channel_id, after=after, limit=limit)

    async def page_of(self, broker: BrokerName, after: tuple[int, str], limit: int) -> list[SubscriptionRow]:
        return await self._store.subscriptions_of(broker, after=after, limit=limit)

    def channels(self) -> tuple[ChannelEntry, ...]:
        """All that can be subscribed to."""
        return tuple(self._catalog.catalog.channels)

    def names(self) -> dict[int, str]:
        """The channels by their numbers."""
        return {one.channel_id: f"{one.dataverse}.{one.name}" for one in self._catalog.catalog.channels}


def check_many(count: int) -> None:
    if count > SUBSCRIPTIONS_LIMIT:
        raise LimitError(f"{count} subscriptions, at most {SUBSCRIPTIONS_LIMIT} in one call", hint="send them in parts")


def _wanted(entry: ChannelEntry, broker: BrokerName, requests: Sequence[SubscriptionRequest]) -> list[BackendRequest]:
    parameters = ParameterValues(entry.parameters, entry.types)
    wanted = []
    for place, one in enumerate(requests):
        try:
            text = parameters.text(parameters.from_json(one.values))
        except InputError as error:
            raise InputError(f"subscription {place}: {error.message}", hint=error.hint) from None
        wanted.append(BackendRequest(text, broker, one.id, one.application))
    return wanted
