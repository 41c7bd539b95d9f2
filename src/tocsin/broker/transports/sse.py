"""Server-sent events: a response that streams events in the form that browsers read natively.

The id of an event is `interest/cursor`. A browser that reconnects sends the last id by itself, and the broker takes it
as an acknowledgement; so a page needs no code of its own for that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, cast

from aiohttp import hdrs, web

from tocsin.broker.delivery.event_encoder import OutletForm, http_chunk
from tocsin.broker.delivery.outlets import ConnectionOutlet
from tocsin.broker.http.requests import token_of
from tocsin.broker.transports.transport import Transport
from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.serving.connections import ClientConnection
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.errors import InputError
from tocsin.wire.messages import parse_interest

_BEAT: Final = http_chunk(b": \n\n")


class ServerSentEvents(Transport):
    """Streams events to clients until they disconnect or their token ends."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/events", self._events, allow_head=False)]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        # Browsers cannot send headers with an EventSource, so the token may be a query parameter.
        who = await service.identify(token_of(request) or request.query.get("access_token"))
        service.check_rate(who, whole=True)
        if (last := request.headers.get("Last-Event-ID")) is not None:
            service.acknowledge(who.subscriber, _last_event(last))
            await service.acks_durable()
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        connection = cast("ClientConnection", request.protocol)

        def end(_reason: str) -> None:
            if connection.transport is not None:
                connection.transport.close()

        delivery = service.settings.delivery
        with service.connection(who, end):
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            outlet = ConnectionOutlet(OutletForm.SERVER_SENT, connection, delivery.buffer_bytes, service.resume_outlet)
            service.attach(who.subscriber, outlet)
            try:
                while connection.transport is not None and not connection.transport.is_closing():
                    await asyncio.sleep(delivery.heartbeat_s)
                    if not outlet.full:
                        outlet.write_raw(_BEAT)
            finally:
                service.detach(outlet)
                outlet.close()
        with suppress(ConnectionError):
            await response.write_eof()
        return response


def _last_event(text: str) -> dict[InterestId, Cursor]:
    """The acknowledgement in a browser's Last-Event-ID: it has everything of that interest up to the cursor."""
    interest, slash, cursor = text.partition("/")
    if not slash:
        raise InputError("Last-Event-ID: must be interest/cursor", hint="as the id of the last event was")
    return {parse_interest(interest): parse_cursor(cursor)}
