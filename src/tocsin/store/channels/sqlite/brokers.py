"""Reads and writes the rows of brokers: registrations, positions and acknowledgements.

The caller holds the transaction, so that a change of several rows is done as a whole.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.store.channels.epochs import end_of
from tocsin.store.channels.interface import NEW_RESULTS_LIMIT
from tocsin.store.channels.rows import BrokerClaim, BrokerName, NewResults, NewResultsPage, Registration
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.wire.errors import FencedError, NotFoundError

_SELECT: Final = """SELECT dataverse, name, owner, epoch, number, secret, generation_epoch, generation_number, holder
    FROM registrations """

# --- positions and acknowledgements


def position(connection: sqlite3.Connection) -> Position:
    return Position(rows.current_epoch(connection), rows.last_number(connection, "result"))


def count_dropped(connection: sqlite3.Connection) -> int:
    existing = connection.execute("SELECT count(*) FROM channels WHERE NOT dropped").fetchone()[0]
    return rows.last_number(connection, "channel") - int(existing)


def new_results(
    connection: sqlite3.Connection, after: Position, *, broker: BrokerName | None = None, limit: int = NEW_RESULTS_LIMIT
) -> NewResultsPage:
    now = position(connection)
    begin = min(rows.result_epochs(connection).bound(after.epoch, after.number), now.number)
    holder = None if broker is None else rows.broker_id(connection, broker)
    if broker is not None and holder is None:
        return NewResultsPage(now, [], [], False, count_dropped(connection))
    # Rows are examined in commit order; some numbers may be missing because retention removed their rows.
    sql = "SELECT max(id) FROM (SELECT id FROM results WHERE id > ? ORDER BY id LIMIT ?)"
    end = connection.execute(sql, (begin, limit)).fetchone()[0] or now.number
    more = connection.execute("SELECT 1 FROM results WHERE id > ? LIMIT 1", (end,)).fetchone() is not None
    held_results = connection.execute(
        """SELECT h.broker, r.interest, r.place, i.channel_id FROM results r
        CROSS JOIN holds h ON h.interest = r.interest AND (?1 IS NULL OR h.broker = ?1)
        CROSS JOIN interests i ON i.id = r.interest
        CROSS JOIN channels c ON c.id = i.channel_id AND NOT c.dropped
        WHERE r.id > ?2 AND r.id <= ?3 ORDER BY r.id""",
        (holder, begin, end),
    )
    latest: dict[tuple[int, InterestId], tuple[int, int, int]] = {}
    for broker_number, interest, place, channel_id in held_results:
        known = latest.get((broker_number, interest))
        latest[broker_number, interest] = channel_id, place, place if known is None else known[2]
    brokers, epochs = rows.brokers(connection), rows.ChannelEpochs(connection)
    items = [
        NewResults(
            brokers[broker_number],
            channel_id,
            interest,
            epochs[channel_id].cursor(place),
            epochs[channel_id].cursor(first),
        )
        for (broker_number, interest), (channel_id, place, first) in latest.items()
    ]
    gaps = connection.execute(
        """SELECT id FROM channels WHERE removed_to > ?1 AND NOT dropped AND (?2 IS NULL OR EXISTS (
            SELECT 1 FROM subscriptions s WHERE s.broker = ?2 AND s.channel_id = channels.id)) ORDER BY id""",
        (begin, holder),
    )
    page_end = Position(now.epoch, end) if more else now
    return NewResultsPage(page_end, items, [row[0] for row in gaps], more, count_dropped(connection))


def acknowledge(connection: sqlite3.Connection, broker: BrokerName, cursors: Mapping[InterestId, Cursor]) -> set[int]:
    holder = rows.broker_id(connection, broker)
    if holder is None:
        return set()
    places = places_of(connection, cursors, None)
    connection.executemany(
        "UPDATE holds SET acknowledged = ?1 WHERE interest = ?2 AND broker = ?3 AND acknowledged < ?1",
        ((place, interest, holder) for interest, place in places.items()),
    )
    sql = "SELECT DISTINCT i.channel_id FROM json_each(?) j CROSS JOIN interests i ON i.id = j.value"
    return {row[0] for row in connection.execute(sql, (json.dumps(sorted(places)),))}


def places_of(
    connection: sqlite3.Connection, cursors: Mapping[InterestId, Cursor], channel_id: int | None
) -> dict[int, int]:
    """Cursors as places, for the interests that exist (in this channel), at most the last execution: a cursor of an
    unknown epoch must not acknowledge later results.
    """
    interests = connection.execute(
        """SELECT i.id, i.channel_id, c.last_execution FROM json_each(?1) j CROSS JOIN interests i ON i.id = j.value
        CROSS JOIN channels c ON c.id = i.channel_id AND NOT c.dropped WHERE ?2 IS NULL OR i.channel_id = ?2""",
        (json.dumps(sorted(cursors)), channel_id),
    )
    epochs = rows.ChannelEpochs(connection)
    return {
        interest: min(epochs[channel].place(cursors[interest]), end_of(last))
        for interest, channel, last in interests.fetchall()
    }


def lowest_acknowledged(
    connection: sqlite3.Connection, channel_id: int, after: int, limit: int
) -> tuple[dict[InterestId, Cursor], int | None]:
    """Per interest the place that all holders have acknowledged, for interests added after the change `after` that
    have results below it; and where the next page begins.
    """
    rows.last_execution(connection, channel_id)
    page = connection.execute(
        """SELECT i.id, i.change, i.lost, (SELECT min(h.acknowledged) FROM holds h WHERE h.interest = i.id)
        FROM interests i WHERE i.channel_id = ? AND i.change > ? ORDER BY i.change LIMIT ?""",
        (channel_id, after, limit),
    ).fetchall()
    trimmable = connection.execute(
        """SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?) j WHERE EXISTS (SELECT 1 FROM results r
            WHERE r.interest = j.value ->> 0 AND r.place > j.value ->> 2 AND r.place <= j.value ->> 1)""",
        (json.dumps([(interest, lowest, lost) for interest, _, lost, lowest in page]),),
    )
    epochs = rows.ChannelEpochs(connection)[channel_id]
    lowest = {interest: epochs.cursor(place) for interest, place in trimmable}
    return lowest, page[-1][1] if len(page) == limit else None


# --- registrations


def register(connection: sqlite3.Connection, broker: BrokerName, secret: str, *, owner: str | None) -> Registration:
    broker.check()
    now = position(connection)
    connection.execute(
        """INSERT INTO registrations (dataverse, name, owner, secret, epoch, number) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET owner = coalesce(nullif(owner, ''), excluded.owner, owner)""",
        (*broker, owner, secret, *now),
    )
    return _read_registration(connection, broker)


def claim(connection: sqlite3.Connection, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
    claimant.check()
    registered = _read_registration(connection, broker)
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
    return _read_registration(connection, broker)


def forget_holders(connection: sqlite3.Connection) -> None:
    """A new epoch begins: each process has to claim its name again."""
    connection.execute("UPDATE registrations SET holder = NULL")


def renew_secret(connection: sqlite3.Connection, broker: BrokerName, secret: str) -> None:
    _read_registration(connection, broker)
    connection.execute("UPDATE registrations SET secret = ? WHERE dataverse = ? AND name = ?", (secret, *broker))


def registrations(connection: sqlite3.Connection) -> list[Registration]:
    return [_read(row) for row in connection.execute(_SELECT + "ORDER BY dataverse, name")]


def registration(connection: sqlite3.Connection, broker: BrokerName) -> Registration | None:
    row = connection.execute(_SELECT + "WHERE dataverse = ? AND name = ?", broker).fetchone()
    return None if row is None else _read(row)


def record_position(connection: sqlite3.Connection, broker: BrokerName, position: Position) -> Position:
    registered = _read_registration(connection, broker)
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


def _read_registration(connection: sqlite3.Connection, broker: BrokerName) -> Registration:
    registered = registration(connection, broker)
    if registered is None:
        raise NotFoundError(f"the broker {broker.dataverse}.{broker.name} is not registered")
    return registered
