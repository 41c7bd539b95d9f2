"""Starts, finds and ends the running feeds of a cluster. A feed whose sockets are in use retries in the background.

The catalog says which feeds are started, so a restart resumes them; a feed that cannot start does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import DatasetEntry, FeedConnection, FeedEntry
from tocsin.cluster.catalog.refs import Ref, full_name
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import FEED
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.adapters.files import FileFeed
from tocsin.cluster.feeds.adapters.http_port import HttpPort, PortAccess
from tocsin.cluster.feeds.adapters.seen_items import SeenItems
from tocsin.cluster.feeds.adapters.sockets import SocketServer
from tocsin.cluster.feeds.adapters.url_poller import UrlPoller
from tocsin.cluster.feeds.isolate_failures import Enrich
from tocsin.cluster.feeds.landing import Landing, Rejections
from tocsin.cluster.feeds.landing_worker import LandingTarget
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts, FeedMetrics, FeedState
from tocsin.cluster.feeds.options import FeedOptions, feed_options
from tocsin.cluster.feeds.running_feed import RunningFeed
from tocsin.cluster.intake.log import IntakeLog
from tocsin.cluster.shared_lock import SharedLock
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.pipeline.sources import polled_items
from tocsin.pipeline.sources.decoder import Decode, decoder
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.types import ObjectType
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.serving.trouble import Trouble
from tocsin.storage.local import LocalFolder
from tocsin.uncancellable import wait_despite_cancel
from tocsin.wire.errors import StoreError, TocsinError, UnavailableError

_log = structlog.get_logger()

AnyFeed: TypeAlias = RunningFeed | FileFeed

_FIRST_RETRY_S: Final = 1.0
# An operator creates this file to accept the loss of a log: the new log then begins at the position of its datasets.
_BEGIN_ANEW: Final = "begin-anew"


class RunningFeeds:
    def __init__(
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        folder: Path,
        enrich: Callable[[FeedEntry, Ref], Enrich],
        *,
        guard: AddressGuard = UNGUARDED,
        limits: FeedLimits = USUAL_LIMITS,
        ports: PortAccess | None = None,
    ) -> None:
        self._ports = ports or PortAccess()
        self._guard = guard
        self._limits = limits
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._folder = folder
        self._enrich = enrich
        self._running: dict[Ref, AnyFeed] = {}
        self.backup_barrier = SharedLock()
        """Holds back the feeds of files during a backup: they have a checkpoint and no log."""
        self._troubles: dict[Ref, Trouble] = {}
        self._counts: dict[str, FeedCounts] = {}
        """By the folder of the feed's log; no other feed ever gets the same folder."""
        self._retrying: dict[Ref, asyncio.Task[None]] = {}
        self.lost: LostFolder | None = None

    # ------------------------------------------------------------ start and end of the cluster

    async def start(self, lost: LostFolder) -> None:
        """Resumes started feeds, deletes the logs of dropped ones, and sets unexplained logs aside."""
        self.lost = lost
        self._folder.mkdir(parents=True, exist_ok=True)
        await self.sweep()
        known_folders = {entry.folder for entry in self._catalog.catalog.feeds}
        unexplained = await self._catalog.removals.find_unexplained(FEED, LocalFolder(self._folder), known_folders)
        await asyncio.to_thread(lost.set_aside, unexplained, FEED)
        for entry in self._catalog.catalog.feeds:
            if entry.started:
                try:
                    await self.resume(entry)
                except Exception as error:
                    # A feed that cannot start must not stop the others.
                    _log.error("a feed could not be started", feed=entry.name, reason=str(error))

    async def sweep(self) -> None:
        """Deletes the logs of dropped feeds that have ended."""
        known_folders = {entry.folder for entry in self._catalog.catalog.feeds}
        used = known_folders | {feed.entry.folder for feed in self._running.values()}
        await self._catalog.removals.carry_out(
            FEED, LocalFolder(self._folder), lambda removal: removal.name not in used
        )
        for folder in set(self._counts) - known_folders:
            self._counts.pop(folder, None)

    async def close(self) -> None:
        await asyncio.gather(*(self.end(ref) for ref in list(self._running)))

    def folder(self, entry: FeedEntry) -> Path:
        return self._folder / entry.folder

    def options(self, entry: FeedEntry) -> FeedOptions:
        return feed_options(dict(entry.options), self._limits.least_poll_period_s, self._limits.node_host)

    def checkpoint(self, entry: FeedEntry) -> Checkpoint:
        """The checkpoint of a feed of files, which takes the place of a log."""
        return Checkpoint(self.folder(entry))

    # ------------------------------------------------------------ state

    def find(self, ref: Ref) -> AnyFeed | None:
        return self._running.get(ref)

    def refs(self) -> list[Ref]:
        return list(self._running)

    def troubles(self, ref: Ref) -> list[Trouble]:
        """Lists which work of a started feed fails at the moment; empty if all is well."""
        troubles = [] if ref not in self._troubles else [self._troubles[ref]]
        feed = self._running.get(ref)
        return troubles if feed is None else troubles + feed.troubles

    def counts(self, entry: FeedEntry) -> FeedCounts:
        return self._counts.setdefault(entry.folder, FeedCounts())

    def figures(self) -> list[FeedMetrics]:
        """Returns the metrics of every feed in the catalog. Thread-safe."""
        return [
            FeedMetrics(full_name(entry), self.counts(entry), self._state(entry.ref))
            for entry in self._catalog.catalog.feeds
        ]

    def _state(self, ref: Ref) -> FeedState | None:
        feed = self._running.get(ref)
        if feed is None:
            return None
        lag, lag_age_s = feed.lag()
        return FeedState(feed.unlanded_bytes, lag, lag_age_s, feed.connections)

    def is_started(self, entry: FeedEntry) -> bool:
        """Whether the catalog says, now, that the feed is started."""
        current = self._catalog.catalog.find(entry.ref)
        return isinstance(current, FeedEntry) and current.folder == entry.folder and current.started

    # ------------------------------------------------------------ starting a feed

    async def resume(self, entry: FeedEntry) -> AnyFeed:
        """Returns a feed that the catalog calls started, running. If its sockets are in use, the feed runs without them
        and retries until they are free."""
        feed = self._running.get(entry.ref)
        if feed is not None:
            return feed
        try:
            feed = await self.prepare(entry)
        except Exception as error:
            self._note_trouble(entry.ref, "starting", error)
            if isinstance(error, TocsinError):
                raise
            raise UnavailableError(f"the feed {entry.name} cannot be started: {error}") from error
        feed.open()
        try:
            await self.listen(feed)
        except TocsinError as error:
            _log.error("a feed runs without its sockets; retrying", feed=entry.name, reason=str(error))
            self._retrying[entry.ref] = asyncio.create_task(self._listen_again(feed), name=f"sockets {entry.name}")
        return feed

    async def prepare(self, entry: FeedEntry) -> AnyFeed:
        """Registers a feed with its log and datasets open. It neither accepts nor lands records yet."""
        options = self.options(entry)
        targets = await self._engine.work(lambda: self._targets(entry), asks_spark=False)
        feed: AnyFeed
        if options.files is not None:
            feed = FileFeed(
                entry, options.files, self.checkpoint(entry), self._engine, self.backup_barrier,
                limits=self._limits, counts=self.counts(entry),
            )  # fmt: skip
        else:
            feed = await self._open_logged(entry, options, targets)
        for target in targets:
            feed.add(target)
        self._troubles.pop(entry.ref, None)
        self._running[entry.ref] = feed
        return feed

    async def _open_logged(
        self, entry: FeedEntry, options: FeedOptions, targets: Sequence[LandingTarget]
    ) -> RunningFeed:
        decode = decoder_of(options, entry.type)
        folder = self.folder(entry)
        seen = await asyncio.to_thread(SeenItems.open, folder) if options.polling is not None else None
        intake = await self._open_log(entry, max(target.position for target in targets), seen)
        feed = RunningFeed(entry, intake, decode, self._engine, limits=self._limits, counts=self.counts(entry))
        if options.polling is not None and seen is not None:
            # The poller sends no request before the feed is open.
            judge, counts = polled_items.judge(entry.type), self.counts(entry)
            poller = UrlPoller(feed, options.polling, seen, judge, counts, guard=self._guard, limits=self._limits)
            poller.start()
            feed.sources.append(poller)
        return feed

    def _targets(self, entry: FeedEntry) -> list[LandingTarget]:
        """Blocks while another thread writes to one of the datasets."""
        rejected = self._tables.table(self._dataset(entry.rejected))
        return [Rejections(entry, 0, rejected), *(self.target(entry, connection) for connection in entry.connections)]

    def target(self, entry: FeedEntry, connection: FeedConnection) -> LandingTarget:
        dataset = self._dataset(connection.dataset)
        rejected = self._tables.table(self._dataset(entry.rejected))
        enrich = self._enrich(entry, connection.function) if connection.function is not None else None
        table, counts = self._tables.table(dataset), self.counts(entry)
        inserts = self.options(entry).inserts
        return Landing(entry, connection.since, dataset, table, rejected, enrich, counts, self._limits, inserts=inserts)

    def _dataset(self, ref: Ref) -> DatasetEntry:
        return self._catalog.catalog.dataset(ref.dataverse, ref.name)

    async def _open_log(self, entry: FeedEntry, landed: int, seen: SeenItems | None) -> IntakeLog:
        """Opens the feed's log. A log behind its datasets is an error: new records at those offsets would never
        land."""
        folder = self.folder(entry)

        def open_folder() -> IntakeLog:
            now_us, age_us = self._tables.clock.now_us, self._tables.clock.age_us
            open_log = partial(
                self._limits.open_log, folder, observer=seen, lost=self.lost,
                clock=lambda: now_us() / 1e6, age_clock=lambda: age_us() / 1e6,
            )  # fmt: skip
            if any(folder.glob("*.log")):
                return open_log()
            if (entry.started or landed) and not (folder / _BEGIN_ANEW).exists():
                raise StoreError(
                    f"the intake log {folder} is gone, and with it whatever was acknowledged and had not landed",
                    hint=f"bring it back from a copy of the disk; to go on without it, mkdir -p {folder} and "
                    f"touch {folder / _BEGIN_ANEW}, then START FEED {entry.name}",
                )
            intake = open_log(landed=landed)
            (folder / _BEGIN_ANEW).unlink(missing_ok=True)
            return intake

        intake = await asyncio.to_thread(open_folder)
        if intake.end < landed:
            await intake.close()
            raise StoreError(
                f"the intake log {folder} ends at position {intake.end}, and its datasets are at {landed}",
                hint="restore log and datasets from one backup",
            )
        return intake

    async def listen(self, feed: AnyFeed) -> None:
        """Starts the sockets or the HTTP ports of a feed that has some."""
        options = self.options(feed.entry)
        if isinstance(feed, RunningFeed) and (options.sockets or options.addresses) and not feed.sources:
            try:
                await self._open_sockets(feed, options)
            except TocsinError as error:
                self._note_trouble(feed.entry.ref, "listening", error)
                raise
            self._troubles.pop(feed.entry.ref, None)

    async def _open_sockets(self, feed: RunningFeed, options: FeedOptions) -> None:
        server: SocketServer | HttpPort
        if options.addresses:
            server = HttpPort(feed, options.entry, self._ports)
            await server.listen(options.addresses)
        else:
            server = SocketServer(feed, options, self._limits)
            await server.listen(options.sockets)
        feed.sources.append(server)

    async def _listen_again(self, feed: AnyFeed) -> None:
        back_off = BackOff(_FIRST_RETRY_S, self._limits.listen_retry_s, factor=5.0)
        while not feed.sources:
            await asyncio.sleep(back_off.next_s())
            with suppress(TocsinError):
                await self.listen(feed)
        _log.info("a feed's sockets are open", feed=feed.entry.name)

    def _note_trouble(self, ref: Ref, what: str, error: Exception) -> None:
        self._troubles[ref] = Trouble.of(what, error, self._troubles.get(ref))

    # ------------------------------------------------------------ ending a feed

    async def end(self, ref: Ref) -> None:
        """Ends a feed if it runs, and forgets its troubles. A cancellation does not interrupt this."""
        await wait_despite_cancel(self._end(ref))

    async def _end(self, ref: Ref) -> None:
        feed = self._running.pop(ref, None)
        self._troubles.pop(ref, None)
        retrying = self._retrying.pop(ref, None)
        if retrying is not None:
            retrying.cancel()
            await asyncio.gather(retrying, return_exceptions=True)
        if feed is not None:
            await feed.stop()


def decoder_of(options: FeedOptions, kind: ObjectType) -> Decode:
    """Returns the decoder for the bodies that publishers send. Raises InputError if the options do not fit the type."""
    if options.polling is not None:
        return polled_items.decoder(options.format, kind)
    return decoder(options.format, kind, options=options.reading)
