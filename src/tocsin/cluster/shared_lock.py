"""A lock that many holders share, or one holder has alone.

The parts of the cluster work at the same time, but some work needs the others to pause: a query that must have the
engine to itself, or a backup that copies the feeds' logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """A fair lock that many holders share, or one holder has exclusively. It is granted in order of arrival, so nobody
    starves. Belongs to one event loop."""

    def __init__(self) -> None:
        self._holders = 0
        self._is_alone = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, *, alone: bool) -> AsyncIterator[None]:
        grant = asyncio.get_running_loop().create_future()
        self._waiting.append((alone, grant))
        self._admit()
        try:
            await grant
            yield
        finally:
            if grant.done() and not grant.cancelled():
                self._holders -= 1
                self._is_alone = False
            else:
                self._waiting.remove((alone, grant))
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._is_alone and not (self._waiting[0][0] and self._holders):
            self._is_alone, grant = self._waiting.popleft()
            self._holders += 1
            grant.set_result(None)
