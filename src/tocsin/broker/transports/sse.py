"""Server-sent events: a response that streams events in the form that browsers read natively."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, cast

from aiohttp import hdrs, web

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.delivery.event_encoder import OutletForm, http_chunk
from tocsin.broker.delivery.outlets import ConnectionOutlet
from tocsin.broker.service import BrokerService
from tocsin.serving.connections import ClientConnection
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.errors import InputError
from tocsin.wire.messages import parse_interest
from tocsin.wire.subscriber import AckRequest

_BEAT: Final = http_chunk(b": \n\n")


async def events(service: BrokerService, request: web.Request, who: Session) -> web.StreamResponse:
    """Streams events to the client until it disconnects or its token ends."""
    if (last := request.headers.get("Last-Event-ID")) is not None:
        service.acknowledge(who, last_event(last))
        await service.acks.durable()
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
    response.enable_chunked_encoding()
    connection = cast("ClientConnection", request.protocol)

    def end(_reason: str) -> None:
        if connection.transport is not None:
            connection.transport.close()

    delivery = service.settings.delivery
    with service.sessions.session(who, service.limit(who, "connections"), end):
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        outlet = ConnectionOutlet(OutletForm.SERVER_SENT, connection, delivery.buffer_bytes, service.fan_out.room)
        service.fan_out.attach(who.subscriber, outlet)
        try:
            while connection.transport is not None and not connection.transport.is_closing():
                await asyncio.sleep(delivery.heartbeat_s)
                if not outlet.full:
                    outlet.write_raw(_BEAT)
        finally:
            service.fan_out.detach(outlet)
            outlet.close()
    with suppress(ConnectionError):
        await response.write_eof()
    return response


def last_event(text: str) -> AckRequest:
    """The acknowledgement in a browser's Last-Event-ID: it has everything of that interest up to the cursor."""
    interest, slash, cursor = text.partition("/")
    if not slash:
        raise InputError("Last-Event-ID: must be interest/cursor", hint="as the id of the last event was")
    return AckRequest({parse_interest(interest): parse_cursor(cursor)})
