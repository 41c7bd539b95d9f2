"""Reads and writes the rows of the cluster's store on an SQLite connection. The caller holds the transaction."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Any

from tocsin.store.cluster.interface import CatalogRow, Removal, TokenRow, decode_json
from tocsin.wire.errors import ConflictError, NotFoundError


def entries(connection: sqlite3.Connection) -> list[CatalogRow]:
    rows = connection.execute("SELECT kind, dataverse, name, body, id FROM entries ORDER BY id").fetchall()
    return [CatalogRow(kind, dataverse, name, decode_json(body), id_) for kind, dataverse, name, body, id_ in rows]


def entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str) -> CatalogRow | None:
    sql = "SELECT body, id FROM entries WHERE kind = ? AND dataverse = ? AND name = ?"
    row = connection.execute(sql, (kind, dataverse, name)).fetchone()
    return None if row is None else CatalogRow(kind, dataverse, name, decode_json(row[0]), row[1])


def add_entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str, text: str) -> CatalogRow:
    if entry(connection, kind, dataverse, name) is not None:
        raise ConflictError(f"{kind} {name} exists already in {dataverse}")
    sql = "INSERT INTO entries (kind, dataverse, name, body) VALUES (?, ?, ?, ?)"
    return CatalogRow(
        kind, dataverse, name, decode_json(text), _new_id(connection.execute(sql, (kind, dataverse, name, text)))
    )


def replace_entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str, text: str) -> CatalogRow:
    old = entry(connection, kind, dataverse, name)
    if old is None:
        raise NotFoundError(f"there is no {kind} {name} in {dataverse}")
    connection.execute("UPDATE entries SET body = ? WHERE id = ?", (text, old.id))
    return CatalogRow(kind, dataverse, name, decode_json(text), old.id)


def remove_entry(connection: sqlite3.Connection, kind: str, dataverse: str, name: str) -> bool:
    sql = "DELETE FROM entries WHERE kind = ? AND dataverse = ? AND name = ?"
    return connection.execute(sql, (kind, dataverse, name)).rowcount > 0


def tokens(connection: sqlite3.Connection) -> list[TokenRow]:
    sql = "SELECT id, name, digest, role, created_at, revoked_at, feeds FROM tokens ORDER BY id"
    return [
        TokenRow(
            id_, name, digest, role, datetime.fromisoformat(made_at), datetime.fromisoformat(ended) if ended else None,
            tuple(decode_json(feeds)),
        )
        for id_, name, digest, role, made_at, ended, feeds in connection.execute(sql).fetchall()
    ]  # fmt: skip


def add_token(
    connection: sqlite3.Connection, name: str, digest: str, role: str, created_at: datetime, *, feeds: tuple[str, ...]
) -> TokenRow:
    for token in tokens(connection):
        if token.name == name and token.revoked_at is None:
            hint = "revoke it first, or choose another name"
            raise ConflictError(f"there is a token named {name} already", hint=hint)
        if token.digest == digest:
            raise ConflictError("this token is known already")
    sql = "INSERT INTO tokens (name, digest, role, created_at, feeds) VALUES (?, ?, ?, ?, ?)"
    id_ = _new_id(connection.execute(sql, (name, digest, role, created_at.isoformat(), json.dumps(feeds))))
    return TokenRow(id_, name, digest, role, created_at, feeds=feeds)


def revoke_token(connection: sqlite3.Connection, token_id: int, revoked_at: datetime) -> bool:
    sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
    return connection.execute(sql, (revoked_at.isoformat(), token_id)).rowcount > 0


def facts(connection: sqlite3.Connection) -> dict[str, Any]:
    return {
        name: decode_json(value) for name, value in connection.execute("SELECT name, value FROM facts ORDER BY name")
    }


def set_fact(connection: sqlite3.Connection, name: str, text: str) -> None:
    sql = "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(sql, (name, text))


def removals(connection: sqlite3.Connection) -> list[Removal]:
    sql = "SELECT kind, name, dropped_at FROM removals ORDER BY id"
    return [
        Removal(kind, name, datetime.fromisoformat(dropped) if dropped else None)
        for kind, name, dropped in connection.execute(sql).fetchall()
    ]


def add_removal(connection: sqlite3.Connection, removal: Removal) -> None:
    forget_removal(connection, removal.kind, removal.name)
    dropped = removal.dropped_at.isoformat() if removal.dropped_at is not None else None
    sql = "INSERT INTO removals (kind, name, dropped_at) VALUES (?, ?, ?)"
    connection.execute(sql, (removal.kind, removal.name, dropped))


def forget_removal(connection: sqlite3.Connection, kind: str, name: str) -> bool:
    return connection.execute("DELETE FROM removals WHERE kind = ? AND name = ?", (kind, name)).rowcount > 0


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "an INSERT that succeeded has a row"
    return cursor.lastrowid
