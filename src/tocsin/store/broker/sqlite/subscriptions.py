"""Backends, frontends and markers of a broker's store, as rows of an SQLite connection. The caller holds the
transaction.

Many at once are passed as one JSON list: one statement, whatever their number.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor, Position
from tocsin.store.broker.rows import (
    BackendRow,
    FrontendOutcome,
    FrontendRequest,
    FrontendRow,
    LinkRow,
    NewBackendRow,
    ReboundBackend,
)
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError
from tocsin.wire.subscriber import Mode

PUBLIC_BYTES: Final = 16

BACKENDS: Final = """SELECT b.interest, b.channel, b.parameters, b.subscription, b.since_epoch, b.since_place,
        h.epoch, h.place
    FROM backends b JOIN heads h ON h.backend = b.id """
FRONTENDS: Final = """SELECT f.id, f.public_id, f.subscriber, b.interest, f.mode, f.since_epoch, f.since_place,
        m.epoch, m.place, f.created_us, f.own
    FROM frontends f JOIN backends b ON b.id = f.backend JOIN markers m ON m.frontend = f.id """


def place(cursor: Cursor) -> tuple[int, int]:
    return cursor.epoch, cursor.execution << ORDINAL_BITS | cursor.ordinal


def cursor(epoch: int, place: int) -> Cursor:
    return Cursor(epoch, place >> ORDINAL_BITS, place & LAST_ORDINAL)


# --- the cluster


def link(connection: sqlite3.Connection) -> LinkRow:
    epoch, position_epoch, number, secret = connection.execute(
        "SELECT epoch, position_epoch, position_number, secret FROM link"
    ).fetchone()
    return LinkRow(epoch, Position(position_epoch, number), secret)


def registered(connection: sqlite3.Connection, epoch: int, position: Position, secret: str | None) -> None:
    connection.execute(
        "UPDATE link SET epoch = ?, position_epoch = ?, position_number = ?, secret = coalesce(?, secret)",
        (epoch, *position, secret),
    )


def record_news(connection: sqlite3.Connection, position: Position, heads: Mapping[int, Cursor]) -> None:
    connection.execute(
        """UPDATE link SET position_epoch = ?1, position_number = ?2
        WHERE (position_epoch, position_number) < (?1, ?2)""",
        position,
    )
    put_heads(connection, heads)


def put_heads(connection: sqlite3.Connection, heads: Mapping[int, Cursor]) -> None:
    connection.executemany(
        """UPDATE heads SET epoch = ?2, place = ?3
        WHERE backend = (SELECT id FROM backends WHERE interest = ?1) AND (epoch, place) < (?2, ?3)""",
        ((interest, *place(head)) for interest, head in heads.items()),
    )


# --- backends


def backends_after(connection: sqlite3.Connection, after: int, limit: int) -> list[BackendRow]:
    sql = BACKENDS + "WHERE b.interest > ? ORDER BY b.interest LIMIT ?"
    return [_backend(row) for row in connection.execute(sql, (after, limit))]


def backend(connection: sqlite3.Connection, channel: str, parameters: str) -> BackendRow | None:
    row = connection.execute(BACKENDS + "WHERE b.channel = ? AND b.parameters = ?", (channel, parameters)).fetchone()
    return None if row is None else _backend(row)


def add_backends(connection: sqlite3.Connection, wanted: Sequence[NewBackendRow]) -> None:
    for each in wanted:
        there = connection.execute(
            "SELECT interest, channel, parameters FROM backends WHERE interest = ? OR (channel = ? AND parameters = ?)",
            (each.interest, each.channel, each.parameters),
        ).fetchall()
        if there == [(each.interest, each.channel, each.parameters)]:
            if each.head is not None:
                put_heads(connection, {each.interest: each.head})
            continue
        if there:
            raise ConflictError(
                f"the interest {each.interest} is known as another one of {there[0][1]}",
                hint="the cluster has forgotten its numbers: bind all backends again",
            )
        since = place(each.since)
        made = connection.execute(
            """INSERT INTO backends (interest, channel, parameters, subscription, since_epoch, since_place)
            VALUES (?, ?, ?, ?, ?, ?)""",
            (each.interest, each.channel, each.parameters, each.subscription, *since),
        )
        head = since if each.head is None else max(since, place(each.head))
        connection.execute("INSERT INTO heads VALUES (?, ?, ?)", (made.lastrowid, *head))


def rebind(connection: sqlite3.Connection, rebound: Sequence[ReboundBackend]) -> None:
    ids = [backend_id(connection, each.interest) for each in rebound]
    # Through numbers that no interest has, so that two may change places.
    connection.executemany("UPDATE backends SET interest = -id WHERE id = ?", ((id_,) for id_ in ids))
    for id_, each in zip(ids, rebound, strict=True):
        since = place(each.since)
        try:
            connection.execute(
                """UPDATE backends SET interest = ?, subscription = ?, since_epoch = ?, since_place = ?
                WHERE id = ?""",
                (each.new_interest, each.subscription, *since, id_),
            )
        except sqlite3.IntegrityError as problem:
            raise ConflictError(f"the interest {each.new_interest} is another's") from problem
    # When all have their numbers.
    put_heads(
        connection,
        {each.new_interest: each.since if each.head is None else max(each.since, each.head) for each in rebound},
    )


def release_backends(connection: sqlite3.Connection, interests: Sequence[int]) -> list[int]:
    free = connection.execute(
        """SELECT b.id, b.interest FROM backends b WHERE b.interest IN (SELECT value FROM json_each(?))
            AND NOT EXISTS (SELECT 1 FROM frontends f WHERE f.backend = b.id)
            AND NOT EXISTS (SELECT 1 FROM group_subscriptions g WHERE g.backend = b.id)
        ORDER BY b.interest""",
        (json.dumps(list(interests)),),
    ).fetchall()
    _remove_backends(connection, [id_ for id_, _ in free])
    return [interest for _, interest in free]


def drop_backends(connection: sqlite3.Connection, interests: Sequence[int]) -> list[FrontendRow]:
    found = connection.execute(
        "SELECT id FROM backends WHERE interest IN (SELECT value FROM json_each(?))", (json.dumps(list(interests)),)
    ).fetchall()
    ids = json.dumps([id_ for (id_,) in found])
    held = connection.execute(
        "SELECT id FROM frontends WHERE backend IN (SELECT value FROM json_each(?))", (ids,)
    ).fetchall()
    gone = read_frontends(connection, [id_ for (id_,) in held])
    connection.execute("DELETE FROM group_subscriptions WHERE backend IN (SELECT value FROM json_each(?))", (ids,))
    remove_frontends(connection, [each.id for each in gone])
    _remove_backends(connection, [id_ for (id_,) in found])
    return gone


def backend_id(connection: sqlite3.Connection, interest: int) -> int:
    row = connection.execute("SELECT id FROM backends WHERE interest = ?", (interest,)).fetchone()
    if row is None:
        raise NotFoundError(f"the interest {interest} is not held")
    id_: int = row[0]
    return id_


def _remove_backends(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    these = json.dumps(list(ids))
    connection.execute("DELETE FROM heads WHERE backend IN (SELECT value FROM json_each(?))", (these,))
    connection.execute("DELETE FROM backends WHERE id IN (SELECT value FROM json_each(?))", (these,))


# --- frontends


def subscribe(
    connection: sqlite3.Connection,
    wanted: Sequence[FrontendRequest],
    backends: Sequence[NewBackendRow],
    created_us: int,
    at_most: int | None,
) -> list[FrontendOutcome]:
    add_backends(connection, backends)
    held: list[tuple[int, bool]] = []
    for each in wanted:
        if connection.execute("SELECT 1 FROM subscribers WHERE id = ?", (each.subscriber,)).fetchone() is None:
            raise NotFoundError(f"there is no subscriber {each.subscriber}")
        held.append(
            hold(
                connection, each.subscriber, each.interest, each.mode, since=each.since, created_us=created_us, own=True
            )
        )
    if at_most is not None:
        for subscriber in {each.subscriber for each in wanted}:
            _check_owned(connection, subscriber, at_most)
    found = {each.id: each for each in read_frontends(connection, [id_ for id_, _ in held])}
    return [FrontendOutcome(found[id_], made) for id_, made in held]


def hold(
    connection: sqlite3.Connection,
    subscriber: int,
    interest: int,
    mode: Mode,
    *,
    since: Cursor | None,
    created_us: int,
    own: bool,
) -> tuple[int, bool]:
    """A frontend's id, and whether it is new."""
    backend = backend_id(connection, interest)
    row = connection.execute(
        "SELECT id FROM frontends WHERE subscriber = ? AND backend = ?", (subscriber, backend)
    ).fetchone()
    if row is not None:
        if own:
            connection.execute("UPDATE frontends SET own = 1 WHERE id = ?", row)
        return row[0], False
    if since is None:
        begin = connection.execute("SELECT epoch, place FROM heads WHERE backend = ?", (backend,)).fetchone()
    else:
        begin = place(since)
    public_id = f"sub_{secrets.token_urlsafe(PUBLIC_BYTES)}"
    made = connection.execute(
        """INSERT INTO frontends (public_id, subscriber, backend, mode, since_epoch, since_place, created_us, own)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (public_id, subscriber, backend, mode, *begin, created_us, own),
    )
    connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (made.lastrowid, *begin))
    assert made.lastrowid is not None, "a row was inserted"
    return made.lastrowid, True


def unsubscribe(connection: sqlite3.Connection, ids: Sequence[int]) -> list[FrontendRow]:
    def disown() -> None:
        connection.execute(
            "UPDATE frontends SET own = 0 WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),)
        )

    return ended_by(connection, ids, disown)


def ended_by(connection: sqlite3.Connection, ids: Sequence[int], change: Callable[[], object]) -> list[FrontendRow]:
    """Those of these frontends, as they were, that nobody wants after the change; they are removed."""
    before = read_frontends(connection, ids)
    change()
    unheld = connection.execute(
        """SELECT f.id FROM frontends f WHERE f.id IN (SELECT value FROM json_each(?)) AND f.own = 0
            AND NOT EXISTS (SELECT 1 FROM members m JOIN group_subscriptions g ON g.group_id = m.group_id
                WHERE m.subscriber = f.subscriber AND g.backend = f.backend)""",
        (json.dumps([each.id for each in before]),),
    )
    gone = {id_ for (id_,) in unheld}
    remove_frontends(connection, list(gone))
    return [each for each in before if each.id in gone]


def end_outside(
    connection: sqlite3.Connection, application: int, channels: Sequence[str], after: int, limit: int
) -> list[FrontendRow]:
    these = json.dumps(list(channels))
    connection.execute(
        """DELETE FROM group_subscriptions WHERE group_id IN (SELECT id FROM user_groups WHERE application = ?)
            AND backend IN (SELECT id FROM backends WHERE channel NOT IN (SELECT value FROM json_each(?)))""",
        (application, these),
    )
    found = connection.execute(
        """SELECT f.id FROM frontends f JOIN subscribers s ON s.id = f.subscriber JOIN backends b ON b.id = f.backend
        WHERE f.id > ? AND s.application = ? AND b.channel NOT IN (SELECT value FROM json_each(?))
        ORDER BY f.id LIMIT ?""",
        (after, application, these, limit),
    ).fetchall()
    gone = read_frontends(connection, [id_ for (id_,) in found])
    remove_frontends(connection, [each.id for each in gone])
    return gone


def remove_frontends(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    these = json.dumps(list(ids))
    connection.execute("DELETE FROM markers WHERE frontend IN (SELECT value FROM json_each(?))", (these,))
    connection.execute("DELETE FROM frontends WHERE id IN (SELECT value FROM json_each(?))", (these,))


def put_markers(connection: sqlite3.Connection, markers: Mapping[int, Cursor]) -> None:
    connection.executemany(
        """UPDATE markers SET epoch = ?2, place = ?3
        WHERE frontend = ?1 AND (epoch < ?2 OR (epoch = ?2 AND place < ?3))""",
        # In the order of the table, so that each of its pages is looked for once.
        [(id_, *place(markers[id_])) for id_ in sorted(markers)],
    )


def frontend(connection: sqlite3.Connection, subscriber: int, public_id: str) -> FrontendRow | None:
    found = _frontends(connection, "WHERE f.public_id = ? AND f.subscriber = ?", (public_id, subscriber))
    return found[0] if found else None


def frontends_of(connection: sqlite3.Connection, subscriber: int, after: int, limit: int) -> list[FrontendRow]:
    page = "WHERE f.subscriber = ? AND f.id > ? ORDER BY f.id LIMIT ?"
    return _frontends(connection, page, (subscriber, after, limit))


def frontends_after(connection: sqlite3.Connection, after: int, limit: int) -> list[FrontendRow]:
    return _frontends(connection, "WHERE f.id > ? ORDER BY f.id LIMIT ?", (after, limit))


def read_frontends(connection: sqlite3.Connection, ids: Sequence[int]) -> list[FrontendRow]:
    """Those of these that are there, in the order of ids."""
    return _frontends(
        connection, "WHERE f.id IN (SELECT value FROM json_each(?)) ORDER BY f.id", (json.dumps(list(ids)),)
    )


def _frontends(connection: sqlite3.Connection, which: str, values: Sequence[Any]) -> list[FrontendRow]:
    rows = connection.execute(FRONTENDS + which, values).fetchall()
    groups: dict[int, list[int]] = defaultdict(list)
    if connection.execute("SELECT EXISTS (SELECT 1 FROM group_subscriptions)").fetchone()[0]:
        for id_, group in _holding(connection, [row[0] for row in rows]):
            groups[id_].append(group)
    return [
        FrontendRow(
            row[0],
            row[1],
            row[2],
            row[3],
            row[4],
            cursor(row[5], row[6]),
            cursor(row[7], row[8]),
            row[9],
            bool(row[10]),
            tuple(groups.get(row[0], ())),
        )
        for row in rows
    ]


def _holding(connection: sqlite3.Connection, ids: Sequence[int]) -> sqlite3.Cursor:
    """Which groups hold these frontends, one pair for each."""
    return connection.execute(
        """SELECT f.id, m.group_id FROM frontends f JOIN members m ON m.subscriber = f.subscriber
            JOIN group_subscriptions g ON g.group_id = m.group_id AND g.backend = f.backend
        WHERE f.id IN (SELECT value FROM json_each(?)) ORDER BY m.group_id""",
        (json.dumps(list(ids)),),
    )


def _check_owned(connection: sqlite3.Connection, subscriber: int, at_most: int) -> None:
    sql = "SELECT count(*) FROM frontends WHERE subscriber = ? AND own = 1"
    if connection.execute(sql, (subscriber,)).fetchone()[0] > at_most:
        raise LimitError(
            "these are more subscriptions than one subscriber may have",
            hint=f"at most {at_most}; end some first",
            status=429,
        )


def _backend(row: Any) -> BackendRow:
    interest, channel, parameters, subscription, since_epoch, since_place, epoch, head = row
    return BackendRow(
        interest, channel, parameters, subscription, cursor(since_epoch, since_place), cursor(epoch, head)
    )
