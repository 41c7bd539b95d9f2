"""The cluster's store in one SQLite file: nothing to install, and durable (see store/sqlite/file.py).

The rows are read and written by functions of a connection: readers, the transaction and the inspection of a data folder
use the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

from tocsin import faults
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
    decode_json,
    encode_json,
    next_epoch,
)
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.store.sqlite.file import CallParameters, OpeningMode, ReadCall, SqliteFile, StoreLayout, Upgrade
from tocsin.wire.errors import ConflictError, InputError, NotFoundError

_T = TypeVar("_T")

CLUSTER_UPGRADES: Final[tuple[Upgrade, ...]] = (
    Upgrade(
        1,
        "facts, catalog entries and tokens",
        {
            "sqlite": (
                "CREATE TABLE facts (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
                # AUTOINCREMENT: ids are never reused, so their order is the order of creation.
                """CREATE TABLE entries (
                    id INTEGER PRIMARY KEY AUTOINCREMENT,
                    kind TEXT NOT NULL, dataverse TEXT NOT NULL, name TEXT NOT NULL,
                    body TEXT NOT NULL,
                    UNIQUE (kind, dataverse, name))""",
                """CREATE TABLE tokens (
                    id INTEGER PRIMARY KEY AUTOINCREMENT,
                    name TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
                    created_at TEXT NOT NULL, revoked_at TEXT)""",
            )
        },
    ),
    Upgrade(
        2,
        "what may be removed from the data folder",
        {
            "sqlite": (
                """CREATE TABLE removals (
                    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, dropped_at TEXT,
                    UNIQUE (kind, name))""",
            )
        },
    ),
    Upgrade(
        3,
        "tokens name the feeds that their holder may publish to",
        {"sqlite": ("ALTER TABLE tokens ADD COLUMN feeds TEXT NOT NULL DEFAULT '[]'",)},
    ),
)


# --- rows, on a connection; the caller holds the transaction


def entries(connection: sqlite3.Connection) -> list[CatalogRow]:
    rows = connection.execute("SELECT kind, dataverse, name, body, id FROM entries ORDER BY id").fetchall()
    return [CatalogRow(kind, dataverse, name, decode_json(body), id_) for kind, dataverse, name, body, id_ in rows]


def _entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str) -> CatalogRow | None:
    sql = "SELECT body, id FROM entries WHERE kind = ? AND dataverse = ? AND name = ?"
    row = connection.execute(sql, (kind, dataverse, name)).fetchone()
    return None if row is None else CatalogRow(kind, dataverse, name, decode_json(row[0]), row[1])


def _add_entry(
    connection: sqlite3.Connection, kind: str, dataverse: str, name: str, body: dict[str, Any]
) -> CatalogRow:
    check_key(kind, dataverse, name)
    text = encode_json(body)
    if _entry(connection, kind, dataverse, name) is not None:
        raise ConflictError(f"{kind} {name} exists already in {dataverse}")
    sql = "INSERT INTO entries (kind, dataverse, name, body) VALUES (?, ?, ?, ?)"
    return CatalogRow(
        kind, dataverse, name, decode_json(text), _new_id(connection.execute(sql, (kind, dataverse, name, text)))
    )


def _replace_entry(
    connection: sqlite3.Connection, kind: str, dataverse: str, name: str, body: dict[str, Any]
) -> CatalogRow:
    check_key(kind, dataverse, name)
    text = encode_json(body)
    old = _entry(connection, kind, dataverse, name)
    if old is None:
        raise NotFoundError(f"there is no {kind} {name} in {dataverse}")
    connection.execute("UPDATE entries SET body = ? WHERE id = ?", (text, old.id))
    return CatalogRow(kind, dataverse, name, decode_json(text), old.id)


def _remove_entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str) -> bool:
    check_key(kind, dataverse, name)
    sql = "DELETE FROM entries WHERE kind = ? AND dataverse = ? AND name = ?"
    return connection.execute(sql, (kind, dataverse, name)).rowcount > 0


def _tokens(connection: sqlite3.Connection) -> list[TokenRow]:
    sql = "SELECT id, name, digest, role, created_at, revoked_at, feeds FROM tokens ORDER BY id"
    return [
        TokenRow(
            id_, name, digest, role, datetime.fromisoformat(made_at), datetime.fromisoformat(ended) if ended else None,
            tuple(decode_json(feeds)),
        )
        for id_, name, digest, role, made_at, ended, feeds in connection.execute(sql).fetchall()
    ]  # fmt: skip


def _add_token(  # noqa: PLR0917 - as in the interface
    connection: sqlite3.Connection, name: str, digest: str, role: str, created_at: datetime, feeds: tuple[str, ...] = ()
) -> TokenRow:
    for what, text in (("token's name", name), ("digest", digest), ("role", role)):
        check_text(what, text, NAME_LIMIT)
    for token in _tokens(connection):
        if token.name == name and token.revoked_at is None:
            hint = "revoke it first, or choose another name"
            raise ConflictError(f"there is a token named {name} already", hint=hint)
        if token.digest == digest:
            raise ConflictError("this token is known already")
    sql = "INSERT INTO tokens (name, digest, role, created_at, feeds) VALUES (?, ?, ?, ?, ?)"
    id_ = _new_id(connection.execute(sql, (name, digest, role, created_at.isoformat(), json.dumps(feeds))))
    return TokenRow(id_, name, digest, role, created_at, feeds=feeds)


def _revoke_token(connection: sqlite3.Connection, token_id: int, revoked_at: datetime) -> bool:
    sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
    return connection.execute(sql, (revoked_at.isoformat(), token_id)).rowcount > 0


def _facts(connection: sqlite3.Connection) -> dict[str, Any]:
    return {
        name: decode_json(value) for name, value in connection.execute("SELECT name, value FROM facts ORDER BY name")
    }


def _set_fact(connection: sqlite3.Connection, name: str, value: Any) -> None:
    check_text("fact", name, NAME_LIMIT)
    sql = "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(sql, (name, encode_json(value)))


def removals(connection: sqlite3.Connection) -> list[Removal]:
    sql = "SELECT kind, name, dropped_at FROM removals ORDER BY id"
    return [
        Removal(kind, name, datetime.fromisoformat(dropped) if dropped else None)
        for kind, name, dropped in connection.execute(sql).fetchall()
    ]


def _add_removal(connection: sqlite3.Connection, removal: Removal) -> None:
    check_text("kind", removal.kind, KIND_LIMIT)
    check_text("name", removal.name, DATAVERSE_LIMIT + 1 + NAME_LIMIT)
    _forget_removal(connection, removal.kind, removal.name)
    dropped = removal.dropped_at.isoformat() if removal.dropped_at is not None else None
    sql = "INSERT INTO removals (kind, name, dropped_at) VALUES (?, ?, ?)"
    connection.execute(sql, (removal.kind, removal.name, dropped))


def _forget_removal(connection: sqlite3.Connection, kind: str, name: str) -> bool:
    return connection.execute("DELETE FROM removals WHERE kind = ? AND name = ?", (kind, name)).rowcount > 0


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "an INSERT that succeeded has a row"
    return cursor.lastrowid


# --- the store


class SqliteStore(SqliteFile):
    """Implements ClusterStore."""

    # "TCSN" in ASCII
    layout = StoreLayout(0x5443534E, CLUSTER_UPGRADES)

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
        self._owner: asyncio.Task[Any] | None = None

    entries = ReadCall(entries)
    entry = ReadCall(_entry)
    tokens = ReadCall(_tokens)
    facts = ReadCall(_facts)
    removals = ReadCall(removals)

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
        _set_fact(writer, EPOCH, next_epoch(None, now))
        _set_fact(writer, CREATED_AT, now.isoformat())


class _TransactionCall(ReadCall[CallParameters, _T]):
    """A method that reads or writes within the transaction."""

    def run(self, store: SqliteTransaction, work: Callable[[sqlite3.Connection], _T]) -> Coroutine[Any, Any, _T]:
        return store.run(work)


class SqliteTransaction:
    """Implements StoreTransaction. Only the store calls `begin`, `commit` and `end`, on its thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._failure: BaseException | None = None
        self._over = False
        self._committed = False

    @property
    def is_committed(self) -> bool:
        return self._committed

    entries = _TransactionCall(entries)
    entry = _TransactionCall(_entry)
    tokens = _TransactionCall(_tokens)
    facts = _TransactionCall(_facts)
    removals = _TransactionCall(removals)
    add_entry = _TransactionCall(_add_entry)
    replace_entry = _TransactionCall(_replace_entry)
    remove_entry = _TransactionCall(_remove_entry)
    set_fact = _TransactionCall(_set_fact)
    add_removal = _TransactionCall(_add_removal)
    forget_removal = _TransactionCall(_forget_removal)
    add_token = _TransactionCall(_add_token)
    revoke_token = _TransactionCall(_revoke_token)

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

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        def guarded() -> _T:
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
