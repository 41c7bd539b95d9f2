"""Builds the cluster from its parts, and opens a data folder for the command line.

With `compose_broker` and `broker.app`, the only place that names concrete classes: every other module gets its parts as
arguments, so that a test can pass others.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from tocsin.clock import from_us
from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, DATASETS, INTAKE
from tocsin.cluster.backup.progress import OnSaved
from tocsin.cluster.backup.restore import restore as restored
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.broker_notifier import AnnouncerTiming
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.channels import Channels
from tocsin.cluster.channels.dataset_changes import ChannelDatasetChanges
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscription_statements import SubscriptionStatements
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.channels.virtual_datasets import VirtualDatasets
from tocsin.cluster.data_folder.clock_guard import ClockGuard, Clocks, machine_clocks
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.data_folder.inspection.inspection import Inspection
from tocsin.cluster.data_folder.lock import FolderLock, LockOwner, find_owner
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import Removals, list_content
from tocsin.cluster.data_folder.start_check import (
    refuse_empty_catalog,
    refuse_lost_channels,
    refuse_missing_catalog,
    refuse_missing_channels,
)
from tocsin.cluster.data_folder.storage_owner import claim_storage
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.engine.watchdog import WatchdogLimits
from tocsin.cluster.engine.watchdog_thread import EngineWatch
from tocsin.cluster.feeds.adapters.http_port import PortAccess
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.routes import cluster_application, port_authentication, server_limits
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.procedures import AT_ONCE, Procedures
from tocsin.cluster.statements.script_runner import ScriptRunner
from tocsin.pipeline import session
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.delta.tombstones import find_newest_time_us
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.session import SparkSessions
from tocsin.pipeline.spark import masters
from tocsin.serving import tokens as token_secrets
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.application import body_budget, serve
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.supervisor import Command, Supervisor
from tocsin.serving.tokens import Token
from tocsin.settings import ClusterSettings, Settings
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.storage.locations import bucket_of, check_storage, is_shared, open_storage
from tocsin.store.broker import broker_backup
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.interface import ClusterStore, TokenRow
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.store.private_folder import PRIVATE, make_private
from tocsin.wire.errors import NotFoundError, UnauthorizedError

# The grammar limits how deep a statement may be nested (language.syntax.script.DEPTH_LIMIT); each level takes about
# thirty frames.
_RECURSION_LIMIT = 12_000

_AnyStore = TypeVar("_AnyStore", SqliteStore, SqliteChannelStore)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    app: web.Application
    statements: ScriptRunner
    engine: Engine
    store: ClusterStore
    catalog: CatalogStore
    tables: DatasetTables
    feeds: Feeds
    channels: Channels
    channel_store: ChannelStore
    back_up: Callable[[Path], Coroutine[Any, Any, Mapping[str, Any]]]


async def serve_cluster(
    settings: Settings,
    on_ready: Callable[[str], None],
    beside: Callable[[str], Mapping[str, Sequence[str]]] = lambda _address: {},
    *,
    set_aside: bool = False,
) -> None:
    """Runs a cluster until it is stopped, together with the child processes that `beside` names (names and command
    lines).

    With `set_aside`, data without a catalog are moved to the lost folder, and the cluster starts anew."""
    http = settings.cluster.http
    supervisor = Supervisor()

    def ready(address: str) -> None:
        on_ready(address)
        supervisor.start([Command(name, line, os.environ) for name, line in beside(address).items()])

    @asynccontextmanager
    async def start(address: str) -> AsyncIterator[Cluster]:
        async with cluster(settings, address, set_aside=set_aside) as running_cluster:
            # Stop the child processes first, while the cluster still answers them.
            running_cluster.app.on_shutdown.insert(0, lambda _app: supervisor.stop())
            yield running_cluster

    try:
        await serve(start, host=http.host, port=http.port, on_ready=ready)
    finally:
        await supervisor.stop()


@asynccontextmanager
async def cluster(settings: Settings, address: str | None = None, *, set_aside: bool = False) -> AsyncIterator[Cluster]:
    """Runs a cluster on its data folder. No other process may use the folder meanwhile."""
    async with lock_folder(settings, address) as lock:
        await asyncio.to_thread(check_storage, storage_root(settings))
        if not set_aside:
            # Check before the slow start of Spark.
            await asyncio.to_thread(refuse_missing_catalog, settings.data, datasets_folder(settings))
        async with (
            started_spark(settings, lock) as (spark, sessions),
            assemble_cluster(settings, spark, sessions, set_aside=set_aside) as running_cluster,
        ):
            yield running_cluster


@asynccontextmanager
async def lock_folder(settings: Settings, address: str | None = None) -> AsyncIterator[FolderLock]:
    lock = await FolderLock.take(settings.data, address=address, say=_say)
    try:
        yield lock
    finally:
        lock.release()


@asynccontextmanager
async def started_spark(settings: Settings, lock: FolderLock) -> AsyncIterator[tuple[Any, SparkSessions]]:
    """Starts Spark; yields the first session and the factory of the next ones."""
    bucket = bucket_of(storage_root(settings))
    masters.refuse_local_tables(settings.cluster.spark.master, is_storage_local=bucket is None)
    scratch = _scratch(settings)
    # A killed cluster may have left files here that are no longer needed.
    await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    scratch.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    spark_settings = settings.cluster.spark

    def start() -> Any:
        return session.start(
            scratch, master=spark_settings.master, driver_memory=spark_settings.driver_memory,
            conf=spark_settings.conf, ui=spark_settings.ui, worker_archive=spark_settings.worker_archive,
            bucket=bucket,
        )  # fmt: skip

    sessions = SparkSessions(start, lock.record_child)
    starting = asyncio.create_task(asyncio.to_thread(sessions.start))
    try:
        yield await asyncio.shield(starting), sessions
    finally:
        # Wait for the start even if cancelled: the folder's lock may be released only when nothing works on the folder.
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.to_thread(sessions.stop)


@asynccontextmanager
async def assemble_cluster(
    settings: Settings,
    spark: Any,
    sessions: SparkSessions | None = None,
    *,
    set_aside: bool = False,
    clock: Callable[[], datetime] | None = None,
    clocks: Clocks | None = None,
    limits: ExecutionLimits | None = None,
    feed_limits: FeedLimits = USUAL_LIMITS,
    make_engine: Callable[..., Engine] = Engine,
    statement_clock: Callable[[], datetime] = _now,
) -> AsyncIterator[Cluster]:
    """Builds everything of a cluster except the folder's lock and Spark, which the caller provides. With `sessions`, a
    watchdog replaces the engine if it fails. `clocks` replaces the clocks of the machine, `clock` the guarded clock for
    the removals after a DROP, `statement_clock` the clock that statements see, `limits` the limits of executions that
    the settings give, and `feed_limits` those of feeds that they do not."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
    data, scratch, own = settings.data.absolute(), _scratch(settings), settings.cluster
    make_private(settings.data)
    storage = storage_root(settings)
    guard = await asyncio.to_thread(_guard_clock, settings, clocks)

    def guarded() -> datetime:
        return from_us(guard.now_us())

    async with AsyncExitStack() as stack:  # closes everything in the reverse order
        store, channel_store = await stack.enter_async_context(opened_stores(settings, guarded, set_aside=set_aside))
        stack.callback(guard.close)
        if is_shared(storage):
            await asyncio.to_thread(claim_storage, storage, data)
        # Only now: what is there may belong to another cluster.
        await asyncio.to_thread(results_folder(settings).remove_all)
        catalog = CatalogStore(store, Removals(store, clock or guarded))
        loaded_catalog = await catalog.load()
        lost = LostFolder(data, clock or guarded, _say, storage)
        stack.callback(asyncio.create_task(guard.watch(), name="clock").cancel)
        tables = DatasetTables(storage.child(DATASETS), own.datasets, TableClock(guard.now_us, guard.age_us))
        stack.push_async_callback(tables.close)
        await tables.start({entry.folder for entry in loaded_catalog.datasets}, catalog.removals, lost)

        def make_python(spark: Any) -> PythonFunctions:
            shipped = None if masters.is_local(own.spark.master) else scratch / "shipped"
            folder, log_file = data / own.python.folder, scratch / "python.log"
            return PythonFunctions(spark, folder, log_file, own.python.call_timeout_s, shipped)

        threads, lost_limit = own.statements.concurrent + AT_ONCE + 2, own.spark.unstoppable_limit
        virtual_datasets = VirtualDatasets(channel_store, lambda: procedures.runs())  # noqa: PLW0108 - made below
        engine = make_engine(
            spark, make_python, results_folder(settings), threads=threads, lost_limit=lost_limit,
            virtual_datasets=virtual_datasets,
        )  # fmt: skip
        feed_addresses = AddressGuard.of(own.feeds.private, "cluster.feeds.private", loopback=own.http.local)
        broker_addresses = AddressGuard.of(own.channels.private, "cluster.channels.private", loopback=own.http.local)
        deadline_s = own.statements.timeout_s
        feed_limits = replace(
            feed_limits, connections=own.feeds.socket_connections_limit, function_deadline_s=deadline_s,
            address_connections=own.feeds.socket_address_connections_limit, node_host=own.http.host,
        )  # fmt: skip
        credentials, metrics = StoredTokens(store), ServerMetrics()
        ports = _port_access(own, credentials, metrics)
        feeds = Feeds(catalog, tables, engine, data / INTAKE, feed_addresses, limits=feed_limits, ports=ports)
        subscriptions = Subscriptions(
            catalog, channel_store, own.channels.interests_limit,
            subscribed=lambda channel_id: channels.note_interest(channel_id),  # noqa: PLW0108 - made below
        )  # fmt: skip
        dml = DmlHandler(tables, engine, ChannelDatasetChanges(catalog, channel_store, subscriptions))
        procedures = Procedures(
            catalog, tables, engine, dml, deadline_s=deadline_s, ran_until=from_us(guard.ran_until_us)
        )
        timing = AnnouncerTiming(own.channels.announcement_timeout_s)
        announcer = Announcer(catalog, channel_store, timing=timing, guard=broker_addresses)
        retention = Retention(catalog, channel_store, own.channels, now=lambda: from_us(guard.age_us()))
        channels = Channels(
            catalog, tables, engine, channel_store, commit_listeners=(announcer.announce_commit, retention.note_commit),
            dropped=announcer.announce_drop, limits=limits or ExecutionLimits.of(own.channels),
        )  # fmt: skip
        brokers = Brokers(catalog, channel_store, announcer)
        subscribing = SubscriptionStatements(catalog, engine, subscriptions)
        statements = ScriptRunner(
            catalog, tables, engine, dml, procedures, feeds, brokers, channels, subscribing, own, data,
            now=statement_clock,
        )  # fmt: skip
        stack.push_async_callback(statements.close)
        watch = None
        if sessions is not None:
            watch_limits = WatchdogLimits(ping_timeout_s=own.spark.ping_timeout_s, lost_limit=lost_limit)
            watch = EngineWatch(engine, sessions, watch_limits)
            stack.push_async_callback(asyncio.to_thread, watch.close)
            watch.start()
        for part in (announcer, retention, channels, feeds, procedures):
            stack.push_async_callback(part.close)
        # Set channels aside first: the copy has everything, also what a broker's removal then ends.
        await channels.start(lost)
        await announcer.start()
        retention.start()
        await feeds.start(lost)
        await procedures.start()

        async def back_up(destination: Path) -> Mapping[str, Any]:
            return await _back_up(
                settings, store, channel_store, catalog, tables, destination, backup_barrier=feeds.backup_barrier()
            )

        app = cluster_application(
            own, statements, credentials, engine=watch, backup=back_up, feeds=feeds, metrics=metrics,
            budget=ports.budget,
            channel_figures=channels.figures, kept_for_readers=tables.kept_for_readers, guard=guard,
            brokers=BrokerApi(channel_store, subscriptions, brokers, announcer, retention),
        )  # fmt: skip
        yield Cluster(app, statements, engine, store, catalog, tables, feeds, channels, channel_store, back_up)


def _port_access(settings: ClusterSettings, credentials: StoredTokens, metrics: ServerMetrics) -> PortAccess:
    """The access to the ports of feeds: that of the cluster's server, with as many connections as a feed's sockets."""
    limits = server_limits(settings)
    connections = min(limits.connections_limit, settings.feeds.socket_connections_limit)
    return PortAccess(
        partial(port_authentication, settings, credentials), replace(limits, connections_limit=connections), metrics,
        body_budget(limits, metrics),
    )  # fmt: skip


@asynccontextmanager
async def opened_store(settings: Settings, *, set_aside: bool = False) -> AsyncIterator[ClusterStore]:
    make_private(settings.data)
    if not set_aside:
        await asyncio.to_thread(refuse_missing_catalog, settings.data, datasets_folder(settings))
    async with _open(SqliteStore(settings.data / CATALOG)) as store:
        yield store


@asynccontextmanager
async def opened_stores(
    settings: Settings, now: Callable[[], datetime] = _now, *, set_aside: bool = False
) -> AsyncIterator[tuple[ClusterStore, ChannelStore]]:
    """Opens the stores of the catalog and of the channels. Raises StoreError if one of them was lost, unless
    `set_aside`."""
    async with opened_store(settings, set_aside=set_aside) as store:
        catalog = CatalogStore(store)
        await catalog.load()
        if not set_aside:
            refuse_missing_channels(settings.data, catalog)
        async with opened_channel_store(settings, now) as channel_store:
            if not set_aside:
                await refuse_empty_catalog(settings.data, datasets_folder(settings), store, channel_store)
                await refuse_lost_channels(settings.data, catalog, channel_store)
            yield store, channel_store


def _guard_clock(settings: Settings, clocks: Clocks | None = None) -> ClockGuard:
    """Creates the clock guard of the data folder from the newest commit time."""
    newest = (find_newest_time_us(folder) for folder in list_content(datasets_folder(settings)))
    return ClockGuard(settings.data, clocks or machine_clocks(), max(newest, default=0))


def opened_channel_store(
    settings: Settings, now: Callable[[], datetime] = _now
) -> AbstractAsyncContextManager[ChannelStore]:
    """A new store derives its first epoch from `now`, which must be later than the epochs of a store that was lost."""
    return _open(SqliteChannelStore(settings.data / CHANNELS, now=now))


@asynccontextmanager
async def _open(store: _AnyStore) -> AsyncIterator[_AnyStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def storage_root(settings: Settings) -> StorageFolder:
    """The storage of the datasets: by default the data folder."""
    own = settings.cluster.storage
    return open_storage(own.url, own.options, settings.data.absolute())


def datasets_folder(settings: Settings) -> StorageFolder:
    return storage_root(settings).child(DATASETS)


def results_folder(settings: Settings) -> StorageFolder:
    """Where Spark's tasks write large answers and this process reads them: beside the datasets if they are on S3."""
    storage = storage_root(settings)
    shared = storage if bucket_of(storage) is not None else LocalFolder(settings.data.absolute())
    return shared.child("scratch").child("answers")


def _scratch(settings: Settings) -> Path:
    # Spark has another working directory, so its paths must be absolute.
    return settings.data.absolute() / "scratch"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """The tokens in the cluster's store."""

    store: ClusterStore

    async def check(self, secret: str) -> Token:
        """Reads the store at each request, so that a revoked token is refused at once."""
        token_rows = await self.store.tokens()
        if not token_rows:
            raise UnauthorizedError("this cluster has no tokens yet", hint=token_secrets.HOW_TO_MAKE)
        return token_secrets.check(secret, token_rows)

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[TokenRow, str]:
        minted = token_secrets.mint(name, role, feeds)
        async with self.store.transaction() as tx:
            row = await tx.add_token(minted.name, minted.digest, minted.role, _now(), minted.feeds)
        return row, minted.secret

    async def list(self) -> Sequence[TokenRow]:
        return await self.store.tokens()

    async def revoke(self, identity: int) -> TokenRow:
        async with self.store.transaction() as tx:
            if not await tx.revoke_token(identity, _now()):
                raise NotFoundError(f"there is no live token {identity}", hint="tocsin token list shows them")
        return next(row for row in await self.store.tokens() if row.id == identity)


@asynccontextmanager
async def tokens(settings: Settings, *, make_folder: bool = False) -> AsyncIterator[StoredTokens]:
    """Opens the tokens of a data folder. Raises NotFoundError if the folder does not exist, unless `make_folder`."""
    if not make_folder and not (settings.data / CATALOG).exists():
        raise NotFoundError(
            f"{settings.data.absolute()} is no data folder of a cluster",
            hint="name the cluster's with --data FOLDER; tocsin token create --data makes a new one",
        )
    async with opened_store(settings) as store:
        yield StoredTokens(store)


# ---------------------------------------------------------------- the clock


async def accept_clock(settings: Settings) -> datetime:
    """Accepts the wall clock as right for a folder that no cluster uses, and returns the time."""
    async with lock_folder(settings):
        return from_us(_guard_clock(settings).accept())


# ---------------------------------------------------------------- backup


async def _back_up(  # noqa: PLR0917
    settings: Settings,
    store: ClusterStore,
    channels: ChannelStore,
    catalog: CatalogStore,
    tables: DatasetTables,
    destination: Path,
    **options: Any,
) -> Mapping[str, Any]:
    manifest = await write_backup(
        store, lambda: tables.by_folder(catalog.catalog.datasets), destination, data=settings.data,
        storage=storage_root(settings), channels=channels,
        save_brokers=lambda held: broker_backup.save_all(settings.data, held), **options,
    )  # fmt: skip
    return manifest.summary()


async def offline_backup(settings: Settings, destination: Path, on_progress: OnSaved) -> Mapping[str, Any]:
    """Backs up a folder that no cluster uses."""
    await asyncio.to_thread(check_storage, storage_root(settings))
    async with lock_folder(settings), opened_stores(settings) as (store, channels):
        catalog = CatalogStore(store)
        await catalog.load()
        tables = DatasetTables(datasets_folder(settings), settings.cluster.datasets)
        try:
            return await _back_up(settings, store, channels, catalog, tables, destination, on_progress=on_progress)
        finally:
            await tables.close()


async def restore(settings: Settings, source: Path, on_progress: OnSaved) -> Mapping[str, Any]:
    await asyncio.to_thread(check_storage, storage_root(settings))
    manifest = await restored(
        source, settings.data, open_store=SqliteStore, open_channels=SqliteChannelStore,
        settle_broker=broker_backup.settle, storage=storage_root(settings), on_progress=on_progress,
    )  # fmt: skip
    return manifest.summary()


def check(settings: Settings, *, deep: bool, on_progress: Callable[[int, int, str], None]) -> Mapping[str, Any]:
    """Reports what is damaged in the data folder. It only reads, so a cluster may use the folder meanwhile."""
    check_storage(storage_root(settings))
    layouts = {"catalog": SqliteStore.layout, "channels": SqliteChannelStore.layout, "broker": SqliteBrokerStore.layout}
    inspection = Inspection(
        settings.data.absolute(), layouts, storage_root(settings), deep=deep, on_progress=on_progress
    )
    return inspection.run().to_json()


def folder_holder(settings: Settings) -> LockOwner | None:
    """Returns the process that uses the data folder now."""
    return find_owner(settings.data)
