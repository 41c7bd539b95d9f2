"""Removes data from a channel store, in steps that each take some milliseconds of the writer's time.

Trimming and unsubscribing only mark results as dead: those below their interest's `lost`, or without an interest.
Single results that were deleted belong to NOBODY.
Their rows go when the larger part of their execution is dead (`dead_rows`), so each row is examined a bounded number
of times. A dead row stays while a live row refers to its payload. Retention removes whole executions (`remove_rows`).
If several shares hold a channel that exceeds its limit, only results of the largest shares go (shares.py).

The caller holds the transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.rules.model.cursors import ORDINAL_BITS, Cursor, InterestId
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.store.channels.sqlite import shares
from tocsin.store.channels.sqlite.brokers import places_of
from tocsin.store.channels.sqlite.results import ROW_BYTES

STEP_ROWS: Final = 2_500
"""How many rows a step removes or examines at most, unless the store was opened with another number."""
# No interest has this number. Rows of deleted results have it while other rows refer to their payloads.
_NOBODY: Final = 0


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """An execution with results on the disk."""

    number: int
    first: int
    last: int
    live: int


# --- what to remove, read on a reader's connection


def mostly_dead(connection: sqlite3.Connection, channel_id: int) -> list[StoredBytes]:
    sql = f"{_STORED} AND live * 2 < stored ORDER BY number"
    return [StoredBytes(*row) for row in connection.execute(sql, (channel_id,))]


def partly_dead(connection: sqlite3.Connection, channel_id: int, number: int | None = None) -> list[StoredBytes]:
    """All executions that are partly dead, or only the execution with this number."""
    sql = f"{_STORED} AND live < stored AND number = coalesce(?, number) ORDER BY number"
    return [StoredBytes(*row) for row in connection.execute(sql, (channel_id, number))]


def _stored_bytes(connection: sqlite3.Connection, channel_id: int) -> list[StoredBytes]:
    return [StoredBytes(*row) for row in connection.execute(f"{_STORED} ORDER BY number LIMIT 100", (channel_id,))]


def too_old(connection: sqlite3.Connection, channel_id: int, ended_before_us: int) -> list[StoredBytes]:
    sql = f"{_STORED} AND ended_us < ? ORDER BY number LIMIT 100"
    return [StoredBytes(*row) for row in connection.execute(sql, (channel_id, ended_before_us))]


def too_much(connection: sqlite3.Connection, channel_id: int, max_bytes: int) -> list[StoredBytes]:
    """The oldest executions that must go until the rest fits; the newest always stays."""
    remaining_bytes = rows.state(connection, channel_id).result_bytes
    executions = connection.execute(f"{_STORED_BYTES} ORDER BY number LIMIT 101", (channel_id,)).fetchall()
    victims = []
    for *row, size_bytes in executions[:-1]:
        if remaining_bytes <= max_bytes:
            break
        victims.append(StoredBytes(*row))
        remaining_bytes -= size_bytes
    return victims


def dead_rows(connection: sqlite3.Connection, execution: StoredBytes) -> list[int]:
    """The rows that no live row refers to. Dead results stay dead, so the answer remains valid."""
    result_rows = connection.execute(
        """SELECT r.id, r.same_as, i.id IS NOT NULL AND r.place > i.lost FROM results r
        LEFT JOIN interests i ON i.id = r.interest WHERE r.id BETWEEN ? AND ?""",
        (execution.first, execution.last),
    )
    needed, dead = set(), []
    for id_, same_as, live in result_rows:
        if live:
            needed.add(same_as)
        else:
            dead.append(id_)
    return [id_ for id_ in dead if id_ not in needed]


_STORED: Final = "SELECT number, first, last, live FROM executions WHERE channel_id = ? AND stored > 0"
_STORED_BYTES: Final = "SELECT number, first, last, live, bytes FROM executions WHERE channel_id = ? AND stored > 0"


# --- steps, on the writer's connection


def trim(connection: sqlite3.Connection, channel_id: int, below: Mapping[InterestId, Cursor]) -> int:
    """Marks the results of these interests up to the cursors as dead. Returns their number."""
    return _lose(connection, channel_id, places_of(connection, below, channel_id).items())


def _lose(connection: sqlite3.Connection, channel_id: int, places: Iterable[tuple[int, int]]) -> int:
    """Marks the results of interests of the channel up to these places as dead. Returns their number."""
    losses = connection.execute(
        f"""SELECT i.id, r.place >> {ORDINAL_BITS}, max(r.place), count(*) FROM json_each(?) j
        CROSS JOIN interests i ON i.id = j.value ->> 0
        CROSS JOIN results r ON r.interest = i.id AND r.place > i.lost AND r.place <= j.value ->> 1
        GROUP BY 1, 2 ORDER BY 1, 2""",  # noqa: S608 - our own number
        (json.dumps(list(places)),),
    ).fetchall()
    connection.executemany("UPDATE interests SET lost = ? WHERE id = ?", [(place, id_) for id_, _, place, _ in losses])
    return _died(connection, channel_id, [(number, count) for _, number, _, count in losses])


def evict(connection: sqlite3.Connection, channel_id: int, number: int, places: Iterable[tuple[int, int]]) -> int:
    """Like `lose`, to free space. Brokers that were not notified of these results learn of the gap."""
    lost = _lose(connection, channel_id, places)
    connection.execute(
        """UPDATE channels SET removed_to = max(removed_to, (
            SELECT last FROM executions WHERE channel_id = ?1 AND number = ?2)) WHERE id = ?1""",
        (channel_id, number),
    )
    return lost


def delete(connection: sqlite3.Connection, channel_id: int, results: Sequence[tuple[InterestId, Cursor]]) -> int:
    """Deletes single results: their rows leave their interests, and are dead. Returns their number."""
    rows.last_execution(connection, channel_id)
    epochs = rows.ChannelEpochs(connection)[channel_id]
    listed = [(interest, epochs.place(cursor)) for interest, cursor in results]
    deleted = connection.execute(
        """SELECT r.id, r.place FROM json_each(?) j
        CROSS JOIN interests i ON i.id = j.value ->> 0 AND i.channel_id = ?
        CROSS JOIN results r ON r.interest = i.id AND r.place = j.value ->> 1 AND r.place > i.lost
        GROUP BY r.id""",
        (json.dumps(listed), channel_id),
    ).fetchall()
    connection.executemany("UPDATE results SET interest = ? WHERE id = ?", [(_NOBODY, id_) for id_, _ in deleted])
    counts = Counter(place >> ORDINAL_BITS for _, place in deleted)
    return _died(connection, channel_id, list(counts.items()))


def overflow(connection: sqlite3.Connection, channel_id: int, number: int, interests: Sequence[InterestId]) -> None:
    """Drops the earlier results of interests that had more results in an execution than they may. The gap counts also
    for readers that had everything up to this execution.
    """
    before = number << ORDINAL_BITS
    _lose(connection, channel_id, [(interest, before) for interest in interests])
    connection.executemany(
        "UPDATE interests SET lost = max(lost, ?) WHERE id = ?", [(before, interest) for interest in interests]
    )


def sweep_former(connection: sqlite3.Connection, channel_id: int, step_rows: int) -> tuple[int, bool]:
    """Marks results of some ended interests as dead. Returns their number, and whether there may be more."""
    former = connection.execute(
        """SELECT change, interest, lost FROM former_interests WHERE channel_id = ?1
        AND change > (SELECT swept_to FROM channels WHERE id = ?1) ORDER BY change LIMIT ?2""",
        (channel_id, step_rows),
    ).fetchall()
    if not former:
        return 0, False
    counts = connection.execute(
        f"""SELECT r.place >> {ORDINAL_BITS}, count(*) FROM json_each(?) j
        CROSS JOIN results r ON r.interest = j.value ->> 1 AND r.place > j.value ->> 2
        GROUP BY 1""",  # noqa: S608 - our own number
        (json.dumps(former),),
    ).fetchall()
    connection.execute("UPDATE channels SET swept_to = ? WHERE id = ?", (former[-1][0], channel_id))
    return _died(connection, channel_id, counts), len(former) == step_rows


def _died(connection: sqlite3.Connection, channel_id: int, counts: Sequence[tuple[int, int]]) -> int:
    connection.executemany(
        "UPDATE executions SET live = live - ? WHERE channel_id = ? AND number = ?",
        [(count, channel_id, number) for number, count in counts],
    )
    dead = sum(count for _, count in counts)
    connection.execute("UPDATE channels SET results = results - ? WHERE id = ?", (dead, channel_id))
    return dead


def remove_dead(connection: sqlite3.Connection, channel_id: int, number: int, ids: Sequence[int]) -> None:
    listed = json.dumps(ids)
    sql = "SELECT sum(coalesce(length(payload), 0)), count(*) FROM results WHERE id IN (SELECT value FROM json_each(?))"
    payload_bytes, count = connection.execute(sql, (listed,)).fetchone()
    connection.execute("DELETE FROM results WHERE id IN (SELECT value FROM json_each(?))", (listed,))
    _subtract_removed(connection, channel_id, number, count, (payload_bytes or 0) + ROW_BYTES * count)


def remove_rows(
    connection: sqlite3.Connection, channel_id: int, number: int, step_rows: int, *, records_gap: bool
) -> tuple[int, bool]:
    """Removes the last rows of an execution. Returns whether there are more, and after the last step how many of its
    results were live.

    `records_gap`: the interests record the loss, so that readers learn of the gap.

    The steps go from the last row to the first, because a row may refer to an earlier row's payload, never to a later
    one.
    """
    sql = "SELECT first, last, live FROM executions WHERE channel_id = ? AND number = ? AND stored > 0"
    row = connection.execute(sql, (channel_id, number)).fetchone()
    if row is None:
        return 0, False
    first, last, live = row
    begin = max(first, last - step_rows + 1)
    if records_gap:
        connection.execute(
            """UPDATE interests SET lost = r.place FROM (
                SELECT interest, max(place) AS place FROM results WHERE id BETWEEN ? AND ? GROUP BY interest) r
            WHERE interests.id = r.interest AND interests.lost < r.place""",
            (begin, last),
        )
        sql = "UPDATE channels SET removed_to = max(removed_to, ?) WHERE id = ?"
        connection.execute(sql, (last, channel_id))
    sql = "SELECT sum(coalesce(length(payload), 0)), count(*) FROM results WHERE id BETWEEN ? AND ?"
    payload_bytes, count = connection.execute(sql, (begin, last)).fetchone()
    connection.execute("DELETE FROM results WHERE id BETWEEN ? AND ?", (begin, last))
    _subtract_removed(connection, channel_id, number, count, (payload_bytes or 0) + ROW_BYTES * count)
    sql = "UPDATE executions SET last = ? WHERE channel_id = ? AND number = ?"
    connection.execute(sql, (begin - 1, channel_id, number))
    if begin > first:
        return 0, True
    shares.forget(connection, channel_id, number)
    return _died(connection, channel_id, [(number, live)]), False


def _subtract_removed(
    connection: sqlite3.Connection, channel_id: int, number: int, count: int, size_bytes: int
) -> None:
    sql = "UPDATE executions SET stored = stored - ?, bytes = bytes - ? WHERE channel_id = ? AND number = ?"
    connection.execute(sql, (count, size_bytes, channel_id, number))
    sql = "UPDATE channels SET result_bytes = result_bytes - ? WHERE id = ?"
    connection.execute(sql, (size_bytes, channel_id))


def forget(
    connection: sqlite3.Connection, channel_id: int, executions: int, former_interests: int, step_rows: int
) -> tuple[int, bool]:
    """Removes old executions without results, old failures and old ended interests, which are kept for readers that ask
    for changes. Returns whether there may be more."""
    sql = "SELECT last_execution FROM channels WHERE id = ?"
    last = connection.execute(sql, (channel_id,)).fetchone()
    if last is None:
        return 0, False
    forgotten = connection.execute(
        """DELETE FROM executions WHERE channel_id = ?1 AND number IN (
            SELECT number FROM executions WHERE channel_id = ?1 AND number <= ?2 AND stored = 0 LIMIT ?3)""",
        (channel_id, last[0] - executions, step_rows),
    ).rowcount
    forgotten = max(
        forgotten,
        connection.execute(
            """DELETE FROM failures WHERE id IN (SELECT id FROM failures WHERE channel_id = ?1 AND id <= (
            SELECT id FROM failures WHERE channel_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2) LIMIT ?3)""",
            (channel_id, executions, step_rows),
        ).rowcount,
    )
    former = connection.execute(
        """SELECT change FROM former_interests WHERE channel_id = ?1
        AND change <= (SELECT swept_to FROM channels WHERE id = ?1)
        AND change <= (SELECT change FROM former_interests WHERE channel_id = ?1 ORDER BY change DESC LIMIT 1 OFFSET ?2)
        ORDER BY change LIMIT ?3""",
        (channel_id, former_interests, step_rows),
    ).fetchall()
    if former:
        through = (channel_id, former[-1][0])
        connection.execute("DELETE FROM former_interests WHERE channel_id = ? AND change <= ?", through)
        connection.execute("UPDATE channels SET changes_from = ?2 WHERE id = ?1", through)
    return 0, max(forgotten, len(former)) == step_rows


# --- dropping a channel


def hide(connection: sqlite3.Connection, channel_id: int) -> None:
    connection.execute("UPDATE channels SET dropped = 1 WHERE id = ?", (channel_id,))


def drop_some(connection: sqlite3.Connection, channel_id: int, step_rows: int) -> tuple[int, bool]:
    """Removes some rows of a hidden channel, the channel's own row last. Returns whether there are more."""
    for execution in _stored_bytes(connection, channel_id):
        remove_rows(connection, channel_id, execution.number, step_rows, records_gap=False)
        return 0, True
    held = connection.execute(
        "SELECT id FROM interests WHERE channel_id = ? LIMIT ?", (channel_id, step_rows)
    ).fetchall()
    listed = json.dumps([row[0] for row in held])
    sql = "SELECT share, -count(*) FROM holds WHERE interest IN (SELECT value FROM json_each(?)) GROUP BY share"
    shares.count_interests(connection, Counter(dict(connection.execute(sql, (listed,)).fetchall())))
    connection.execute("DELETE FROM holds WHERE interest IN (SELECT value FROM json_each(?))", (listed,))
    connection.execute("DELETE FROM interests WHERE id IN (SELECT value FROM json_each(?))", (listed,))
    removed = len(held)
    for table, key in (
        ("subscriptions", "id"),
        ("former_interests", "change"),
        ("executions", "number"),
        ("failures", "id"),
    ):
        sql = f"""DELETE FROM {table} WHERE channel_id = ?1
            AND {key} IN (SELECT {key} FROM {table} WHERE channel_id = ?1 LIMIT ?2)"""  # noqa: S608 - our own names
        removed = max(removed, connection.execute(sql, (channel_id, step_rows)).rowcount)
    if removed:
        return 0, True
    connection.execute("DELETE FROM channel_epochs WHERE channel_id = ?", (channel_id,))
    connection.execute("DELETE FROM channels WHERE id = ?", (channel_id,))
    return 0, False
