"""How many messages are on their way to receivers at once: altogether, of an application, and of it to one host.

Whoever has to wait holds nothing that others wait for, and is not waiting for its receiver yet. Receivers that did not
take the last message share a quarter of what their application may use: silent ones are left with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager

from tocsin.broker.counters import BrokerCounters
from tocsin.settings.broker import WebhookSettings


class WebhookConnections:
    def __init__(self, settings: WebhookSettings, figures: BrokerCounters) -> None:
        self._figures = figures
        self._all = _Places(settings.connections)
        self._of_application = _Places(settings.application_connections)
        self._to_host = _Places(settings.host_connections)
        self._failing = _Places(max(1, settings.application_connections // 4))

    @asynccontextmanager
    async def place(self, application: int, host: str, *, failing: bool) -> AsyncIterator[None]:
        """Held while one message is posted. First what is nobody else's business: so nobody waits for a place that
        others hold while they wait themselves."""
        async with AsyncExitStack() as held:
            self._figures.webhooks_waiting += 1
            try:
                if failing:
                    await held.enter_async_context(self._failing.one(application))
                await held.enter_async_context(self._to_host.one((application, host)))
                await held.enter_async_context(self._of_application.one(application))
                await held.enter_async_context(self._all.one(None))
            finally:
                self._figures.webhooks_waiting -= 1
            yield


class _Places:
    """At most so many at once under each key, first come, first served."""

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
