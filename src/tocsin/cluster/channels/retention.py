"""Removes old results: by age, by size, and on request once all their brokers have acknowledged them.

It sleeps until a commit wakes it, and otherwise wakes only so often that a result outlives its age by a twentieth at
most. So nothing runs while there are no results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from tocsin.clock import to_us
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.statements.options import read_options, seconds, whole_number
from tocsin.language.syntax import statements as st
from tocsin.settings import ChannelSettings
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import ChannelState, CommittedExecution
from tocsin.wire.errors import NotFoundError

_log = structlog.get_logger()

# A result outlives its retention by at most 1/LATE of it, even if no commit wakes the retention.
_LATE = 20


@dataclass(frozen=True, slots=True)
class _Looked:
    """The state of a channel when it was last checked, and the time of the check."""

    state: ChannelState
    at_s: float


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How long a channel keeps results, and how many bytes of them; None means the cluster's default.
    `from_beginning`: records from before its creation are new to it."""

    retention_s: float | None = None
    retention_bytes: int | None = None
    from_beginning: bool = False


def channel_options(statement: st.CreateChannel, now: datetime) -> ChannelOptions:
    """Reads the options of CREATE CHANNEL … WITH {…}. Raises TranslationError, which names the invalid option."""
    readers = {"retention": seconds, "retention-bytes": whole_number("bytes", 1), "since": _is_beginning}
    options = read_options(statement, now, readers)
    return ChannelOptions(options.get("retention"), options.get("retention-bytes"), options.get("since", False))


def _is_beginning(value: Any) -> bool:
    if value not in ("now", "beginning"):
        raise ValueError(f'must be "now" or "beginning", got {value}')
    return bool(value == "beginning")


class Retention:
    """Checks channels when a commit wakes it, or when results grow too old; sleeps otherwise."""

    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        settings: ChannelSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now` is the clock that decides how old a result is."""
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

    def note_commit(self, _execution: CommittedExecution) -> None:
        """Must be called on the event loop after each commit: there may be too many results now."""
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    def request_trim(self, channel_ids: Iterable[int]) -> None:
        """Lets the next look remove the results of these channels that all brokers have acknowledged."""
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
        """Checks all channels that may have results to remove. Returns after how many seconds to check again if nothing
        happens."""
        next_s: float | None = None
        channels = {entry.channel_id: entry for entry in self._catalog.catalog.channels}
        self._looked = {
            channel_id: last_check for channel_id, last_check in self._looked.items() if channel_id in channels
        }
        for entry in channels.values():
            try:
                await self._look(entry)
                has_results = self._looked[entry.channel_id].state.results > 0
            except NotFoundError:
                continue
            except Exception as error:
                has_results = True
                _log.warning("old results could not be removed", channel=entry.name, reason=str(error))
            if has_results:
                late_s = self._age_s(entry) / _LATE
                next_s = late_s if next_s is None else min(next_s, late_s)
        return next_s

    async def _look(self, entry: ChannelEntry) -> None:
        channel_id = entry.channel_id
        state = await self._store.state(channel_id)
        last_check = self._looked.get(channel_id)
        is_overdue = (
            last_check is not None
            and state.results
            and time.monotonic() - last_check.at_s >= self._age_s(entry) / _LATE
        )
        if last_check is not None and last_check.state == state and not is_overdue and channel_id not in self._trim:
            return
        if channel_id in self._trim:
            self._trim.discard(channel_id)
            async for lowest in self._store.lowest_acknowledged(channel_id):
                await self._store.trim(channel_id, lowest)
        limit_bytes = entry.retention_bytes
        await self._store.retain(
            channel_id,
            ended_before_us=to_us(self._now() - timedelta(seconds=self._age_s(entry))),
            max_bytes=self._settings.retention_bytes if limit_bytes is None else limit_bytes,
        )
        self._looked[channel_id] = _Looked(await self._store.state(channel_id), time.monotonic())

    def _age_s(self, entry: ChannelEntry) -> float:
        return self._settings.retention_s if entry.retention_s is None else entry.retention_s
