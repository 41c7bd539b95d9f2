"""Who asks for results gets them: the GET of Algorithm 1, for one subscription at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Final

from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import EventEncoder
from tocsin.broker.delivery.outlets import EncodedEvent
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import NotFoundError, UnavailableError

PATIENCE_S: Final = 30.0
"""How long a pull waits for the cluster."""

Pulled = tuple[list[EncodedEvent], bool]


class Pulls:
    def __init__(self, machine: CoreRuntime, letters: EventEncoder) -> None:
        self._machine = machine
        self._letters = letters
        self._waiting: dict[tuple[Hashable, Cursor], list[asyncio.Future[ac.Deliver]]] = {}
        machine.on(ac.RefuseEvent, self._refused)

    async def pull(
        self, subscription: Hashable, interest: Hashable, after: Cursor | None, limit: int | None, wait_s: float = 0.0
    ) -> Pulled:
        """Results after `after`, or else after what was acknowledged; and whether there are more. Where there is none,
        it waits so long for some."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            fresh = self._machine.expect(interest)
            try:
                told, more = self._letters.first(await self._once(subscription, interest, after, limit), limit)
                if told or loop.time() >= deadline_s:
                    return told, more
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await fresh.wait()
                except TimeoutError:
                    return told, more
            finally:
                self._machine.forget(interest, fresh)

    def available(self, interest: Hashable, to: Cursor) -> EncodedEvent:
        """What says that there is something to pull."""
        return self._letters.available(ac.NotifyAvailable(interest, to, ()))

    def deliver(self, action: ac.Deliver) -> None:
        for name in action.audience:
            assert isinstance(name, int)
            for waiting in self._waiting.pop((name, action.after), ()):
                if not waiting.done():
                    waiting.set_result(action)

    def _refused(self, action: ac.RefuseEvent) -> None:
        for key in [key for key in self._waiting if key[0] == action.subscription]:
            for waiting in self._waiting.pop(key):
                if not waiting.done():
                    waiting.set_exception(UnavailableError(action.error.message, hint="ask again"))

    async def _once(
        self, subscription: Hashable, interest: Hashable, after: Cursor | None, limit: int | None
    ) -> ac.Deliver:
        core = self._machine.core
        if not core.knows(subscription):
            raise NotFoundError("the subscription is gone")
        begin = core.marker(subscription) if after is None else max(after, core.since(subscription))
        if interest in core.caches and begin >= core.caches[interest].head:
            return ac.Deliver(interest, begin, begin, (), (subscription,), ac.DeliveryReason.PULLED)
        answer: asyncio.Future[ac.Deliver] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((subscription, begin), [])
        waiting.append(answer)
        try:
            if len(waiting) == 1:
                self._machine.handle(ev.ResultsRequested(interest, (subscription,), begin, limit))
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            raise UnavailableError("the cluster has not answered", hint="ask again later") from None
        finally:
            left: Sequence[asyncio.Future[ac.Deliver]] = self._waiting.get((subscription, begin), ())
            if answer in left:
                waiting.remove(answer)
                if not waiting:
                    del self._waiting[subscription, begin]
