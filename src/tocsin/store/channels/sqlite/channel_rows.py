"""Channels, executions, epochs and brokers, as rows of an SQLite connection. The caller holds the transaction.

So the store decides which changes are atomic: the results of an execution, the channel's position and what to announce
commit together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from tocsin.store.channels.epochs import Epochs, end_of
from tocsin.store.channels.interface import PAGE
from tocsin.store.channels.rows import BrokerName, ChannelState, Execution, Failure, RecordedExecution
from tocsin.store.cluster.interface import decode_json, encode_json, next_epoch
from tocsin.wire.errors import NotFoundError


def last_number(connection: sqlite3.Connection, counter: str) -> int:
    """The last number that the counter gave out."""
    row = connection.execute("SELECT value FROM counters WHERE name = ?", (counter,)).fetchone()
    return 0 if row is None else int(row[0])


def reserve_numbers(connection: sqlite3.Connection, counter: str, count: int = 1, after: int = 0) -> int:
    """Reserves `count` numbers that were never given out before, all above `after`. Returns the first."""
    first = max(last_number(connection, counter), after) + 1
    connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (counter, first + count - 1))
    return first


# --- epochs


def current_epoch(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(epoch) FROM epochs").fetchone()[0])


def begin_epoch(connection: sqlite3.Connection, now: datetime) -> int:
    previous = connection.execute("SELECT max(epoch) FROM epochs").fetchone()[0]
    epoch = next_epoch(previous, now)
    connection.execute("INSERT INTO epochs VALUES (?, ?)", (epoch, last_number(connection, "result") + 1))
    for channel_id, last in connection.execute("SELECT id, last_execution FROM channels").fetchall():
        connection.execute("INSERT INTO channel_epochs VALUES (?, ?, ?)", (channel_id, epoch, end_of(last) + 1))
    return epoch


def renew_epoch(connection: sqlite3.Connection) -> int:
    return begin_epoch(connection, datetime.now(UTC))


def result_epochs(connection: sqlite3.Connection) -> Epochs:
    return Epochs.of(connection.execute("SELECT epoch, first FROM epochs"))


class ChannelEpochs:
    """The epochs of channels; each is read once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[int, Epochs] = {}

    def __getitem__(self, channel_id: int) -> Epochs:
        epochs = self._known.get(channel_id)
        if epochs is None:
            sql = "SELECT epoch, first FROM channel_epochs WHERE channel_id = ?"
            epochs = self._known[channel_id] = Epochs.of(self._connection.execute(sql, (channel_id,)))
        return epochs


# --- channels


def add_channel(connection: sqlite3.Connection, *, after: int = 0) -> int:
    channel_id = reserve_numbers(connection, "channel", after=after)
    connection.execute("INSERT INTO channels (id) VALUES (?)", (channel_id,))
    connection.execute(
        "INSERT INTO channel_epochs VALUES (?, ?, ?)", (channel_id, current_epoch(connection), end_of(0) + 1)
    )
    return channel_id


def channel_ids(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT id FROM channels ORDER BY id")]


def last_execution(connection: sqlite3.Connection, channel_id: int) -> int:
    """The number of the channel's last execution. Raises NotFoundError if there is no such channel."""
    sql = "SELECT last_execution FROM channels WHERE id = ? AND NOT dropped"
    row = connection.execute(sql, (channel_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no channel number {channel_id}")
    return int(row[0])


def state(connection: sqlite3.Connection, channel_id: int) -> ChannelState:
    last_execution(connection, channel_id)
    last, vector, *others = connection.execute(
        """SELECT last_execution, vector, tick_us, change, interests, subscriptions, results, result_bytes
        FROM channels WHERE id = ?""",
        (channel_id,),
    ).fetchone()
    return ChannelState(channel_id, last, decode_json(vector), *others)


# --- executions


def add_execution(
    connection: sqlite3.Connection, channel_id: int, execution: Execution, *, first: int, count: int, size_bytes: int
) -> None:
    """Adds the row and updates the channel's vector, tick and number. Its results are the `count` rows from `first`
    on.
    """
    vector = encode_json(dict(execution.vector))
    connection.execute(
        "INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            channel_id, execution.number, current_epoch(connection),
            execution.tick_us, execution.started_us, execution.ended_us,
            vector, encode_json(dict(execution.details)), count,
            first, first + count - 1, count, count, size_bytes,
        ),
    )  # fmt: skip
    connection.execute(
        """UPDATE channels SET last_execution = ?, vector = ?, tick_us = ?,
        results = results + ?, result_bytes = result_bytes + ? WHERE id = ?""",
        (execution.number, vector, execution.tick_us, count, size_bytes, channel_id),
    )


def add_failure(connection: sqlite3.Connection, channel_id: int, failure: Failure) -> None:
    last_execution(connection, channel_id)
    connection.execute(
        """INSERT INTO failures (channel_id, number, epoch, tick_us, started_us, ended_us, reason, details)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            channel_id, failure.number, current_epoch(connection),
            failure.tick_us, failure.started_us, failure.ended_us,
            failure.reason, encode_json(dict(failure.details)),
        ),
    )  # fmt: skip


def executions(connection: sqlite3.Connection, channel_id: int, *, limit: int = PAGE) -> list[RecordedExecution]:
    last_execution(connection, channel_id)
    columns = "number, epoch, tick_us, started_us, ended_us"
    completed = connection.execute(
        f"""SELECT {columns}, vector, results, NULL, details FROM executions
        WHERE channel_id = ? ORDER BY number DESC LIMIT ?""",  # noqa: S608 - our own columns
        (channel_id, limit),
    )
    failed = connection.execute(
        f"""SELECT {columns}, '{{}}', 0, reason, details FROM failures
        WHERE channel_id = ? ORDER BY id DESC LIMIT ?""",  # noqa: S608 - our own columns
        (channel_id, limit),
    )
    recorded = [*_read_executions(completed), *_read_executions(failed)]
    # The failures of an execution number come before its completed run.
    recorded.sort(key=lambda each: (each.number, each.reason is None, each.ended_us), reverse=True)
    return recorded[:limit]


def _read_executions(rows: Iterable[tuple[Any, ...]]) -> list[RecordedExecution]:
    return [
        RecordedExecution(
            number, epoch, tick_us, started_us, ended_us, decode_json(vector), count, reason, decode_json(details)
        )
        for number, epoch, tick_us, started_us, ended_us, vector, count, reason, details in rows
    ]


# --- brokers


def broker_id(connection: sqlite3.Connection, broker: BrokerName) -> int | None:
    sql = "SELECT id FROM brokers WHERE dataverse = ? AND name = ?"
    row = connection.execute(sql, broker).fetchone()
    return None if row is None else int(row[0])


def make_broker_id(connection: sqlite3.Connection, broker: BrokerName) -> int:
    number = broker_id(connection, broker)
    if number is None:
        number = reserve_numbers(connection, "broker")
        connection.execute("INSERT INTO brokers VALUES (?, ?, ?)", (number, *broker))
    return number


def brokers(connection: sqlite3.Connection) -> dict[int, BrokerName]:
    return {id_: BrokerName(dataverse, name) for id_, dataverse, name in connection.execute("SELECT * FROM brokers")}
