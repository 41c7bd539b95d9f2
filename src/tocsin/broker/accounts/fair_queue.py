"""A bounded, fair queue: an origin that asks much waits behind its own requests only."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tocsin.wire.errors import LimitError


class FairQueue:
    """A queue of at most `waiting` requests for `inside` slots. Origins take turns, each with its oldest request.

    When the queue is full, the newest request of the origin with the most waiting is refused (LimitError, 429), so that
    a flood from one origin leaves room for all others.
    """

    def __init__(self, inside: int, waiting: int, what: str) -> None:
        self._what = what
        self._room = inside
        self._waiting_limit = waiting
        self._inside = 0
        self._waiting = 0
        self._lines: OrderedDict[str | None, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return self._waiting

    @asynccontextmanager
    async def taken(self, origin: str | None) -> AsyncIterator[None]:
        await self._enter(origin)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, origin: str | None) -> None:
        if self._inside < self._room:
            self._inside += 1
            return
        if self._waiting >= self._waiting_limit:
            self._make_room(origin)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(origin, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.done() and turn.exception() is None:
                self._leave()  # The slot was already ours: pass it on.
            elif (line := self._lines.get(origin)) is not None and turn in line:
                self._take_out(origin, line, turn)
            raise

    def _make_room(self, origin: str | None) -> None:
        """Refuses the newest request of the longest queue, or raises if that is the origin's own."""
        longest = max(self._lines, key=lambda each: len(self._lines[each]), default=origin)
        line = self._lines.get(longest)
        # An origin that would then have as many waiting as the longest gets no preference.
        if line is None or len(line) <= len(self._lines.get(origin, ())) + 1:
            raise self._full()
        last = line[-1]
        self._take_out(longest, line, last)
        last.set_exception(self._full())

    def _take_out(self, origin: str | None, line: deque[asyncio.Future[None]], turn: asyncio.Future[None]) -> None:
        line.remove(turn)
        self._waiting -= 1
        if not line:
            del self._lines[origin]

    def _leave(self) -> None:
        """Hands the slot to the next in the queue, or frees it."""
        while self._lines:
            origin, line = next(iter(self._lines.items()))
            turn = line.popleft()
            self._waiting -= 1
            if line:
                self._lines.move_to_end(origin)
            else:
                del self._lines[origin]
            if not turn.done():
                turn.set_result(None)
                return
        self._inside -= 1

    def _full(self) -> LimitError:
        return LimitError(
            f"{self._inside} {self._what} are running and {self._waiting} are waiting", status=429,
            hint="try again in a moment", retry=True, retry_after_s=1,
        )  # fmt: skip
