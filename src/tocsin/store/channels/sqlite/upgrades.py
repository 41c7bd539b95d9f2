"""Upgrades a channel store of any earlier version to the present version (see Upgrade).

`place` is a cursor without its epoch in one number, execution × 2²⁸ + ordinal, so that comparing is cheap.
"""

from __future__ import annotations

from typing import Final

from tocsin.store.sqlite.file import Upgrade

CHANNEL_UPGRADES: Final[tuple[Upgrade, ...]] = (
    Upgrade(
        1,
        "channels, subscriptions, interests, executions and results",
        {
            "sqlite": (
                # The last number given out for each kind of object, so that none is given out twice.
                "CREATE TABLE counters (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL) WITHOUT ROWID",
                # The result and, per channel, the place with which the epoch begins.
                "CREATE TABLE epochs (epoch INTEGER PRIMARY KEY, first INTEGER NOT NULL)",
                """CREATE TABLE channel_epochs (
                    channel_id INTEGER NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL,
                    PRIMARY KEY (channel_id, epoch)) WITHOUT ROWID""",
                # changes_from: changes of interests are known from this change on.
                # swept_to: results of interests that ended up to this change are known to be dead.
                # removed_to: the highest result that retention has removed.
                """CREATE TABLE channels (
                    id INTEGER PRIMARY KEY, dropped INTEGER NOT NULL DEFAULT 0,
                    last_execution INTEGER NOT NULL DEFAULT 0, vector TEXT NOT NULL DEFAULT '{}', tick_us INTEGER,
                    change INTEGER NOT NULL DEFAULT 0, changes_from INTEGER NOT NULL DEFAULT 0,
                    swept_to INTEGER NOT NULL DEFAULT 0,
                    interests INTEGER NOT NULL DEFAULT 0, subscriptions INTEGER NOT NULL DEFAULT 0,
                    results INTEGER NOT NULL DEFAULT 0, result_bytes INTEGER NOT NULL DEFAULT 0,
                    removed_to INTEGER NOT NULL DEFAULT 0)""",
                """CREATE TABLE brokers (
                    id INTEGER PRIMARY KEY, dataverse TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (dataverse, name))""",
                # lost: the highest place at which a result was removed.
                """CREATE TABLE interests (
                    id INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, parameters TEXT NOT NULL,
                    change INTEGER NOT NULL, lost INTEGER NOT NULL DEFAULT 0,
                    UNIQUE (channel_id, parameters))""",
                "CREATE UNIQUE INDEX interests_change ON interests (channel_id, change)",
                # Interests that have ended, and the changes that ended them.
                """CREATE TABLE former_interests (
                    channel_id INTEGER NOT NULL, change INTEGER NOT NULL, interest INTEGER NOT NULL,
                    added INTEGER NOT NULL, lost INTEGER NOT NULL,
                    PRIMARY KEY (channel_id, change)) WITHOUT ROWID""",
                """CREATE TABLE subscriptions (
                    channel_id INTEGER NOT NULL, id TEXT NOT NULL, interest INTEGER NOT NULL, broker INTEGER NOT NULL,
                    since INTEGER NOT NULL, created_us INTEGER NOT NULL,
                    PRIMARY KEY (channel_id, id)) WITHOUT ROWID""",
                "CREATE INDEX subscriptions_broker ON subscriptions (broker, channel_id, id)",
                # A broker's hold on an interest, for any number of subscriptions, and the place that it has
                # acknowledged.
                """CREATE TABLE holds (
                    interest INTEGER NOT NULL, broker INTEGER NOT NULL,
                    subscriptions INTEGER NOT NULL, acknowledged INTEGER NOT NULL,
                    PRIMARY KEY (interest, broker)) WITHOUT ROWID""",
                # An execution's results are the rows first..last; `stored` of them are on the disk, `live` are
                # visible.
                """CREATE TABLE executions (
                    channel_id INTEGER NOT NULL, number INTEGER NOT NULL, epoch INTEGER NOT NULL,
                    tick_us INTEGER, started_us INTEGER NOT NULL, ended_us INTEGER NOT NULL,
                    vector TEXT NOT NULL, details TEXT NOT NULL, results INTEGER NOT NULL,
                    first INTEGER NOT NULL, last INTEGER NOT NULL,
                    stored INTEGER NOT NULL, live INTEGER NOT NULL, bytes INTEGER NOT NULL,
                    PRIMARY KEY (channel_id, number)) WITHOUT ROWID""",
                """CREATE TABLE failures (
                    id INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, number INTEGER NOT NULL,
                    epoch INTEGER NOT NULL, tick_us INTEGER, started_us INTEGER NOT NULL, ended_us INTEGER NOT NULL,
                    reason TEXT NOT NULL, details TEXT NOT NULL)""",
                "CREATE INDEX failures_channel ON failures (channel_id, id)",
                # A payload that occurs several times in an execution is stored in the first row; the others refer to
                # that row. A rowid table with an index, because a table WITHOUT ROWID slows down as it grows.
                """CREATE TABLE results (
                    id INTEGER PRIMARY KEY, interest INTEGER NOT NULL, place INTEGER NOT NULL,
                    payload BLOB, same_as INTEGER)""",
                "CREATE INDEX results_place ON results (interest, place)",
            )
        },
    ),
    Upgrade(
        2,
        "brokers that are told of news",
        {
            "sqlite": (
                # epoch, number: the position up to which the broker knows everything.
                """CREATE TABLE registrations (
                    dataverse TEXT NOT NULL, name TEXT NOT NULL, owner TEXT, secret TEXT NOT NULL,
                    epoch INTEGER NOT NULL, number INTEGER NOT NULL,
                    PRIMARY KEY (dataverse, name)) WITHOUT ROWID""",
            )
        },
    ),
    Upgrade(
        3,
        "generations of brokers, and owners whatever their role",
        {
            "sqlite": (
                # holder: the id of the store of the process that has the generation.
                "ALTER TABLE registrations ADD COLUMN holder TEXT",
                "ALTER TABLE registrations ADD COLUMN generation_epoch INTEGER",
                "ALTER TABLE registrations ADD COLUMN generation_number INTEGER",
                # A broker's process registered these, although the store did not record whose token it used.
                """UPDATE registrations SET owner = '' WHERE owner IS NULL AND EXISTS (
                    SELECT 1 FROM subscriptions s JOIN brokers b ON b.id = s.broker
                    WHERE b.dataverse = registrations.dataverse AND b.name = registrations.name
                    AND s.id LIKE 'broker:%')""",
            )
        },
    ),
    Upgrade(
        4,
        "applications of brokers, and what each has of what a channel keeps",
        {
            "sqlite": (
                # interests: how many the share holds, in all channels.
                """CREATE TABLE shares (
                    id INTEGER PRIMARY KEY, broker INTEGER NOT NULL, application TEXT NOT NULL,
                    interests INTEGER NOT NULL, UNIQUE (broker, application))""",
                """INSERT INTO shares SELECT b.id, b.id, '', coalesce(h.count, 0) FROM brokers b
                    LEFT JOIN (SELECT broker, count(*) AS count FROM holds GROUP BY broker) h ON h.broker = b.id""",
                "INSERT INTO counters SELECT 'share', coalesce(max(id), 0) FROM shares",
                "ALTER TABLE subscriptions ADD COLUMN share INTEGER NOT NULL DEFAULT 0",
                "UPDATE subscriptions SET share = broker",
                "ALTER TABLE holds RENAME TO old_holds",
                """CREATE TABLE holds (
                    interest INTEGER NOT NULL, broker INTEGER NOT NULL, share INTEGER NOT NULL,
                    subscriptions INTEGER NOT NULL, acknowledged INTEGER NOT NULL,
                    PRIMARY KEY (interest, broker, share)) WITHOUT ROWID""",
                "INSERT INTO holds SELECT interest, broker, broker, subscriptions, acknowledged FROM old_holds",
                "DROP TABLE old_holds",
                # Bytes of an execution's live results by share (see shares.py).
                """CREATE TABLE execution_shares (
                    channel_id INTEGER NOT NULL, number INTEGER NOT NULL, share INTEGER NOT NULL,
                    bytes INTEGER NOT NULL, PRIMARY KEY (channel_id, number, share)) WITHOUT ROWID""",
            )
        },
    ),
)
