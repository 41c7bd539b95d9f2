"""A running channel: executed when it is due, once at a time; what it found is committed with how far it read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from tocsin import faults
from tocsin.cluster.channels import schedule
from tocsin.cluster.channels.execution import NewRows, Reading, executed
from tocsin.cluster.channels.figures import Counts
from tocsin.cluster.channels.parameters import Parameters
from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import ChannelEntry, DatasetEntry
from tocsin.cluster.tables import Tables
from tocsin.language.channels import PREVIOUS, SharedQuery
from tocsin.pipeline.channels.interests import Interests
from tocsin.rules.periods import last_tick
from tocsin.store.channel_store import ChannelStore, Committed, Execution, Failure
from tocsin.wire.errors import NotFoundError, TocsinError

log = structlog.get_logger()

RETRY_S: Final = (0.1, 0.5, 2.0, 10.0, 60.0)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CULPRITS_KEPT: Final = 100


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def moment(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


@dataclass(frozen=True, slots=True)
class Rooms:
    """What every channel works with."""

    store: ChannelStore
    tables: Tables
    engine: Engine
    new_rows: NewRows
    announce: Callable[[Committed], None]


class RunningChannel:
    def __init__(self, entry: ChannelEntry, query: SharedQuery, rooms: Rooms) -> None:
        self.entry = entry
        self.query = query
        self.counts = Counts()
        self.trouble: str | None = None
        self._rooms = rooms
        self._interests = Interests(rooms.engine.spark, query)
        self._parameters = Parameters(entry.parameters, entry.types)
        self._change: int | None = None
        self._due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._watching: list[tuple[DatasetEntry, Callable[[int], None]]] = []

    # ------------------------------------------------------------ life

    def start(self) -> None:
        for one in self.query.watched:
            assert isinstance(one.dataset, DatasetEntry)
            table = self._rooms.tables.table(one.dataset)
            table.recent.wanted = True
            table.listeners.append(self._committed)
            self._watching.append((one.dataset, self._committed))
        self._due.set()
        self._task = asyncio.create_task(self._run(), name=f"channel {self.entry.name}")

    async def stop(self) -> None:
        for entry, listener in self._watching:
            try:
                self._rooms.tables.table(entry).listeners.remove(listener)
            except (NotFoundError, ValueError):
                continue
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._rooms.engine.work(self._interests.close)

    def _committed(self, _number: int) -> None:
        """On the thread of whoever committed to a dataset that is watched."""
        if self.entry.period is None:
            self._loop.call_soon_threadsafe(self._due.set)

    # ------------------------------------------------------------ when

    async def _run(self) -> None:
        period = self.entry.period
        if period is None:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._surely(None)
        state = await self._rooms.store.state(self.entry.channel_id)
        last = self.entry.anchor if state.tick_us is None else moment(state.tick_us)

        async def tick(_number: int, due: datetime, missed: int) -> None:
            self.counts.missed_ticks += missed
            await self._surely(due)

        await schedule.keep(self.entry.anchor, period, last_tick(self.entry.anchor, period, last), tick)

    async def _surely(self, tick: datetime | None) -> None:
        """Executes it, again and again where that fails, for the same instant."""
        failures = 0
        while True:
            try:
                await self.execute(tick)
                self.trouble = None
                return
            except Exception as error:
                await self._failed(error, tick)
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise asyncio.CancelledError
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    # ------------------------------------------------------------ what

    async def execute(self, tick: datetime | None) -> None:
        """One execution, at this instant or, where there is none, now; after the one that runs, if one does."""
        async with self._turn:
            await self._execute(tick)

    async def _execute(self, tick: datetime | None) -> None:
        store, rooms = self._rooms.store, self._rooms
        started = datetime.now(UTC)
        state = await store.state(self.entry.channel_id)
        await self._follow_interests()
        self.counts.interests = len(self._interests)
        now = tick or started
        previous = self.entry.anchor if state.tick_us is None else moment(state.tick_us)
        reading = await rooms.engine.execution(
            lambda: Reading.begun(rooms.tables, rooms.engine, self.query, state.vector), self.entry.name
        )
        if reading.is_empty() and f":{PREVIOUS}" not in self.query.sql:
            return
        interests: list[int] = []
        payloads: list[bytes] = []
        details: dict[str, object] = {}
        if len(self._interests):
            found, culprits = await rooms.engine.execution(
                lambda: executed(reading, self._interests, rooms.new_rows, now=now, previous=previous),
                f"channel {self.entry.name}",
            )
            interests = found.interests.tolist()
            payloads = [found.texts[one] for one in found.payloads.tolist()]
            if culprits:
                self.counts.culprits += len(culprits)
                details["culprits"] = [asdict(one) for one in culprits[:_CULPRITS_KEPT]]
        faults.reach("channel.execution.found")
        committed = await store.commit_execution(
            self.entry.channel_id,
            Execution(
                number=state.last_execution + 1, started_us=micros(started), ended_us=micros(datetime.now(UTC)),
                vector={**state.vector, **reading.vector}, tick_us=micros(now), details=details,
            ),
            interests, payloads,
        )  # fmt: skip
        faults.reach("channel.execution.committed")
        self.counts.executions += 1
        self.counts.last_execution_s = (datetime.now(UTC) - started).total_seconds()
        self.counts.results += committed.results
        if committed.results:
            rooms.announce(committed)

    async def _follow_interests(self) -> None:
        """Takes in who came and lets go who left since the last execution."""
        store, channel = self._rooms.store, self.entry.channel_id
        while True:
            if self._change is None:
                self._interests.change((), list(self._interests.identities()))
                async for chunk in store.interests(channel):
                    rows = zip(chunk.ids, map(self._parameters.values, chunk.parameters), strict=True)
                    self._interests.change(rows, ())
                    self._change = chunk.change if self._change is None else min(self._change, chunk.change)
                self._change = self._change or 0
            changes = await store.interest_changes(channel, self._change)
            if changes is None:
                self._change = None
                continue
            added = [(identity, self._parameters.values(text)) for identity, text in changes.added]
            self._interests.change(added, changes.removed)
            self._change = changes.change
            if not changes.more:
                return

    async def _failed(self, error: Exception, tick: datetime | None) -> None:
        self.counts.failures += 1
        reason = error.message if isinstance(error, TocsinError) else f"{type(error).__name__}: {error}"
        if self.trouble != reason:
            log.warning("a channel's execution failed", channel=self.entry.name, reason=reason)
        self.trouble = reason
        at = micros(datetime.now(UTC))
        try:
            state = await self._rooms.store.state(self.entry.channel_id)
            await self._rooms.store.record_failure(
                self.entry.channel_id,
                Failure(state.last_execution + 1, at, at, reason[:2_000], None if tick is None else micros(tick)),
            )
        except TocsinError as second:
            log.warning("its failure could not be kept", channel=self.entry.name, reason=second.message)
