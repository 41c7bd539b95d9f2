"""Groups, as rows of an SQLite connection. The caller holds the transaction.

A member's frontend follows from two facts: the subscriber is a member, and the group holds the backend. The store
keeps no other record of it that could contradict them.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Sequence
from typing import Final

from tocsin.rules.model.cursors import InterestId
from tocsin.store.broker import checks as check
from tocsin.store.broker.rows import (
    PAGE,
    FrontendRow,
    GroupRow,
    GroupSubscriptionOutcome,
    GroupSubscriptionRow,
    NewBackendRow,
    SubscriberRow,
)
from tocsin.store.broker.sqlite import accounts, subscriptions
from tocsin.store.broker.sqlite.subscriptions import PUBLIC_BYTES
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError
from tocsin.wire.subscriber import DeliveryMode

_GROUPS: Final = "SELECT g.id, g.application, g.name, g.created_us FROM user_groups g "
_HELD: Final = """SELECT g.public_id, g.group_id, b.interest, g.mode, g.created_us
    FROM group_subscriptions g JOIN backends b ON b.id = g.backend """


def add_group(
    connection: sqlite3.Connection,
    application: int,
    name: str,
    members: Sequence[int] = (),
    *,
    created_us: int,
    at_most: int | None = None,
    members_at_most: int | None = None,
) -> GroupRow:
    check.person("name of a group", name)
    owner = accounts.check_open(connection, application)
    if group(connection, application, name) is not None:
        raise ConflictError(f"there is a group {name} already")
    inserted = connection.execute(
        "INSERT INTO user_groups (application, name, created_us) VALUES (?, ?, ?)", (application, name, created_us)
    )
    count = connection.execute("SELECT count(*) FROM user_groups WHERE application = ?", (application,))
    _refuse_above_limit(count, at_most, f"groups of the application {owner.name}")
    assert inserted.lastrowid is not None, "a row was inserted"
    add_members(connection, inserted.lastrowid, members, created_us=created_us, at_most=members_at_most)
    return GroupRow(inserted.lastrowid, application, name, created_us)


def remove_group(connection: sqlite3.Connection, group: int) -> list[FrontendRow]:
    def remove() -> None:
        connection.execute("DELETE FROM group_subscriptions WHERE group_id = ?", (group,))
        connection.execute("DELETE FROM members WHERE group_id = ?", (group,))
        connection.execute("DELETE FROM user_groups WHERE id = ?", (group,))

    return subscriptions.end_unheld(connection, _frontends(connection, group), remove)


def group(connection: sqlite3.Connection, application: int, name: str) -> GroupRow | None:
    row = connection.execute(_GROUPS + "WHERE g.application = ? AND g.name = ?", (application, name)).fetchone()
    return None if row is None else GroupRow(*row)


def groups(connection: sqlite3.Connection, application: int, *, after: str = "", limit: int = PAGE) -> list[GroupRow]:
    page = _GROUPS + "WHERE g.application = ? AND g.name > ? ORDER BY g.name LIMIT ?"
    return [GroupRow(*row) for row in connection.execute(page, (application, after, limit))]


def groups_of(connection: sqlite3.Connection, subscriber: int) -> list[GroupRow]:
    sql = _GROUPS + "JOIN members m ON m.group_id = g.id WHERE m.subscriber = ? ORDER BY g.name"
    return [GroupRow(*row) for row in connection.execute(sql, (subscriber,))]


# --- members


def add_members(
    connection: sqlite3.Connection,
    group: int,
    subscribers: Sequence[int],
    *,
    created_us: int,
    at_most: int | None = None,
) -> list[FrontendRow]:
    owner = _group(connection, group)
    listed = json.dumps(list(subscribers))
    rows = connection.execute(
        "SELECT id FROM subscribers WHERE application = ? AND id IN (SELECT value FROM json_each(?))",
        (owner.application, listed),
    )
    known = {subscriber for (subscriber,) in rows}
    for subscriber in subscribers:
        if subscriber not in known:
            raise NotFoundError(f"there is no subscriber {subscriber} in the group's application")
    connection.execute(
        "INSERT INTO members SELECT ?, value FROM json_each(?) WHERE true ON CONFLICT DO NOTHING", (group, listed)
    )
    count = connection.execute("SELECT count(*) FROM members WHERE group_id = ?", (group,))
    _refuse_above_limit(count, at_most, f"members of the group {owner.name}")
    held = group_subscriptions(connection, group)
    return _hold(connection, sorted(known), held, created_us)


def remove_members(connection: sqlite3.Connection, group: int, subscribers: Sequence[int]) -> list[FrontendRow]:
    listed = json.dumps(list(subscribers))

    def leave() -> None:
        connection.execute(
            "DELETE FROM members WHERE group_id = ? AND subscriber IN (SELECT value FROM json_each(?))", (group, listed)
        )

    return subscriptions.end_unheld(connection, _frontends(connection, group, subscribers), leave)


def members(connection: sqlite3.Connection, group: int, *, after: str = "", limit: int = PAGE) -> list[SubscriberRow]:
    page = (
        accounts.SUBSCRIBERS
        + "JOIN members m ON m.subscriber = s.id WHERE m.group_id = ? AND s.user > ? ORDER BY s.user LIMIT ?"
    )
    return [SubscriberRow(*row) for row in connection.execute(page, (group, after, limit))]


# --- subscriptions of groups


def subscribe_group(
    connection: sqlite3.Connection,
    group: int,
    interest: InterestId,
    *,
    mode: DeliveryMode = "inline",
    backends: Sequence[NewBackendRow] = (),
    created_us: int,
    at_most: int | None = None,
) -> GroupSubscriptionOutcome:
    check.mode(mode)
    owner = _group(connection, group)
    subscriptions.add_backends(connection, backends)
    backend = subscriptions.backend_id(connection, interest)
    row = connection.execute(_HELD + "WHERE g.group_id = ? AND g.backend = ?", (group, backend)).fetchone()
    if row is not None:
        return GroupSubscriptionOutcome(GroupSubscriptionRow(*row), False, [])
    subscription = GroupSubscriptionRow(f"grp_{secrets.token_urlsafe(PUBLIC_BYTES)}", group, interest, mode, created_us)
    connection.execute(
        "INSERT INTO group_subscriptions (public_id, group_id, backend, mode, created_us) VALUES (?, ?, ?, ?, ?)",
        (subscription.public_id, group, backend, mode, created_us),
    )
    count = connection.execute("SELECT count(*) FROM group_subscriptions WHERE group_id = ?", (group,))
    _refuse_above_limit(count, at_most, f"subscriptions of the group {owner.name}")
    members_found = connection.execute("SELECT subscriber FROM members WHERE group_id = ?", (group,)).fetchall()
    return GroupSubscriptionOutcome(
        subscription,
        True,
        _hold(connection, [subscriber for (subscriber,) in members_found], [subscription], created_us),
    )


def unsubscribe_group(connection: sqlite3.Connection, group: int, public_id: str) -> list[FrontendRow] | None:
    row = connection.execute(
        "SELECT id, backend FROM group_subscriptions WHERE group_id = ? AND public_id = ?", (group, public_id)
    ).fetchone()
    if row is None:
        return None
    frontend_ids = connection.execute(
        """SELECT f.id FROM members m JOIN frontends f ON f.subscriber = m.subscriber AND f.backend = ?
        WHERE m.group_id = ?""",
        (row[1], group),
    ).fetchall()

    def leave() -> None:
        connection.execute("DELETE FROM group_subscriptions WHERE id = ?", (row[0],))

    return subscriptions.end_unheld(connection, [frontend_id for (frontend_id,) in frontend_ids], leave)


def group_subscriptions(connection: sqlite3.Connection, group: int) -> list[GroupSubscriptionRow]:
    return [
        GroupSubscriptionRow(*row) for row in connection.execute(_HELD + "WHERE g.group_id = ? ORDER BY g.id", (group,))
    ]


def _hold(
    connection: sqlite3.Connection, subscribers: Sequence[int], held: Sequence[GroupSubscriptionRow], created_us: int
) -> list[FrontendRow]:
    """Gives each subscriber each of the group's subscriptions, from the present heads on. Returns the new frontends."""
    new_ids: list[int] = []
    for subscriber in subscribers:
        for subscription in held:
            id_, is_new = subscriptions.hold(
                connection,
                subscriber,
                subscription.interest,
                subscription.mode,
                since=None,
                created_us=created_us,
                own=False,
            )
            new_ids += [id_] if is_new else []
    return subscriptions.read_frontends(connection, new_ids)


def _frontends(connection: sqlite3.Connection, id_: int, subscribers: Sequence[int] | None = None) -> list[int]:
    """The frontends through which the group's members, or these of them, hold its subscriptions."""
    rows = connection.execute(
        """SELECT f.id FROM members m JOIN group_subscriptions g ON g.group_id = m.group_id
            JOIN frontends f ON f.subscriber = m.subscriber AND f.backend = g.backend
        WHERE m.group_id = ?1 AND (?2 IS NULL OR m.subscriber IN (SELECT value FROM json_each(?2)))""",
        (id_, None if subscribers is None else json.dumps(list(subscribers))),
    )
    return [frontend_id for (frontend_id,) in rows]


def _group(connection: sqlite3.Connection, id_: int) -> GroupRow:
    row = connection.execute(_GROUPS + "WHERE g.id = ?", (id_,)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no group {id_}")
    return GroupRow(*row)


def _refuse_above_limit(found: sqlite3.Cursor, at_most: int | None, what: str) -> None:
    if at_most is not None and found.fetchone()[0] > at_most:
        raise LimitError(f"there are as many {what} as there may be", hint=f"at most {at_most}", status=429)
