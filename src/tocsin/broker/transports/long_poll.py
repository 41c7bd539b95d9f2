"""Long poll: a request waits until there are events, and is answered with everything that is not acknowledged.

It needs nothing but plain requests, for clients whose proxies let no stream through.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.delivery.event_encoder import EncodedEvent
from tocsin.broker.delivery.outlets import PlainOutlet
from tocsin.broker.http.requests import json_answer, subscriber_of
from tocsin.broker.transports.transport import Transport
from tocsin.serving.requests import check_query, seconds
from tocsin.wire.answers import events_page
from tocsin.wire.envelopes import RESULTS
from tocsin.wire.errors import NotFoundError
from tocsin.wire.subscriber import PullRequest

_GATHER_S: Final = 0.01
"""Events that follow the first one within this time are answered with it."""

_FIRST: Final = 4
_TOGETHER: Final = 100
"""The number of subscriptions that are pulled at a time: FIRST at first, because each may have a full page of results,
and twice as many in each further round, up to TOGETHER."""


class LongPoll(Transport):
    """Answers polls with the unacknowledged events, cached or fetched, or else with the first events that arrive within
    the time that the client waits."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/poll", self._poll, allow_head=False)]

    async def _poll(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request, whole=True)
        check_query(request, "wait")
        wait_s = seconds(request, "wait", most=self._service.settings.delivery.wait_limit_s)
        with self._service.connection(who, lambda _reason: None):
            events = await self._unacknowledged_events(who)
        events = events or await self._wait_for_events(who, wait_s)
        return json_answer(events_page([event.envelope for event in events]))

    async def _unacknowledged_events(self, who: Session) -> list[EncodedEvent]:
        """The unacknowledged events, pulled from all subscriptions up to the buffer size."""
        service = self._service
        events, interests = service.list_unacknowledged(who)
        size_bytes, failed = 0, None
        begin, count = 0, _FIRST
        while begin < len(interests) and size_bytes < service.settings.delivery.buffer_bytes:
            requests = [PullRequest(interest, None, None) for interest in interests[begin : begin + count]]
            begin, count = begin + count, min(2 * count, _TOGETHER)
            pulls = (service.pull(who, request) for request in requests)
            for answer in await asyncio.gather(*pulls, return_exceptions=True):
                if isinstance(answer, NotFoundError):
                    continue  # it has ended in the meantime
                if isinstance(answer, BaseException):
                    failed = answer
                else:
                    events += answer[0]
                    size_bytes += sum(len(event.envelope) for event in answer[0])
        if failed is not None and not events:
            raise failed
        return events

    async def _wait_for_events(self, who: Session, wait_s: float) -> list[EncodedEvent]:
        """Waits as an outlet for the first events; not any longer when the token ends or the broker stops."""
        service, arrived = self._service, asyncio.Event()
        events: list[EncodedEvent] = []
        size_bytes = 0
        limit_bytes = service.settings.delivery.buffer_bytes

        def take(event: EncodedEvent) -> None:
            nonlocal size_bytes
            events.append(event)
            size_bytes += len(event.envelope)
            arrived.set()

        outlet = PlainOutlet(take, lambda: size_bytes >= limit_bytes, arrived.set)
        with service.connection(who, lambda _reason: arrived.set()):
            service.attach(who.subscriber, outlet)
            try:
                async with asyncio.timeout(wait_s):
                    await arrived.wait()
                if events and wait_s > 0:
                    await asyncio.sleep(_GATHER_S)
            except TimeoutError:
                pass
            finally:
                service.detach(outlet)
        return _latest(events)


def _latest(found: list[EncodedEvent]) -> list[EncodedEvent]:
    """Keeps the results, and of the other events only the last of each interest."""
    latest = {event.interest: event for event in found if event.kind != RESULTS}
    return [event for event in found if event.kind == RESULTS or latest[event.interest] is event]
