"""Subscribers who ask again and again: a poll waits until there is something, and answers what is not acknowledged."""

from __future__ import annotations

import asyncio
from typing import Final

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.shell.outlets import PlainOutlet, Told
from tocsin.broker.shell.service import Service
from tocsin.wire.envelopes import RESULTS

GATHER_S: Final = 0.01
"""What comes so soon after the first event is answered with it."""


async def poll(service: Service, who: Session, wait_s: float, end: asyncio.Event) -> list[bytes]:
    """The events that there are, or else the first that come within the time. What is not acknowledged comes again."""
    some = asyncio.Event()
    found: list[Told] = []
    size_bytes = 0
    limit_bytes = service.settings.delivery.buffer_bytes

    def take(told: Told) -> None:
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


def _latest(found: list[Told]) -> list[Told]:
    """Of what only says that there is something, the last of each interest."""
    last = {one.interest: one for one in found if one.kind != RESULTS}
    return [one for one in found if one.kind == RESULTS or last[one.interest] is one]
