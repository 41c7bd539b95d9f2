"""Bounds on what a client may ask: the size and pace of a body, and how many may ask at once."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiohttp import hdrs, web

from tocsin.serving.addresses import NO_NETWORKS, Networks
from tocsin.wire.errors import InputError, LimitError, StoppedError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server grants to all its clients together, and to each."""

    body_limit_bytes: int = 16 * 1024 * 1024
    connections_limit: int = 1_000
    address_connections_limit: int | None = None
    """None: as many as come. 0: some, and of this machine's own as many as come."""
    trusted_proxies: Networks = NO_NETWORKS
    """Whose word is taken for whom they forward for; each of their clients is counted by itself."""
    read_timeout_s: float = 30.0
    """For a request's head to be complete, and for its body to be."""
    keepalive_timeout_s: float = 75.0
    headers_limit: int = 100
    header_limit_bytes: int = 8_190


class Room:
    """Memory for bodies on their way, shared by all who send. A small body needs none of it, so that those who send
    large ones, or slowly, keep nobody else from sending."""

    def __init__(self, limit_bytes: int, *, free_bytes: int = 64 << 10) -> None:
        self._limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that is told how large the body is by now; LimitError (429) when there is no room for that. All
        of it is given back when the block ends."""
        mine_bytes = 0

        def grow(size_bytes: int) -> None:
            nonlocal mine_bytes
            more_bytes = max(0, size_bytes - self._free_bytes) - mine_bytes
            if more_bytes <= 0:
                return
            if self._taken_bytes + more_bytes > self._limit_bytes:
                raise LimitError(
                    f"the bodies on their way may take {self._limit_bytes} bytes together", status=429,
                    hint="send again in a moment, or send less at once", retry=True, retry_after_s=1,
                )  # fmt: skip
            self._taken_bytes += more_bytes
            mine_bytes += more_bytes

        try:
            yield grow
        finally:
            self._taken_bytes -= mine_bytes


async def read_body(
    request: web.Request, limits: Limits, *, unpack: bool = False, grow: Callable[[int], None] | None = None
) -> bytes:
    """The request's body; refused as soon as it is known to be too large or too slow, before it is all here.

    With `unpack` it may be compressed with gzip, and the limit holds for what comes out of it. `grow` is told how large
    it is by now, and may refuse it.
    """
    too_large = LimitError(
        f"the body is larger than {limits.body_limit_bytes} bytes",
        hint="send it in parts",
        limit_bytes=limits.body_limit_bytes,
    )
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    # A few compressed bytes may unfold into any number: they are taken only where they are expected.
    if encoding != "identity" and not (unpack and encoding == "gzip"):
        if unpack:
            raise UnsupportedError(
                f"a body compressed with {encoding[:40]!r} is not taken", hint="use gzip, or send the body as it is"
            )
        raise UnsupportedError("compressed bodies are not taken", hint="send the body as it is")
    if (request.content_length or 0) > limits.body_limit_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_timeout_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limits.body_limit_bytes:
                    raise too_large
                if grow is not None:
                    grow(len(body))
    except TimeoutError:
        raise StoppedError(f"the body did not arrive within {limits.read_timeout_s:g} s") from None
    except web.RequestPayloadError as exc:
        raise InputError("the body is not valid HTTP", hint="check its length or its chunks") from exc
    if encoding != "gzip":
        return bytes(body)
    return _unpacked(bytes(body), limits.body_limit_bytes, too_large, grow)


def _unpacked(body: bytes, limit_bytes: int, too_large: LimitError, grow: Callable[[int], None] | None) -> bytes:
    made, packed_bytes = bytearray(), len(body)
    try:
        while body:
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            made += member.decompress(body, limit_bytes + 1 - len(made))
            if len(made) > limit_bytes:
                raise too_large
            if grow is not None:
                grow(packed_bytes + len(made))
            if not member.eof:
                raise InputError("the body is half of a gzip file")
            body = member.unused_data
    except zlib.error as error:
        raise InputError(f"the body is not gzip: {error}") from None
    return bytes(made)


class Gate:
    """Lets `inside` in at once and `waiting` more wait, first come, first served; refuses the rest."""

    def __init__(self, inside: int, waiting: int, what: str = "scripts") -> None:
        self._what = what
        self._inside_limit = inside
        self._waiting_limit = waiting
        self._inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def inside(self) -> int:
        return self._inside

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._inside < self._inside_limit:
            self._inside += 1
            return
        if len(self._queue) >= self._waiting_limit:
            raise LimitError(
                f"{self._inside} {self._what} are running and {len(self._queue)} are waiting",
                status=429,
                hint="try again in a moment",
                retry=True,
                retry_after_s=1,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # The place was ours already: pass it on.
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def _leave(self) -> None:
        """Hand the place to the next in line, or free it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._inside -= 1
