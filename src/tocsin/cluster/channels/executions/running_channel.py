"""Runs one channel: executes it when it is due, one execution at a time, with retries.

A channel with a period is due at its ticks; a channel without a period is due after every commit to a dataset that it
watches. The store commits the results of an execution together with the commit vector that it read. A crash therefore
neither loses nor repeats a match.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from tocsin import faults
from tocsin.clock import from_us, to_us
from tocsin.cluster import schedule
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.channels.executions.commit_range import CommitRange, Vector, entry_of
from tocsin.cluster.channels.executions.execution import ChannelExecution
from tocsin.cluster.channels.executions.execution_runs import ExecutionRuns
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.executions.new_row_views import NewRowViews
from tocsin.cluster.channels.executions.part_progress import PartProgress
from tocsin.cluster.channels.executions.part_sizes import ExecutionSize
from tocsin.cluster.channels.executions.record_search import PoisonRecord
from tocsin.cluster.channels.metrics import ChannelCounts
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.language.channels.compiler import PREVIOUS, SharedQuery
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.run_query import ExecutionResults
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.cursors import InterestId
from tocsin.rules.periods import last_tick
from tocsin.serving.trouble import reason_of
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import ChannelState, CommittedExecution, Execution, Failure
from tocsin.wire.errors import CapacityError, PastStateError, StatementError, TocsinError

_log = structlog.get_logger()

# More interest changes than this are parsed on an engine thread, so that the event loop stays free.
_READ_BESIDE: Final = 1_000


CommitListener = Callable[[CommittedExecution], None]
"""Called after every execution, with or without results."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """The services and limits that all channels of a cluster share."""

    store: ChannelStore
    tables: DatasetTables
    engine: Engine
    new_rows: NewRowViews
    runs: ExecutionRuns
    commit_listeners: Sequence[CommitListener]
    limits: ExecutionLimits


class RunningChannel:
    """Executes one channel. Guarantees: one execution runs at a time. A record that is committed after a
    subscription was acknowledged is matched with that subscription. A record version is matched with an interest at
    most once, even if processes are killed."""

    def __init__(self, entry: ChannelEntry, query: SharedQuery, context: ChannelContext) -> None:
        self.entry = entry
        self.query = query
        self.counts = ChannelCounts()
        self.trouble: str | None = None
        self._logged_at_s: dict[str, float] = {}  # event → when it was last logged
        self._searching = False  # whether the current execution failed and its poison records are being searched
        self.context = context
        self._interests = InterestTable(lambda: context.engine.spark, query, context.limits.interests)
        self._size = ExecutionSize(context.limits.parts)
        self._part_progress = PartProgress(context.limits.parts.progress_s)
        self._parameters = ParameterValues(entry.parameters, entry.types)
        self._change: int | None = None  # the last interest change that was applied; None: read all interests
        self._state: ChannelState | None = None  # a copy of the stored state; only this channel changes it
        self._due = asyncio.Event()
        self._turn = asyncio.Lock()  # held during an execution
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._watched: dict[str, DatasetTable] = {}

    # ------------------------------------------------------------ lifecycle

    def start(self) -> None:
        watched_datasets = [entry_of(dataset) for dataset in self.query.watched]
        self._watched = {dataset.folder: self.context.tables.table(dataset) for dataset in watched_datasets}
        for table in self._watched.values():
            table.recent.want()
            if self.entry.period is None:
                table.listen(self._note_commit)
        # Commits from before the listener was added have no event, so run once at the start.
        self._due.set()
        self._task = asyncio.create_task(self._run(), name=f"channel {self.entry.name}")

    async def stop(self) -> None:
        """Stops the channel. When this returns, the channel does no more work, and an execution that was running is
        stored completely or not at all."""
        self._stopping.set()
        for table in self._watched.values():
            table.unlisten(self._note_commit)
            table.recent.let_go()
        self._watched.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._turn:
            with suppress(TocsinError, ConnectionError):  # Spark may be gone, and its views with it
                await self.context.engine.work(self._interests.close)

    def note_interest(self) -> None:
        """Runs a channel that waits for its first interest."""
        if self.entry.from_beginning and self.entry.period is None:
            self._due.set()

    def _note_commit(self, _number: int) -> None:
        """Runs on the thread that committed to a watched dataset."""
        with suppress(RuntimeError):  # the event loop is closed, so the channel has ended too
            self._loop.call_soon_threadsafe(self._due.set)

    # ------------------------------------------------------------ scheduling

    async def _run(self) -> None:
        await self._warm_up()
        while True:
            try:
                await (self._at_commits() if self.entry.period is None else self._at_ticks())
                return
            except Exception as error:
                _log.error("a channel's task failed and restarts", channel=self.entry.name, exc_info=error)
            await asyncio.sleep(self.context.limits.last_retry_s)

    async def _at_commits(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self.execute_with_retries(None)

    async def _at_ticks(self) -> None:
        period = self.entry.period
        assert period is not None
        state = await self.context.store.state(self.entry.channel_id)
        last = self.entry.anchor if state.tick_us is None else from_us(state.tick_us)
        is_first_tick = True

        async def tick(_number: int, due: datetime, missed: int) -> None:
            nonlocal is_first_tick
            # The first tick after a start reports ticks from before the start and ticks that had nothing new, which
            # store no execution. They cannot be distinguished from missed ticks, so do not count them.
            self.counts.missed_ticks += 0 if is_first_tick else missed
            is_first_tick = False
            await self.execute_with_retries(due)

        done = last_tick(self.entry.anchor, period, last)
        late_ticks = self.context.limits.late_ticks
        await schedule.run_ticks(self.entry.anchor, period, done, tick, self._now, late_ticks=late_ticks)

    def _now(self) -> datetime:
        """Returns the time of the clock guard, which continues from its last trusted value while the wall clock is
        suspect."""
        return from_us(self.context.tables.clock.now_us())

    async def execute_with_retries(self, tick: datetime | None) -> None:
        """Executes the channel for one instant and retries failures with back-off. If the query itself fails at a
        tick, the retries end when the next tick is due: the next tick reads a later state, which may not fail."""
        limits = self.context.limits
        back_off = BackOff(limits.first_retry_s, limits.last_retry_s, factor=5.0)
        is_done = False
        while not is_done:
            try:
                await self.execute(tick)
                self._record_success()
                is_done = True
            except Exception as error:
                await self.record_failure(error, tick)
                is_query_error = isinstance(error, StatementError | CapacityError)
                is_last_try = back_off.failures + 1 >= limits.tries_per_tick
                if is_last_try and is_query_error and tick and self._is_followed(tick):
                    self.counts.missed_ticks += 1
                    is_done = True
            _go_on()
            if not is_done:
                await self.context.engine.pause(back_off.next_s())

    # ------------------------------------------------------------ execution

    async def execute(self, tick: datetime | None) -> None:
        """Runs one execution for this tick, or for now if `tick` is None. Waits until the current execution has
        ended."""
        async with self._turn:
            state, self._state = self._state, None
            if state is None:
                state = await self.context.store.state(self.entry.channel_id)
            self._state = await self._execute(state, tick)

    async def _warm_up(self) -> None:
        """Hands the interests over and runs the query once over no new rows, so that the first execution after a start
        finds Spark prepared. Few channels do so at once: each of them gets ready sooner, and none runs out of time.
        Queries that call Python are left out: their functions may do more than compute."""
        context = self.context
        try:
            async with context.runs.cold_starts, self._turn:
                await self._follow_interests()
                if not self._interests or self.query.calls:
                    return
                state = await context.store.state(self.entry.channel_id)
                reading = await context.engine.execution(
                    lambda: CommitRange.begin(context.tables, context.engine, self.query, state.vector), self.entry.name
                )
                await context.runs.lead(
                    lambda ask: ChannelExecution(
                        reading, self._interests, context.new_rows, self._size, context.limits, self, ask
                    ).warm_up(self._now()),
                    f"channel {self.entry.name}",
                )
        except Exception as error:
            # The first execution meets the same trouble, and handles it.
            _log.info("a channel could not be warmed up", channel=self.entry.name, reason=reason_of(error))

    async def _execute(self, state: ChannelState, tick: datetime | None) -> ChannelState:
        """Runs one execution and returns the state after it."""
        context, started = self.context, self._now()
        # If the query reads the previous instant, store every execution: the next one needs its instant.
        uses_previous = PREVIOUS in self.query.arguments
        if self._nothing_new(state.vector) and not uses_previous:
            return state
        reading = await self._begin_reading(state.vector, tick)
        if reading is None:
            self.counts.missed_ticks += 1
            return state
        # Read the interests after the snapshots. Then every interest that was subscribed before a record was committed
        # takes part in the execution that reads the record.
        await self._follow_interests()
        self.counts.interests = len(self._interests)
        faults.reach("channel.execution.begun")
        if not self._interests and self._awaits_first(state):
            return state
        if not self._interests and not reading.watched_folders and not uses_previous:
            return state
        now = tick or started
        interests: list[InterestId] = []
        payloads: list[bytes] = []
        details: dict[str, object] = {}
        if self._interests and not reading.is_empty():
            previous = self._previous(state)
            results, poison_records = await self._find_results(reading, now, previous)
            interests = results.interests.tolist()
            payloads = [results.texts[index] for index in results.payloads.tolist()]
            if poison_records:
                self._warn_of([record for record in poison_records if not record.known])
                named_records = poison_records[: context.limits.named_poison_records]
                details["poison_records"] = [asdict(record) for record in named_records]
                details["interests_aside"] = sum(not record.dataset for record in poison_records)
        faults.reach("channel.execution.found")
        ended = self._now()
        execution = Execution(
            number=state.last_execution + 1, started_us=to_us(started), ended_us=to_us(ended),
            vector={**state.vector, **reading.vector}, tick_us=to_us(now), details=details,
        )  # fmt: skip
        committed = await context.store.commit_execution(
            self.entry.channel_id, execution, interests, payloads, matches_at_most=context.limits.matches
        )
        faults.reach("channel.execution.committed")
        self.counts.executions += 1
        self.counts.last_execution_s = (self._now() - started).total_seconds()
        query_s = (ended - started).total_seconds()
        self.counts.query_s += query_s
        self.counts.storing_s += self.counts.last_execution_s - query_s
        self.counts.results += committed.results
        self.counts.left_out += committed.left_out
        for listener in context.commit_listeners:
            listener(committed)
        return replace(state, last_execution=execution.number, vector=dict(execution.vector), tick_us=execution.tick_us)

    def _awaits_first(self, state: ChannelState) -> bool:
        """Returns whether the channel still has to read the records from before its creation. It waits with them for
        its first interest: otherwise nobody would get their results."""
        return self.entry.from_beginning and not any(state.vector.values())

    def _previous(self, state: ChannelState) -> datetime:
        """Returns the instant after which records are new."""
        if self._awaits_first(state):
            return from_us(0)
        return self.entry.anchor if state.tick_us is None else from_us(state.tick_us)

    async def _find_results(
        self, reading: CommitRange, now: datetime, previous: datetime
    ) -> tuple[ExecutionResults, list[PoisonRecord]]:
        context = self.context
        try:
            return await context.runs.lead(
                lambda ask: ChannelExecution(
                    reading, self._interests, context.new_rows, self._size, context.limits, self, ask
                ).execute(now, previous),
                f"channel {self.entry.name}",
            )
        finally:
            self._part_progress.end()
            # The search counted as a failure only while it ran; the caller counts the outcome.
            self.counts.failing -= self._searching
            self._searching = False

    async def _begin_reading(self, since: Vector, tick: datetime | None) -> CommitRange | None:
        """Takes the snapshots of all datasets as of the tick. If retention has already removed a state, returns
        None when a later tick is due (the ticks coalesce); the latest due tick reads the current states instead."""
        context = self.context

        def begin(at: datetime | None) -> CommitRange:
            return CommitRange.begin(context.tables, context.engine, self.query, since, at)

        try:
            return await context.engine.execution(lambda: begin(tick), self.entry.name)
        except PastStateError:
            if tick is None or self._is_followed(tick):
                return None
        return await context.engine.execution(lambda: begin(None), self.entry.name)

    def _is_followed(self, tick: datetime) -> bool:
        """Returns whether a later tick is already due."""
        anchor, period = self.entry.anchor, self.entry.period
        assert period is not None
        return last_tick(anchor, period, self._now()) > last_tick(anchor, period, tick)

    def _nothing_new(self, since: Vector) -> bool:
        """Returns whether an execution would surely have no results, which needs no I/O: the query wants new rows and
        no watched dataset has any."""
        return self.query.needs_new and all(
            table.number <= since.get(folder, 0) for folder, table in self._watched.items()
        )

    async def _follow_interests(self) -> None:
        """Applies the interests that were added and removed since the last execution. Reads all of them at the
        start, or when the store no longer has the changes."""
        store, channel = self.context.store, self.entry.channel_id
        while True:
            if self._change is None:
                change = 0
                current_ids: set[InterestId] = set()
                async for chunk in store.interests(channel):
                    change = chunk.change if not current_ids else min(change, chunk.change)
                    current_ids.update(chunk.ids)
                    await self._apply_interest_changes(list(zip(chunk.ids, chunk.parameters, strict=True)), ())
                await self._apply_interest_changes(
                    (), [interest_id for interest_id in self._interests.identities() if interest_id not in current_ids]
                )
                self._change = change
            changes = await store.interest_changes(channel, self._change)
            if changes is None:
                self._change = None
                continue
            await self._apply_interest_changes(changes.added, changes.removed)
            self._change = changes.change
            if not changes.more:
                return

    async def _apply_interest_changes(
        self, added: Sequence[tuple[InterestId, str]], removed: Sequence[InterestId]
    ) -> None:
        def take_in() -> None:
            values = self._parameters.values
            self._interests.change(((interest_id, values(text)) for interest_id, text in added), removed)

        if len(added) + len(removed) > _READ_BESIDE:
            await self.context.engine.execution(take_in, f"interests of {self.entry.name}")
        else:
            take_in()

    # ------------------------------------------------------------ reports

    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def search_begins(self, error: StatementError) -> None:
        """Runs on the thread of an execution that failed. Counts and logs that a poison search begins, because the
        channel delivers nothing until the search ends."""
        self._searching = True
        self.counts.failing += 1
        event = "a channel's execution failed; searching for poison records"
        self._warn_at_times(event, reason=error.message, interests=len(self._interests))

    def parts_begin(self, error: TocsinError | None) -> None:
        """Runs on the execution's thread. Logs that the execution now runs in parts, which takes longer."""
        if self._part_progress.begin(time.monotonic()):
            event = "a channel's execution is too large or too slow as a whole; running it in parts"
            reason = "earlier executions were too large or too slow" if error is None else error.message
            self._warn_at_times(event, reason=reason, interests=len(self._interests))

    def part_ended(self, results: int) -> None:
        """Runs on the execution's thread. Counts the part, and logs the progress from time to time."""
        self.counts.parts = self._size.parts
        if self._part_progress.count_part(results, time.monotonic()):
            progress = self._part_progress
            event = "a channel's execution goes on in parts"
            _log.info(event, channel=self.entry.name, parts=progress.parts, results=progress.results)

    def _warn_at_times(self, event: str, *, at_once: bool = False, **about: object) -> None:
        """Logs an event, but not again soon, unless `at_once`."""
        now_s = time.monotonic()
        if at_once or now_s >= self._logged_at_s.get(event, -math.inf) + self.context.limits.log_again_s:
            self._logged_at_s[event] = now_s
            _log.warning(event, channel=self.entry.name, **about)

    def _warn_of(self, poison_records: Sequence[PoisonRecord]) -> None:
        self.counts.poison_records += len(poison_records)
        if poison_records:
            first = poison_records[0]
            _log.warning(
                "a channel set records or interests aside", channel=self.entry.name, count=len(poison_records),
                dataset=first.dataset, key=list(first.key), interest=first.interest, reason=first.reason,
            )  # fmt: skip

    def _record_success(self) -> None:
        if self.counts.failing:
            _log.info("a channel recovered", channel=self.entry.name, failures_before=self.counts.failing)
        self.counts.failing = 0
        self.trouble = None

    async def record_failure(self, error: Exception, tick: datetime | None) -> None:
        """Counts, logs and stores that the execution of this tick failed."""
        self.counts.failures += 1
        self.counts.failing += 1
        reason = reason_of(error)
        failing, is_new = self.counts.failing, self.trouble != reason
        self._warn_at_times("a channel's execution failed", at_once=is_new, reason=reason, failures_in_a_row=failing)
        self.trouble = reason
        now_us = to_us(self._now())
        try:
            state = await self.context.store.state(self.entry.channel_id)
            await self.context.store.record_failure(
                self.entry.channel_id,
                Failure(
                    state.last_execution + 1, now_us, now_us, reason[:2_000], None if tick is None else to_us(tick)
                ),
            )
        except Exception as store_error:
            _log.warning("a channel's failure could not be stored", channel=self.entry.name, reason=str(store_error))


def _go_on() -> None:
    """Raises CancelledError if the task was cancelled during work that could not be interrupted."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
