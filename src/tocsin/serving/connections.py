"""Connections that cannot be held for nothing: bounded in number, in time, and answered in JSON even where no request
could be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from tocsin.serving.answers import internal_answer, raw_refusal, refusal
from tocsin.serving.limits import Limits
from tocsin.wire.errors import InputError, LimitError, StoppedError, TocsinError, UnavailableError

_LINGER_S = 1.0
_LINGERING_LIMIT = 64

_log = structlog.get_logger("tocsin.serving")


class Connection(web.RequestHandler):
    """One connection: a head must be complete in time, and garbage is answered in our form."""

    __slots__ = ("_head_timer", "_limits", "_lingering", "_some_head", "on_room")

    def __init__(self, manager: LimitedServer, limits: Limits, **options: Any) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None
        self._some_head = False
        self._lingering = False
        # Called when a client has taken most of what it had been sent, after it had not for a while.
        self.on_room: Callable[[], None] | None = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_room is not None:
            self.on_room()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        manager = cast("LimitedServer", self._manager)
        if len(manager.connections) >= self._limits.connections_limit:
            self._refuse(manager, cast("asyncio.Transport", transport))
            return
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_came()
        if self._lingering:
            cast("LimitedServer", self._manager).lingering -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        handling = self._messages or self._request_in_progress or (self._request_count and self._waiter is None)
        if self._force_close or handling:
            self._head_came()  # What comes now is a body, or the next head, whose time begins when it is its turn.
        elif data:
            self._some_head = True
            self._expect_head()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._limits.read_timeout_s, self._head_late)

    def _head_came(self) -> None:
        self._some_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._waiter is None or self._waiter.done() or self.transport is None:
            return
        if self._some_head:
            late = StoppedError(f"the request's head was not complete within {self._limits.read_timeout_s:g} s")
            self.transport.write(raw_refusal(late))
        self.force_close()

    def _refuse(self, manager: LimitedServer, transport: asyncio.Transport) -> None:
        """Say that there is no room. The client gets a moment to read it: closing on unread bytes would reset it."""
        self._force_close = True
        many = UnavailableError(f"all {self._limits.connections_limit} connections are taken", hint="try again soon")
        transport.write(raw_refusal(many))
        if manager.lingering >= _LINGERING_LIMIT:
            transport.close()
            return
        manager.lingering += 1
        self._lingering = True
        transport.write_eof()
        self._loop.call_later(_LINGER_S, transport.abort)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun already")
        response: web.Response
        if isinstance(exc, HttpProcessingError):
            _log.debug("not HTTP", peer=request.remote, message=message)
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
    """Makes the connections of one listening server."""

    def __init__(self, handler: Any, limits: Limits, **options: Any) -> None:
        super().__init__(handler, **options)
        self._limits = limits
        self.lingering = 0

    def __call__(self) -> Connection:
        return Connection(self, self._limits, loop=self._loop, **self._kwargs)
