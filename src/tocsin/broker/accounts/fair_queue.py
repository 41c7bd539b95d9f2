"""A bounded line in which those who ask much wait for themselves."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tocsin.wire.errors import LimitError


class FairQueue:
    """`inside` at once, and `waiting` more: origins take turns, each with the first of its own.

    When nobody else can wait, whoever came last of the origin that has the most waiting is refused (LimitError, 429):
    who comes from elsewhere finds a place, however many one origin sends.
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
                self._leave()  # The place was ours already: pass it on.
            elif (line := self._lines.get(origin)) is not None and turn in line:
                self._take_out(origin, line, turn)
            raise

    def _make_room(self, origin: str | None) -> None:
        longest = max(self._lines, key=lambda each: len(self._lines[each]), default=origin)
        line = self._lines.get(longest)
        # Who would be as many as those who are the most is no better than they.
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
        """Hand the place to the next in line, or free it."""
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
