"""Limits on clients: the size and pace of request bodies, the memory for them, and concurrent requests.

The limits on memory, connections and requests exist twice, for all clients together and for each client, so that one
client cannot take what the others need. Limits on bodies take effect while a body arrives, not when it is already in
memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from typing import Final, TypeAlias

from aiohttp import hdrs, web

from tocsin.serving.addresses import NO_NETWORKS, Networks
from tocsin.wire.errors import InputError, LimitError, StoppedError, UnsupportedError

GZIP_MEMBERS_LIMIT: Final = 4_096
"""The largest number of gzip members in a body. Programs that compress in blocks make one for every 64 KiB; an empty
member costs as much as any other."""
_STEP_BYTES: Final = 1 << 20
_FEED_BYTES: Final = 1 << 16

# A callback with the name of a limit that a caller exceeded.
RefusalCounter = Callable[[str], None]
# Who waits in a line: the names that its limits count, and whether it is back for the rest of a request.
_LineKey: TypeAlias = tuple[tuple[str, ...], bool]


def ignore_refusal(_limit: str) -> None:
    """Ignores the refusal, for servers without metrics."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server, for all clients together and for each."""

    body_limit_bytes: int = 16 * 1024 * 1024
    bodies_limit_bytes: int = 64 << 20
    """The memory of all bodies in flight together; a single client may use half of it."""
    connections_limit: int = 1_000
    address_connections_limit: int | None = None
    """None: no limit. 0: a quarter of all connections, at most 2,000, and no limit for this machine's own."""
    trusted_proxies: Networks = NO_NETWORKS
    """The proxies whose forwarding headers are trusted; each client behind them is counted separately."""
    read_timeout_s: float = 30.0
    """The time for a request's head to be complete, and for its body."""
    write_timeout_s: float = 60.0
    """The time within which a client must read at least something of an answer."""
    keepalive_timeout_s: float = 75.0
    headers_limit: int = 100
    header_limit_bytes: int = 8_190


class MemoryBudget:
    """A memory budget for request bodies in flight, or for what `what` names, shared by all callers.

    Small bodies are free, so that callers with large or slow bodies do not keep others from sending. No caller gets
    more than `own_limit_bytes`.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        free_bytes: int = 64 << 10,
        own_limit_bytes: int | None = None,
        name: str = "body bytes",
        what: str = "the bodies on their way",
        refused: RefusalCounter = ignore_refusal,
    ) -> None:
        self._what = what
        self._limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self._own_limit_bytes = limit_bytes if own_limit_bytes is None else own_limit_bytes
        self._name = name
        self._refused = refused
        self._taken_bytes = 0
        self._taken_by: Counter[str] = Counter()

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @contextmanager
    def share(self, *callers: str) -> Iterator[BudgetShare]:
        """Yields a caller's share. The end of the block returns its memory."""
        share = BudgetShare(self, callers)
        try:
            yield share
        finally:
            self.take(callers, -share.taken_bytes)

    def charged_bytes(self, size_bytes: int) -> int:
        return max(0, size_bytes - self._free_bytes)

    def room(self, callers: tuple[str, ...]) -> tuple[int, str, int, str]:
        """How much these callers may still take, and what limits it: whose bytes, the limit, and its name."""
        whole = (self._limit_bytes - self._taken_bytes, self._what, self._limit_bytes, self._name)
        own = (
            (self._own_limit_bytes - self._taken_by[caller], f"{self._what} of {caller}", self._own_limit_bytes,
             f"{self._name} of one caller")
            for caller in callers
        )  # fmt: skip
        return min((whole, *own), key=itemgetter(0))

    def take(self, callers: tuple[str, ...], more_bytes: int) -> None:
        self._taken_bytes += more_bytes
        for caller in callers:
            self._taken_by[caller] += more_bytes
            if not self._taken_by[caller]:
                del self._taken_by[caller]

    def count_refused(self, name: str) -> None:
        self._refused(name)


class BudgetShare:
    """What one caller takes of a budget. To call it with the size so far raises LimitError (429) if the budget is
    exhausted."""

    def __init__(self, budget: MemoryBudget, callers: tuple[str, ...]) -> None:
        self._budget = budget
        self._callers = callers
        self.taken_bytes = 0

    def __call__(self, size_bytes: int) -> None:
        if (full := self.take_what_fits(size_bytes, only_whole=True)) is not None:
            raise full

    def take_what_fits(self, size_bytes: int, *, only_whole: bool = False) -> LimitError | None:
        """Takes as much as there is room for, or nothing with `only_whole`. Returns the error if that is too little."""
        more_bytes = self._budget.charged_bytes(size_bytes) - self.taken_bytes
        room_bytes, whose, limit_bytes, name = self._budget.room(self._callers)
        fits = more_bytes <= max(0, room_bytes)
        taken_bytes = more_bytes if fits else 0 if only_whole else max(0, room_bytes)
        self._budget.take(self._callers, taken_bytes)
        self.taken_bytes += taken_bytes
        if fits:
            return None
        if only_whole:
            self._budget.count_refused(name)
        return LimitError(
            f"{whose} may take {limit_bytes} bytes together", status=429,
            hint="send again in a moment, or send less at once", retry=True, retry_after_s=1,
        )  # fmt: skip


async def read_body(
    request: web.Request,
    limits: ServerLimits,
    *,
    unpack: bool = False,
    grow: Callable[[int], None] = lambda _size_bytes: None,
) -> bytes:
    """Reads the request's body; refuses it as soon as it is known to be too large or too slow.

    With `unpack` it may be compressed with gzip, and the limit applies to the uncompressed size; it is decompressed in
    threads, a step at a time. `grow` is called with the size so far, and may refuse it.
    """
    too_large = LimitError(
        f"the body is larger than {limits.body_limit_bytes} bytes",
        hint="send it in parts",
        limit_bytes=limits.body_limit_bytes,
    )
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    # A few compressed bytes can unfold into any number (a bomb), so accept them only where they are expected.
    if encoding != "identity" and not (unpack and encoding == "gzip"):
        if unpack:
            raise UnsupportedError(
                f"a body compressed with {encoding[:40]!r} is not taken", hint="use gzip, or send the body as it is"
            )
        raise UnsupportedError("compressed bodies are not taken", hint="send the body as it is")
    if (request.content_length or 0) > limits.body_limit_bytes:
        raise too_large
    # BytesIO returns its content as bytes without a copy.
    body = BytesIO()
    try:
        async with asyncio.timeout(limits.read_timeout_s):
            async for chunk in request.content.iter_any():
                body.write(chunk)
                if body.tell() > limits.body_limit_bytes:
                    raise too_large
                grow(body.tell())
    except TimeoutError:
        raise StoppedError(f"the body did not arrive within {limits.read_timeout_s:g} s") from None
    except web.RequestPayloadError as exc:
        raise InputError("the body is not valid HTTP", hint="check its length or its chunks") from exc
    if encoding != "gzip":
        return body.getvalue()
    return await _unpack(body.getvalue(), limits.body_limit_bytes, too_large, grow)


async def _unpack(body: bytes, limit_bytes: int, too_large: LimitError, grow: Callable[[int], None]) -> bytes:
    """Decompresses the body in threads, a step at a time, within the limit."""
    reader, output = GzipReader(body), BytesIO()
    while not reader.is_done:
        output.write(await asyncio.to_thread(reader.read, min(_STEP_BYTES, limit_bytes + 1 - output.tell())))
        if output.tell() > limit_bytes:
            raise too_large
        # The larger of both sizes, so that the largest allowed body fits, compressed or not.
        grow(max(len(body), output.tell()))
    return output.getvalue()


class GzipReader:
    """Decompresses a gzip body in pieces, in time linear in the bytes that go in and come out."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self._at = 0
        self._members = 0
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._pending = b""
        self.is_done = not body

    def read(self, most_bytes: int) -> bytes:
        """Up to `most_bytes` bytes, fewer only at the end; raises InputError if it is not gzip."""
        output = BytesIO()
        try:
            while not self.is_done and output.tell() < most_bytes:
                output.write(self._member.decompress(self._input(), most_bytes - output.tell()))
                self._pending = self._member.unconsumed_tail
                if self._member.eof:
                    self._next_member()
                elif self._at == len(self._body) and not self._pending and output.tell() < most_bytes:
                    raise InputError("the body is half of a gzip file")
        except zlib.error as error:
            raise InputError(f"the body is not gzip: {error}") from None
        return output.getvalue()

    def _input(self) -> bytes | memoryview:
        # Feed pieces: zlib copies all input that follows the end of a member.
        if self._pending:
            return self._pending
        piece = self._body[self._at : self._at + _FEED_BYTES]
        self._at += len(piece)
        return piece

    def _next_member(self) -> None:
        self._members += 1
        self._pending = self._member.unused_data
        if self._at == len(self._body) and not self._pending:
            self.is_done = True
            return
        if self._members >= GZIP_MEMBERS_LIMIT:
            raise LimitError(f"the body is more than {GZIP_MEMBERS_LIMIT} gzip files", hint="pack it as one")
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


class WaitingLine:
    """Runs `inside` requests at a time, lets `waiting` more wait, and refuses the rest (LimitError, 429).

    Callers take turns, each with its oldest request. At most `own_inside` requests of one caller run and at most
    `own_waiting` more of them wait; a caller at its limit does not hold up others. When the line is full, the newest
    request of the caller with the most waiting is refused, so that a flood of one caller leaves room for all others.
    """

    def __init__(
        self,
        inside: int,
        waiting: int,
        what: str = "scripts",
        *,
        own_inside: int | None = None,
        own_waiting: int | None = None,
        refused: RefusalCounter = ignore_refusal,
    ) -> None:
        self._what = what
        self._inside_limit = inside
        self._waiting_limit = waiting
        self._own_inside_limit = inside if own_inside is None else own_inside
        self._own_waiting_limit = waiting if own_waiting is None else own_waiting
        self._refused = refused
        self._inside_of: Counter[str] = Counter()
        self._lines: OrderedDict[_LineKey, deque[asyncio.Future[None]]] = OrderedDict()
        self.inside = 0
        self.waiting = 0

    @asynccontextmanager
    async def hold_slot(self, *callers: str, is_back: bool = False) -> AsyncIterator[None]:
        """Holds a slot for the block. A request with `is_back` had a slot before, so it waits and is not refused."""
        await self._enter(callers, is_back)
        try:
            yield
        finally:
            self._leave(callers)

    async def _enter(self, callers: tuple[str, ...], is_back: bool) -> None:
        if self._has_slot(callers):
            self._take(callers)
            return
        if not is_back:
            self._check_own_waiting(callers)
            if self.waiting >= self._waiting_limit:
                self._make_room(callers)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = (callers, is_back)
        self._lines.setdefault(key, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(callers)  # The slot was already ours: pass it on.
            elif turn in self._lines.get(key, ()):
                self._take_out(key, turn)
            raise

    def _check_own_waiting(self, callers: tuple[str, ...]) -> None:
        for caller in callers:
            waiting = sum(len(line) for (others, _), line in self._lines.items() if caller in others)
            if waiting >= self._own_waiting_limit:
                self._refused(f"{self._what} of one caller")
                raise self._full(f" of {caller}", self._inside_of[caller], waiting)

    def _make_room(self, callers: tuple[str, ...]) -> None:
        """Refuses the newest request of the caller with the most waiting, or raises if that is this caller."""
        self._refused(self._what)
        lengths = {key: len(line) for key, line in self._lines.items() if not key[1]}
        longest = max(lengths, key=lambda key: lengths[key], default=None)
        # A caller that would then have as many waiting as that one gets no preference.
        if longest is None or lengths[longest] <= lengths.get((callers, False), 0) + 1:
            raise self._full("", self.inside, self.waiting)
        last = self._lines[longest][-1]
        self._take_out(longest, last)
        if not last.done():
            last.set_exception(self._full("", self.inside, self.waiting))

    def _full(self, whose: str, inside: int, waiting: int) -> LimitError:
        return LimitError(
            f"{inside} {self._what}{whose} are running and {waiting} are waiting", status=429,
            hint="try again in a moment", retry=True, retry_after_s=1,
        )  # fmt: skip

    def _has_slot(self, callers: tuple[str, ...]) -> bool:
        is_free = self.inside < self._inside_limit
        return is_free and all(self._inside_of[caller] < self._own_inside_limit for caller in callers)

    def _take(self, callers: tuple[str, ...], more: int = 1) -> None:
        self.inside += more
        for caller in callers:
            self._inside_of[caller] += more
            if not self._inside_of[caller]:
                del self._inside_of[caller]

    def _take_out(self, key: _LineKey, turn: asyncio.Future[None]) -> None:
        line = self._lines[key]
        line.remove(turn)
        self.waiting -= 1
        if not line:
            del self._lines[key]

    def _leave(self, callers: tuple[str, ...]) -> None:
        """Frees the slot, and hands it to the next caller that may have it."""
        self._take(callers, -1)
        while (key := next((key for key in self._lines if self._has_slot(key[0])), None)) is not None:
            turn = self._lines[key][0]
            self._lines.move_to_end(key)
            self._take_out(key, turn)
            if not turn.done():
                self._take(key[0])
                turn.set_result(None)
                return
