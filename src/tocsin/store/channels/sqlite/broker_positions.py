"""Positions and acknowledgements of brokers, as rows of an SQLite connection. The caller holds the transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.store.channels.epochs import end_of
from tocsin.store.channels.rows import BrokerName, NewResults, NewResultsPage
from tocsin.store.channels.sqlite import channel_rows as rows


def position(connection: sqlite3.Connection) -> Position:
    return Position(rows.current_epoch(connection), rows.last_number(connection, "result"))


def count_dropped(connection: sqlite3.Connection) -> int:
    existing = connection.execute("SELECT count(*) FROM channels WHERE NOT dropped").fetchone()[0]
    return rows.last_number(connection, "channel") - int(existing)


def news(connection: sqlite3.Connection, after: Position, broker: BrokerName | None, limit: int) -> NewResultsPage:
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
    latest: dict[tuple[int, int], tuple[int, int, int]] = {}
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


def acknowledge(connection: sqlite3.Connection, broker: BrokerName, cursors: Mapping[int, Cursor]) -> set[int]:
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


def places_of(connection: sqlite3.Connection, cursors: Mapping[int, Cursor], channel_id: int | None) -> dict[int, int]:
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
) -> tuple[dict[int, Cursor], int | None]:
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
