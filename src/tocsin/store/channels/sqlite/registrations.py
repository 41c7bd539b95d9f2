"""Brokers that are told of news, as rows of an SQLite connection. The caller holds the transaction."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from tocsin.rules.model.cursors import Position
from tocsin.store.channels.rows import BrokerClaim, BrokerName, Registration
from tocsin.store.channels.sqlite import broker_positions
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.wire.errors import FencedError, NotFoundError

SELECT: Final = """SELECT dataverse, name, owner, epoch, number, secret, generation_epoch, generation_number, holder
    FROM registrations """


def register(connection: sqlite3.Connection, broker: BrokerName, secret: str, owner: str | None) -> Registration:
    now = broker_positions.position(connection)
    connection.execute(
        """INSERT INTO registrations (dataverse, name, owner, secret, epoch, number) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET owner = coalesce(nullif(owner, ''), excluded.owner, owner)""",
        (*broker, owner, secret, *now),
    )
    kept = registration(connection, broker)
    assert kept is not None, "it was just put there"
    return kept


def claim(connection: sqlite3.Connection, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
    kept = registration(connection, broker)
    if kept is None:
        raise _unknown(broker)
    is_holder = claimant.store == kept.holder
    if kept.generation is not None and claimant.generation is not None and claimant.generation <= kept.generation:
        if claimant.generation == kept.generation and is_holder and not claimant.starts:
            return kept
        # The holder that starts may have been given a generation whose answer it did not live to see.
        if claimant.generation != kept.generation and not (is_holder and claimant.starts):
            raise FencedError(
                f"another broker has taken the name {broker.dataverse}.{broker.name} over",
                hint="stop one of the two; tocsin broker --take-over takes the name back",
            )
    connection.execute(
        """UPDATE registrations SET generation_epoch = ?, generation_number = ?, holder = ?, secret = ?
        WHERE dataverse = ? AND name = ?""",
        (
            rows.current_epoch(connection), rows.give(connection, "generation"),
            claimant.store, kept.secret if is_holder else secret, *broker,
        ),
    )  # fmt: skip
    made = registration(connection, broker)
    assert made is not None, "it was just changed"
    return made


def forget_holders(connection: sqlite3.Connection) -> None:
    """Of a life of the store that is over: who holds the names now has to say so."""
    connection.execute("UPDATE registrations SET holder = NULL")


def renew_secret(connection: sqlite3.Connection, broker: BrokerName, secret: str) -> None:
    sql = "UPDATE registrations SET secret = ? WHERE dataverse = ? AND name = ?"
    if not connection.execute(sql, (secret, *broker)).rowcount:
        raise _unknown(broker)


def registrations(connection: sqlite3.Connection) -> list[Registration]:
    return [_read(row) for row in connection.execute(SELECT + "ORDER BY dataverse, name")]


def registration(connection: sqlite3.Connection, broker: BrokerName) -> Registration | None:
    row = connection.execute(SELECT + "WHERE dataverse = ? AND name = ?", broker).fetchone()
    return None if row is None else _read(row)


def told(connection: sqlite3.Connection, broker: BrokerName, position: Position) -> Position:
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


def unregister(connection: sqlite3.Connection, broker: BrokerName) -> None:
    connection.execute("DELETE FROM registrations WHERE dataverse = ? AND name = ?", broker)


def _read(row: tuple[Any, ...]) -> Registration:
    dataverse, name, owner, epoch, number, secret, generation_epoch, generation_number, holder = row
    generation = None if generation_epoch is None else Position(generation_epoch, generation_number)
    return Registration(BrokerName(dataverse, name), owner, Position(epoch, number), secret, generation, holder)


def _unknown(broker: BrokerName) -> NotFoundError:
    return NotFoundError(f"the broker {broker.dataverse}.{broker.name} is not registered")
