"""Limits webhook messages in flight: in total, per application, and per application and host.

A message that waits for a slot occupies none that others wait for, and its timeout has not started. Receivers that
failed their last message share a quarter of their application's slots, so that silent receivers cannot use up the
rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager

from tocsin.broker.metrics import BrokerCounters
from tocsin.settings.broker import WebhookSettings


class WebhookConnections:
    """The slots for webhook messages."""

    def __init__(self, settings: WebhookSettings, counters: BrokerCounters) -> None:
        self._counters = counters
        self._all = _KeyedSlots(settings.connections)
        self._of_application = _KeyedSlots(settings.application_connections)
        self._to_host = _KeyedSlots(settings.host_connections)
        self._failing = _KeyedSlots(max(1, settings.application_connections // 4))

    @asynccontextmanager
    async def place(self, application: int, host: str, *, failing: bool) -> AsyncIterator[None]:
        """Holds the slots for one message while it is posted. The narrowest limit comes first: a message never holds a
        shared slot while it waits for one of its own."""
        async with AsyncExitStack() as slots:
            self._counters.webhooks_waiting += 1
            try:
                if failing:
                    await slots.enter_async_context(self._failing.one(application))
                await slots.enter_async_context(self._to_host.one((application, host)))
                await slots.enter_async_context(self._of_application.one(application))
                await slots.enter_async_context(self._all.one(None))
            finally:
                self._counters.webhooks_waiting -= 1
            yield


class _KeyedSlots:
    """At most `most` holders at a time per key, first come, first served."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_key: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def one(self, key: Hashable) -> AsyncIterator[None]:
        semaphore, users = self._by_key.get(key) or (asyncio.Semaphore(self._most), 0)
        self._by_key[key] = semaphore, users + 1
        try:
            async with semaphore:
                yield
        finally:
            users = self._by_key[key][1] - 1
            if users:
                self._by_key[key] = semaphore, users
            else:
                del self._by_key[key]
