"""Batches acknowledgements: they are gathered for a moment, handed to the core at once and written together.

Acknowledgements of many subscribers for the same cursor become one event of the core, all others become another, and
all that wait are written in one transaction. An acknowledgement that is lost in a crash costs a repeated delivery; an
acknowledgement whose sender was answered is never lost.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from tocsin import faults
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.metrics import BrokerCounters
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.cursors import Cursor, InterestId, SubscriptionId
from tocsin.store.broker.interface import BrokerStore

_GATHER_S: Final = 0.002

_log = structlog.get_logger("tocsin.broker.acks")


class AckBatcher:
    """Hands acknowledgements to the core within _GATHER_S, and writes markers within `every_s` or on `durable`; a write
    that failed is repeated with back-off, first after `retry_s`."""

    def __init__(
        self, runtime: CoreRuntime, store: BrokerStore, counters: BrokerCounters, every_s: float, retry_s: float = 0.5
    ) -> None:
        self._back_off = BackOff(retry_s, 20 * retry_s)
        self._runtime = runtime
        self._store = store
        self._counters = counters
        self._every_s = every_s
        self._gathered: dict[tuple[InterestId, Cursor], list[SubscriptionId]] = {}
        self._markers: dict[SubscriptionId, Cursor] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def acknowledge(self, subscription: SubscriptionId, interest: InterestId, cursor: Cursor) -> None:
        key = (interest, cursor)
        subscriptions = self._gathered.get(key)
        if subscriptions is None:
            self._gathered[key] = [subscription]
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._hand_to_core)
        else:
            subscriptions.append(subscription)

    async def durable(self) -> None:
        """Returns when all acknowledgements so far are durable."""
        self._hand_to_core()
        if not self._markers and self._writing is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        self._write_soon(0.0)
        await written

    async def close(self) -> None:
        """Writes the acknowledgements that are left."""
        self._hand_to_core()
        if self._write_timer is not None:
            self._write_timer.cancel()
        while self._markers or self._writing is not None:
            if self._writing is None:
                self._begin()
            if self._writing is not None:
                await asyncio.wait((self._writing,))
            if self._markers and not await self._write_once():
                return

    def _hand_to_core(self) -> None:
        """Hands the gathered acknowledgements to the core, and queues the resulting markers for the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, {}
        core = self._runtime.core
        single_acks = tuple(
            [(subscribers[0], cursor) for (_, cursor), subscribers in gathered.items() if len(subscribers) == 1]
        )
        if single_acks:
            self._runtime.handle(ev.ResultsAcknowledgedByMany(single_acks))
        for (interest, cursor), subscriptions in gathered.items():
            if len(subscriptions) > 1:
                self._runtime.handle(ev.ResultsAcknowledged(interest, cursor, subscriptions))
            for subscription in subscriptions:
                if core.knows(subscription):
                    self._markers[subscription] = core.marker(subscription)
            self._counters.acknowledged += len(subscriptions)
        if self._markers:
            self._write_soon(self._every_s)

    def _write_soon(self, within_s: float) -> None:
        if self._writing is not None:
            return
        if self._write_timer is not None:
            if within_s > 0:
                return
            self._write_timer.cancel()
        self._write_timer = asyncio.get_running_loop().call_later(within_s, self._begin)

    def _begin(self) -> None:
        self._write_timer = None
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Writes once, and schedules the next write if there is more to do or it failed."""
        try:
            succeeded = await self._write_once()
        finally:
            self._writing = None
        if succeeded:
            self._back_off.reset()
        if self._waiting:
            self._write_soon(0.0)
        elif self._markers:
            self._write_soon(self._every_s if succeeded else self._back_off.next_s())

    async def _write_once(self) -> bool:
        """Writes the queued markers; returns whether it succeeded. After a failure the markers stay queued."""
        markers, self._markers = self._markers, {}
        waiters, self._waiting = self._waiting, []
        try:
            if markers:
                await self._store.acknowledge(markers)
            faults.reach("delivery.acks.stored")
        except Exception as error:
            _log.warning("acknowledgements could not be written", count=len(markers), error=repr(error))
            # Markers that were queued in the meantime are newer, so they win.
            self._markers = {**markers, **self._markers}
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            return False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return True
