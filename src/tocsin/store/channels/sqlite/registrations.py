"""Registrations of brokers, as rows of an SQLite connection. The caller holds the transaction."""

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
    registered = registration(connection, broker)
    assert registered is not None, "it was just put there"
    return registered


def claim(connection: sqlite3.Connection, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
    registered = registration(connection, broker)
    if registered is None:
        raise _unknown(broker)
    is_holder = claimant.store == registered.holder
    if (
        registered.generation is not None
        and claimant.generation is not None
        and claimant.generation <= registered.generation
    ):
        if claimant.generation == registered.generation and is_holder and not claimant.starts:
            return registered
        # The holder may have crashed before it received its last generation, so its claim may name an older
        # generation.
        if claimant.generation != registered.generation and not (is_holder and claimant.starts):
            raise FencedError(
                f"another broker has taken the name {broker.dataverse}.{broker.name} over",
                hint="stop one of the two; tocsin broker --take-over takes the name back",
            )
    connection.execute(
        """UPDATE registrations SET generation_epoch = ?, generation_number = ?, holder = ?, secret = ?
        WHERE dataverse = ? AND name = ?""",
        (
            rows.current_epoch(connection), rows.reserve_numbers(connection, "generation"),
            claimant.store, registered.secret if is_holder else secret, *broker,
        ),
    )  # fmt: skip
    renewed = registration(connection, broker)
    assert renewed is not None, "it was just changed"
    return renewed


def forget_holders(connection: sqlite3.Connection) -> None:
    """A new epoch begins: each process has to claim its name again."""
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


def record_position(connection: sqlite3.Connection, broker: BrokerName, position: Position) -> Position:
    registered = registration(connection, broker)
    if registered is None:
        raise _unknown(broker)
    epochs, last = rows.result_epochs(connection), rows.last_number(connection, "result")
    number = max(min(epochs.bound(*known_position), last) for known_position in (registered.position, position))
    # Record the position in this store's own numbering, not in that of another epoch.
    recorded = Position(epochs.epoch_of(number), number)
    sql = "UPDATE registrations SET epoch = ?, number = ? WHERE dataverse = ? AND name = ?"
    connection.execute(sql, (*recorded, *broker))
    return recorded


def unregister(connection: sqlite3.Connection, broker: BrokerName) -> None:
    connection.execute("DELETE FROM registrations WHERE dataverse = ? AND name = ?", broker)


def _read(row: tuple[Any, ...]) -> Registration:
    dataverse, name, owner, epoch, number, secret, generation_epoch, generation_number, holder = row
    generation = None if generation_epoch is None else Position(generation_epoch, generation_number)
    return Registration(BrokerName(dataverse, name), owner, Position(epoch, number), secret, generation, holder)


def _unknown(broker: BrokerName) -> NotFoundError:
    return NotFoundError(f"the broker {broker.dataverse}.{broker.name} is not registered")
