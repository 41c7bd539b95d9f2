"""Holds off landings that must not happen while a backup looks at datasets and notes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BackupBarrier:
    """Any number may work at the same time, or one holds them all still. Belongs to one event loop."""

    def __init__(self) -> None:
        self._working = 0
        self._still = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._still)
            self._working += 1
        try:
            yield
        finally:
            async with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Returns when nobody works any more; whoever wants to begin waits for the end of this."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._still)
            self._still = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._working)
            yield
        finally:
            async with self._changed:
                self._still = False
                self._changed.notify_all()
