"""Long poll: a request waits until there are events, and is answered with everything that is not acknowledged."""

from __future__ import annotations

import asyncio
from typing import Final

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.core.events import Mode
from tocsin.broker.delivery.event_encoder import EncodedEvent
from tocsin.broker.delivery.outlets import PlainOutlet
from tocsin.broker.service import BrokerService
from tocsin.wire.envelopes import RESULTS
from tocsin.wire.errors import NotFoundError
from tocsin.wire.subscriber import PullRequest

GATHER_S: Final = 0.01
"""Events that follow the first one within this time are answered with it."""

FIRST: Final = 4
TOGETHER: Final = 100
"""The number of subscriptions that are pulled at a time: FIRST at first, because each may have a full page of results,
and twice as many in each further round, up to TOGETHER."""


async def poll(service: BrokerService, who: Session, wait_s: float, end: asyncio.Event) -> list[bytes]:
    """Returns the unacknowledged events, cached or fetched, or else the first events that arrive within `wait_s`."""
    with service.sessions.session(who, service.limit(who, "connections"), lambda _reason: None):
        events = await _unacknowledged_events(service, who)
    return [event.envelope for event in events] or await _wait_for_events(service, who, wait_s, end)


async def _unacknowledged_events(service: BrokerService, who: Session) -> list[EncodedEvent]:
    """The unacknowledged events, pulled from all subscriptions up to the buffer size."""
    lacking = list(service.runtime.core.lacking(who.subscriber))
    events = [service.pulls.available(interest, head) for interest, mode, head in lacking if mode is Mode.NOTIFY]
    inline = [int(str(interest)) for interest, mode, _ in lacking if mode is Mode.INLINE]
    size_bytes, failed = 0, None
    begin, count = 0, FIRST
    while begin < len(inline) and size_bytes < service.settings.delivery.buffer_bytes:
        pulls = (service.pull(who, PullRequest(interest, None, None)) for interest in inline[begin : begin + count])
        begin, count = begin + count, min(2 * count, TOGETHER)
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


async def _wait_for_events(service: BrokerService, who: Session, wait_s: float, end: asyncio.Event) -> list[bytes]:
    """Waits as an outlet for the first events."""
    arrived = asyncio.Event()
    events: list[EncodedEvent] = []
    size_bytes = 0
    limit_bytes = service.settings.delivery.buffer_bytes

    def take(told: EncodedEvent) -> None:
        nonlocal size_bytes
        events.append(told)
        size_bytes += len(told.envelope)
        arrived.set()

    outlet = PlainOutlet(take, lambda: size_bytes >= limit_bytes, arrived.set)
    loop = asyncio.get_running_loop()

    def ended(_reason: str) -> None:
        arrived.set()

    with service.sessions.session(who, service.limit(who, "connections"), ended):
        service.fan_out.attach(who.subscriber, outlet)
        try:
            if not events:
                stopping = loop.create_task(end.wait())
                coming = loop.create_task(arrived.wait())
                try:
                    await asyncio.wait((stopping, coming), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stopping.cancel()
                    coming.cancel()
            if events and wait_s > 0:
                await asyncio.sleep(GATHER_S)
        finally:
            service.fan_out.detach(outlet)
    return [event.envelope for event in _latest(events)]


def _latest(found: list[EncodedEvent]) -> list[EncodedEvent]:
    """Keeps the results, and of the other events only the last of each interest."""
    latest = {event.interest: event for event in found if event.kind != RESULTS}
    return [event for event in found if event.kind == RESULTS or latest[event.interest] is event]
