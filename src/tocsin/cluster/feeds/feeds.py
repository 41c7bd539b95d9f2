"""Executes the feed statements (CREATE, CONNECT, START, …) and passes published records to the started feeds.

The catalog decides what a feed is. A statement first prepares the change, then commits it to the catalog, and then does
what the catalog says, so that a crash or a cancellation never leaves the two in disagreement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from tocsin import faults
from tocsin.cluster.catalog.catalog import DEFAULT, CatalogStore, Change, Put, Remove
from tocsin.cluster.catalog.entries import DatasetEntry, FeedConnection, FeedEntry, TypeEntry
from tocsin.cluster.catalog.refs import Ref, dataset_ref, feed_ref, full_name, function_ref, join_names, type_ref
from tocsin.cluster.data_folder.dataset_tables import DatasetTables, new_folder
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.adapters.file_reader import after_last
from tocsin.cluster.feeds.adapters.http_port import PortAccess
from tocsin.cluster.feeds.apply_function import AppliedFunction
from tocsin.cluster.feeds.isolate_failures import Enrich
from tocsin.cluster.feeds.landing import REJECTED
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.metrics import FeedMetrics
from tocsin.cluster.feeds.options import FeedOptions, feed_options, policy_note
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.cluster.feeds.running_feeds import AnyFeed, RunningFeeds, decoder_of
from tocsin.cluster.intake.log import IntakeLog
from tocsin.cluster.statements.options import with_notes
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.functions.constants import NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.rules.model.types import ObjectType
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.serving.trouble import Trouble
from tocsin.uncancellable import wait_despite_cancel
from tocsin.wire.errors import ConflictError, NotFoundError, TocsinError, UnavailableError

_S = TypeVar("_S", bound=st.CreateFeed | st.ConnectFeed | st.DisconnectFeed | st.StartFeed | st.StopFeed | st.DropFeed)
_Handler: TypeAlias = "Callable[[Feeds, _S, StatementScope], Awaitable[StatementSummary]]"
_REJECTED_RETENTION_S = 7 * 86_400.0


def _in_turn(handler: _Handler[_S]) -> _Handler[_S]:
    """Runs a statement after the earlier statements about the same feed."""

    async def run(feeds: Feeds, statement: _S, scope: StatementScope) -> StatementSummary:
        name = statement.name if isinstance(statement, st.CreateFeed | st.DropFeed) else statement.feed
        ref = feed_ref(name.dataverse or scope.dataverse, name.name)
        async with feeds._turns.setdefault(ref, asyncio.Lock()):
            scope.catalog = feeds._catalog.catalog  # the statement may have waited while another changed the feed
            return await handler(feeds, statement, scope)

    return run


class Feeds:
    def __init__(
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        folder: Path,
        guard: AddressGuard = UNGUARDED,
        *,
        limits: FeedLimits = USUAL_LIMITS,
        ports: PortAccess | None = None,
    ) -> None:
        self._guard = guard
        self._limits = limits
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._started = RunningFeeds(
            catalog, tables, engine, folder, self._enrich, guard=guard, limits=limits, ports=ports
        )
        # A lock per feed: statements about one feed run one after another, and a statement that waits for records to
        # land blocks no other feed.
        self._turns: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()

    # ------------------------------------------------------------ start and end

    async def start(self, lost: LostFolder) -> None:
        """Resumes started feeds, deletes the logs of dropped ones, and sets unexplained logs aside."""
        started = [(full_name(entry), self._started.options(entry).polling)
                   for entry in self._catalog.catalog.feeds if entry.started]  # fmt: skip
        stored = [(name, polling.url) for name, polling in started if polling is not None]
        self._guard.warn_of_stored(stored, "the feed's address")
        await self._started.start(lost)

    async def close(self) -> None:
        await self._started.close()

    async def _settle(self) -> None:
        """Ends the feeds that a drop removed from the catalog, and deletes their logs."""
        for ref in self._started.refs():
            if self._catalog.catalog.find(ref) is None:
                await self._started.end(ref)
        await self._started.sweep()

    @asynccontextmanager
    async def stop_for_drop(self, dataverse: str) -> AsyncIterator[None]:
        """Surrounds the drop of a dataverse: its feeds first land their records in datasets of other dataverses."""
        closed: list[tuple[FeedEntry, AnyFeed]] = []
        try:
            for entry in self._catalog.catalog.feeds:
                outside = any(connection.dataset.dataverse != dataverse for connection in entry.connections)
                if entry.dataverse == dataverse and entry.started and outside:
                    feed = await self._started.resume(entry)
                    await feed.drain(f"the dataverse {dataverse} cannot be dropped")
                    closed.append((entry, feed))
            yield
        finally:
            for entry, feed in closed:
                if self._started.is_started(entry):
                    feed.open()
        await self._settle()

    @asynccontextmanager
    async def backup_barrier(self) -> AsyncIterator[None]:
        """Freezes the catalog, and the landing of feeds of files, until the context ends. A backup then sees datasets
        and file checkpoints that agree."""
        async with self._catalog.backup_barrier, self._started.backup_barrier.acquire(alone=True):
            yield

    def find_running(self, ref: Ref) -> AnyFeed | None:
        return self._started.find(ref)

    def troubles(self, ref: Ref) -> list[Trouble]:
        """Lists which work of a started feed fails, why, and since when."""
        return self._started.troubles(ref)

    def _enrich(self, entry: FeedEntry, function: Ref) -> Enrich:
        return AppliedFunction(
            function, entry.type, self._catalog, self._tables, self._engine, self._limits.function_deadline_s
        )

    # ------------------------------------------------------------ records

    async def accept(self, name: str, body: bytes, key: str | None, *, visible: bool) -> AcceptedRecords:
        """Accepts records for the feed called `dataverse.name`, or `name` in the dataverse Default."""
        entry = self._find_entry(name)
        try:
            feed = self._running_feed(entry, name)
            accepted = await feed.accept(body, key)
        except TocsinError as error:
            self._started.counts(entry).refused[error.status] += 1
            raise
        if visible:
            await feed.until_landed(accepted.position)
        return accepted

    def describe(self, name: str) -> StatementSummary:
        """Describes the format of the feed's records for publishers."""
        entry = self._find_entry(name)
        return {"feed": full_name(entry), **self._started.options(entry).describe()}

    def _find_entry(self, name: str) -> FeedEntry:
        dataverse, dot, feed_name = name.rpartition(".")
        entry = self._catalog.catalog.find(feed_ref(dataverse if dot else DEFAULT, feed_name))
        if not isinstance(entry, FeedEntry):
            raise NotFoundError(f"there is no feed {name}", hint="CREATE FEED makes one")
        return entry

    def _running_feed(self, entry: FeedEntry, name: str) -> AnyFeed:
        feed = self._started.find(entry.ref)
        if feed is not None:
            return feed
        if (troubles := self._started.troubles(entry.ref)) and entry.started:
            raise UnavailableError(
                f"the feed {name} could not go on: {troubles[0].reason}",
                hint=f"mend that, then START FEED {entry.name}",
            )
        raise ConflictError(f"the feed {name} is stopped", hint=f"START FEED {entry.name}")

    def figures(self) -> list[FeedMetrics]:
        """Returns the metrics of every feed in the catalog. Thread-safe."""
        return self._started.figures()

    # ------------------------------------------------------------ statements

    @_in_turn
    async def create(self, statement: st.CreateFeed, scope: StatementScope) -> StatementSummary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        if scope.catalog.find(feed_ref(dataverse, name)) is not None:
            if statement.if_not_exists:
                return {"name": name, "existed": True}
            raise ConflictError(
                f"the feed {join_names(dataverse, name)} exists already",
                hint="CREATE FEED … IF NOT EXISTS leaves it as it is; DROP FEED removes it",
            )
        try:
            values = {option: evaluate(node, scope.now) for option, node in statement.options.items()}
        except NotConstantError:
            raise TranslationError("the options of a feed are constants", statement.offset) from None
        options = feed_options(values, self._limits.least_poll_period_s, self._limits.node_host)
        if options.files is not None:
            values["path"] = ",".join(options.files.paths)  # a relative path means the folder of today
        self._check_address(options)
        where, _, type_name = options.type_name.rpartition(".")
        type_entry = scope.catalog.type_(where or dataverse, type_name)
        if options.files is None:
            decoder_of(options, type_entry.type)  # raises an error for an unreadable format
        entry = FeedEntry(
            dataverse, name,
            options=tuple(sorted((option, _option_text(value)) for option, value in values.items())),
            type_name=join_names(type_entry.dataverse, type_entry.name), type=type_entry.type, folder=new_folder(),
        )  # fmt: skip
        rejected_name = f"{entry.rejected.name}Type"
        rejected_type = TypeEntry(dataverse, rejected_name, ObjectType(REJECTED.fields, False, rejected_name), "")
        rejected = DatasetEntry(
            dataverse, entry.rejected.name, type_name=join_names(dataverse, rejected_name), type=rejected_type.type,
            keys=(("id",),), autogenerated=False, active=False, folder=new_folder(), history=1,
            retention_s=_REJECTED_RETENTION_S,
        )  # fmt: skip
        # check for conflicts before anything is on the disk
        scope.catalog.with_(rejected_type).with_(rejected).with_(entry)
        await self._catalog.removals.intend(rejected)
        try:
            await self._engine.work(lambda: self._tables.create(rejected), asks_spark=False)
            await self._catalog.apply([Put(rejected_type), Put(rejected), Put(entry)])
        finally:
            # Ask the catalog whether the feed exists: a commit may succeed although this task was cancelled.
            created = self._catalog.catalog.find(rejected.ref)
            if not isinstance(created, DatasetEntry) or created.folder != rejected.folder:
                await wait_despite_cancel(self._tables.discard(rejected.folder))
        return with_notes({"name": name}, options.notes)

    @_in_turn
    async def connect(self, statement: st.ConnectFeed, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.feed, scope)
        dataset = scope.catalog.dataset(statement.dataset.dataverse or scope.dataverse, statement.dataset.name)
        notes = [] if statement.policy is None else [policy_note(statement.policy)]
        answer = with_notes({"name": entry.name}, notes)
        if any(connection.dataset == dataset.ref for connection in entry.connections):
            raise ConflictError(f"the feed {entry.name} is connected to {dataset.name} already")
        function = None
        if statement.function is not None:
            function_entry = scope.catalog.function(
                statement.function.dataverse or scope.dataverse, statement.function.name, 1
            )
            function = function_ref(function_entry.dataverse, function_entry.name, 1)
        if dataset.ref == entry.rejected:
            raise ConflictError(f"{dataset.name} is where the feed {entry.name} keeps what it refused")
        feed = await self._resume(entry)
        if feed is None:
            connection = FeedConnection(dataset.ref, function, await asyncio.to_thread(self._end, entry))
            await self._put(replace(entry, connections=(*entry.connections, connection)))
            return answer
        target = await self._engine.work(lambda: self._started.target(entry, FeedConnection(dataset.ref, function, 0)))
        # Do not await between here and `feed.add`: from now on the log must keep records for the new worker.
        target.position = max(target.position, feed.end)
        worker = feed.add(target)
        connection = FeedConnection(dataset.ref, function, target.position)
        try:
            await self._put(replace(entry, connections=(*entry.connections, connection)))
            faults.reach("feeds.connect.recorded")
        finally:
            if self._is_connected(entry, dataset.ref):
                worker.start()
            else:
                await wait_despite_cancel(feed.remove(worker))
        return answer

    def _end(self, entry: FeedEntry) -> int:
        if self._started.options(entry).files is not None:
            return after_last(self._started.checkpoint(entry))
        path = self._started.folder(entry)
        if not path.exists():
            return 0
        intake = IntakeLog.open(path, lost=self._started.lost)
        try:
            return intake.end
        finally:
            asyncio.run(intake.close())

    @_in_turn
    async def disconnect(self, statement: st.DisconnectFeed, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.feed, scope)
        ref = dataset_ref(statement.dataset.dataverse or scope.dataverse, statement.dataset.name)
        remaining = tuple(connection for connection in entry.connections if connection.dataset != ref)
        if len(remaining) == len(entry.connections):
            raise NotFoundError(f"the feed {entry.name} is not connected to {statement.dataset}")
        if entry.started and not remaining:
            raise ConflictError(
                f"the feed {entry.name} is started, and {statement.dataset} is the only dataset that it goes to",
                hint="STOP FEED first, or CONNECT it to another dataset",
            )
        feed = await self._resume(entry)
        if feed is None:
            await self._put(replace(entry, connections=remaining))
            return {"name": entry.name}
        worker = feed.worker_for(ref)
        if not statement.force:
            impossible = f"the feed {entry.name} cannot be disconnected from {statement.dataset}"
            await feed.until_drained([worker], impossible, "DISCONNECT … FORCE")
            faults.reach("feeds.disconnect.landed")
        try:
            await self._put(replace(entry, connections=remaining))
            faults.reach("feeds.disconnect.recorded")
        finally:
            if not self._is_connected(entry, ref):
                await wait_despite_cancel(feed.remove(worker))
        return {"name": entry.name}

    def _is_connected(self, entry: FeedEntry, dataset: Ref) -> bool:
        """Asks the catalog now: if the task is cancelled during its commit, the commit may still have succeeded."""
        current = self._catalog.catalog.find(entry.ref)
        return isinstance(current, FeedEntry) and any(
            connection.dataset == dataset for connection in current.connections
        )

    async def _resume(self, entry: FeedEntry) -> AnyFeed | None:
        """Returns the running feed, or None for a stopped one. Retries a feed that failed to resume after a restart."""
        return await self._started.resume(entry) if entry.started else None

    async def _put(self, entry: FeedEntry) -> None:
        if self._catalog.catalog.find(entry.ref) is None:
            raise NotFoundError(f"the feed {entry.name} was dropped meanwhile")
        await self._catalog.apply([Put(entry, when_taken="replace")])

    @_in_turn
    async def start_feed(self, statement: st.StartFeed, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.feed, scope)
        if not entry.connections:
            raise ConflictError(
                f"the feed {entry.name} is connected to no dataset", hint="CONNECT FEED … TO DATASET … first"
            )
        if entry.started:
            already = self._started.find(entry.ref) is not None and not self._started.troubles(entry.ref)
            await self._started.listen(await self._started.resume(entry))
            return {"name": entry.name, "already": True} if already else {"name": entry.name}
        options = self._started.options(entry)
        if options.files is not None:
            options.files.check()
        self._check_address(options)
        feed = await self._started.prepare(entry)
        # A feed acknowledges nothing before the catalog says that it is started, so a crash leaves nothing behind.
        async with self._follow_catalog(entry, feed):
            await self._started.listen(feed)
            faults.reach("feeds.start.ready")
            await self._put(replace(entry, started=True))
            faults.reach("feeds.start.recorded")
        return {"name": entry.name}

    @_in_turn
    async def stop_feed(self, statement: st.StopFeed, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.feed, scope)
        if not entry.started:
            return {"name": entry.name, "already": True}
        feed = await self._started.resume(entry)
        await feed.drain(f"the feed {entry.name} cannot be stopped")
        async with self._follow_catalog(entry, feed):
            faults.reach("feeds.stop.landed")
            await self._put(replace(entry, started=False))
            faults.reach("feeds.stop.recorded")
        return {"name": entry.name}

    @asynccontextmanager
    async def _follow_catalog(self, entry: FeedEntry, feed: AnyFeed | None) -> AsyncIterator[None]:
        """Opens or ends the feed at the end, as the catalog says then: a commit may succeed although this task was
        cancelled."""
        try:
            yield
        finally:
            if not self._started.is_started(entry):
                await self._started.end(entry.ref)
            elif feed is not None:
                feed.open()

    @_in_turn
    async def drop(self, statement: st.DropFeed, scope: StatementScope) -> StatementSummary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        entry = scope.catalog.find(feed_ref(dataverse, name))
        if not isinstance(entry, FeedEntry):
            if statement.if_exists:
                return {"name": name, "existed": False}
            raise scope.catalog.not_found_error(feed_ref(dataverse, name))
        rejected = scope.catalog.find(entry.rejected)
        changes: list[Change] = [Remove(entry.ref)]
        if isinstance(rejected, DatasetEntry):
            changes += [Remove(rejected.ref), Remove(type_ref(dataverse, f"{rejected.name}Type"))]
        feed = self._started.find(entry.ref)
        if entry.started and not statement.force:
            feed = await self._resume_to_drop(entry)
            await feed.drain(f"the feed {entry.name} cannot be dropped", "DROP … FORCE")
        async with self._follow_catalog(entry, feed):
            await self._catalog.apply(changes)
            faults.reach("feeds.drop.recorded")
        if isinstance(rejected, DatasetEntry):
            await wait_despite_cancel(self._tables.drop(rejected.folder))
        await self._started.sweep()
        return {"name": name}

    async def _resume_to_drop(self, entry: FeedEntry) -> AnyFeed:
        try:
            return await self._started.resume(entry)
        except TocsinError as error:
            raise UnavailableError(
                f"the feed {entry.name} cannot be dropped: what it acknowledged cannot be landed: {error.message}",
                hint="mend that, or give it up: DROP … FORCE",
            ) from error

    def _check_address(self, options: FeedOptions) -> None:
        if options.polling is not None:
            self._guard.check(options.polling.url, "the feed's address")

    def _entry(self, name: st.Name, scope: StatementScope) -> FeedEntry:
        return scope.catalog.feed(name.dataverse or scope.dataverse, name.name)


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
