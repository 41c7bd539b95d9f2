"""WebSocket transport: requests in, replies and events out, in any order.

Requests of a connection run at the same time, so that a slow one does not delay the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, cast

import structlog
from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.delivery.event_encoder import OutletForm, websocket_frame
from tocsin.broker.delivery.open_connections import STOPPING
from tocsin.broker.delivery.outlets import ConnectionOutlet
from tocsin.broker.service import BrokerService
from tocsin.broker.transports.transport import Transport
from tocsin.serving.connections import ClientConnection
from tocsin.serving.rate_limit import TokenBucket
from tocsin.serving.tokens import secret_in
from tocsin.wire import subscriber as wire
from tocsin.wire.answers import error_reply, events_page, ok_reply
from tocsin.wire.errors import InputError, TocsinError, UnauthorizedError

_AT_ONCE: Final = 4
"""The number of requests of one connection that run at a time. Requests that complete together (such as many
subscriptions in one answer of the cluster) continue in one iteration of the event loop, and all other clients wait for
it. In the small form of `./dev bench hostile` the p99 of other clients was 1.3 times the undisturbed one with 32, and
1.2 times with 4."""
_BAD_LIMIT: Final = 20
"""The number of invalid messages in a row after which the connection is closed."""
_UNAUTHORIZED: Final = 4401
_LIMITED: Final = 4429

CLOSES: Final[dict[int, str]] = {
    WSCloseCode.GOING_AWAY: "the broker stops",
    WSCloseCode.POLICY_VIOLATION: f"{_BAD_LIMIT} messages in a row made no sense",
    WSCloseCode.MESSAGE_TOO_BIG: "a message was larger than broker.limits.message_bytes",
    _UNAUTHORIZED: "nobody has logged in, or the token has ended",
    _LIMITED: "the subscriber has too many connections, or asks too much",
}
"""Close codes and the reasons for them."""

_log = structlog.get_logger("tocsin.broker.websocket")


class _WebSocketStream(web.WebSocketResponse):
    """Adds the reason where aiohttp closes the connection itself because a message is too large."""

    __slots__ = ()

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and not message:
            message = CLOSES[code].encode()
        return await super().close(code=code, message=message, drain=drain)


class WebSockets(Transport):
    """Serves WebSockets: authenticates by header or by a first login message, then runs the session."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/stream", self._stream, allow_head=False)]

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        service, settings = self._service, self._service.settings
        websocket = _WebSocketStream(
            compress=False,
            heartbeat=settings.delivery.heartbeat_s,
            max_msg_size=settings.limits.message_bytes,
            timeout=2.0,
        )
        if hdrs.AUTHORIZATION in request.headers:
            who = await service.identify(secret_in(request.headers[hdrs.AUTHORIZATION]))
            await websocket.prepare(request)
            ref = None
        else:
            await websocket.prepare(request)
            try:
                who, ref = await self._login(websocket)
            except TocsinError as error:
                with suppress(ConnectionError, RuntimeError):
                    await websocket.send_str(error_reply(None, error).decode())
                    await websocket.close(code=_UNAUTHORIZED, message=error.message.encode()[:120])
                return websocket
        await _WebSocketSession(service, websocket, who, cast("ClientConnection", request.protocol)).run(ref)
        return websocket

    async def _login(self, websocket: web.WebSocketResponse) -> tuple[Session, int | None]:
        """Reads the first message, which must be a login, and identifies the subscriber."""
        try:
            async with asyncio.timeout(self._service.settings.http.read_timeout_s):
                message = await websocket.receive()
        except TimeoutError:
            raise UnauthorizedError("nobody has logged in") from None
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            raise UnauthorizedError("nobody has logged in")
        request = wire.parse_request(message.data)
        if isinstance(request, wire.BadRequest):
            raise request.error
        if not isinstance(request.body, wire.LoginRequest):
            raise UnauthorizedError("the first message is a login", hint='{"login": {"token": "…"}}')
        return await self._service.identify(request.body.token), request.ref


class _WebSocketSession:
    """One connection of an authenticated subscriber."""

    __slots__ = ("_bad", "_closing", "_connection", "_outlet", "_pace", "_service", "_tasks", "_websocket", "_who")

    def __init__(
        self, service: BrokerService, websocket: web.WebSocketResponse, who: Session, connection: ClientConnection
    ) -> None:
        self._service = service
        self._websocket = websocket
        self._who = who
        self._connection = connection
        limits, now_s = service.settings.limits, time.monotonic()
        self._pace = TokenBucket(limits.messages_per_s, limits.messages_burst, now_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bad = 0
        self._closing: asyncio.Task[None] | None = None
        self._outlet = ConnectionOutlet(
            OutletForm.WEBSOCKET, connection, service.settings.delivery.buffer_bytes, service.resume_outlet
        )

    async def run(self, ref: int | None) -> None:
        """Serves the connection until it closes. `ref` is that of the login message, to be answered."""
        service, who = self._service, self._who
        try:
            service.check_rate(who, whole=True)
            with service.connection(who, self._end):
                if ref is not None:
                    self._send(ok_reply(ref, {"user": who.user, "application": who.application_name}))
                service.attach(who.subscriber, self._outlet)
                try:
                    await self._listen()
                finally:
                    service.detach(self._outlet)
                    self._outlet.close()
                    for task in self._tasks:
                        task.cancel()
        except TocsinError as error:
            with suppress(ConnectionError, RuntimeError):
                self._send(error_reply(ref, error))
                await self._websocket.close(code=_LIMITED, message=error.message.encode()[:120])

    async def _listen(self) -> None:
        """Reads requests until the connection closes, at the pace that the limits allow."""
        async for message in self._websocket:
            missing_s = self._pace.take(time.monotonic())
            if missing_s:
                # Backpressure: do not read from a client that sends too fast. No other client is slowed down.
                await asyncio.sleep(missing_s)
            if self._outlet.full:
                # A slow consumer is not read from until it has read what was sent.
                with suppress(ConnectionError):
                    await self._connection._drain_helper()
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            await self._take(wire.parse_request(message.data))
            if self._bad >= _BAD_LIMIT:
                await self._websocket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"too many bad messages")
                return

    async def _take(self, request: wire.Request | wire.BadRequest) -> None:
        """Handles one message: acknowledgements at once, other requests as tasks."""
        if isinstance(request, wire.BadRequest):
            self._bad += 1
            self._send(error_reply(request.ref, request.error))
            return
        self._bad = 0
        body, ref = request.body, request.ref
        if isinstance(body, wire.AckRequest):
            try:
                self._service.acknowledge(self._who.subscriber, body.acks)
            except InputError as error:
                self._send(error_reply(ref, error))
                return
            if ref is not None:
                await self._begin(ref, self._durable(len(body.acks)))
            return
        await self._begin(ref, self._answer(body, ref))

    async def _begin(self, ref: int | None, work: Coroutine[Any, Any, Any]) -> None:
        """Answers requests as they complete, at most _AT_ONCE at a time."""
        task = asyncio.get_running_loop().create_task(self._reply(ref, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._tasks) >= _AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _reply(self, ref: int | None, work: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await work
        except TocsinError as error:
            self._send(error_reply(ref, error))
        except Exception as error:
            _log.error("a request on a WebSocket failed unexpectedly", exc_info=error)
            self._send(error_reply(ref, TocsinError("something went wrong inside; the log tells more")))
        else:
            if answer is not None and ref is not None:
                self._send(ok_reply(ref, answer))

    async def _durable(self, count: int) -> Any:
        await self._service.acks_durable()
        return {"acknowledged": count}

    async def _answer(self, body: wire.Body, ref: int | None) -> Any:
        service, who = self._service, self._who
        service.check_rate(who, whole=isinstance(body, wire.ListRequest))
        match body:
            case wire.SubscribeRequest():
                # The reply must go out before the first event of the subscription.
                def first(new_subscription: Any) -> None:
                    if ref is not None:
                        self._send(ok_reply(ref, new_subscription.subscription.to_json()))

                new_subscription = await service.subscribe(who, body, first=first)
                return None if body.group is None else new_subscription.subscription.to_json()
            case wire.UnsubscribeRequest():
                await service.unsubscribe(who, body.id)
                return {}
            case wire.PullRequest():
                events, more = await service.pull(who, body)
                return events_page([event.envelope for event in events], more=more)
            case wire.ListRequest():
                return (await service.list_subscriptions(who.subscriber, body.after)).to_json()
            case _:
                raise InputError("you are logged in already")

    def _send(self, message: bytes) -> None:
        if not self._websocket.closed:
            self._outlet.write_raw(websocket_frame(message))

    def _end(self, reason: str) -> None:
        """Closes the connection because the token has ended or the broker stops."""
        code = WSCloseCode.GOING_AWAY if reason == STOPPING else _UNAUTHORIZED
        task = asyncio.get_running_loop().create_task(self._close(code, reason))
        self._closing = task

    async def _close(self, code: int, reason: str) -> None:
        with suppress(ConnectionError, RuntimeError):
            await self._websocket.close(code=code, message=reason.encode())
