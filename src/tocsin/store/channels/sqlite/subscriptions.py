"""Subscriptions and interests, as rows of an SQLite connection. The caller holds the transaction.

Lists are passed as one JSON parameter, so that one statement handles any number of items.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import uuid4

from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.store.channels.epochs import end_of
from tocsin.store.channels.interface import CHANGES, PAGE, WhenTaken
from tocsin.store.channels.rows import (
    BackendRequest,
    BrokerName,
    InterestChanges,
    InterestChunk,
    SubscribeOutcome,
    SubscriptionRow,
    UnsubscribeOutcome,
)
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.store.channels.sqlite import shares as sqlite_shares
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError

_Hold: TypeAlias = tuple[int, int, int]
"""An interest, a broker and a share that holds the interest."""

_SELECT: Final = """SELECT s.id, s.channel_id, s.interest, i.parameters, b.dataverse, b.name, s.since, s.created_us,
    a.application FROM subscriptions s JOIN interests i ON i.id = s.interest JOIN brokers b ON b.id = s.broker
    JOIN shares a ON a.id = s.share JOIN channels c ON c.id = s.channel_id AND NOT c.dropped """


def subscribe(
    connection: sqlite3.Connection,
    channel_id: int,
    requests: Sequence[BackendRequest],
    *,
    created_us: int,
    interests_at_most: int | None = None,
    when_taken: WhenTaken = "repeat",
) -> list[SubscribeOutcome]:
    for request in requests:
        request.check()
    earlier = _end_changed(connection, channel_id, requests) if when_taken == "change" else {}
    requests = [
        replace(request, application=earlier[request.id].application) if request.id in earlier else request
        for request in requests
    ]
    last = rows.last_execution(connection, channel_id)
    since = rows.ChannelEpochs(connection)[channel_id].cursor(end_of(last))
    existing = _named(connection, channel_id, [request.id for request in requests if request.id is not None])
    brokers = {broker: rows.make_broker_id(connection, broker) for broker in {request.broker for request in requests}}
    shares = {
        (broker, application): sqlite_shares.find_or_make_share(connection, brokers[broker], application)
        for broker, application in {(request.broker, request.application) for request in requests}
    }
    interests = _interests(connection, channel_id, {request.parameters for request in requests})
    unknown = list(dict.fromkeys(request.parameters for request in requests if request.parameters not in interests))
    first, change = (
        rows.reserve_numbers(connection, "interest", len(unknown)),
        _change(connection, channel_id, len(unknown)),
    )
    interests.update(zip(unknown, map(InterestId, range(first, first + len(unknown))), strict=True))

    answers: list[SubscribeOutcome] = []
    new_rows: list[tuple[int, str, int, int, int, int, int]] = []
    for request in requests:
        row = existing.get(request.id) if request.id is not None else None
        if row is None:
            id_, interest = request.id or str(uuid4()), interests[request.parameters]
            share = shares[request.broker, request.application]
            made_us = earlier[id_].created_us if id_ in earlier else created_us
            new_rows.append((channel_id, id_, interest, brokers[request.broker], last, made_us, share))
            answers.append(SubscribeOutcome(id_, interest, since, id_ not in earlier, interest >= first))
            if request.id is not None:
                existing[id_] = (interest, request.parameters, request.broker, since)
        else:
            interest, parameters, broker, old_since = row
            if when_taken == "refuse":
                raise ConflictError(
                    f"there is a subscription with the id {request.id} already",
                    hint="leave the id out to get a new one, or UPSERT to change the subscription",
                )
            if (parameters, broker) != (request.parameters, request.broker):
                raise ConflictError(
                    f"there is another subscription with the id {request.id}",
                    hint="the same id always means the same parameters and broker; choose another",
                )
            answers.append(SubscribeOutcome(str(request.id), interest, old_since, False, False))

    connection.executemany(
        "INSERT INTO interests (id, channel_id, parameters, change) VALUES (?, ?, ?, ?)",
        ((first + n, channel_id, parameters, change + n) for n, parameters in enumerate(unknown)),
    )
    connection.executemany("INSERT INTO subscriptions VALUES (?, ?, ?, ?, ?, ?, ?)", new_rows)
    held = Counter((interest, broker, share) for _, _, interest, broker, _, _, share in new_rows)
    _count_new(connection, held, first, interests_at_most)
    connection.executemany(
        """INSERT INTO holds VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET subscriptions = subscriptions + excluded.subscriptions""",
        # The new holder needs only later results, so everything before counts as acknowledged.
        ((*hold, count, end_of(last)) for hold, count in held.items()),
    )
    _count(connection, channel_id, len(unknown), len(new_rows))
    return answers


def unsubscribe(connection: sqlite3.Connection, channel_id: int, ids: Sequence[str]) -> UnsubscribeOutcome:
    rows.last_execution(connection, channel_id)
    removed = connection.execute(
        """SELECT s.id, s.interest, s.broker, s.share FROM json_each(?) j
        CROSS JOIN subscriptions s ON s.channel_id = ? AND s.id = j.value""",
        (json.dumps(list(dict.fromkeys(ids))), channel_id),
    ).fetchall()
    connection.executemany(
        "DELETE FROM subscriptions WHERE channel_id = ? AND id = ?", [(channel_id, id_) for id_, _, _, _ in removed]
    )
    _release(connection, Counter((interest, broker, share) for _, interest, broker, share in removed))
    emptied = _end_empty(connection, channel_id, {interest for _, interest, _, _ in removed})
    _count(connection, channel_id, -len(emptied), -len(removed))
    return UnsubscribeOutcome([id_ for id_, _, _, _ in removed], emptied)


def change_subscription(
    connection: sqlite3.Connection,
    channel_id: int,
    subscription_id: str,
    broker: BrokerName,
    *,
    parameters: str | None = None,
    interests_at_most: int | None = None,
) -> SubscriptionRow:
    broker.check()
    current = subscription(connection, channel_id, subscription_id)
    if current is None:
        raise NotFoundError(f"there is no subscription {subscription_id}")
    request = BackendRequest(current.parameters if parameters is None else parameters, broker, subscription_id)
    subscribe(
        connection, channel_id, [request],
        created_us=current.created_us, interests_at_most=interests_at_most, when_taken="change",
    )  # fmt: skip
    changed = subscription(connection, channel_id, subscription_id)
    assert changed is not None, "it was found above"
    return changed


def _end_changed(
    connection: sqlite3.Connection, channel_id: int, requests: Sequence[BackendRequest]
) -> dict[str | None, SubscriptionRow]:
    """Moves subscriptions of the requests to other brokers. Ends those that shall have other parameters, and returns
    them, because they are to be made again."""
    wanted = {request.id: request for request in requests if request.id is not None}
    if len(wanted) < sum(request.id is not None for request in requests):
        raise ConflictError("an id occurs twice", hint="an id names one subscription")
    where = "WHERE s.channel_id = ? AND s.id IN (SELECT value FROM json_each(?))"
    existing = _subscriptions(connection, where, (channel_id, json.dumps(list(wanted)))) if wanted else []
    ended: dict[str | None, SubscriptionRow] = {}
    for row in existing:
        if row.parameters == wanted[row.id].parameters:
            _change_broker(connection, row, wanted[row.id].broker)
        else:
            ended[row.id] = row
    if ended:
        unsubscribe(connection, channel_id, [row.id for row in ended.values()])
    return ended


def _change_broker(connection: sqlite3.Connection, current: SubscriptionRow, broker: BrokerName) -> None:
    old, new = rows.broker_id(connection, current.broker), rows.make_broker_id(connection, broker)
    if new == old:
        return
    interest = current.interest
    sql = "SELECT share FROM subscriptions WHERE channel_id = ? AND id = ?"
    (old_share,) = connection.execute(sql, (current.channel_id, current.id)).fetchone()
    assert old is not None, "the subscription has this broker"
    share = sqlite_shares.find_or_make_share(connection, new, current.application)
    sql = "UPDATE subscriptions SET broker = ?, share = ? WHERE channel_id = ? AND id = ?"
    connection.execute(sql, (new, share, current.channel_id, current.id))
    _count_new(connection, Counter([(interest, new, share)]), interest + 1, None)
    connection.execute(
        """INSERT INTO holds SELECT interest, ?, ?, 1, acknowledged FROM holds
        WHERE interest = ? AND broker = ? AND share = ?
        ON CONFLICT DO UPDATE SET
        subscriptions = subscriptions + 1, acknowledged = min(acknowledged, excluded.acknowledged)""",
        (new, share, interest, old, old_share),
    )
    _release(connection, Counter([(interest, old, old_share)]))


def subscription(connection: sqlite3.Connection, channel_id: int, subscription_id: str) -> SubscriptionRow | None:
    rows.last_execution(connection, channel_id)
    where = "WHERE s.channel_id = ? AND s.id = ?"
    matching = _subscriptions(connection, where, (channel_id, subscription_id))
    return matching[0] if matching else None


def subscriptions(
    connection: sqlite3.Connection, channel_id: int, *, after: str = "", limit: int = PAGE
) -> list[SubscriptionRow]:
    rows.last_execution(connection, channel_id)
    where = "WHERE s.channel_id = ? AND s.id > ? ORDER BY s.id LIMIT ?"
    return _subscriptions(connection, where, (channel_id, after, limit))


def subscriptions_of(
    connection: sqlite3.Connection, broker: BrokerName, *, after: tuple[int, str] = (0, ""), limit: int = PAGE
) -> list[SubscriptionRow]:
    where = "WHERE s.broker = ? AND (s.channel_id, s.id) > (?, ?) ORDER BY s.channel_id, s.id LIMIT ?"
    return _subscriptions(connection, where, (rows.broker_id(connection, broker), *after, limit))


def holders(
    connection: sqlite3.Connection,
    broker: BrokerName,
    channel_id: int,
    interests: Sequence[InterestId],
    *,
    after: str = "",
    limit: int = PAGE,
) -> list[SubscriptionRow]:
    where = """WHERE s.broker = ? AND s.channel_id = ? AND s.id > ? AND s.interest IN (SELECT value FROM json_each(?))
        ORDER BY s.id LIMIT ?"""
    holder = rows.broker_id(connection, broker)
    return _subscriptions(connection, where, (holder, channel_id, after, json.dumps(list(interests)), limit))


def interests(
    connection: sqlite3.Connection, channel_id: int, after: int, limit: int
) -> tuple[list[InterestId], list[str], list[int]]:
    """Ids, parameters and change numbers of the interests added after the change `after`."""
    rows.last_execution(connection, channel_id)
    sql = "SELECT id, parameters, change FROM interests WHERE channel_id = ? AND change > ? ORDER BY change LIMIT ?"
    page = connection.execute(sql, (channel_id, after, limit)).fetchall()
    return [row[0] for row in page], [row[1] for row in page], [row[2] for row in page]


def interest_chunk(
    connection: sqlite3.Connection, channel_id: int, change: int | None, after: int, limit: int
) -> tuple[InterestChunk, int | None]:
    """The chunk after the change `after`, and where the next chunk begins. All chunks carry the `change` of the first,
    which has None.
    """
    change = rows.state(connection, channel_id).change if change is None else change
    ids, parameters, changes = interests(connection, channel_id, after, limit)
    return InterestChunk(change, ids, parameters), changes[-1] if len(ids) == limit else None


def interest_changes(
    connection: sqlite3.Connection, channel_id: int, since: int, *, limit: int = CHANGES
) -> InterestChanges | None:
    last = rows.state(connection, channel_id).change
    sql = "SELECT changes_from FROM channels WHERE id = ?"
    if since < connection.execute(sql, (channel_id,)).fetchone()[0]:
        return None
    ids, parameters, changes = interests(connection, channel_id, since, limit)
    sql = """SELECT interest, added, change FROM former_interests
        WHERE channel_id = ? AND change > ? ORDER BY change LIMIT ?"""
    ended = connection.execute(sql, (channel_id, since, limit)).fetchall()
    # A list that was cut at the limit says nothing about changes after its end.
    upto = min([last, *(changes[-1:] if len(ids) == limit else []), *([ended[-1][2]] if len(ended) == limit else [])])
    added_rows = zip(ids, parameters, changes, strict=True)
    added = [(id_, text) for id_, text, change in added_rows if change <= upto]
    removed = [interest for interest, began, change in ended if began <= since and change <= upto]
    return InterestChanges(upto, added, removed, upto < last)


def _subscriptions(
    connection: sqlite3.Connection, where: str, parameters: tuple[int | str | None, ...]
) -> list[SubscriptionRow]:
    epochs = rows.ChannelEpochs(connection)
    return [
        SubscriptionRow(
            id_,
            channel,
            interest,
            text,
            BrokerName(dataverse, name),
            epochs[channel].cursor(end_of(since)),
            created,
            application,
        )
        for id_, channel, interest, text, dataverse, name, since, created, application in connection.execute(
            _SELECT + where, parameters
        ).fetchall()
    ]


def _named(
    connection: sqlite3.Connection, channel_id: int, ids: list[str]
) -> dict[str | None, tuple[InterestId, str, BrokerName, Cursor]]:
    where = "WHERE s.channel_id = ? AND s.id IN (SELECT value FROM json_each(?))"
    existing = _subscriptions(connection, where, (channel_id, json.dumps(ids))) if ids else []
    return {
        subscription_row.id: (
            subscription_row.interest,
            subscription_row.parameters,
            subscription_row.broker,
            subscription_row.since,
        )
        for subscription_row in existing
    }


def _interests(connection: sqlite3.Connection, channel_id: int, texts: set[str]) -> dict[str, InterestId]:
    sql = """SELECT i.parameters, i.id FROM json_each(?) j
        CROSS JOIN interests i ON i.channel_id = ? AND i.parameters = j.value"""
    return dict(connection.execute(sql, (json.dumps(sorted(texts)), channel_id)))


def _change(connection: sqlite3.Connection, channel_id: int, count: int) -> int:
    """Reserves `count` new change numbers. Returns the first."""
    sql = "UPDATE channels SET change = change + ? WHERE id = ? RETURNING change"
    return int(connection.execute(sql, (count, channel_id)).fetchone()[0]) - count + 1


def _count(connection: sqlite3.Connection, channel_id: int, interests: int, subscriptions: int) -> None:
    sql = "UPDATE channels SET interests = interests + ?, subscriptions = subscriptions + ? WHERE id = ?"
    connection.execute(sql, (interests, subscriptions, channel_id))


def _count_new(connection: sqlite3.Connection, held: Counter[_Hold], first: int, at_most: int | None) -> None:
    """Counts the interests that a share did not hold before. Interests from `first` on are new to everyone. Raises
    LimitError if a share has more than it may.
    """
    known = json.dumps(sorted({interest for interest, _, _ in held if interest < first}))
    sql = "SELECT h.interest, h.broker, h.share FROM json_each(?) j CROSS JOIN holds h ON h.interest = j.value"
    existing = set(connection.execute(sql, (known,)).fetchall())
    new = Counter(share for interest, broker, share in held if (interest, broker, share) not in existing)
    sqlite_shares.count_interests(connection, new)
    if at_most is None:
        return
    over = [share for share in new if sqlite_shares.share_size(connection, share) > at_most]
    for broker, application in sqlite_shares.share_names(connection, over).values():
        holder = f"the application {application} of the broker" if application else "the broker"
        raise LimitError(
            f"{holder} {broker.dataverse}.{broker.name} has as many interests as it may",
            hint=f"at most {at_most} (cluster.channels.interests_limit)", status=429,
        )  # fmt: skip


def _release(connection: sqlite3.Connection, holds: Counter[_Hold]) -> None:
    ended: Counter[int] = Counter()
    for (interest, broker, share), count in holds.items():
        sql = "UPDATE holds SET subscriptions = subscriptions - ? WHERE interest = ? AND broker = ? AND share = ?"
        connection.execute(sql, (count, interest, broker, share))
        sql = "DELETE FROM holds WHERE interest = ? AND broker = ? AND share = ? AND subscriptions <= 0"
        ended[share] -= connection.execute(sql, (interest, broker, share)).rowcount
    sqlite_shares.count_interests(connection, ended)


def _end_empty(connection: sqlite3.Connection, channel_id: int, touched: set[int]) -> list[int]:
    """Removes those of the interests that have no holder."""
    empty = connection.execute(
        """SELECT i.id, i.change, i.lost FROM json_each(?) j CROSS JOIN interests i ON i.id = j.value
        WHERE NOT EXISTS (SELECT 1 FROM holds h WHERE h.interest = i.id)""",
        (json.dumps(sorted(touched)),),
    ).fetchall()
    change = _change(connection, channel_id, len(empty))
    connection.executemany("DELETE FROM interests WHERE id = ?", [(interest,) for interest, _, _ in empty])
    connection.executemany(
        "INSERT INTO former_interests (channel_id, change, interest, added, lost) VALUES (?, ?, ?, ?, ?)",
        ((channel_id, change + n, interest, added, lost) for n, (interest, added, lost) in enumerate(empty)),
    )
    return [interest for interest, _, _ in empty]
