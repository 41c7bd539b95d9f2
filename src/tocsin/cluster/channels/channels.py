"""Manages all channels of a cluster: executes their statements, starts and stops them, and keeps their subscriptions.

The catalog decides which channels exist. `_settle` makes the running channels equal to the catalog after each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import structlog

from tocsin import faults
from tocsin.clock import from_us, to_us
from tocsin.cluster.catalog.catalog import Catalog, CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import ChannelEntry, FunctionEntry
from tocsin.cluster.catalog.refs import Ref, channel_ref, full_name
from tocsin.cluster.channels.executions.commit_range import entry_of
from tocsin.cluster.channels.executions.execution_runs import ExecutionRuns
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.executions.new_row_views import NewRowViews
from tocsin.cluster.channels.executions.running_channel import ChannelContext, CommitListener, RunningChannel
from tocsin.cluster.channels.metrics import ChannelMetrics
from tocsin.cluster.channels.reconciliation import follow_datasets, remove_unknown_channels, renumber_lost_channels
from tocsin.cluster.channels.retention import channel_options
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import CHANNEL
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import CatalogNames, StatementScope
from tocsin.language.channels.compiler import SharedQuery, compile_shared_query
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.declarations import resolve_type
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.plan_review import checked_plan
from tocsin.rules.model.types import ObjectType, Type
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import Execution
from tocsin.wire.errors import ConflictError, InputError, NotFoundError

_log = structlog.get_logger()


class Channels:
    def __init__(
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        store: ChannelStore,
        *,
        commit_listeners: Sequence[CommitListener] = (),
        dropped: Callable[[], None] = lambda: None,
        limits: ExecutionLimits,
    ) -> None:
        self._dropped = dropped
        self._catalog = catalog
        self._engine = engine
        self._tables = tables
        self._store = store
        runs = ExecutionRuns(engine, limits.deadline_s)
        self._context = ChannelContext(store, tables, engine, NewRowViews(engine), runs, commit_listeners, limits)
        self._known: dict[int, ChannelEntry] = {}
        self._compiled: dict[int, SharedQuery] = {}  # the queries of channels that are being created
        self._running: dict[int, RunningChannel] = {}
        self._later: dict[int, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()

    # ------------------------------------------------------------ lifecycle

    async def start(self, lost: LostFolder) -> None:
        """Starts every channel of the catalog from its stored position. A channel whose rows are lost starts anew. Rows
        of unfinished and dropped channels are removed; other rows that the catalog does not know are set aside."""
        await renumber_lost_channels(self._catalog, self._store)
        await remove_unknown_channels(self._catalog, self._store, lost)
        await follow_datasets(self._catalog, self._store, self._tables)
        async with self._changing:
            await asyncio.gather(*(self._begin(entry) for entry in self._catalog.catalog.channels))

    async def _begin(self, entry: ChannelEntry) -> None:
        """Starts one channel. The caller holds the lock `_changing`."""
        self._known[entry.channel_id] = entry
        try:
            state = await self._store.state(entry.channel_id)  # raises if its rows are lost
            query = self._compiled.get(entry.channel_id)
            if query is None:
                async with self._context.runs.cold_starts:
                    query = await self._context.runs.ask(
                        lambda: _query_of(self._engine, self._catalog.catalog, entry), f"channel {entry.name}"
                    )
            if state.last_execution == 0:
                first = self._first(query, from_us(self._tables.clock.now_us()))
                await self._store.commit_execution(entry.channel_id, first, (), ())
            channel = RunningChannel(entry, query, self._context)
            channel.start()
        except Exception as error:
            # A failure of one channel must not stop the others, and it may pass: try again later.
            _log.error("a channel could not be started", channel=entry.name, reason=str(error))
            if entry.channel_id not in self._later:
                self._later[entry.channel_id] = asyncio.create_task(self._begin_later(entry))
            return
        self._running[entry.channel_id] = channel

    async def _begin_later(self, entry: ChannelEntry) -> None:
        while entry.channel_id not in self._running:
            await self._engine.pause(self._context.limits.last_retry_s)
            async with self._changing:
                if self._catalog.catalog.find(entry.ref) != entry:
                    return
                await self._begin(entry)

    async def close(self) -> None:
        async with self._changing:
            await self._end(list(self._known))
        self._context.runs.close()

    async def _end(self, channel_ids: Sequence[int]) -> None:
        for task in [self._later.pop(channel_id) for channel_id in channel_ids if channel_id in self._later]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        running = [self._running.pop(channel_id) for channel_id in channel_ids if channel_id in self._running]
        for outcome in await asyncio.gather(*(channel.stop() for channel in running), return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("a channel failed to stop", reason=str(outcome))
        for channel_id in channel_ids:
            del self._known[channel_id]

    @asynccontextmanager
    async def stop_for_drop(self, _dataverse: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.shield(self._settle())

    async def _settle(self) -> None:
        """Makes the running channels equal to the catalog: stops dropped channels and removes their rows, and starts
        new ones."""
        async with self._changing:
            entries = {entry.channel_id: entry for entry in self._catalog.catalog.channels}
            dropped_ids = [channel_id for channel_id in self._known if channel_id not in entries]
            if dropped_ids:
                faults.reach("drop-channel.recorded")
                await self._end(dropped_ids)
                faults.reach("drop-channel.stopped")
                for channel_id in dropped_ids:
                    await self._remove(channel_id)
                self._dropped()
            for channel_id, entry in entries.items():
                if channel_id not in self._known:
                    await self._begin(entry)

    def note_interest(self, channel_id: int) -> None:
        """Must be called on the event loop when a channel may have a new interest."""
        if (channel := self._running.get(channel_id)) is not None:
            channel.note_interest()

    def compile_again(self, entry: ChannelEntry, catalog: Catalog) -> SharedQuery:
        """Compiles a channel's query with another catalog. It must watch the same datasets, because the channel's
        position has a commit number for each of them."""
        query = _query_of(self._engine, catalog, entry)
        _plan_of(self._engine, query)
        before = _query_of(self._engine, self._catalog.catalog, entry)
        old, new = ({entry_of(watched).ref for watched in compiled.watched} for compiled in (before, query))
        if old != new:
            raise ConflictError("it would watch other datasets", hint="drop the channel first")
        return query

    async def restart(self, queries: Mapping[int, SharedQuery]) -> None:
        """Lets running channels continue with other queries, from where they are."""
        async with self._changing:
            for channel_id, query in queries.items():
                entry = self._known.get(channel_id)
                if entry is None:
                    continue
                await self._end([channel_id])
                self._compiled[channel_id] = query
                try:
                    await self._begin(entry)
                finally:
                    del self._compiled[channel_id]

    def list_running(self) -> Sequence[RunningChannel]:
        return list(self._running.values())

    def figures(self) -> list[ChannelMetrics]:
        """May be called from any thread."""
        return [ChannelMetrics(full_name(channel.entry), channel.counts) for channel in self.list_running()]

    # ------------------------------------------------------------ statements

    async def create(self, statement: st.CreateChannel, scope: StatementScope) -> StatementSummary:
        dataverse = statement.name.dataverse or scope.dataverse
        ref = channel_ref(dataverse, statement.name.name)
        if statement.if_not_exists and scope.catalog.find(ref) is not None:
            return {"name": statement.name.name, "existed": True}
        scope.catalog.dataverse(dataverse)
        function, where, body, parameters = self._body(statement, scope, dataverse)
        declared = self._declared_types(statement, scope)

        def prepared() -> SharedQuery:
            try:
                query = _compile_channel(
                    self._engine, scope.catalog, where, body,
                    parameters=parameters, declared=declared, continuous=statement.continuous,
                )  # fmt: skip
            except TranslationError as error:
                raise _within(statement, error) from None
            _plan_of(self._engine, query)
            return query

        options = channel_options(statement, scope.now)
        query = await self._engine.work(prepared, statement.text)
        if options.from_beginning and not query.watched:
            raise TranslationError(
                "since: this channel computes its whole result in every execution", statement.offset,
                "leave since out, or watch a dataset by is_new",
            )  # fmt: skip
        channel_id = await self._store.add_channel()
        faults.reach("create-channel.numbered")
        entry = ChannelEntry(
            dataverse=dataverse, name=statement.name.name, channel_id=channel_id, continuous=statement.continuous,
            push=statement.push, function=function, parameters=tuple(parameters), types=query.parameters,
            body=None if function is not None else body, period=statement.period,
            anchor=from_us(self._tables.clock.now_us()),
            retention_s=options.retention_s, retention_bytes=options.retention_bytes,
            uses=(function,) if function is not None else _used_by(query), from_beginning=options.from_beginning,
        )  # fmt: skip
        await self._catalog.removals.intend(entry)
        faults.reach("create-channel.intended")
        self._compiled[channel_id] = query
        try:
            first = self._first(query, entry.anchor, from_beginning=options.from_beginning)
            await self._store.commit_execution(channel_id, first, (), ())
            faults.reach("create-channel.stored")
            await self._catalog.apply([Put(entry, when_taken="keep" if statement.if_not_exists else "refuse")])
            faults.reach("create-channel.recorded")
        finally:
            # Also settle if the statement was cancelled after the catalog took the entry.
            await asyncio.shield(self._settle_new(entry))
        if self._known.get(channel_id) != entry:
            return {"name": entry.name, "existed": True}
        return {
            "name": entry.name,
            "parameters": {n: str(k) for n, k in zip(parameters, query.parameters, strict=True)},
        }

    async def _settle_new(self, entry: ChannelEntry) -> None:
        try:
            await self._settle()
        finally:
            del self._compiled[entry.channel_id]
        if entry.channel_id not in self._known:
            await self._remove(entry.channel_id)

    async def _remove(self, channel_id: int) -> None:
        """Removes the rows of a channel, then the intent in the catalog that names it."""
        await self._store.drop_channel(channel_id)
        faults.reach("drop-channel.emptied")
        await self._catalog.removals.forget(CHANNEL, [str(channel_id)])

    def _first(self, query: SharedQuery, begun: datetime, *, from_beginning: bool = False) -> Execution:
        """Returns the made-up first execution that stores the start position: existing rows are new to the channel
        only if it reads from the beginning."""
        vector = {}
        for dataset in query.watched:
            entry = entry_of(dataset)
            vector[entry.folder] = 0 if from_beginning else self._tables.table(entry).number
        begun_us = to_us(begun)
        return Execution(number=1, started_us=begun_us, ended_us=begun_us, vector=vector, tick_us=begun_us)

    def _body(
        self, statement: st.CreateChannel, scope: StatementScope, dataverse: str
    ) -> tuple[Ref | None, str, str, Sequence[str]]:
        if statement.function is None:
            assert statement.body is not None
            return None, dataverse, statement.body, [parameter.name for parameter in statement.parameters]
        name = statement.function
        where = name.dataverse or dataverse
        functions = [
            candidate for candidate in scope.catalog.functions_named(where, name.name)
            if statement.arity is None or candidate.arity == statement.arity
        ]  # fmt: skip
        if not functions:
            arity = f"@{statement.arity}" if statement.arity is not None else ""
            raise NotFoundError(f"there is no function {where}.{name.name}{arity}", hint="CREATE FUNCTION it first")
        if len(functions) > 1:
            raise InputError(f"there are several functions {name.name}", hint=f"write {name.name}@{functions[0].arity}")
        function: FunctionEntry = functions[0]
        return function.ref, function.dataverse, function.body, function.parameters

    def _declared_types(self, statement: st.CreateChannel, scope: StatementScope) -> dict[str, Type]:
        def look_up(name: st.Name) -> ObjectType | None:
            try:
                return scope.catalog.type_(name.dataverse or scope.dataverse, name.name).type
            except NotFoundError:
                return None

        return {
            parameter.name: resolve_type(parameter.type, look_up)
            for parameter in statement.parameters
            if parameter.type is not None
        }

    async def drop(self, statement: st.DropChannel, scope: StatementScope) -> StatementSummary:
        ref = channel_ref(statement.name.dataverse or scope.dataverse, statement.name.name)
        if scope.catalog.find(ref) is None:
            if statement.if_exists:
                return {"name": ref.name, "existed": False}
            raise scope.catalog.not_found_error(ref)
        try:
            await self._catalog.apply([Remove(ref, if_exists=statement.if_exists)])
        finally:
            await asyncio.shield(self._settle())
        return {"name": ref.name}

    async def explain(self, statement: st.ExplainChannel, scope: StatementScope) -> Mapping[str, Any]:
        """Explains how a channel's query runs, with its plan."""
        entry = self._entry(statement.channel, scope)

        def work() -> Mapping[str, Any]:
            query = _query_of(self._engine, scope.catalog, entry)
            return {
                "channel": entry.name,
                "parameters": {name: str(kind) for name, kind in zip(entry.parameters, query.parameters, strict=True)},
                "watches": [watched.dataset.name for watched in query.watched],
                "matched by": list(query.matched_by),
                "depends on time": query.depends_on_time,
                "plan": _plan_of(self._engine, query),
            }

        return await self._engine.work(work, statement.text)

    def _entry(self, name: st.Name, scope: StatementScope) -> ChannelEntry:
        return self._catalog.catalog.channel(name.dataverse or scope.dataverse, name.name)


def _within(statement: st.CreateChannel, error: TranslationError) -> TranslationError:
    """Moves an error in the channel's body to its position in the script. An error in a function's body, which is not
    in the script, points at the statement."""
    if statement.function is not None:
        return TranslationError(f"in function {statement.function}: {error.message}", statement.offset, error.hint)
    return TranslationError(error.message, statement.body_offset + (error.offset or 0), error.hint)


def _compile_channel(
    engine: Engine,
    catalog: Catalog,
    dataverse: str,
    body: str,
    *,
    parameters: Sequence[str],
    declared: Mapping[str, Type],
    continuous: bool,
) -> SharedQuery:
    return compile_shared_query(
        parse_body(body), parameters, declared,
        names=CatalogNames(catalog), type_analyser=engine.type_analyser, dataverse=dataverse, continuous=continuous,
    )  # fmt: skip


def _query_of(engine: Engine, catalog: Catalog, entry: ChannelEntry) -> SharedQuery:
    """Compiles the query of an existing channel. Its parameters keep the types of its creation."""
    dataverse, body = entry.dataverse, entry.body
    if entry.function is not None:
        function = catalog.find(entry.function)
        assert isinstance(function, FunctionEntry)
        dataverse, body = function.dataverse, function.body
    assert body is not None
    return _compile_channel(
        engine, catalog, dataverse, body,
        parameters=entry.parameters, declared=dict(zip(entry.parameters, entry.types, strict=True)),
        continuous=entry.continuous,
    )  # fmt: skip


def _plan_of(engine: Engine, query: SharedQuery) -> str:
    """Returns Spark's plan. Raises StatementError if the plan would test every interest against every record."""
    interests = InterestTable(engine.spark, query)
    return checked_plan(
        engine.spark, query, interests.schema, lambda call: engine.python.called(call.function, call.arguments)
    )


def _used_by(query: SharedQuery) -> tuple[Ref, ...]:
    """Returns the datasets and functions that the body names."""
    refs = []
    for kind, dataverse, name in sorted(query.uses):
        refs.append(Ref("dataset" if kind == "dataset" else "function", dataverse, name))
    return tuple(refs)
