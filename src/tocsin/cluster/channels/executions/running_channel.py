"""A running channel: executed when it is due, once at a time; what it found is committed with how far it read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from tocsin import faults
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.channels import schedule
from tocsin.cluster.channels.executions.execution import executed
from tocsin.cluster.channels.executions.execution_parts import ExecutionSize
from tocsin.cluster.channels.executions.execution_runs import ExecutionRuns
from tocsin.cluster.channels.executions.execution_snapshot import ExecutionSnapshot, Vector, entry_of
from tocsin.cluster.channels.executions.new_rows import NewRows
from tocsin.cluster.channels.executions.poison_search import PoisonRecord
from tocsin.cluster.channels.metrics import ChannelCounts
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.language.channels.compiler import PREVIOUS, SharedQuery
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.run_query import ExecutionResults
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.periods import last_tick
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import ChannelState, CommittedExecution, Execution, Failure
from tocsin.wire.errors import CapacityError, PastStateError, StatementError, TocsinError

log = structlog.get_logger()

RETRY_S: Final = (0.1, 0.5, 2.0, 10.0, 60.0)
TRIES_PER_TICK: Final = 3
TOLD_AGAIN_S: Final = 55.0  # whatever lasts is told about once a minute
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CULPRITS_KEPT: Final = 100
_READ_BESIDE: Final = 1_000  # so many interests at once are read on a thread, where nobody waits for it


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def moment(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What every channel works with."""

    store: ChannelStore
    tables: DatasetTables
    engine: Engine
    new_rows: NewRows
    runs: ExecutionRuns
    announce: Callable[[CommittedExecution], None]  # of each execution, with results or without
    late_ticks: int  # so many ticks that passed are executed one by one; older ones coalesce
    matches_limit: int


class RunningChannel:
    """Promises. One execution at a time. A row version that is committed after a subscription was acknowledged is
    matched with it; no version is matched twice with an interest, whatever is killed when."""

    def __init__(self, entry: ChannelEntry, query: SharedQuery, rooms: ChannelContext) -> None:
        self.entry = entry
        self.query = query
        self.counts = ChannelCounts()
        self.trouble: str | None = None
        self._told_at_s = 0.0  # of its trouble
        self._searching = False  # for what the execution that goes on has failed on
        self._search_told_at_s = -TOLD_AGAIN_S
        self._parts_told_at_s = -TOLD_AGAIN_S
        self._rooms = rooms
        self._interests = InterestTable(lambda: rooms.engine.spark, query)
        self._size = ExecutionSize()
        self._parameters = ParameterValues(entry.parameters, entry.types)
        self._change: int | None = None
        self._state: ChannelState | None = None  # as the store has it, which only this channel changes
        self._due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._watched: dict[str, DatasetTable] = {}

    # ------------------------------------------------------------ life

    def start(self) -> None:
        watched = [entry_of(one) for one in self.query.watched]
        self._watched = {one.folder: self._rooms.tables.table(one) for one in watched}
        for table in self._watched.values():
            table.recent.want()
            if self.entry.period is None:
                table.listen(self._committed)
        # What was committed before anybody listened is found now.
        self._due.set()
        self._task = asyncio.create_task(self._run(), name=f"channel {self.entry.name}")

    async def stop(self) -> None:
        """When it returns nothing of the channel goes on; an execution that was on its way is kept wholly or not."""
        self._stopping.set()
        for table in self._watched.values():
            table.unlisten(self._committed)
            table.recent.let_go()
        self._watched.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._turn:
            with suppress(TocsinError, ConnectionError):  # Spark may be gone, and its views with it
                await self._rooms.engine.work(self._interests.close)

    def _committed(self, _number: int) -> None:
        """On the thread of whoever committed to a dataset that is watched."""
        with suppress(RuntimeError):  # the loop has ended, and the channel with it
            self._loop.call_soon_threadsafe(self._due.set)

    # ------------------------------------------------------------ when

    async def _run(self) -> None:
        while True:
            try:
                await (self._at_commits() if self.entry.period is None else self._at_ticks())
                return
            except Exception as error:
                # Begun again whether or not it can be told.
                with suppress(Exception):
                    log.error("a channel ended, and is begun again", channel=self.entry.name, exc_info=error)
            await asyncio.sleep(RETRY_S[-1])

    async def _at_commits(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._surely(None)

    async def _at_ticks(self) -> None:
        period = self.entry.period
        assert period is not None
        state = await self._rooms.store.state(self.entry.channel_id)
        last = self.entry.anchor if state.tick_us is None else moment(state.tick_us)
        first = True

        async def tick(_number: int, due: datetime, missed: int) -> None:
            nonlocal first
            # Of the ticks while nobody was there, and of those when nothing was new, nobody knows which were missed.
            self.counts.missed_ticks += 0 if first else missed
            first = False
            await self._surely(due)

        done = last_tick(self.entry.anchor, period, last)
        await schedule.keep(self.entry.anchor, period, done, tick, self._now, late_ticks=self._rooms.late_ticks)

    def _now(self) -> datetime:
        """By the clock of the commits, which goes on where the wall clock cannot be believed."""
        return moment(self._rooms.tables.clock.now_us())

    async def _surely(self, tick: datetime | None) -> None:
        """Executes it, again and again where that fails, for the same instant. A tick at which the query itself fails
        is given up when the next one is due: that one reads a later state, which may be a better one."""
        failures = 0
        while True:
            try:
                await self.execute(tick)
                self._recovered()
            except Exception as error:
                await self._failed(error, tick)
                if failures + 1 >= TRIES_PER_TICK and self._gives_up(error, tick):
                    self.counts.missed_ticks += 1
                    _go_on()
                    return
            else:
                _go_on()
                return
            _go_on()
            await self._rooms.engine.pause(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def _gives_up(self, error: Exception, tick: datetime | None) -> bool:
        return tick is not None and isinstance(error, StatementError | CapacityError) and self._is_followed(tick)

    # ------------------------------------------------------------ what

    async def execute(self, tick: datetime | None) -> None:
        """One execution, at this instant or, where there is none, now; after the one that runs, if one does."""
        async with self._turn:
            state, self._state = self._state, None
            if state is None:
                state = await self._rooms.store.state(self.entry.channel_id)
            self._state = await self._execute(state, tick)

    async def _execute(self, state: ChannelState, tick: datetime | None) -> ChannelState:
        """The state afterwards."""
        rooms, started = self._rooms, self._now()
        tells_previous = f":{PREVIOUS}" in self.query.sql  # then the instant counts also where nothing was found
        if self._nothing_new(state.vector) and not tells_previous:
            return state
        reading = await self._begin_reading(state.vector, tick)
        if reading is None:
            self.counts.missed_ticks += 1
            return state
        # Interests come after the states: whoever had subscribed when a record was committed takes part.
        await self._follow_interests()
        self.counts.interests = len(self._interests)
        faults.reach("channel.execution.begun")
        if not self._interests and not reading.watched and not tells_previous:
            return state
        now = tick or started
        interests: list[int] = []
        payloads: list[bytes] = []
        details: dict[str, object] = {}
        if self._interests and not reading.is_empty():
            previous = self.entry.anchor if state.tick_us is None else moment(state.tick_us)
            found, culprits = await self._found(reading, now, previous)
            interests = found.interests.tolist()
            payloads = [found.texts[one] for one in found.payloads.tolist()]
            if culprits:
                self.counts.culprits += sum(not one.known for one in culprits)
                details["culprits"] = [asdict(one) for one in culprits[:_CULPRITS_KEPT]]
                details["interests_aside"] = sum(not one.dataset for one in culprits)
                self._tell_aside([one for one in culprits if not one.known])
        faults.reach("channel.execution.found")
        ended = self._now()
        execution = Execution(
            number=state.last_execution + 1, started_us=micros(started), ended_us=micros(ended),
            vector={**state.vector, **reading.vector}, tick_us=micros(now), details=details,
        )  # fmt: skip
        committed = await rooms.store.commit_execution(
            self.entry.channel_id, execution, interests, payloads, matches_at_most=rooms.matches_limit
        )
        faults.reach("channel.execution.committed")
        self.counts.executions += 1
        self.counts.last_execution_s = (self._now() - started).total_seconds()
        finding_s = (ended - started).total_seconds()
        self.counts.finding_s += finding_s
        self.counts.keeping_s += self.counts.last_execution_s - finding_s
        self.counts.results += committed.results
        self.counts.left_out += committed.left_out
        rooms.announce(committed)
        return replace(state, last_execution=execution.number, vector=dict(execution.vector), tick_us=execution.tick_us)

    async def _found(
        self, reading: ExecutionSnapshot, now: datetime, previous: datetime
    ) -> tuple[ExecutionResults, list[PoisonRecord]]:
        rooms = self._rooms
        try:
            return await rooms.runs.lead(
                lambda ask: executed(
                    reading, self._interests, rooms.new_rows, now=now, previous=previous, ask=ask, size=self._size,
                    is_stopped=self._stopping.is_set, search_begins=self._search_begins, parts_begin=self._parts_begin,
                ),
                f"channel {self.entry.name}",
            )  # fmt: skip
        finally:
            self.counts.parts = self._size.parts
            # Whatever it came to is counted elsewhere.
            self.counts.failing -= self._searching
            self._searching = False

    async def _begin_reading(self, since: Vector, tick: datetime | None) -> ExecutionSnapshot | None:
        """The states as of the tick. Where one is no longer kept, the tick coalesces with the next (None), and the
        latest tick that is due reads the datasets as they are."""
        rooms = self._rooms

        def begin(at: datetime | None) -> ExecutionSnapshot:
            return ExecutionSnapshot.begun(rooms.tables, rooms.engine, self.query, since, at)

        try:
            return await rooms.engine.execution(lambda: begin(tick), self.entry.name)
        except PastStateError:
            if tick is None or self._is_followed(tick):
                return None
        return await rooms.engine.execution(lambda: begin(None), self.entry.name)

    def _is_followed(self, tick: datetime) -> bool:
        """Whether a later tick is due already."""
        anchor, period = self.entry.anchor, self.entry.period
        assert period is not None
        return last_tick(anchor, period, self._now()) > last_tick(anchor, period, tick)

    def _nothing_new(self, since: Vector) -> bool:
        """Whether there can be no answer, as one sees without asking anybody."""
        return self.query.needs_new and all(
            table.number <= since.get(folder, 0) for folder, table in self._watched.items()
        )

    async def _follow_interests(self) -> None:
        """Takes in who came and lets go who left since the last execution."""
        store, channel = self._rooms.store, self.entry.channel_id
        while True:
            if self._change is None:
                change = 0
                there: set[int] = set()
                async for chunk in store.interests(channel):
                    change = chunk.change if not there else min(change, chunk.change)
                    there.update(chunk.ids)
                    await self._take_in(list(zip(chunk.ids, chunk.parameters, strict=True)), ())
                await self._take_in((), [one for one in self._interests.identities() if one not in there])
                self._change = change
            changes = await store.interest_changes(channel, self._change)
            if changes is None:
                self._change = None
                continue
            await self._take_in(changes.added, changes.removed)
            self._change = changes.change
            if not changes.more:
                return

    async def _take_in(self, added: Sequence[tuple[int, str]], removed: Sequence[int]) -> None:
        def take_in() -> None:
            values = self._parameters.values
            self._interests.change(((identity, values(text)) for identity, text in added), removed)

        if len(added) + len(removed) > _READ_BESIDE:
            await self._rooms.engine.execution(take_in, f"interests of {self.entry.name}")
        else:
            take_in()

    def _search_begins(self, error: StatementError) -> None:
        """On the thread of an execution that failed: nobody is told anything until it is known on what."""
        self._searching = True
        self.counts.failing += 1
        if time.monotonic() >= self._search_told_at_s + TOLD_AGAIN_S:
            self._search_told_at_s = time.monotonic()
            with suppress(Exception):
                log.warning(
                    "a channel's execution failed; what it fails on is looked for, and set aside",
                    channel=self.entry.name, reason=error.message, interests=len(self._interests),
                )  # fmt: skip

    def _parts_begin(self, error: TocsinError) -> None:
        """On the thread of an execution that failed: it is run in parts, which takes longer."""
        if time.monotonic() >= self._parts_told_at_s + TOLD_AGAIN_S:
            self._parts_told_at_s = time.monotonic()
            with suppress(Exception):
                log.warning(
                    "a channel's execution is too large or too slow, and is run in parts",
                    channel=self.entry.name, reason=error.message, interests=len(self._interests),
                )  # fmt: skip

    def _tell_aside(self, culprits: Sequence[PoisonRecord]) -> None:
        if culprits:
            first = culprits[0]
            with suppress(Exception):
                log.warning(
                    "a channel set records or interests aside", channel=self.entry.name, count=len(culprits),
                    dataset=first.dataset, key=list(first.key), interest=first.interest, reason=first.reason,
                )  # fmt: skip

    def _recovered(self) -> None:
        if self.counts.failing:
            with suppress(Exception):
                log.info("a channel goes on", channel=self.entry.name, failures_before=self.counts.failing)
        self.counts.failing = 0
        self.trouble = None

    async def _failed(self, error: Exception, tick: datetime | None) -> None:
        self.counts.failures += 1
        self.counts.failing += 1
        reason = error.message if isinstance(error, TocsinError) else f"{type(error).__name__}: {error}"
        if self.trouble != reason or time.monotonic() >= self._told_at_s + TOLD_AGAIN_S:
            self._told_at_s = time.monotonic()
            with suppress(Exception):
                log.warning(
                    "a channel's execution failed",
                    channel=self.entry.name, reason=reason, failures_in_a_row=self.counts.failing,
                )  # fmt: skip
        self.trouble = reason
        at = micros(self._now())
        try:
            state = await self._rooms.store.state(self.entry.channel_id)
            await self._rooms.store.record_failure(
                self.entry.channel_id,
                Failure(state.last_execution + 1, at, at, reason[:2_000], None if tick is None else micros(tick)),
            )
        except Exception as second:
            log.warning("its failure could not be kept", channel=self.entry.name, reason=str(second))


def _go_on() -> None:
    """Raises in a task that was told to end when what it did could no longer be stopped."""
    own = asyncio.current_task()
    if own is not None and own.cancelling():
        raise asyncio.CancelledError
