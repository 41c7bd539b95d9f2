"""Waits: for work that must not be interrupted halfway, and for a lock that readers share.

Work in a thread cannot be cancelled. A caller that left it behind would give away a slot, a file or a lock that the
work still uses; so a cancelled caller waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


async def wait_despite_cancel(work: Awaitable[_T], *, on_cancel: Callable[[], None] = lambda: None) -> _T:
    """Returns the result of the work. A cancelled caller waits until the work has ended, however often it is cancelled,
    and then raises CancelledError. `on_cancel` is called on each cancellation and may make the work hurry."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            on_cancel()
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


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
