"""Backends, frontends and markers, as rows of an SQLite connection. The caller holds the transaction.

Lists are passed as one JSON parameter, so that one statement handles any number of items.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor, InterestId, Position, SubscriptionId
from tocsin.store.broker import checks as check
from tocsin.store.broker.rows import (
    PAGE,
    BackendRow,
    FrontendOutcome,
    FrontendRequest,
    FrontendRow,
    LinkRow,
    NewBackendRow,
    ReboundBackend,
)
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError
from tocsin.wire.subscriber import DeliveryMode

PUBLIC_BYTES: Final = 16

_BACKENDS: Final = """SELECT b.interest, b.channel, b.parameters, b.subscription, b.since_epoch, b.since_place,
        h.epoch, h.place
    FROM backends b JOIN heads h ON h.backend = b.id """
_FRONTENDS: Final = """SELECT f.id, f.public_id, f.subscriber, b.interest, f.mode, f.since_epoch, f.since_place,
        m.epoch, m.place, f.created_us, f.own
    FROM frontends f JOIN backends b ON b.id = f.backend JOIN markers m ON m.frontend = f.id """


def _columns(cursor: Cursor) -> tuple[int, int]:
    """A cursor as the columns `epoch` and `place` (see upgrades.py)."""
    return cursor.epoch, cursor.execution << ORDINAL_BITS | cursor.ordinal


def cursor(epoch: int, place: int) -> Cursor:
    return Cursor(epoch, place >> ORDINAL_BITS, place & LAST_ORDINAL)


# --- the cluster


def link(connection: sqlite3.Connection) -> LinkRow:
    epoch, position_epoch, number, secret = connection.execute(
        "SELECT epoch, position_epoch, position_number, secret FROM link"
    ).fetchone()
    return LinkRow(epoch, Position(position_epoch, number), secret)


def record_registration(
    connection: sqlite3.Connection, *, epoch: int, position: Position, secret: str | None = None
) -> None:
    check.position(position)
    check.texts("secret", secret or "")
    connection.execute(
        "UPDATE link SET epoch = ?, position_epoch = ?, position_number = ?, secret = coalesce(?, secret)",
        (epoch, *position, secret),
    )


def record_announcement(connection: sqlite3.Connection, position: Position, heads: Mapping[InterestId, Cursor]) -> None:
    check.position(position)
    for head in heads.values():
        check.cursor(head)
    connection.execute(
        """UPDATE link SET position_epoch = ?1, position_number = ?2
        WHERE (position_epoch, position_number) < (?1, ?2)""",
        position,
    )
    _put_heads(connection, heads)


def _put_heads(connection: sqlite3.Connection, heads: Mapping[InterestId, Cursor]) -> None:
    connection.executemany(
        """UPDATE heads SET epoch = ?2, place = ?3
        WHERE backend = (SELECT id FROM backends WHERE interest = ?1) AND (epoch, place) < (?2, ?3)""",
        ((interest, *_columns(head)) for interest, head in heads.items()),
    )


# --- backends


def backends_after(connection: sqlite3.Connection, after: int, limit: int) -> list[BackendRow]:
    sql = _BACKENDS + "WHERE b.interest > ? ORDER BY b.interest LIMIT ?"
    return [_backend(row) for row in connection.execute(sql, (after, limit))]


def backend(connection: sqlite3.Connection, channel: str, parameters: str) -> BackendRow | None:
    row = connection.execute(_BACKENDS + "WHERE b.channel = ? AND b.parameters = ?", (channel, parameters)).fetchone()
    return None if row is None else _backend(row)


def add_backends(connection: sqlite3.Connection, new_backends: Sequence[NewBackendRow]) -> None:
    for new_backend in new_backends:
        check.backend(new_backend)
        existing = connection.execute(
            "SELECT interest, channel, parameters FROM backends WHERE interest = ? OR (channel = ? AND parameters = ?)",
            (new_backend.interest, new_backend.channel, new_backend.parameters),
        ).fetchall()
        if existing == [(new_backend.interest, new_backend.channel, new_backend.parameters)]:
            if new_backend.head is not None:
                _put_heads(connection, {new_backend.interest: new_backend.head})
            continue
        if existing:
            raise ConflictError(
                f"the interest {new_backend.interest} is known as another one of {existing[0][1]}",
                hint="the cluster has forgotten its numbers: bind all backends again",
            )
        since = _columns(new_backend.since)
        inserted = connection.execute(
            """INSERT INTO backends (interest, channel, parameters, subscription, since_epoch, since_place)
            VALUES (?, ?, ?, ?, ?, ?)""",
            (new_backend.interest, new_backend.channel, new_backend.parameters, new_backend.subscription, *since),
        )
        head = since if new_backend.head is None else max(since, _columns(new_backend.head))
        connection.execute("INSERT INTO heads VALUES (?, ?, ?)", (inserted.lastrowid, *head))


def rebind(connection: sqlite3.Connection, rebound: Sequence[ReboundBackend]) -> None:
    for binding in rebound:
        check.rebound(binding)
    ids = [backend_id(connection, binding.interest) for binding in rebound]
    # Through interim numbers that no interest has, so that two backends may swap their interests.
    connection.executemany("UPDATE backends SET interest = -id WHERE id = ?", ((id_,) for id_ in ids))
    for id_, binding in zip(ids, rebound, strict=True):
        since = _columns(binding.since)
        try:
            connection.execute(
                """UPDATE backends SET interest = ?, subscription = ?, since_epoch = ?, since_place = ?
                WHERE id = ?""",
                (binding.new_interest, binding.subscription, *since, id_),
            )
        except sqlite3.IntegrityError as error:
            raise ConflictError(f"the interest {binding.new_interest} is another's") from error
    # Only after all backends have their new numbers.
    _put_heads(
        connection,
        {
            binding.new_interest: binding.since if binding.head is None else max(binding.since, binding.head)
            for binding in rebound
        },
    )


def release_backends(connection: sqlite3.Connection, interests: Sequence[InterestId]) -> list[int]:
    unheld = connection.execute(
        """SELECT b.id, b.interest FROM backends b WHERE b.interest IN (SELECT value FROM json_each(?))
            AND NOT EXISTS (SELECT 1 FROM frontends f WHERE f.backend = b.id)
            AND NOT EXISTS (SELECT 1 FROM group_subscriptions g WHERE g.backend = b.id)
        ORDER BY b.interest""",
        (json.dumps(list(interests)),),
    ).fetchall()
    _remove_backends(connection, [id_ for id_, _ in unheld])
    return [interest for _, interest in unheld]


def drop_backends(connection: sqlite3.Connection, interests: Sequence[InterestId]) -> list[FrontendRow]:
    backend_rows = connection.execute(
        "SELECT id FROM backends WHERE interest IN (SELECT value FROM json_each(?))", (json.dumps(list(interests)),)
    ).fetchall()
    ids = json.dumps([id_ for (id_,) in backend_rows])
    frontend_rows = connection.execute(
        "SELECT id FROM frontends WHERE backend IN (SELECT value FROM json_each(?))", (ids,)
    ).fetchall()
    removed = read_frontends(connection, [id_ for (id_,) in frontend_rows])
    connection.execute("DELETE FROM group_subscriptions WHERE backend IN (SELECT value FROM json_each(?))", (ids,))
    remove_frontends(connection, [frontend.id for frontend in removed])
    _remove_backends(connection, [id_ for (id_,) in backend_rows])
    return removed


def backend_id(connection: sqlite3.Connection, interest: InterestId) -> int:
    row = connection.execute("SELECT id FROM backends WHERE interest = ?", (interest,)).fetchone()
    if row is None:
        raise NotFoundError(f"the interest {interest} is not held")
    id_: int = row[0]
    return id_


def _remove_backends(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    listed = json.dumps(list(ids))
    connection.execute("DELETE FROM heads WHERE backend IN (SELECT value FROM json_each(?))", (listed,))
    connection.execute("DELETE FROM backends WHERE id IN (SELECT value FROM json_each(?))", (listed,))


# --- frontends


def subscribe(
    connection: sqlite3.Connection,
    requests: Sequence[FrontendRequest],
    *,
    backends: Sequence[NewBackendRow] = (),
    created_us: int,
    at_most: int | None = None,
) -> list[FrontendOutcome]:
    for request in requests:
        check.request(request)
    add_backends(connection, backends)
    frontend_ids: list[tuple[SubscriptionId, bool]] = []
    for request in requests:
        if connection.execute("SELECT 1 FROM subscribers WHERE id = ?", (request.subscriber,)).fetchone() is None:
            raise NotFoundError(f"there is no subscriber {request.subscriber}")
        frontend_ids.append(
            hold(
                connection,
                request.subscriber,
                request.interest,
                request.mode,
                since=request.since,
                created_us=created_us,
                own=True,
            )
        )
    if at_most is not None:
        for subscriber in {request.subscriber for request in requests}:
            _refuse_above_limit(connection, subscriber, at_most)
    frontends = {frontend.id: frontend for frontend in read_frontends(connection, [id_ for id_, _ in frontend_ids])}
    return [FrontendOutcome(frontends[id_], made) for id_, made in frontend_ids]


def hold(
    connection: sqlite3.Connection,
    subscriber: int,
    interest: InterestId,
    mode: DeliveryMode,
    *,
    since: Cursor | None,
    created_us: int,
    own: bool,
) -> tuple[SubscriptionId, bool]:
    """Finds or makes a frontend. Returns its id, and whether it is new."""
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
        begin = _columns(since)
    public_id = f"sub_{secrets.token_urlsafe(PUBLIC_BYTES)}"
    inserted = connection.execute(
        """INSERT INTO frontends (public_id, subscriber, backend, mode, since_epoch, since_place, created_us, own)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (public_id, subscriber, backend, mode, *begin, created_us, own),
    )
    connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (inserted.lastrowid, *begin))
    assert inserted.lastrowid is not None, "a row was inserted"
    return SubscriptionId(inserted.lastrowid), True


def unsubscribe(connection: sqlite3.Connection, ids: Sequence[int]) -> list[FrontendRow]:
    def disown() -> None:
        connection.execute(
            "UPDATE frontends SET own = 0 WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),)
        )

    return end_unheld(connection, ids, disown)


def end_unheld(connection: sqlite3.Connection, ids: Sequence[int], change: Callable[[], object]) -> list[FrontendRow]:
    """Applies a change, removes those of these frontends that then have no holder, and returns them as they were."""
    before = read_frontends(connection, ids)
    change()
    unheld = connection.execute(
        """SELECT f.id FROM frontends f WHERE f.id IN (SELECT value FROM json_each(?)) AND f.own = 0
            AND NOT EXISTS (SELECT 1 FROM members m JOIN group_subscriptions g ON g.group_id = m.group_id
                WHERE m.subscriber = f.subscriber AND g.backend = f.backend)""",
        (json.dumps([frontend_row.id for frontend_row in before]),),
    )
    ended = {id_ for (id_,) in unheld}
    remove_frontends(connection, list(ended))
    return [frontend_row for frontend_row in before if frontend_row.id in ended]


def end_outside(
    connection: sqlite3.Connection, application: int, channels: Sequence[str], *, after: int = 0, limit: int = PAGE
) -> list[FrontendRow]:
    listed = json.dumps(list(channels))
    connection.execute(
        """DELETE FROM group_subscriptions WHERE group_id IN (SELECT id FROM user_groups WHERE application = ?)
            AND backend IN (SELECT id FROM backends WHERE channel NOT IN (SELECT value FROM json_each(?)))""",
        (application, listed),
    )
    outside = connection.execute(
        """SELECT f.id FROM frontends f JOIN subscribers s ON s.id = f.subscriber JOIN backends b ON b.id = f.backend
        WHERE f.id > ? AND s.application = ? AND b.channel NOT IN (SELECT value FROM json_each(?))
        ORDER BY f.id LIMIT ?""",
        (after, application, listed, limit),
    ).fetchall()
    removed = read_frontends(connection, [id_ for (id_,) in outside])
    remove_frontends(connection, [frontend.id for frontend in removed])
    return removed


def remove_frontends(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    listed = json.dumps(list(ids))
    connection.execute("DELETE FROM markers WHERE frontend IN (SELECT value FROM json_each(?))", (listed,))
    connection.execute("DELETE FROM frontends WHERE id IN (SELECT value FROM json_each(?))", (listed,))


def put_markers(connection: sqlite3.Connection, markers: Mapping[SubscriptionId, Cursor]) -> None:
    connection.executemany(
        """UPDATE markers SET epoch = ?2, place = ?3
        WHERE frontend = ?1 AND (epoch < ?2 OR (epoch = ?2 AND place < ?3))""",
        # Sorted in the order of the table, so that each of its pages is found once.
        [(id_, *_columns(markers[id_])) for id_ in sorted(markers)],
    )


def frontend(connection: sqlite3.Connection, subscriber: int, public_id: str) -> FrontendRow | None:
    matching = _frontends(connection, "WHERE f.public_id = ? AND f.subscriber = ?", (public_id, subscriber))
    return matching[0] if matching else None


def frontends_of(
    connection: sqlite3.Connection, subscriber: int, *, after: int = 0, limit: int = PAGE
) -> list[FrontendRow]:
    page = "WHERE f.subscriber = ? AND f.id > ? ORDER BY f.id LIMIT ?"
    return _frontends(connection, page, (subscriber, after, limit))


def frontends_after(connection: sqlite3.Connection, after: int, limit: int) -> list[FrontendRow]:
    return _frontends(connection, "WHERE f.id > ? ORDER BY f.id LIMIT ?", (after, limit))


def read_frontends(connection: sqlite3.Connection, ids: Sequence[int]) -> list[FrontendRow]:
    """Those of these frontends that exist, in the order of ids."""
    return _frontends(
        connection, "WHERE f.id IN (SELECT value FROM json_each(?)) ORDER BY f.id", (json.dumps(list(ids)),)
    )


def _frontends(connection: sqlite3.Connection, which: str, values: Sequence[Any]) -> list[FrontendRow]:
    rows = connection.execute(_FRONTENDS + which, values).fetchall()
    groups: dict[int, list[int]] = defaultdict(list)
    if connection.execute("SELECT EXISTS (SELECT 1 FROM group_subscriptions)").fetchone()[0]:
        for id_, group in _select_holders(connection, [row[0] for row in rows]):
            groups[id_].append(group)
    return [
        FrontendRow(
            id_,
            public_id,
            subscriber,
            interest,
            mode,
            cursor(since_epoch, since),
            cursor(epoch, marker),
            created_us,
            bool(own),
            tuple(groups[id_]),
        )
        for id_, public_id, subscriber, interest, mode, since_epoch, since, epoch, marker, created_us, own in rows
    ]


def _select_holders(connection: sqlite3.Connection, ids: Sequence[int]) -> sqlite3.Cursor:
    """The groups that hold these frontends, as pairs of frontend and group."""
    return connection.execute(
        """SELECT f.id, m.group_id FROM frontends f JOIN members m ON m.subscriber = f.subscriber
            JOIN group_subscriptions g ON g.group_id = m.group_id AND g.backend = f.backend
        WHERE f.id IN (SELECT value FROM json_each(?)) ORDER BY m.group_id""",
        (json.dumps(list(ids)),),
    )


def _refuse_above_limit(connection: sqlite3.Connection, subscriber: int, at_most: int) -> None:
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
