"""Builds the cluster from its parts: together with `compose_broker`, the only file that names concrete classes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tocsin.clock import from_us
from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, DATASETS, INTAKE
from tocsin.cluster.backup.progress import Progress, no_progress
from tocsin.cluster.backup.restore import restore as restored
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.channels.announcements.announcer import Announcer, AnnouncerTiming
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.channels import Channels
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.lost_channels import LostChannels, refuse_lost_channels
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.channels.virtual_datasets import VirtualDatasets
from tocsin.cluster.data_folder import lock_owner
from tocsin.cluster.data_folder.clock_guard import ClockGuard, machine_clocks
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.data_folder.inspection.inspection import Inspection
from tocsin.cluster.data_folder.lock import FolderLock
from tocsin.cluster.data_folder.lost_folder import LostFolder, refuse_lost_catalog
from tocsin.cluster.data_folder.removals import Removals, list_paths
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.engine.watchdog import WatchdogLimits
from tocsin.cluster.engine.watchdog_thread import EngineWatch
from tocsin.cluster.feeds.adapters.sockets import SocketLimits
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.routes import Backup, cluster_application
from tocsin.cluster.procedures.procedures import AT_ONCE, Procedures
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.script_runner import ScriptRunner
from tocsin.pipeline import session
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.delta.tombstones import find_newest_time_us
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.session import SparkSessions
from tocsin.serving import tokens as minting
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.application import serve
from tocsin.serving.supervisor import Command, Supervisor
from tocsin.serving.tokens import Token
from tocsin.settings import Settings
from tocsin.store.broker import broker_backup
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import CommittedExecution
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.interface import ClusterStore, TokenRow
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.store.private_folder import PRIVATE, make_private
from tocsin.wire.errors import NotFoundError, UnauthorizedError

# The grammar limits how deep a statement may be nested (language.syntax.script.DEPTH_LIMIT); each level takes about
# thirty frames.
RECURSION_LIMIT = 12_000


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    app: web.Application
    statements: ScriptRunner
    store: ClusterStore
    catalog: CatalogStore
    tables: DatasetTables
    feeds: Feeds
    channels: Channels
    channel_store: ChannelStore


def tables_of(settings: Settings, guard: ClockGuard | None = None) -> DatasetTables:
    dataset_settings = settings.cluster.datasets
    return DatasetTables(
        settings.data.absolute() / DATASETS,
        key_index_limit=dataset_settings.key_index_limit,
        upkeep_period_s=dataset_settings.upkeep_period_s,
        outside_readers_s=dataset_settings.outside_readers_s,
        outside_readers_bytes=dataset_settings.outside_readers_bytes,
        clock=None if guard is None else TableClock(guard.now_us, guard.age_us),
    )


def store_of(settings: Settings) -> ClusterStore:
    return SqliteStore(settings.data / CATALOG)


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
        if not set_aside:
            refuse_missing_catalog(settings)  # check before the slow start of Spark
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
    scratch = _scratch(settings)
    # A killed cluster may have left files here that are no longer needed.
    await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    scratch.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    spark_settings = settings.cluster.spark

    def start() -> Any:
        return session.start(
            scratch, master=spark_settings.master, driver_memory=spark_settings.driver_memory, conf=spark_settings.conf
        )

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
    limits: ExecutionLimits | None = None,
) -> AsyncIterator[Cluster]:
    """Builds everything of a cluster except the folder's lock and Spark, which the caller provides. With `sessions`, a
    watchdog replaces the engine if it fails. `clock` replaces the guarded clock for the removals after a DROP, and
    `limits` the limits of executions that the settings give."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))
    make_private(settings.data)
    guard = await asyncio.to_thread(_guard_clock, settings)

    def guarded() -> datetime:
        return from_us(guard.now_us())

    async with opened_stores(settings, guarded, set_aside=set_aside) as (store, channel_store):
        catalog = CatalogStore(store, Removals(store, clock or guarded))
        loaded_catalog = await catalog.load()
        lost = LostFolder(settings.data.absolute(), clock or guarded, _say)
        cluster_settings = settings.cluster
        clock_task = asyncio.create_task(guard.watch(), name="clock")
        tables = tables_of(settings, guard)
        await tables.start({entry.folder for entry in loaded_catalog.datasets}, catalog.removals, lost)

        def make_python(spark: Any) -> PythonFunctions:
            return PythonFunctions(
                spark,
                settings.data.absolute() / cluster_settings.python.folder,
                _scratch(settings) / "python.log",
                cluster_settings.python.call_timeout_s,
            )

        threads = cluster_settings.statements.concurrent + AT_ONCE + 2
        engine = Engine(
            spark, make_python, _scratch(settings), threads=threads, lost_limit=cluster_settings.spark.unstoppable_limit
        )
        watchdog_limits = WatchdogLimits(
            ping_timeout_s=cluster_settings.spark.ping_timeout_s, lost_limit=cluster_settings.spark.unstoppable_limit
        )
        watch = None if sessions is None else EngineWatch(engine, sessions, watchdog_limits)
        loopback = cluster_settings.http.local
        feed_addresses = AddressGuard.of(cluster_settings.feeds.private, "cluster.feeds.private", loopback=loopback)
        broker_addresses = AddressGuard.of(
            cluster_settings.channels.private, "cluster.channels.private", loopback=loopback
        )
        deadline_s = cluster_settings.statements.timeout_s
        intake = settings.data.absolute() / INTAKE
        sockets = SocketLimits(
            cluster_settings.feeds.socket_connections_limit, cluster_settings.feeds.socket_address_connections_limit
        )
        feeds = Feeds(
            catalog, tables, engine, intake, feed_addresses, socket_limits=sockets, function_deadline_s=deadline_s
        )
        changes = DmlHandler(tables, engine)
        procedures = Procedures(catalog, tables, engine, changes, deadline_s=deadline_s)
        announcer = Announcer(
            catalog,
            channel_store,
            pace=AnnouncerTiming(cluster_settings.channels.announcement_timeout_s),
            guard=broker_addresses,
        )
        retention = Retention(catalog, channel_store, cluster_settings.channels, now=lambda: from_us(guard.age_us()))

        def committed(one: CommittedExecution) -> None:
            if one.results:
                announcer.committed(one)
            retention.wake()

        channels = Channels(
            catalog, tables, engine, channel_store, announce=committed, dropped=announcer.dropped,
            limits=limits or ExecutionLimits.of(cluster_settings.channels),
        )  # fmt: skip
        brokers = Brokers(catalog, channel_store, announcer)
        engine.shows = VirtualDatasets(channel_store, procedures.runs)
        statements = ScriptRunner(
            catalog,
            tables,
            engine,
            changes,
            procedures,
            feeds,
            brokers,
            channels,
            cluster_settings,
            settings.data.absolute(),
        )
        try:
            if watch is not None:
                watch.start()
            # Set channels aside first: the copy has everything, also what a broker's removal then ends.
            await channels.start(lost)
            await announcer.start()
            retention.start()
            await feeds.start(lost)
            await procedures.start()
            backup = _backup(settings, store, channel_store, LiveTables(catalog, tables), feeds)
            subscriptions = Subscriptions(catalog, channel_store, cluster_settings.channels.interests_limit)
            app = cluster_application(
                cluster_settings, statements, StoredCredentials(store), engine=watch, backup=backup, feeds=feeds,
                channel_figures=channels.figures, kept_for_readers=tables.kept_for_readers, guard=guard,
                brokers=BrokerApi(channel_store, subscriptions, brokers, announcer, retention),
                spool_folder=_scratch(settings),
            )  # fmt: skip
            yield Cluster(app, statements, store, catalog, tables, feeds, channels, channel_store)
        finally:
            await procedures.close()
            await feeds.close()
            await channels.close()
            await retention.close()
            await announcer.close()
            if watch is not None:
                await asyncio.to_thread(watch.close)
            await statements.close()
            await tables.close()
            clock_task.cancel()
            guard.close()


@asynccontextmanager
async def opened_store(settings: Settings, *, set_aside: bool = False) -> AsyncIterator[ClusterStore]:
    make_private(settings.data)
    if not set_aside:
        refuse_missing_catalog(settings)
    store = store_of(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened_stores(
    settings: Settings, now: Callable[[], datetime] = _now, *, set_aside: bool = False
) -> AsyncIterator[tuple[ClusterStore, ChannelStore]]:
    """Opens the stores of the catalog and of the channels. Raises StoreError if one of them was lost, unless
    `set_aside`."""
    path = settings.data / CHANNELS
    async with opened_store(settings, set_aside=set_aside) as store:
        catalog = CatalogStore(store)
        loaded_catalog = await catalog.load()
        if not (set_aside or path.exists()):
            refuse_lost_channels(path, loaded_catalog.channels)  # refuse before an empty store is created in its place
        async with opened_channel_store(settings, now) as channel_store:
            if not set_aside:
                await refuse_empty_catalog(settings, store, channel_store)
                refuse_lost_channels(path, await LostChannels(catalog, channel_store).find())
            yield store, channel_store


def _guard_clock(settings: Settings) -> ClockGuard:
    """Creates the clock guard of the data folder from the newest commit time."""
    newest = (find_newest_time_us(folder) for folder in list_paths(settings.data / DATASETS))
    return ClockGuard(settings.data, machine_clocks(), max(newest, default=0))


@asynccontextmanager
async def opened_channel_store(settings: Settings, now: Callable[[], datetime] = _now) -> AsyncIterator[ChannelStore]:
    """A new store derives its first epoch from `now`, which must be later than the epochs of a store that was lost."""
    store = SqliteChannelStore(settings.data / CHANNELS, now=now)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _data_in(settings: Settings) -> list[Path]:
    """Returns the folders of the datasets and of the feeds' intake logs."""
    return list_paths(settings.data / DATASETS) + list_paths(settings.data / INTAKE)


def refuse_missing_catalog(settings: Settings) -> None:
    """Refuses to start if data exist without a catalog. A new empty catalog would be in the way of restoring the old
    one."""
    if not (settings.data / CATALOG).exists():
        refuse_lost_catalog(settings.data, settings.data / CATALOG, _data_in(settings))


async def refuse_empty_catalog(settings: Settings, store: ClusterStore, channels: ChannelStore) -> None:
    """Raises StoreError if the catalog is empty, and the folder has data that no recorded removal explains."""
    if await store.entries():
        return
    removal_names = {removal.name for removal in await store.removals()}
    unexplained = [path for path in _data_in(settings) if path.name not in removal_names]
    if any(str(channel_id) not in removal_names for channel_id in await channels.channel_ids()):
        unexplained.append(settings.data / CHANNELS)
    refuse_lost_catalog(settings.data, settings.data / CATALOG, unexplained)


def _scratch(settings: Settings) -> Path:
    # Spark has another working directory, so its paths must be absolute.
    return settings.data.absolute() / "scratch"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """Checks tokens against the store at each request, so that a revoked token is refused at once."""

    store: ClusterStore

    async def check(self, secret: str) -> Token:
        token_rows = await self.store.tokens()
        if not token_rows:
            raise UnauthorizedError("this cluster has no tokens yet", hint=minting.HOW_TO_MAKE)
        return minting.check(secret, token_rows)


@dataclass(frozen=True, slots=True)
class StoredTokens:
    store: ClusterStore

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[TokenRow, str]:
        minted = minting.mint(name, role, feeds)
        async with self.store.transaction() as tx:
            row = await tx.add_token(minted.name, minted.digest, minted.role, datetime.now(UTC), minted.feeds)
        return row, minted.secret

    async def list(self) -> Sequence[TokenRow]:
        return await self.store.tokens()

    async def revoke(self, identity: int) -> TokenRow:
        async with self.store.transaction() as tx:
            if not await tx.revoke_token(identity, datetime.now(UTC)):
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


class LiveTables(Mapping[str, DatasetTable]):
    """The table of every dataset by folder, always as in the current catalog."""

    def __init__(self, catalog: CatalogStore, tables: DatasetTables) -> None:
        self._catalog = catalog
        self._tables = tables

    def __getitem__(self, folder: str) -> DatasetTable:
        for entry in self._catalog.catalog.datasets:
            if entry.folder == folder:
                return self._tables.table(entry)
        raise KeyError(folder)

    def __iter__(self) -> Iterator[str]:
        return iter([entry.folder for entry in self._catalog.catalog.datasets])

    def __len__(self) -> int:
        return len(self._catalog.catalog.datasets)


def _backup(
    settings: Settings, store: ClusterStore, channels: ChannelStore, tables: LiveTables, feeds: Feeds
) -> Backup:
    async def write(destination: Path, on_progress: Progress = no_progress) -> Mapping[str, Any]:
        manifest = await write_backup(
            store, tables, destination, data=settings.data, channels=channels, backup_barrier=feeds.backup_barrier(),
            save_brokers=lambda held: broker_backup.save_all(settings.data, held), on_progress=on_progress,
        )  # fmt: skip
        return manifest.summary()

    return write


async def offline_backup(settings: Settings, destination: Path, on_progress: Progress) -> Mapping[str, Any]:
    """Backs up a folder that no cluster uses."""
    async with lock_folder(settings), opened_stores(settings) as (store, channels):
        catalog = CatalogStore(store)
        await catalog.load()
        tables = tables_of(settings)
        try:
            manifest = await write_backup(
                store, LiveTables(catalog, tables), destination, data=settings.data, channels=channels,
                save_brokers=lambda held: broker_backup.save_all(settings.data, held), on_progress=on_progress,
            )  # fmt: skip
            return manifest.summary()
        finally:
            await tables.close()


async def restore(settings: Settings, source: Path, on_progress: Progress) -> Mapping[str, Any]:
    manifest = await restored(
        source, settings.data, open_store=SqliteStore, open_channels=SqliteChannelStore,
        settle_broker=broker_backup.settle, on_progress=on_progress,
    )  # fmt: skip
    return manifest.summary()


def check(settings: Settings, *, deep: bool, on_progress: Callable[[int, int, str], None]) -> Mapping[str, Any]:
    """Reports what is damaged in the data folder. It only reads, so a cluster may use the folder meanwhile."""
    layouts = {
        "catalog": SqliteStore.layout,
        "channels": SqliteChannelStore.layout,
        "broker": SqliteBrokerStore.layout,
    }
    return Inspection(settings.data.absolute(), layouts, deep=deep, on_progress=on_progress).run().to_json()


def folder_holder(settings: Settings) -> lock_owner.LockOwner | None:
    """Returns the process that uses the data folder now."""
    return lock_owner.find(settings.data)
