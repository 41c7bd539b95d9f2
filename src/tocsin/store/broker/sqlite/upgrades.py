"""Upgrades a broker's store of any earlier version to the present version (see Upgrade).

`place` is a cursor without its epoch: execution × 2²⁸ + ordinal. Markers and heads change all the time, so they have
tables of their own: many of them share a page.
"""

from __future__ import annotations

from typing import Final

from tocsin.store.sqlite.file import Upgrade

BROKER_UPGRADES: Final[tuple[Upgrade, ...]] = (
    Upgrade(
        1,
        "applications, subscribers, groups, subscriptions and how far each has come",
        {
            # AUTOINCREMENT: ids are never reused, even after their row is deleted.
            "sqlite": (
                "CREATE TABLE facts (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID",
                "CREATE TABLE revoked (token TEXT PRIMARY KEY NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID",
                # One row. epoch: the cluster's; position_epoch, position_number: how far its announcements are known.
                """CREATE TABLE link (
                    epoch INTEGER NOT NULL, position_epoch INTEGER NOT NULL, position_number INTEGER NOT NULL,
                    secret TEXT)""",
                "INSERT INTO link VALUES (0, 0, 0, NULL)",
                # channels, feeds: JSON lists, or NULL for all; limits: a JSON object.
                """CREATE TABLE applications (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, digest TEXT UNIQUE,
                    channels TEXT, feeds TEXT, limits TEXT NOT NULL, created_us INTEGER NOT NULL,
                    subscribers INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0)""",
                """CREATE TABLE subscribers (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, application INTEGER NOT NULL, user TEXT NOT NULL,
                    created_us INTEGER NOT NULL, tokens_from_us INTEGER NOT NULL DEFAULT 0, password TEXT NOT NULL,
                    UNIQUE (application, user))""",
                """CREATE TABLE user_groups (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, application INTEGER NOT NULL, name TEXT NOT NULL,
                    created_us INTEGER NOT NULL, UNIQUE (application, name))""",
                """CREATE TABLE members (
                    group_id INTEGER NOT NULL, subscriber INTEGER NOT NULL,
                    PRIMARY KEY (group_id, subscriber)) WITHOUT ROWID""",
                "CREATE INDEX members_subscriber ON members (subscriber)",
                # A backend keeps its id when the cluster gives it another interest.
                """CREATE TABLE backends (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, interest INTEGER NOT NULL UNIQUE,
                    channel TEXT NOT NULL, parameters TEXT NOT NULL, subscription TEXT NOT NULL,
                    since_epoch INTEGER NOT NULL, since_place INTEGER NOT NULL,
                    UNIQUE (channel, parameters))""",
                "CREATE TABLE heads (backend INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, place INTEGER NOT NULL)",
                # A frontend exists while `own` is 1 or a group of the subscriber holds the backend.
                """CREATE TABLE frontends (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, public_id TEXT NOT NULL UNIQUE,
                    subscriber INTEGER NOT NULL, backend INTEGER NOT NULL, mode TEXT NOT NULL,
                    since_epoch INTEGER NOT NULL, since_place INTEGER NOT NULL, created_us INTEGER NOT NULL,
                    own INTEGER NOT NULL, UNIQUE (subscriber, backend))""",
                "CREATE INDEX frontends_backend ON frontends (backend)",
                "CREATE TABLE markers (frontend INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, place INTEGER NOT NULL)",
                """CREATE TABLE group_subscriptions (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, public_id TEXT NOT NULL UNIQUE,
                    group_id INTEGER NOT NULL, backend INTEGER NOT NULL, mode TEXT NOT NULL,
                    created_us INTEGER NOT NULL, UNIQUE (group_id, backend))""",
                "CREATE INDEX group_subscriptions_backend ON group_subscriptions (backend)",
                """CREATE TABLE webhooks (
                    subscriber INTEGER PRIMARY KEY, url TEXT NOT NULL, secret TEXT NOT NULL,
                    created_us INTEGER NOT NULL)""",
            )
        },
    ),
)
