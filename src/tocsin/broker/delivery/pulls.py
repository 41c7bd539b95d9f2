"""Pulls: a subscription asks for results and waits for them (the GET of Algorithm 1).

A client that asks again while its first request waits costs the core nothing: both share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import EncodedEvent, EventEncoder
from tocsin.rules.model.cursors import START, Cursor, InterestId, SubscriptionId
from tocsin.wire.errors import NotFoundError, UnavailableError

_PATIENCE_S: Final = 30.0
"""The time that a pull waits for the cluster."""

Pulled = tuple[list[EncodedEvent], bool]


class Pulls:
    """Pulls that wait for the core. Pulls of a subscription from the same cursor share one request to it."""

    def __init__(self, runtime: CoreRuntime, encoder: EventEncoder) -> None:
        self._runtime = runtime
        self._encoder = encoder
        self._waiting: dict[tuple[SubscriptionId, Cursor], list[asyncio.Future[ac.Deliver]]] = {}

    async def pull(
        self,
        subscription: SubscriptionId,
        interest: InterestId,
        after: Cursor | None,
        limit: int | None,
        wait_s: float = 0.0,
    ) -> Pulled:
        """Results after `after`, or after the marker if it is None, and whether there are more. If there are none,
        waits up to `wait_s` for new ones."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            arrival = self._runtime.expect(interest)
            try:
                events, more = self._encoder.first(await self._pull_once(subscription, interest, after, limit), limit)
                if events or loop.time() >= deadline_s:
                    return events, more
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await arrival.wait()
                except TimeoutError:
                    return events, more
            finally:
                self._runtime.forget(interest, arrival)

    def available(self, interest: InterestId, to: Cursor) -> EncodedEvent:
        """The event that says that there are results to pull."""
        return self._encoder.available(ac.NotifyAvailable(interest, to, ()))

    def deliver(self, action: ac.Deliver) -> None:
        """Answers the pulls that wait for this range."""
        for subscription in action.audience:
            for future in self._waiting.pop((subscription, action.after), ()):
                if not future.done():
                    future.set_result(action)

    def refuse(self, action: ac.RefuseEvent) -> None:
        """Ends the pulls of a subscription that the core refused."""
        for key in [key for key in self._waiting if key[0] == action.subscription]:
            for future in self._waiting.pop(key):
                if not future.done():
                    future.set_exception(UnavailableError(action.error.message, hint="ask again"))

    async def _pull_once(
        self, subscription: SubscriptionId, interest: InterestId, after: Cursor | None, limit: int | None
    ) -> ac.Deliver:
        """One page from the core; raises UnavailableError if the cluster does not answer in time."""
        core = self._runtime.core
        if not core.knows(subscription):
            raise NotFoundError("the subscription is gone")
        begin = core.marker(subscription) if after is None else max(after, core.since(subscription) or START)
        if interest in core.caches and begin >= core.caches[interest].head:
            return ac.Deliver(interest, begin, begin, (), (subscription,), ac.DeliveryReason.PULLED)
        answer: asyncio.Future[ac.Deliver] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault((subscription, begin), [])
        futures.append(answer)
        try:
            if len(futures) == 1:
                self._runtime.handle(ev.ResultsRequested(interest, (subscription,), begin, limit))
            async with asyncio.timeout(_PATIENCE_S):
                return await answer
        except TimeoutError:
            raise UnavailableError("the cluster has not answered", hint="ask again later") from None
        finally:
            remaining: Sequence[asyncio.Future[ac.Deliver]] = self._waiting.get((subscription, begin), ())
            if answer in remaining:
                futures.remove(answer)
                if not futures:
                    del self._waiting[subscription, begin]
