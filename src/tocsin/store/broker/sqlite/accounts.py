"""Applications, subscribers, webhooks, facts and revoked tokens, as rows of an SQLite connection.

The caller holds the transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from tocsin.store.broker import checks as check
from tocsin.store.broker import rows
from tocsin.store.broker.sqlite import subscriptions
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError

_APPLICATIONS: Final = """SELECT id, name, digest, channels, feeds, limits, created_us, subscribers, closed
    FROM applications """
_WEBHOOKS: Final = """SELECT w.subscriber, s.application, w.url, w.created_us, w.secret
    FROM webhooks w JOIN subscribers s ON s.id = w.subscriber """
SUBSCRIBERS: Final = (
    "SELECT s.id, s.application, s.user, s.created_us, s.tokens_from_us, s.password FROM subscribers s "
)


# --- facts and tokens


def fact(connection: sqlite3.Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    check.texts("fact", name, value)
    sql = "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(sql, (name, value))


def first_fact(connection: sqlite3.Connection, name: str, value: str) -> str:
    check.texts("fact", name, value)
    connection.execute("INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value))
    stored = fact(connection, name)
    assert stored is not None, "it was just put there"
    return stored


def revoke(connection: sqlite3.Connection, token: str, *, expires_us: int) -> None:
    check.person("token's id", token)
    connection.execute("INSERT INTO revoked VALUES (?, ?) ON CONFLICT (token) DO NOTHING", (token, expires_us))


def revoked_tokens(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT token, expires_us FROM revoked").fetchall())


def forget_revoked(connection: sqlite3.Connection, *, expired_before_us: int) -> int:
    return connection.execute("DELETE FROM revoked WHERE expires_us < ?", (expired_before_us,)).rowcount


# --- applications


def add_application(
    connection: sqlite3.Connection,
    name: str,
    allowed: rows.ApplicationRights = rows.EVERYTHING,
    *,
    digest: str | None,
    created_us: int,
) -> rows.ApplicationRow:
    check.person("name of an application", name)
    check.rights(allowed)
    check.texts("digest", digest or "")
    if connection.execute("SELECT 1 FROM applications WHERE name = ?", (name,)).fetchone() is not None:
        raise ConflictError(f"there is an application {name} already")
    _check_digest(connection, digest)
    inserted = connection.execute(
        """INSERT INTO applications (name, digest, channels, feeds, limits, created_us) VALUES (?, ?, ?, ?, ?, ?)""",
        (name, digest, *_write_rights(allowed), created_us),
    )
    assert inserted.lastrowid is not None, "a row was inserted"
    return _find_application(connection, inserted.lastrowid)


def change_application(
    connection: sqlite3.Connection, application: int, allowed: rows.ApplicationRights
) -> rows.ApplicationRow:
    check.rights(allowed)
    connection.execute(
        "UPDATE applications SET channels = ?, feeds = ?, limits = ? WHERE id = ?",
        (*_write_rights(allowed), application),
    )
    return _find_application(connection, application)


def renew_application_token(connection: sqlite3.Connection, application: int, digest: str) -> rows.ApplicationRow:
    check.texts("digest", digest)
    _check_digest(connection, digest)
    connection.execute("UPDATE applications SET digest = ? WHERE id = ?", (digest, application))
    return _find_application(connection, application)


def close_application(connection: sqlite3.Connection, application: int) -> None:
    _find_application(connection, application)
    connection.execute("UPDATE applications SET closed = 1 WHERE id = ?", (application,))


def remove_application(connection: sqlite3.Connection, application: int) -> None:
    row = connection.execute(
        "SELECT name, closed, subscribers FROM applications WHERE id = ?", (application,)
    ).fetchone()
    if row is None:
        return
    name, closed, subscribers = row
    if not closed or subscribers:
        raise ConflictError(f"the application {name} is still in use", hint="close it, and remove its subscribers")
    connection.execute(
        "DELETE FROM group_subscriptions WHERE group_id IN (SELECT id FROM user_groups WHERE application = ?)",
        (application,),
    )
    connection.execute("DELETE FROM user_groups WHERE application = ?", (application,))
    connection.execute("DELETE FROM applications WHERE id = ?", (application,))


def applications(connection: sqlite3.Connection) -> list[rows.ApplicationRow]:
    return [_application(row) for row in connection.execute(_APPLICATIONS + "ORDER BY name")]


def application(connection: sqlite3.Connection, application: int) -> rows.ApplicationRow | None:
    row = connection.execute(_APPLICATIONS + "WHERE id = ?", (application,)).fetchone()
    return None if row is None else _application(row)


def _find_application(connection: sqlite3.Connection, id_: int) -> rows.ApplicationRow:
    row = application(connection, id_)
    if row is None:
        raise NotFoundError(f"there is no application {id_}")
    return row


def check_open(connection: sqlite3.Connection, id_: int) -> rows.ApplicationRow:
    row = _find_application(connection, id_)
    if row.closed:
        raise NotFoundError(f"the application {row.name} is being removed")
    return row


# --- subscribers


def add_subscriber(
    connection: sqlite3.Connection,
    application: int,
    user: str,
    *,
    password: str,
    created_us: int,
    at_most: int | None = None,
) -> rows.SubscriberRow:
    check.person("user's name", user)
    check.texts("hash", password)
    owner = check_open(connection, application)
    if subscriber(connection, application, user) is not None:
        raise ConflictError(f"there is a user {user} already", hint="choose another name, or log in")
    if at_most is not None and owner.subscribers >= at_most:
        raise LimitError(
            f"the application {owner.name} has as many subscribers as it may", hint=f"at most {at_most}", status=429
        )
    inserted = connection.execute(
        "INSERT INTO subscribers (application, user, created_us, tokens_from_us, password) VALUES (?, ?, ?, ?, ?)",
        # Ids may be reused after a restore: a token from before is never this subscriber's.
        (application, user, created_us, created_us, password),
    )
    connection.execute("UPDATE applications SET subscribers = subscribers + 1 WHERE id = ?", (application,))
    assert inserted.lastrowid is not None, "a row was inserted"
    return rows.SubscriberRow(inserted.lastrowid, application, user, created_us, created_us, password)


def change_subscriber(
    connection: sqlite3.Connection, subscriber: int, *, password: str, tokens_from_us: int | None = None
) -> None:
    check.texts("hash", password)
    sql = "UPDATE subscribers SET password = ?, tokens_from_us = coalesce(?, tokens_from_us) WHERE id = ?"
    if not connection.execute(sql, (password, tokens_from_us, subscriber)).rowcount:
        raise NotFoundError(f"there is no subscriber {subscriber}")


def remove_subscribers(connection: sqlite3.Connection, subscribers: Sequence[int]) -> list[rows.FrontendRow]:
    listed = (json.dumps(list(subscribers)),)
    frontend_ids = connection.execute(
        "SELECT id FROM frontends WHERE subscriber IN (SELECT value FROM json_each(?))", listed
    ).fetchall()
    removed = subscriptions.read_frontends(connection, [id_ for (id_,) in frontend_ids])
    subscriptions.remove_frontends(connection, [frontend.id for frontend in removed])
    counts = connection.execute(
        """SELECT application, count(*) FROM subscribers WHERE id IN (SELECT value FROM json_each(?))
        GROUP BY application""",
        listed,
    ).fetchall()
    connection.execute("DELETE FROM members WHERE subscriber IN (SELECT value FROM json_each(?))", listed)
    connection.execute("DELETE FROM webhooks WHERE subscriber IN (SELECT value FROM json_each(?))", listed)
    connection.execute("DELETE FROM subscribers WHERE id IN (SELECT value FROM json_each(?))", listed)
    connection.executemany(
        "UPDATE applications SET subscribers = subscribers - ? WHERE id = ?",
        ((count, application) for application, count in counts),
    )
    return removed


def subscriber(connection: sqlite3.Connection, application: int, user: str) -> rows.SubscriberRow | None:
    row = connection.execute(SUBSCRIBERS + "WHERE s.application = ? AND s.user = ?", (application, user)).fetchone()
    return None if row is None else rows.SubscriberRow(*row)


def subscriber_by_id(connection: sqlite3.Connection, subscriber: int) -> rows.SubscriberRow | None:
    row = connection.execute(SUBSCRIBERS + "WHERE s.id = ?", (subscriber,)).fetchone()
    return None if row is None else rows.SubscriberRow(*row)


def find_subscribers(
    connection: sqlite3.Connection, application: int, users: Sequence[str]
) -> list[rows.SubscriberRow]:
    candidates = (subscriber(connection, application, user) for user in sorted(set(users)))
    return [candidate for candidate in candidates if candidate is not None]


def subscribers(
    connection: sqlite3.Connection, application: int, *, after: str = "", limit: int = rows.PAGE
) -> list[rows.SubscriberRow]:
    page = SUBSCRIBERS + "WHERE s.application = ? AND s.user > ? ORDER BY s.user LIMIT ?"
    return [rows.SubscriberRow(*row) for row in connection.execute(page, (application, after, limit))]


# --- webhooks


def put_webhook(
    connection: sqlite3.Connection, subscriber: int, url: str, secret: str, *, created_us: int
) -> rows.WebhookRow:
    check.url(url)
    check.texts("secret", secret)
    owner = subscriber_by_id(connection, subscriber)
    if owner is None:
        raise NotFoundError(f"there is no subscriber {subscriber}")
    connection.execute("DELETE FROM webhooks WHERE subscriber = ?", (subscriber,))
    connection.execute("INSERT INTO webhooks VALUES (?, ?, ?, ?)", (subscriber, url, secret, created_us))
    return rows.WebhookRow(subscriber, owner.application, url, created_us, secret)


def remove_webhook(connection: sqlite3.Connection, subscriber: int, *, secret: str | None = None) -> bool:
    sql = "DELETE FROM webhooks WHERE subscriber = ? AND secret = coalesce(?, secret)"
    return connection.execute(sql, (subscriber, secret)).rowcount > 0


def webhook(connection: sqlite3.Connection, subscriber: int) -> rows.WebhookRow | None:
    row = connection.execute(_WEBHOOKS + "WHERE w.subscriber = ?", (subscriber,)).fetchone()
    return None if row is None else rows.WebhookRow(*row)


def webhooks(connection: sqlite3.Connection) -> list[rows.WebhookRow]:
    return [rows.WebhookRow(*row) for row in connection.execute(_WEBHOOKS + "ORDER BY w.subscriber")]


def _write_rights(allowed: rows.ApplicationRights) -> tuple[str | None, str | None, str]:
    channels, feeds = (
        None if names is None else json.dumps(list(names)) for names in (allowed.channels, allowed.feeds)
    )
    return channels, feeds, json.dumps(dict(allowed.limits))


def _check_digest(connection: sqlite3.Connection, digest: str | None) -> None:
    if connection.execute("SELECT 1 FROM applications WHERE digest = ?", (digest,)).fetchone() is not None:
        raise ConflictError("this token is an application's already")


def _application(row: Any) -> rows.ApplicationRow:
    id_, name, digest, channels, feeds, limits, created_us, subscribers, closed = row
    allowed = rows.ApplicationRights(_read(channels), _read(feeds), json.loads(limits))
    return rows.ApplicationRow(id_, name, digest, allowed, created_us, subscribers, bool(closed))


def _read(names: str | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(json.loads(names))
