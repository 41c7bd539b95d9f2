"""The connection over which events come: made again when it breaks, until it is closed or refused for good."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

import aiohttp

from tocsin.sdk.backoff import BackOff
from tocsin.sdk.inbox import AckTracker, Inbox
from tocsin.sdk.session import BrokerSession, passes
from tocsin.wire.answers import Reply, parse_message
from tocsin.wire.errors import InputError, TocsinError, UnauthorizedError, UnavailableError
from tocsin.wire.subscriber import AckRequest, Request

HEARTBEAT_S: Final = 20.0
ACK_EVERY_S: Final = 0.05
ACKS_AT_ONCE: Final = 500  # well within the size that a broker takes
_TOKEN_ENDED: Final = 4401
_WELL_S: Final = 10.0  # a connection that held for so long is followed by a short pause
_MESSAGE_LIMIT_BYTES: Final = 256 << 20

_log = logging.getLogger("tocsin.sdk")


class EventStream:
    """Fills the inbox with what the broker sends, and tells the broker what the consumer has taken.

    When it connects again the broker begins after the last acknowledgement that reached it; the inbox drops what it
    has seen. While the inbox is full nothing is read, and the broker knows us to be behind.
    """

    def __init__(
        self,
        door: BrokerSession,
        inbox: Inbox,
        marks: AckTracker,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        ack_every_s: float = ACK_EVERY_S,
        pauses: BackOff | None = None,
    ) -> None:
        self._door = door
        self._inbox = inbox
        self._marks = marks
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
        try:
            while True:
                try:
                    await self._connect()
                    error: TocsinError = UnavailableError("the broker closed the connection")
                except TocsinError as exc:
                    if not passes(exc):
                        raise
                    error = exc
                pause_s = self._pauses.next_s(float(error.details.get("retry_after_s") or 0.0))
                _log.info("connecting again in %.1f s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
        except TocsinError as error:
            self._inbox.fail(error)
        except Exception as exc:
            _log.exception("the stream of notifications ended")
            self._inbox.fail(TocsinError(f"the stream of notifications ended: {exc!r}"))

    async def _connect(self) -> None:
        """One connection, until it breaks."""
        token = await self._door.token()
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._door.session.ws_connect(
                f"{self._door.url}/v1/stream",
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
                    # Not awaited itself: its cancellation must not be taken for ours, nor ours for its.
                    await asyncio.wait([acking])
        except aiohttp.WSServerHandshakeError as exc:
            raise self._refused(exc, token) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._door.unreachable(exc) from None

    def _refused(self, exc: aiohttp.WSServerHandshakeError, token: str) -> TocsinError:
        """Why there is no connection, as far as the status tells; the answer's body is not to be had."""
        if exc.status == 401:
            return self._unauthorized(UnauthorizedError("the broker refused the token"), token)
        if exc.status in (429, 502, 503, 504):
            after = "" if exc.headers is None else exc.headers.get("Retry-After", "")
            wait_s = float(after) if after.isdecimal() else 0.0
            return UnavailableError(f"the broker takes no connection now (status {exc.status})", retry_after_s=wait_s)
        return InputError(f"the broker refused the connection (status {exc.status})")

    def _unauthorized(self, error: UnauthorizedError, token: str) -> TocsinError:
        """A token that ended is replaced by a new login, and the connection made again."""
        if not self._door.can_log_in:
            return error
        self._door.refuse(token)
        return UnavailableError(f"a new login is needed: {error.message}")

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, token: str) -> None:
        tried = False
        while True:
            await self._inbox.room()
            try:
                message = await socket.receive(timeout=self._heartbeat_s)
            except TimeoutError:
                if tried:
                    raise UnavailableError("the broker is silent") from None
                tried = True
                await socket.ping()
                continue
            tried = False
            if message.type == aiohttp.WSMsgType.TEXT:
                self._take(message.data, token)
            elif message.type == aiohttp.WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type == aiohttp.WSMsgType.ERROR:
                raise UnavailableError(f"the connection broke: {socket.exception()!r}")
            elif message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                if socket.close_code == _TOKEN_ENDED:
                    raise self._unauthorized(UnauthorizedError("the token has ended"), token)
                return

    def _take(self, frame: str, token: str) -> None:
        told = parse_message(frame)
        # A broker that is reached and shuts the door at once is not yet well.
        self._pauses.reset()
        if not isinstance(told, Reply):
            if told is not None:
                self._inbox.add(told)
        elif isinstance(told.error, UnauthorizedError):
            raise self._unauthorized(told.error, token)
        elif told.error is not None:
            _log.warning("the broker says: %s", told.error)

    async def _ack(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Tell what was taken, some of it together."""
        while True:
            await self._marks.changed.wait()
            await asyncio.sleep(self._ack_every_s)
            if acks := self._marks.say(ACKS_AT_ONCE):
                try:
                    await socket.send_str(Request(AckRequest(acks)).to_bytes().decode())
                except (aiohttp.ClientError, OSError):
                    return  # The broker sends again what they were for, and then they are said again.
