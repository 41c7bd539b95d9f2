"""Connections with limits in number and time, so that idle or slow clients cannot exhaust a server.

Errors are answered in JSON even if no request could be read.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from tocsin.serving.addresses import address_key, client_address, is_loopback
from tocsin.serving.answers import RequestHandler, internal_answer, raw_refusal, refusal
from tocsin.serving.limits import RefusalCounter, ServerLimits, ignore_refusal
from tocsin.wire.errors import InputError, LimitError, StoppedError, TocsinError, UnavailableError

_LINGER_S = 1.0
_LINGERING_LIMIT = 64
_SAY_EVERY_S = 60.0
_OF_ONE_ADDRESS = 2_000

_log = structlog.get_logger("tocsin.serving")


class _IdleReason(Enum):
    """Why a connection is idle, in the order in which connections give way to new ones when all slots are taken. So
    unfinished requests cannot keep out clients that send whole ones."""

    WITHOUT_HEAD = "has sent no whole head"
    BETWEEN_REQUESTS = "has its answer and asks for nothing more"
    WITHOUT_BODY = "has sent a head and not all of its body"


class _WriteObserver(Protocol):
    def on_change(self) -> None:
        """The connection became writable or full, or was lost."""

    def on_room(self) -> None:
        """The client has read most of what was sent, after the buffer was full."""


class ClientConnection(web.RequestHandler):
    """A connection. Its request head must be complete in time, and invalid input gets an answer in our form. While it
    serves no request it is idle, and gives way to a new connection when all slots are taken."""

    __slots__ = (
        "_counted_as",
        "_head_timer",
        "_limits",
        "_lingering",
        "_some_head",
        "_spare",
        "_unread_timer",
        "outlet",
    )

    def __init__(self, manager: LimitedServer, limits: ServerLimits, **options: Any) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._some_head = False
        self._lingering = False
        self._spare: _IdleReason | None = None
        self._counted_as: str | None = None
        # Writes directly to the transport and needs to know when that is possible.
        self.outlet: _WriteObserver | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.outlet is not None:
            self.outlet.on_change()
        elif self.transport is not None and self._unread_timer is None:
            self._expect_reading(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_expecting_reading()
        if self.outlet is not None:
            self.outlet.on_change()
            self.outlet.on_room()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        manager = cast("LimitedServer", self._manager)
        try:
            self._counted_as = manager.count_connection(_peer(transport)) if manager.counts_addresses else None
        except LimitError as many:
            manager.refused("connections of one address")
            self._refuse(manager, cast("asyncio.Transport", transport), many)
            return
        if not manager.make_room():
            self._leave_address(manager)
            self._refuse(manager, cast("asyncio.Transport", transport), manager.all_taken())
            return
        super().connection_made(transport)
        self._set_spare(_IdleReason.WITHOUT_HEAD)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_came()
        self._stop_expecting_reading()
        self._set_spare(None)
        manager = cast("LimitedServer", self._manager)
        if self._lingering:
            manager.lingering -= 1
        self._leave_address(manager)
        super().connection_lost(exc)
        if self.outlet is not None:
            self.outlet.on_change()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_served = bool(self._messages) or self._request_in_progress
        if self._force_close or is_served or (self._request_count and self._waiter is None):
            self._head_came()  # These bytes are a body, or the next head, whose timeout starts when its turn comes.
        elif data:
            self._some_head = True
            self._expect_head()
            self._set_spare(_IdleReason.WITHOUT_HEAD)
        if is_served and not self._force_close:
            self._set_spare(_IdleReason.WITHOUT_BODY if self._lacks_body() else None)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        if self._manager is not None and not self._force_close:
            self._set_spare(None if self._messages else _IdleReason.BETWEEN_REQUESTS)
        return finished

    def give_way(self) -> None:
        """Frees the slot at once for another connection. A client that waits for an answer gets an error."""
        manager, transport, spare = cast("LimitedServer", self._manager), self.transport, self._spare
        self._head_came()
        self._set_spare(None)
        self._leave_address(manager)
        manager.forget(self)
        self._force_close = True
        if self._task_handler is not None:
            self._task_handler.cancel()
        # From here on only this method writes to the transport.
        self.transport = None
        if transport is None:
            return
        if spare is _IdleReason.BETWEEN_REQUESTS:
            transport.close()
        else:
            self._refuse(manager, transport, manager.all_taken())

    def _lacks_body(self) -> bool:
        """Whether the only request is one with an incomplete body."""
        if self._messages:
            return len(self._messages) == 1 and not self._request_in_progress and not self._messages[0][1].is_eof()
        return self._current_request is not None and not self._current_request.content.is_eof()

    def _set_spare(self, spare: _IdleReason | None) -> None:
        """Registers why the connection is idle, or that it is busy (None)."""
        if spare is not self._spare:
            spares = cast("LimitedServer", self._manager).spares
            if self._spare is not None:
                del spares[self._spare][self]
            if spare is not None:
                spares[spare][self] = None
            self._spare = spare

    def _leave_address(self, manager: LimitedServer) -> None:
        if self._counted_as is not None:
            manager.uncount_connection(self._counted_as)
            self._counted_as = None

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._limits.read_timeout_s, self._head_late)

    def _head_came(self) -> None:
        self._some_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        """Closes a connection whose request head is late; answers 408 if part of it came."""
        self._head_timer = None
        if self._waiter is None or self._waiter.done() or self.transport is None:
            return
        if self._some_head:
            late = StoppedError(f"the request's head was not complete within {self._limits.read_timeout_s:g} s")
            self.transport.write(raw_refusal(late))
        self.force_close()

    def _expect_reading(self, transport: asyncio.Transport) -> None:
        """Starts the timer that aborts an answer that the client does not read. (Event streams differ.)"""
        left_bytes = transport.get_write_buffer_size()

        def look() -> None:
            self._unread_timer = None
            if self.outlet is not None:
                return
            if transport.get_write_buffer_size() < left_bytes:
                self._expect_reading(transport)
            else:
                transport.abort()

        self._unread_timer = self._loop.call_later(self._limits.write_timeout_s, look)

    def _stop_expecting_reading(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, manager: LimitedServer, transport: asyncio.Transport, many: TocsinError) -> None:
        """Answers that there is no room, and closes after a moment: unread bytes would reset the connection."""
        self._force_close = True
        transport.write(raw_refusal(many))
        if manager.lingering >= _LINGERING_LIMIT:
            transport.close()
            return
        manager.lingering += 1
        self._lingering = True
        transport.write_eof()
        self._loop.call_later(_LINGER_S, transport.abort)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun already")
        response: web.Response
        if isinstance(exc, HttpProcessingError):
            # Only the peer is known of a request that cannot be read.
            _log.debug("a request was not HTTP", peer=request.remote, message=message)
            response = refusal(_unreadable(exc))
        else:
            response = internal_answer("unknown", exc or RuntimeError(HTTPStatus(status).phrase))
        response.force_close()
        return response


def _unreadable(exc: HttpProcessingError) -> TocsinError:
    if isinstance(exc, LineTooLong) or "Too many headers" in exc.message:
        return LimitError("the request's head is too large", status=431, hint="send fewer or shorter headers")
    return InputError("this is not a valid HTTP request", hint=" ".join(exc.message.split()) or None)


class LimitedServer(web.Server):
    """Creates and counts the connections of one listening server."""

    def __init__(
        self, handler: Any, limits: ServerLimits, *, refused: RefusalCounter = ignore_refusal, **options: Any
    ) -> None:
        super().__init__(handler, **options)
        self._limits = limits
        self.refused = refused
        self.lingering = 0
        # By reason, each in the order in which they became idle: dictionaries keep insertion order.
        self.spares: dict[_IdleReason, dict[ClientConnection, None]] = {reason: {} for reason in _IdleReason}
        self._of_address: Counter[str] = Counter()
        self._said_s = -_SAY_EVERY_S

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, self._limits, loop=self._loop, **self._kwargs)

    def make_room(self) -> bool:
        """Whether there is a slot for one more connection, after the most dispensable idle one has given way."""
        if len(self._connections) < self._limits.connections_limit:
            return True
        self.refused("connections")
        spare = next((connection for spares in self.spares.values() for connection in spares), None)
        if spare is not None:
            spare.give_way()
        return spare is not None

    def forget(self, connection: ClientConnection) -> None:
        """Stops counting the connection."""
        self._connections.pop(connection, None)

    def all_taken(self) -> UnavailableError:
        return UnavailableError(f"all {self._limits.connections_limit} connections are taken", hint="try again soon")

    @property
    def counts_addresses(self) -> bool:
        return self._limits.address_connections_limit is not None

    def count_connection(self, address: str | None) -> str | None:
        """Counts a connection of the address, if it is limited, and returns what it counts as; raises LimitError (429)
        if the limit is reached."""
        if address in self._limits.trusted_proxies:
            return None
        if not self._limits.address_connections_limit and is_loopback(address):
            return None
        key, limit = address_key(address), self._limits.address_connections_limit or self._usual_share()
        if self._of_address[key] >= limit:
            if time.monotonic() - self._said_s >= _SAY_EVERY_S:
                self._said_s = time.monotonic()
                # An operator who put a proxy in front and forgot to trust it finds the cause here.
                _log.warning("an address has reached its limit of connections", address=key, connections=limit)
            raise LimitError(
                f"{key} has {limit} connections already", status=429, hint="close some of them", retry=True,
                retry_after_s=1,
            )  # fmt: skip
        self._of_address[key] += 1
        return key

    def _usual_share(self) -> int:
        return max(1, min(_OF_ONE_ADDRESS, self._limits.connections_limit // 4))

    def uncount_connection(self, key: str) -> None:
        self._of_address[key] -= 1
        if not self._of_address[key]:
            del self._of_address[key]


def _peer(transport: asyncio.BaseTransport) -> str | None:
    peer = transport.get_extra_info("peername")
    return peer[0] if isinstance(peer, tuple) else None


@web.middleware
async def count_forwarded(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    """Counts a request forwarded by a trusted proxy as a connection of the actual client."""
    server, client = request.protocol._manager, client_address(request)
    if client == request.remote or not isinstance(server, LimitedServer):
        return await handler(request)
    key = server.count_connection(client) if server.counts_addresses else None
    try:
        return await handler(request)
    finally:
        if key is not None:
            server.uncount_connection(key)
