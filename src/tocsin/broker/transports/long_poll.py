"""Subscribers who ask again and again: a poll waits until there is something, and answers what is not acknowledged."""

from __future__ import annotations

import asyncio
from typing import Final

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.core.events import Mode
from tocsin.broker.delivery.outlets import EncodedEvent, PlainOutlet
from tocsin.broker.service import BrokerService
from tocsin.wire.envelopes import RESULTS
from tocsin.wire.errors import NotFoundError

GATHER_S: Final = 0.01
"""What comes so soon after the first event is answered with it."""

FIRST: Final = 4
TOGETHER: Final = 100
"""So many subscriptions that lack something are looked at, and fetched for, at once: few at first, for each may have a
page full of results, and more where they have little."""


async def poll(service: BrokerService, who: Session, wait_s: float, end: asyncio.Event) -> list[bytes]:
    """The events that there are, or else the first that come within the time. What is not acknowledged comes again,
    whether it is in the cache or has to be fetched."""
    with service.sessions.session(who, service.limit(who, "connections"), lambda _reason: None):
        there = await _not_acknowledged(service, who)
    return [one.envelope for one in there] or await _coming(service, who, wait_s, end)


async def _not_acknowledged(service: BrokerService, who: Session) -> list[EncodedEvent]:
    lacking = list(service.machine.core.lacking(who.subscriber))
    told = [service.pulls.available(interest, head) for _, interest, mode, head in lacking if mode is Mode.NOTIFY]
    wanted = [(name, interest) for name, interest, mode, _ in lacking if mode is Mode.INLINE]
    size_bytes, failed = 0, None
    begin, count = 0, FIRST
    while begin < len(wanted) and size_bytes < service.settings.delivery.buffer_bytes:
        asked = (service.pulls.pull(name, interest, None, None) for name, interest in wanted[begin : begin + count])
        begin, count = begin + count, min(2 * count, TOGETHER)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, NotFoundError):
                continue  # it has gone meanwhile
            if isinstance(answer, BaseException):
                failed = answer
            else:
                told += answer[0]
                size_bytes += sum(len(one.envelope) for one in answer[0])
    if failed is not None and not told:
        raise failed
    return told


async def _coming(service: BrokerService, who: Session, wait_s: float, end: asyncio.Event) -> list[bytes]:
    some = asyncio.Event()
    found: list[EncodedEvent] = []
    size_bytes = 0
    limit_bytes = service.settings.delivery.buffer_bytes

    def take(told: EncodedEvent) -> None:
        nonlocal size_bytes
        found.append(told)
        size_bytes += len(told.envelope)
        some.set()

    outlet = PlainOutlet(take, lambda: size_bytes >= limit_bytes, some.set)
    loop = asyncio.get_running_loop()

    def ended(_reason: str) -> None:
        some.set()

    with service.sessions.session(who, service.limit(who, "connections"), ended):
        service.presence.attach(who.subscriber, outlet)
        try:
            if not found:
                stopping = loop.create_task(end.wait())
                coming = loop.create_task(some.wait())
                try:
                    await asyncio.wait((stopping, coming), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stopping.cancel()
                    coming.cancel()
            if found and wait_s > 0:
                await asyncio.sleep(GATHER_S)
        finally:
            service.presence.detach(outlet)
    return [one.envelope for one in _latest(found)]


def _latest(found: list[EncodedEvent]) -> list[EncodedEvent]:
    """Of what only says that there is something, the last of each interest."""
    last = {one.interest: one for one in found if one.kind != RESULTS}
    return [one for one in found if one.kind == RESULTS or last[one.interest] is one]
