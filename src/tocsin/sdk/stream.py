"""The WebSocket connection that receives events: it reconnects until it is closed or refused for good.

The stream keeps no position of its own. The broker begins after the last acknowledgement and repeats the rest, and the
inbox drops what it has seen; so a lost connection or a lost acknowledgement needs no special case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

import aiohttp

from tocsin.rules.backoff import BackOff
from tocsin.sdk.inbox import AckTracker, Inbox
from tocsin.sdk.session import BrokerSession, is_retryable
from tocsin.wire.answers import Reply, parse_message
from tocsin.wire.errors import InputError, TocsinError, UnauthorizedError, UnavailableError
from tocsin.wire.subscriber import AckRequest, Request

HEARTBEAT_S: Final = 20.0
ACK_EVERY_S: Final = 0.05
ACKS_AT_ONCE: Final = 500  # well below a broker's message limit
_TOKEN_ENDED: Final = 4401
_WELL_S: Final = 10.0  # a connection that lasted longer resets the back-off
_MESSAGE_LIMIT_BYTES: Final = 256 << 20

_log = logging.getLogger("tocsin.sdk")


class EventStream:
    """Fills the inbox with the broker's events, and sends the broker the consumer's acknowledgements.

    After a reconnect the broker begins after the last acknowledgement that it received, and the inbox drops events that
    it has seen. While the inbox is full nothing is read, and the broker treats the client as a slow consumer.
    """

    def __init__(
        self,
        session: BrokerSession,
        inbox: Inbox,
        marks: AckTracker,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        ack_every_s: float = ACK_EVERY_S,
        pauses: BackOff | None = None,
    ) -> None:
        self._session = session
        self._inbox = inbox
        self._acks = marks
        self._heartbeat_s = heartbeat_s
        self._ack_every_s = ack_every_s
        self._pauses = pauses or BackOff()
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self.connected = asyncio.Event()
        self.connections = 0

    def start(self) -> None:
        if self._running is None and not self._stopped:
            self._running = asyncio.create_task(self._run(), name="tocsin stream")

    async def stop(self) -> None:
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        """Connects again and again, with back-off; an error that a retry cannot fix ends the inbox."""
        try:
            while True:
                try:
                    await self._connect()
                    error: TocsinError = UnavailableError("the broker closed the connection")
                except TocsinError as exc:
                    if not is_retryable(exc):
                        raise
                    error = exc
                pause_s = self._pauses.next_s(float(error.details.get("retry_after_s") or 0.0))
                _log.info("connecting again in %.1f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
        except TocsinError as error:
            self._inbox.fail(error)
        except Exception as exc:
            _log.exception("the stream of results ended")
            self._inbox.fail(TocsinError(f"the stream of results ended: {exc!r}"))

    async def _connect(self) -> None:
        """Runs one connection until it breaks."""
        token = await self._session.token()
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._session.session.ws_connect(
                f"{self._session.url}/v1/stream",
                headers=headers,
                autoping=False,
                max_msg_size=_MESSAGE_LIMIT_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
            ) as socket:
                self.connections += 1
                self.connected.set()
                since_s = time.monotonic()
                acking = asyncio.create_task(self._ack(socket))
                try:
                    await self._read(socket, token)
                finally:
                    self.connected.clear()
                    if time.monotonic() - since_s > _WELL_S:
                        self._pauses.reset()
                    acking.cancel()
                    # Wait without awaiting the task itself: its cancellation must not be confused with ours.
                    await asyncio.wait([acking])
        except aiohttp.WSServerHandshakeError as exc:
            raise self._handshake_error(exc, token) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._session.unreachable(exc) from None

    def _handshake_error(self, exc: aiohttp.WSServerHandshakeError, token: str) -> TocsinError:
        """The error of a failed handshake, from its status only; aiohttp does not give access to the answer's body."""
        if exc.status == 401:
            return self._expire_token(UnauthorizedError("the broker refused the token"), token)
        if exc.status in (429, 502, 503, 504):
            retry_after = "" if exc.headers is None else exc.headers.get("Retry-After", "")
            wait_s = float(retry_after) if retry_after.isdecimal() else 0.0
            return UnavailableError(f"the broker takes no connection now (status {exc.status})", retry_after_s=wait_s)
        return InputError(f"the broker refused the connection (status {exc.status})")

    def _expire_token(self, error: UnauthorizedError, token: str) -> TocsinError:
        """If the client has a password, a new login replaces an expired token, and the connection is retried."""
        if not self._session.can_log_in:
            return error
        self._session.refuse(token)
        return UnavailableError(f"a new login is needed: {error.message}")

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, token: str) -> None:
        """Reads messages while the inbox has room; pings a silent broker, and gives up if it stays silent."""
        pinged = False
        while True:
            await self._inbox.wait_for_room()
            try:
                message = await socket.receive(timeout=self._heartbeat_s)
            except TimeoutError:
                if pinged:
                    raise UnavailableError("the broker is silent") from None
                pinged = True
                await socket.ping()
                continue
            pinged = False
            if message.type == aiohttp.WSMsgType.TEXT:
                self._take(message.data, token)
            elif message.type == aiohttp.WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type == aiohttp.WSMsgType.ERROR:
                raise UnavailableError(f"the connection broke: {socket.exception()!r}")
            elif message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                if socket.close_code == _TOKEN_ENDED:
                    raise self._expire_token(UnauthorizedError("the token has ended"), token)
                return

    def _take(self, frame: str, token: str) -> None:
        """Adds an event to the inbox, or handles an error reply."""
        message = parse_message(frame)
        # Reset only on a message: a broker that accepts a connection and closes it at once is not healthy yet.
        self._pauses.reset()
        if not isinstance(message, Reply):
            if message is not None:
                self._inbox.add(message)
        elif isinstance(message.error, UnauthorizedError):
            raise self._expire_token(message.error, token)
        elif message.error is not None:
            _log.warning("the broker says: %s", message.error)

    async def _ack(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Sends acknowledgements in batches."""
        while True:
            await self._acks.changed.wait()
            await asyncio.sleep(self._ack_every_s)
            if acks := self._acks.take_unsent(ACKS_AT_ONCE):
                try:
                    await socket.send_str(Request(AckRequest(acks)).to_bytes().decode())
                except (aiohttp.ClientError, OSError):
                    return  # The broker repeats unacknowledged results, and that sends the acknowledgements again.
