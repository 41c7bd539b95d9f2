"""The cluster's store in one SQLite file: nothing to install, and durable (see store/sqlite/file.py)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

from tocsin import faults
from tocsin.store.cluster import sqlite_rows as rows
from tocsin.store.cluster.interface import (
    CREATED_AT,
    DATAVERSE_LIMIT,
    EPOCH,
    KIND_LIMIT,
    NAME_LIMIT,
    CatalogRow,
    Removal,
    TokenRow,
    check_key,
    check_text,
    encode_json,
    next_epoch,
)
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.store.sqlite.file import OpeningMode, SqliteFile, StoreLayout
from tocsin.store.sqlite.upgrades import UPGRADES
from tocsin.wire.errors import InputError

Result = TypeVar("Result")


class SqliteStore(SqliteFile):
    """Implements ClusterStore."""

    # "TCSN" in ASCII
    layout = StoreLayout(0x5443534E, UPGRADES)

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
        self._owner: asyncio.Task[Any] | None = None

    async def entries(self) -> list[CatalogRow]:
        return await self.read(rows.entries)

    async def entry(self, kind: str, dataverse: str, name: str) -> CatalogRow | None:
        return await self.read(lambda reader: rows.entry(reader, kind, dataverse, name))

    async def tokens(self) -> list[TokenRow]:
        return await self.read(rows.tokens)

    async def facts(self) -> dict[str, Any]:
        return await self.read(rows.facts)

    async def removals(self) -> list[Removal]:
        return await self.read(rows.removals)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        task = asyncio.current_task()
        if task is not None and task is self._owner:
            raise RuntimeError("this task has a transaction already, and the second would wait for it for ever")
        async with self.turn:
            transaction = SqliteTransaction(self)
            self._owner = task
            try:
                await self.call(transaction.begin)
                yield transaction
                await self.call(transaction.commit)
            finally:
                self._owner = None
                await self.call(transaction.end)

    def first_rows(self, writer: sqlite3.Connection, now: datetime) -> None:
        rows.set_fact(writer, EPOCH, encode_json(next_epoch(None, now)))
        rows.set_fact(writer, CREATED_AT, encode_json(now.isoformat()))


class SqliteTransaction:
    """Implements StoreTransaction. Only the store calls `begin`, `commit` and `end`, on its thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._failure: BaseException | None = None
        self._over = False
        self._committed = False

    @property
    def committed(self) -> bool:
        return self._committed

    async def entries(self) -> list[CatalogRow]:
        return await self._do(rows.entries)

    async def entry(self, kind: str, dataverse: str, name: str) -> CatalogRow | None:
        return await self._do(lambda writer: rows.entry(writer, kind, dataverse, name))

    async def tokens(self) -> list[TokenRow]:
        return await self._do(rows.tokens)

    async def facts(self) -> dict[str, Any]:
        return await self._do(rows.facts)

    async def removals(self) -> list[Removal]:
        return await self._do(rows.removals)

    async def add_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        check_key(kind, dataverse, name)
        text = encode_json(body)
        return await self._do(lambda writer: rows.add_entry(writer, kind, dataverse, name, text))

    async def replace_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        check_key(kind, dataverse, name)
        text = encode_json(body)
        return await self._do(lambda writer: rows.replace_entry(writer, kind, dataverse, name, text))

    async def remove_entry(self, kind: str, dataverse: str, name: str) -> bool:
        check_key(kind, dataverse, name)
        return await self._do(lambda writer: rows.remove_entry(writer, kind, dataverse, name))

    async def set_fact(self, name: str, value: Any) -> None:
        check_text("fact", name, NAME_LIMIT)
        text = encode_json(value)
        await self._do(lambda writer: rows.set_fact(writer, name, text))

    async def add_removal(self, removal: Removal) -> None:
        check_text("kind", removal.kind, KIND_LIMIT)
        check_text("name", removal.name, DATAVERSE_LIMIT + 1 + NAME_LIMIT)
        await self._do(lambda writer: rows.add_removal(writer, removal))

    async def forget_removal(self, kind: str, name: str) -> bool:
        return await self._do(lambda writer: rows.forget_removal(writer, kind, name))

    async def add_token(
        self, name: str, digest: str, role: str, created_at: datetime, feeds: tuple[str, ...] = ()
    ) -> TokenRow:
        for what, text in (("token's name", name), ("digest", digest), ("role", role)):
            check_text(what, text, NAME_LIMIT)
        return await self._do(lambda writer: rows.add_token(writer, name, digest, role, created_at, feeds=feeds))

    async def revoke_token(self, token_id: int, revoked_at: datetime) -> bool:
        return await self._do(lambda writer: rows.revoke_token(writer, token_id, revoked_at))

    def begin(self) -> None:
        with explain_sqlite_errors(self._store.path):
            self._store.writer().execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if self._failure is not None:
            raise self._failure
        with explain_sqlite_errors(self._store.path):
            faults.reach("store.commit.before")
            self._store.writer().execute("COMMIT")
            self._committed = True
            faults.reach("store.commit.after")

    def end(self) -> None:
        self._over = True
        # After some errors (a full disk) SQLite has rolled back by itself.
        if self._store.writer().in_transaction:
            with explain_sqlite_errors(self._store.path):
                self._store.writer().execute("ROLLBACK")

    async def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def guarded() -> Result:
            if self._over:
                raise RuntimeError("this transaction is over")
            if self._failure is not None:
                # SQLite may have rolled back already: a further write would then be committed on its own.
                raise self._failure
            try:
                with explain_sqlite_errors(self._store.path):
                    return work(self._store.writer())
            except InputError:
                raise
            except BaseException as failure:
                self._failure = failure
                raise

        return await self._store.call(guarded)
