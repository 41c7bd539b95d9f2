"""Lets a backup stop the landing of feeds of files for a moment.

Those feeds keep their progress in a checkpoint beside the datasets. A backup must copy the two in agreement, so nothing
may land while it looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BackupBarrier:
    """A readers-writer lock: any number of landings (`working`), or one backup (`still`). Belongs to one event loop."""

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
        """Enters when no landing is under way. New landings wait until this context ends."""
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
