"""Where the parts become a program: the only file that names concrete classes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tocsin.cluster.backup import write_backup
from tocsin.cluster.catalog import CatalogStore
from tocsin.cluster.engine import Engine
from tocsin.cluster.http import cluster_application
from tocsin.cluster.lock import FolderLock
from tocsin.cluster.statements import ScriptRunner
from tocsin.cluster.tables import Tables
from tocsin.pipeline import session
from tocsin.serving import tokens as minting
from tocsin.serving.application import serve
from tocsin.serving.tokens import Token
from tocsin.settings import Settings
from tocsin.store.sqlite import SqliteStore
from tocsin.store.store import ClusterStore, TokenRow
from tocsin.wire.errors import NotFoundError, UnauthorizedError

# A statement may be nested as deep as the grammar lets it (language.script.DEPTH_LIMIT), at some thirty frames a level.
RECURSION_LIMIT = 12_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    app: web.Application
    statements: ScriptRunner
    store: ClusterStore
    catalog: CatalogStore
    tables: Tables


def store_of(settings: Settings) -> ClusterStore:
    return SqliteStore(settings.data / "catalog.sqlite")


async def serve_cluster(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Run a cluster until it is told to stop."""
    http = settings.cluster.http
    await serve(lambda address: cluster(settings, address), host=http.host, port=http.port, on_ready=on_ready)


@asynccontextmanager
async def cluster(settings: Settings, address: str | None = None) -> AsyncIterator[Cluster]:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))
    lock = await FolderLock.take(settings.data, address=address, say=_say)
    try:
        import asyncio

        scratch = settings.data / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        chosen = settings.cluster.spark
        spark = await asyncio.to_thread(
            session.start, scratch, master=chosen.master, driver_memory=chosen.driver_memory, conf=chosen.conf
        )
        try:
            lock.record_child(_jvm_pid(spark))
            async with assembled(settings, spark) as made:
                yield made
        finally:
            await asyncio.to_thread(session.stop, spark)
    finally:
        lock.release()


@asynccontextmanager
async def assembled(settings: Settings, spark: Any) -> AsyncIterator[Cluster]:
    """Everything of a cluster but the folder's lock and Spark, which the caller has."""
    async with opened_store(settings) as store:
        catalog = CatalogStore(store)
        known = await catalog.load()
        chosen = settings.cluster
        tables = Tables(
            settings.data / "datasets",
            key_index_limit=chosen.datasets.key_index_limit,
            upkeep_period_s=chosen.datasets.upkeep_period_s,
        )
        tables.start({entry.folder for entry in known.datasets})
        engine = Engine(spark, settings.data / "scratch", threads=chosen.statements.concurrent + 2)
        statements = ScriptRunner(catalog, tables, engine, chosen)
        try:
            app = cluster_application(chosen, statements, StoredCredentials(store))
            yield Cluster(app, statements, store, catalog, tables)
        finally:
            await statements.close()
            await tables.close()


@asynccontextmanager
async def opened_store(settings: Settings) -> AsyncIterator[ClusterStore]:
    settings.data.mkdir(parents=True, exist_ok=True)
    store = store_of(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _jvm_pid(spark: Any) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


# ---------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class StoredCredentials:
    """Tokens as the store keeps them, read at each request: a revoked one is refused at once."""

    store: ClusterStore

    async def check(self, secret: str) -> Token:
        kept = await self.store.tokens()
        if not kept:
            raise UnauthorizedError("this cluster has no tokens yet", hint='make one with "tocsin token create NAME"')
        return minting.check(secret, kept)


@dataclass(frozen=True, slots=True)
class StoredTokens:
    store: ClusterStore

    async def create(self, name: str, role: str) -> tuple[TokenRow, str]:
        minted = minting.mint(name, role)
        async with self.store.transaction() as tx:
            row = await tx.add_token(minted.name, minted.digest, minted.role, datetime.now(UTC))
        return row, minted.secret

    async def list(self) -> Sequence[TokenRow]:
        return await self.store.tokens()

    async def revoke(self, identity: int) -> TokenRow:
        async with self.store.transaction() as tx:
            if not await tx.revoke_token(identity, datetime.now(UTC)):
                raise NotFoundError(f"there is no live token {identity}", hint="tocsin token list shows them")
        return next(row for row in await self.store.tokens() if row.id == identity)


@asynccontextmanager
async def tokens(settings: Settings) -> AsyncIterator[StoredTokens]:
    async with opened_store(settings) as store:
        yield StoredTokens(store)


__all__ = ["Path", "write_backup"]
