"""Brokers that are told of news, as rows of an SQLite connection. The caller holds the transaction."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from tocsin.rules.model.cursors import Position
from tocsin.store import sqlite_channel_rows as rows
from tocsin.store import sqlite_news
from tocsin.store.channel_rows import Broker, Registration
from tocsin.wire.errors import NotFoundError

SELECT: Final = "SELECT dataverse, name, owner, epoch, number, secret FROM registrations "


def register(connection: sqlite3.Connection, broker: Broker, secret: str, owner: str | None) -> Registration:
    now = sqlite_news.position(connection)
    connection.execute(
        """INSERT INTO registrations VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET owner = coalesce(owner, excluded.owner)""",
        (*broker, owner, secret, *now),
    )
    kept = registration(connection, broker)
    assert kept is not None, "it was just put there"
    return kept


def renew_secret(connection: sqlite3.Connection, broker: Broker, secret: str) -> None:
    sql = "UPDATE registrations SET secret = ? WHERE dataverse = ? AND name = ?"
    if not connection.execute(sql, (secret, *broker)).rowcount:
        raise _unknown(broker)


def registrations(connection: sqlite3.Connection) -> list[Registration]:
    return [_read(row) for row in connection.execute(SELECT + "ORDER BY dataverse, name")]


def registration(connection: sqlite3.Connection, broker: Broker) -> Registration | None:
    row = connection.execute(SELECT + "WHERE dataverse = ? AND name = ?", broker).fetchone()
    return None if row is None else _read(row)


def told(connection: sqlite3.Connection, broker: Broker, position: Position) -> Position:
    known = registration(connection, broker)
    if known is None:
        raise _unknown(broker)
    epochs, last = rows.result_epochs(connection), rows.given(connection, "result")
    number = max(min(epochs.bound(*one), last) for one in (known.position, position))
    # In the terms of this store: what another life of it gave out is not kept.
    reached = Position(epochs.epoch_of(number), number)
    sql = "UPDATE registrations SET epoch = ?, number = ? WHERE dataverse = ? AND name = ?"
    connection.execute(sql, (*reached, *broker))
    return reached


def unregister(connection: sqlite3.Connection, broker: Broker) -> None:
    connection.execute("DELETE FROM registrations WHERE dataverse = ? AND name = ?", broker)


def _read(row: tuple[Any, ...]) -> Registration:
    dataverse, name, owner, epoch, number, secret = row
    return Registration(Broker(dataverse, name), owner, Position(epoch, number), secret)


def _unknown(broker: Broker) -> NotFoundError:
    return NotFoundError(f"the broker {broker.dataverse}.{broker.name} is not registered")
