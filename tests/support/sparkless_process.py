"""A cluster without Spark: what needs neither runs as in the real one, and starts in a second."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from tests.support.real_processes import ClusterHttpClient
from tests.support.s3_server import read_data_file
from tocsin import compose
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import DatasetEntry
from tocsin.cluster.data_folder.clock_guard import Clocks
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.statements.outcomes import ScriptExecutor
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.serving.application import bind_socket, listen
from tocsin.settings import Settings
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import ClusterStore

T = TypeVar("T")


class Sparkless(Engine):
    """Runs what Python does itself: definitions, constants, loads, commits."""

    oracle: Any = None

    def is_alive(self) -> bool:
        return True

    async def land(self, work: Callable[[], T], what: str, *, asks_spark: bool) -> T:
        return await self.work(work, what)

    async def work(
        self, work: Callable[[], T], what: str = "", *, stop: Callable[[], bool] | None = None, asks_spark: bool = True
    ) -> T:
        # There is no job that could be cancelled, only the work itself, which is waited for.
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if stop is not None:
                stop()
            await asyncio.wait((future,))
            raise


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    store: ClusterStore
    catalog: CatalogStore
    tables: DatasetTables
    statements: ScriptExecutor
    feeds: Feeds
    app: web.Application
    channel_store: ChannelStore

    async def run(self, script: str) -> list[dict[str, Any]]:
        return [
            {"kind": outcome.kind, **outcome.summary} async for outcome in self.statements.run(script, stream=False)
        ]

    def table(self, name: str, dataverse: str = "v") -> DatasetTable:
        return self.tables.table(self.catalog.catalog.dataset(dataverse, name))

    def rows(self, entry: DatasetEntry) -> list[dict[str, Any]]:
        """What the dataset holds, read from its files."""
        files = self.tables.table(entry).snapshot().files
        return [row for path in files for row in read_data_file(path).to_pylist()]


def now() -> datetime:
    return datetime.now(UTC)


# Upkeep is left to the caller; what is dropped goes at once.
AT_ONCE = {"cluster.datasets.upkeep_period_s": 86_400, "cluster.datasets.outside_readers_s": 0}


@asynccontextmanager
async def opened(
    data: Path,
    *,
    set_aside: bool = False,
    clock: Callable[[], datetime] | None = None,
    clocks: Clocks | None = None,
    feed_limits: FeedLimits = USUAL_LIMITS,
    **flags: Any,
) -> AsyncIterator[Parts]:
    """What a cluster has when it has started. Upkeep is left to the caller, who wants to know when it happens."""
    settings = Settings.load(None, {}, {**AT_ONCE, "data": data, **flags})
    async with compose.assemble_cluster(
        settings,
        None,
        set_aside=set_aside,
        clock=clock or now,
        clocks=clocks,
        feed_limits=feed_limits,
        make_engine=Sparkless,
    ) as made:
        yield Parts(
            settings, made.store, made.catalog, made.tables, made.statements, made.feeds, made.app, made.channel_store
        )


class ServedParts:
    """Such a cluster behind its real HTTP server, on a loop and thread of its own, for clients that block."""

    def __init__(self, data: Path, **flags: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self.parts = self.wait(self._stack.enter_async_context(opened(data, **flags)))
        self.client = ClusterHttpClient(self.wait(self._stack.enter_async_context(self._served())))

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[str]:
        with bind_socket("127.0.0.1", 0) as (sock, address):
            async with listen(self.parts.app, sock):
                yield address

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def run(self, script: str) -> list[dict[str, Any]]:
        return self.wait(self.parts.run(script))

    def rows(self, dataset: str, dataverse: str = "v") -> list[dict[str, Any]]:
        return self.parts.rows(self.parts.catalog.catalog.dataset(dataverse, dataset))

    def close(self) -> None:
        self.wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
