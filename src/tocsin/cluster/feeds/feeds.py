"""All feeds of a cluster: their statements, the started ones, and who may send to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from sqlglot import exp

from tocsin.cluster.catalog import DEFAULT, CatalogStore, Change, Put, Remove, qualified
from tocsin.cluster.changes import decoded
from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import (
    Connection,
    DatasetEntry,
    FeedEntry,
    Ref,
    TypeEntry,
    dataset_ref,
    feed_ref,
    function_ref,
    type_ref,
)
from tocsin.cluster.feeds.feed import Accepted, RunningFeed, Target
from tocsin.cluster.feeds.figures import FeedCounts, FeedFigures, FeedState
from tocsin.cluster.feeds.landing import REJECTED, Enrich, Landing, Rejections
from tocsin.cluster.feeds.options import FeedOptions, feed_options
from tocsin.cluster.feeds.sockets import SocketServer
from tocsin.cluster.intake.log import IntakeLog
from tocsin.cluster.scope import BatchScope, StatementScope
from tocsin.cluster.tables import Tables, new_folder
from tocsin.language import statements as st
from tocsin.language.constants import NotConstantError, evaluate
from tocsin.language.dialect import FieldOf, ObjectOf
from tocsin.language.expressions import TranslationError
from tocsin.pipeline.readers.decoding import decoder
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import ConflictError, NotFoundError, StoreError, TocsinError, UnavailableError

log = structlog.get_logger()

Summary = Mapping[str, Any]
REJECTED_RETENTION_S = 7 * 86_400.0


class Feeds:
    def __init__(self, catalog: CatalogStore, tables: Tables, engine: Engine, folder: Path) -> None:
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._folder = folder
        self._running: dict[Ref, tuple[RunningFeed, SocketServer | None]] = {}
        self._changing = asyncio.Lock()
        self._between: set[Ref] = set()
        """Started feeds that land what they have, to go on with other connections."""
        self._counts: dict[str, FeedCounts] = {}
        """By the folder of their log, which is never another feed's."""

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Feeds that were started go on; logs that no feed owns any more go."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        for entry in self._catalog.catalog.feeds:
            if entry.started:
                try:
                    await self._run(entry)
                except TocsinError as error:
                    # One feed's trouble (its port is taken, its log damaged) is not everybody's.
                    log.error("a feed could not be started", feed=entry.name, reason=str(error))

    def _sweep(self) -> None:
        known = {entry.folder for entry in self._catalog.catalog.feeds}
        for found in self._folder.iterdir():
            if found.name not in known:
                shutil.rmtree(found, ignore_errors=True)
        for folder in set(self._counts) - known:
            self._counts.pop(folder, None)

    async def close(self) -> None:
        for ref in list(self._running):
            await self._halt(ref, drained=False)

    async def settle(self) -> None:
        """After a drop of whatever kind: feeds that are no longer in the catalog end, and their logs go."""
        async with self._changing:
            for ref in list(self._running):
                if self._catalog.catalog.find(ref) is None:
                    await self._halt(ref, drained=False)
            await asyncio.to_thread(self._sweep)

    async def _run(self, entry: FeedEntry) -> None:
        options = feed_options(dict(entry.options))
        catalog = self._catalog.catalog
        rejected = self._tables.table(catalog.dataset(entry.rejected.dataverse, entry.rejected.name))
        targets: list[Target] = [Rejections(entry, 0, rejected)]
        for one in entry.connections:
            dataset = catalog.find(one.dataset)
            assert isinstance(dataset, DatasetEntry)
            enrich = self._enrich(entry, one.function) if one.function is not None else None
            targets.append(Landing(entry, one.since, dataset, self._tables.table(dataset), rejected, enrich))
        decode = decoder(options.format, entry.type, options=options.reading)
        intake = await self._opened(self._folder / entry.folder, max(target.position for target in targets))
        feed = RunningFeed(entry, intake, targets, decode, self._engine, counts=self._counts_of(entry))
        feed.start()
        server = None
        if options.sockets:
            server = SocketServer(feed, options)
            try:
                await server.listen(options.sockets)
            except BaseException:
                await feed.stop(drained=False)
                raise
        self._running[entry.ref] = feed, server

    async def _opened(self, folder: Path, landed: int) -> IntakeLog:
        """The feed's log, which is never behind its datasets: what it would take up to there would never land."""

        def opened() -> IntakeLog:
            return IntakeLog.open(folder, landed=None if folder.exists() else landed)

        intake = await asyncio.to_thread(opened)
        if intake.end < landed:
            await intake.close()
            raise StoreError(
                f"the intake log {folder} ends at position {intake.end}, and its datasets are at {landed}",
                hint="restore log and datasets from one backup",
            )
        return intake

    async def _halt(self, ref: Ref, *, drained: bool) -> None:
        feed, server = self._running.pop(ref)
        if server is not None:
            await server.close()
        await feed.stop(drained=drained)

    def _enrich(self, entry: FeedEntry, function: Ref) -> Enrich:
        name = function.name.rpartition("@")[0]

        def enrich(rows: pa.Table) -> Sequence[Any]:
            """Reads reference datasets as they are now: their changes count from the next batch on."""
            scope = BatchScope(
                self._catalog.catalog,
                self._tables,
                self._engine,
                function.dataverse,
                datetime.now(UTC),
                rows,
                entry.type,
            )
            try:
                called = exp.Anonymous(this=name, expressions=[exp.column("record", table="batch")])
                # What the engine makes of them comes in any order: each brings its place.
                fields = {"place": exp.column("place", table="batch"), "made": called}
                translated = scope.translated_batch(
                    ObjectOf(
                        expressions=[
                            FieldOf(this=exp.Literal.string(key), expression=value) for key, value in fields.items()
                        ]
                    )
                )
                found = decoded(self._engine.rows(translated.sql), translated)
                return [one.get("made") for one in sorted(found, key=itemgetter("place"))]
            finally:
                scope.close()

        return enrich

    # ------------------------------------------------------------ records

    async def accept(self, name: str, body: bytes, key: str | None, *, visible: bool) -> Accepted:
        """Records for the feed of that name: `dataverse.name`, or a name in the dataverse Default."""
        dataverse, dot, own = name.rpartition(".")
        entry = self._catalog.catalog.find(feed_ref(dataverse if dot else DEFAULT, own))
        if not isinstance(entry, FeedEntry):
            raise NotFoundError(f"there is no feed {name}", hint="CREATE FEED makes one")
        try:
            feed = self._started(entry.ref, name)
            accepted = await feed.accept(body, key)
        except TocsinError as error:
            self._counts_of(entry).refused[error.status] += 1
            raise
        if visible:
            await feed.until_landed(accepted.position)
        return accepted

    def _started(self, ref: Ref, name: str) -> RunningFeed:
        found = self._running.get(ref)
        if found is not None:
            return found[0]
        if ref in self._between:
            raise UnavailableError(
                f"the feed {name} is being connected or disconnected",
                hint="it goes on by itself: send again in a moment",
            )
        raise ConflictError(f"the feed {name} is stopped", hint=f"START FEED {ref.name}")

    # ------------------------------------------------------------ figures

    def figures(self) -> list[FeedFigures]:
        """Of every feed in the catalog. May be asked from any thread."""
        return [
            FeedFigures(f"{entry.dataverse}.{entry.name}", self._counts_of(entry), self._state(entry.ref))
            for entry in self._catalog.catalog.feeds
        ]

    def _state(self, ref: Ref) -> FeedState | None:
        found = self._running.get(ref)
        if found is None:
            return None
        feed, server = found
        lag, lag_age_s = feed.lag()
        return FeedState(feed.unlanded_bytes, lag, lag_age_s, None if server is None else server.open)

    def _counts_of(self, entry: FeedEntry) -> FeedCounts:
        return self._counts.setdefault(entry.folder, FeedCounts())

    # ------------------------------------------------------------ statements

    async def run(self, statement: st.Statement, scope: StatementScope) -> Summary | None:
        handler = _HANDLERS.get(type(statement))
        if handler is None:
            return None
        async with self._changing:
            scope.catalog = self._catalog.catalog  # it may have waited for a change of the same feed
            summary: Summary = await handler(self, statement, scope)
            return summary

    async def _create(self, statement: st.CreateFeed, scope: StatementScope) -> Summary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        if statement.if_not_exists and scope.catalog.find(feed_ref(dataverse, name)) is not None:
            return {"name": name, "existed": True}
        options = self._options(statement, scope)
        where, _, type_name = options.type_name.rpartition(".")
        type_entry = scope.catalog.type_(where or dataverse, type_name)
        decoder(options.format, type_entry.type, options=options.reading)  # refuses what it cannot read
        entry = FeedEntry(
            dataverse, name,
            options=tuple(sorted((option, str(value)) for option, value in self._values(statement, scope).items())),
            type_name=qualified(type_entry.dataverse, type_entry.name), type=type_entry.type, folder=new_folder(),
        )  # fmt: skip
        kept_type = TypeEntry(
            dataverse, f"{_rejected(name)}Type", ObjectType(REJECTED.fields, False, f"{_rejected(name)}Type"), ""
        )
        kept = DatasetEntry(
            dataverse, _rejected(name), type_name=qualified(dataverse, kept_type.name), type=kept_type.type,
            keys=(("id",),),
            autogenerated=False, active=False, folder=new_folder(), history=1, retention_s=REJECTED_RETENTION_S,
        )  # fmt: skip
        scope.catalog.with_(kept_type).with_(kept).with_(entry)  # refuse before anything is on the disk
        await self._engine.work(lambda: self._tables.create(kept))
        try:
            await self._catalog.apply([Put(kept_type), Put(kept), Put(entry)])
        except BaseException:
            self._tables.drop(kept.folder)
            raise
        return {"name": name}

    def _values(self, statement: st.CreateFeed, scope: StatementScope) -> dict[str, Any]:
        try:
            return {name: evaluate(node, scope.now) for name, node in statement.options.items()}
        except NotConstantError:
            raise TranslationError("the options of a feed are constants", statement.offset) from None

    def _options(self, statement: st.CreateFeed, scope: StatementScope) -> FeedOptions:
        return feed_options(self._values(statement, scope))

    async def _connect(self, statement: st.ConnectFeed, scope: StatementScope) -> Summary:
        entry = self._entry(statement.feed, scope)
        dataset = scope.catalog.dataset(statement.dataset.dataverse or scope.dataverse, statement.dataset.name)
        if any(one.dataset == dataset.ref for one in entry.connections):
            raise ConflictError(f"the feed {entry.name} is connected to {dataset.name} already")
        function = None
        if statement.function is not None:
            found = scope.catalog.function(statement.function.dataverse or scope.dataverse, statement.function.name, 1)
            function = function_ref(found.dataverse, found.name, 1)
        running = self._running.get(entry.ref)
        since = running[0].end if running else await asyncio.to_thread(self._end, entry)
        return await self._changed(
            replace(entry, connections=(*entry.connections, Connection(dataset.ref, function, since)))
        )

    def _end(self, entry: FeedEntry) -> int:
        path = self._folder / entry.folder
        if not path.exists():
            return 0
        intake = IntakeLog.open(path)
        try:
            return intake.end
        finally:
            asyncio.run(intake.close())

    async def _disconnect(self, statement: st.DisconnectFeed, scope: StatementScope) -> Summary:
        entry = self._entry(statement.feed, scope)
        ref = dataset_ref(statement.dataset.dataverse or scope.dataverse, statement.dataset.name)
        kept = tuple(one for one in entry.connections if one.dataset != ref)
        if len(kept) == len(entry.connections):
            raise NotFoundError(f"the feed {entry.name} is not connected to {statement.dataset}")
        return await self._changed(replace(entry, connections=kept))

    async def _changed(self, entry: FeedEntry) -> Summary:
        """The feed as it is now; a started one goes on with it, having landed all it had taken before."""
        running = entry.ref in self._running
        if running:
            self._between.add(entry.ref)
        try:
            if running:
                await self._halt(entry.ref, drained=True)
            await self._catalog.apply([Put(entry, when_taken="replace")])
            if running:
                await self._run(entry)
        finally:
            self._between.discard(entry.ref)
        return {"name": entry.name}

    async def _start(self, statement: st.StartFeed, scope: StatementScope) -> Summary:
        entry = self._entry(statement.feed, scope)
        if not entry.connections:
            raise ConflictError(
                f"the feed {entry.name} is connected to no dataset", hint="CONNECT FEED … TO DATASET … first"
            )
        if entry.ref in self._running:
            return {"name": entry.name, "already": True}
        await self._run(entry)
        try:
            await self._catalog.apply([Put(replace(entry, started=True), when_taken="replace")])
        except BaseException:
            await self._halt(entry.ref, drained=True)
            raise
        return {"name": entry.name}

    async def _stop(self, statement: st.StopFeed, scope: StatementScope) -> Summary:
        entry = self._entry(statement.feed, scope)
        if entry.ref in self._running:
            await self._halt(entry.ref, drained=True)
        await self._catalog.apply([Put(replace(entry, started=False), when_taken="replace")])
        return {"name": entry.name}

    async def _drop(self, statement: st.DropFeed, scope: StatementScope) -> Summary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        entry = scope.catalog.find(feed_ref(dataverse, name))
        if not isinstance(entry, FeedEntry):
            if statement.if_exists:
                return {"name": name, "existed": False}
            raise scope.catalog.missing(feed_ref(dataverse, name))
        kept = scope.catalog.find(dataset_ref(dataverse, _rejected(name)))
        gone: list[Change] = [Remove(entry.ref)]
        if isinstance(kept, DatasetEntry):
            gone += [Remove(kept.ref), Remove(type_ref(dataverse, f"{_rejected(name)}Type"))]
        if entry.ref in self._running:
            await self._halt(entry.ref, drained=True)
        await self._catalog.apply(gone)
        if isinstance(kept, DatasetEntry):
            await self._engine.work(lambda: self._tables.drop(kept.folder))
        await asyncio.to_thread(shutil.rmtree, self._folder / entry.folder, ignore_errors=True)
        self._counts.pop(entry.folder, None)
        return {"name": name}

    def _entry(self, name: st.Name, scope: StatementScope) -> FeedEntry:
        return scope.catalog.feed(name.dataverse or scope.dataverse, name.name)


def _rejected(feed: str) -> str:
    return f"{feed}Rejected"


_HANDLERS: dict[type, Callable[..., Any]] = {
    st.CreateFeed: Feeds._create,
    st.ConnectFeed: Feeds._connect,
    st.DisconnectFeed: Feeds._disconnect,
    st.StartFeed: Feeds._start,
    st.StopFeed: Feeds._stop,
    st.DropFeed: Feeds._drop,
}
