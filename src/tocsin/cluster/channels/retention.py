"""Old results go: by age, by size, and on request when all who held them have said that they need them no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.channels.executions.running_channel import micros
from tocsin.settings import ChannelSettings
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import ChannelState
from tocsin.wire.errors import NotFoundError

log = structlog.get_logger()

# A result outlives its age by at most this part of it, where nothing else gives reason to look.
LATE = 20


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a channel was like when it was last looked over, and when."""

    state: ChannelState
    at_s: float


class Retention:
    """Sleeps while nothing happens: woken by commits and by what results grow too old."""

    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        settings: ChannelSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now`: the time by which ages are told."""
        self._catalog = catalog
        self._store = store
        self._settings = settings
        self._now = now
        self._woken = asyncio.Event()
        self._trim: set[int] = set()
        self._looked: dict[int, _Looked] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="retention")
        self._woken.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Something was committed."""
        self._woken.set()

    def trim(self, channel_ids: Iterable[int]) -> None:
        """Results of these channels that everybody has acknowledged are to go."""
        self._trim.update(channel_ids)
        self._woken.set()

    async def _run(self) -> None:
        while True:
            wait_s = await self.look_over()
            await asyncio.sleep(self._settings.upkeep_period_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def look_over(self) -> float | None:
        """All channels that may have something to lose; in how many seconds to look again if nothing happens."""
        following: float | None = None
        channels = {one.channel_id: one for one in self._catalog.catalog.channels}
        self._looked = {one: seen for one, seen in self._looked.items() if one in channels}
        for entry in channels.values():
            try:
                await self._look(entry)
                kept = self._looked[entry.channel_id].state.results > 0
            except NotFoundError:
                continue
            except Exception as error:
                kept = True
                with suppress(Exception):
                    log.warning("old results could not be removed", channel=entry.name, reason=str(error))
            if kept:
                late_s = self._age_s(entry) / LATE
                following = late_s if following is None else min(following, late_s)
        return following

    async def _look(self, entry: ChannelEntry) -> None:
        channel_id = entry.channel_id
        state = await self._store.state(channel_id)
        seen = self._looked.get(channel_id)
        late = seen is not None and state.results and time.monotonic() - seen.at_s >= self._age_s(entry) / LATE
        if seen is not None and seen.state == state and not late and channel_id not in self._trim:
            return
        if channel_id in self._trim:
            self._trim.discard(channel_id)
            async for lowest in self._store.lowest_acknowledged(channel_id):
                await self._store.trim(channel_id, lowest)
        kept_bytes = entry.retention_bytes
        await self._store.retain(
            channel_id,
            ended_before_us=micros(self._now() - timedelta(seconds=self._age_s(entry))),
            max_bytes=self._settings.retention_bytes if kept_bytes is None else kept_bytes,
        )
        self._looked[channel_id] = _Looked(await self._store.state(channel_id), time.monotonic())

    def _age_s(self, entry: ChannelEntry) -> float:
        return self._settings.retention_s if entry.retention_s is None else entry.retention_s
