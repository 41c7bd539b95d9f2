"""Shares a channel's byte limit fairly between applications. The caller holds the transaction.

A *share* is one application of one broker, or a broker that does not name applications. A result counts for every
share that holds its interest, as if the share were alone: its row, and its payload once per execution. If a channel
exceeds its limit, the fair level says how much a share may have; results go, the oldest first,
from the largest share above the level. A result that a share below the level still needs stays.

The bytes of each share are counted only when they are needed, execution by execution, and again after some results
died.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final

from tocsin.store.channels.rows import BrokerName
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.store.channels.sqlite.results import ROW_BYTES

_EXECUTIONS: Final = 100

# Counts the bytes of an execution's live results for each share. Results with equal payloads store the payload once:
# the first row has it, and the others refer to that row in `same_as`.
_COUNT: Final = f"""
    SELECT share, sum(count) * {ROW_BYTES} + sum(size_bytes) FROM (
        SELECT h.share, count(*) AS count, max(length(coalesce(r.payload, s.payload))) AS size_bytes
        FROM results r
        CROSS JOIN interests i ON i.id = r.interest AND r.place > i.lost
        CROSS JOIN holds h ON h.interest = r.interest
        LEFT JOIN results s ON s.id = r.same_as
        WHERE r.id BETWEEN ? AND ? GROUP BY h.share, coalesce(r.same_as, r.id))
    GROUP BY share"""  # noqa: S608 - our own number
# No share has the number 0. Its row in execution_shares records how many results were live at the time of counting.
_COUNTED: Final = 0


@dataclass(frozen=True, slots=True)
class _ShareEviction:
    """What to evict: per execution, results that one of its `shares` holds and that only shares in `above` need."""

    above: list[int]
    shares: dict[int, list[int]]


# --- the shares


def find_or_make_share(connection: sqlite3.Connection, broker: int, application: str) -> int:
    row = connection.execute(
        "SELECT id FROM shares WHERE broker = ? AND application = ?", (broker, application)
    ).fetchone()
    if row is not None:
        return int(row[0])
    share = rows.reserve_numbers(connection, "share")
    connection.execute("INSERT INTO shares VALUES (?, ?, ?, 0)", (share, broker, application))
    return share


def share_names(connection: sqlite3.Connection, shares: Iterable[int]) -> dict[int, tuple[BrokerName, str]]:
    sql = """SELECT s.id, b.dataverse, b.name, s.application FROM json_each(?) j CROSS JOIN shares s ON s.id = j.value
        JOIN brokers b ON b.id = s.broker"""
    named = connection.execute(sql, (json.dumps(sorted(shares)),))
    return {share: (BrokerName(dataverse, name), application) for share, dataverse, name, application in named}


def count_interests(connection: sqlite3.Connection, changes: Counter[int]) -> None:
    connection.executemany(
        "UPDATE shares SET interests = interests + ? WHERE id = ?",
        [(change, share) for share, change in changes.items() if change],
    )


def share_size(connection: sqlite3.Connection, share: int) -> int:
    return int(connection.execute("SELECT interests FROM shares WHERE id = ?", (share,)).fetchone()[0])


# --- the bytes of shares, read on a reader's connection


def are_several(connection: sqlite3.Connection) -> bool:
    return len(connection.execute("SELECT 1 FROM shares WHERE interests > 0 LIMIT 2").fetchall()) > 1


def uncounted_executions(connection: sqlite3.Connection, channel_id: int) -> list[int]:
    """Executions whose live results changed since they were counted."""
    executions = connection.execute(
        """SELECT e.number FROM executions e LEFT JOIN execution_shares s
            ON s.channel_id = e.channel_id AND s.number = e.number AND s.share = ?
        WHERE e.channel_id = ? AND e.stored > 0 AND s.bytes IS NOT e.live ORDER BY e.number LIMIT ?""",
        (_COUNTED, channel_id, _EXECUTIONS),
    )
    return [row[0] for row in executions]


def count_shares(connection: sqlite3.Connection, channel_id: int, number: int) -> list[tuple[int, int, int, int]]:
    """The rows of execution_shares for an execution in its present state."""
    row = connection.execute(
        "SELECT first, last, live FROM executions WHERE channel_id = ? AND number = ? AND stored > 0",
        (channel_id, number),
    ).fetchone()
    if row is None:
        return []
    first, last, live = row
    shares = connection.execute(_COUNT, (first, last)).fetchall()
    return [(channel_id, number, share, size_bytes) for share, size_bytes in [(_COUNTED, live), *shares]]


def eviction(
    connection: sqlite3.Connection, channel_id: int, max_bytes: int, done: Set[tuple[int, int]] = frozenset()
) -> _ShareEviction | None:
    """Chooses what goes next. None if everything fits, or if only the newest execution exceeds the fair level.

    `done`: pairs of execution and share that can give no more, because other shares need the rest.
    """
    excess = rows.state(connection, channel_id).result_bytes - max_bytes
    if excess <= 0:
        return None
    sql = "SELECT share, sum(bytes) FROM execution_shares WHERE channel_id = ? AND share <> ? GROUP BY share"
    totals: dict[int, int] = dict(connection.execute(sql, (channel_id, _COUNTED)).fetchall())
    level = fair_level(totals.values(), max_bytes)
    above = [share for share, total in totals.items() if total > level]
    stored = connection.execute(
        """SELECT share, number, bytes FROM execution_shares WHERE channel_id = ?1
        AND share IN (SELECT value FROM json_each(?2))
        AND number < (SELECT max(number) FROM executions WHERE channel_id = ?1 AND stored > 0) ORDER BY number DESC""",
        (channel_id, json.dumps(above)),
    )
    newest_first: dict[int, list[tuple[int, int]]] = {}
    for share, number, size_bytes in stored:
        if (number, share) in done:
            continue
        newest_first.setdefault(share, []).append((number, size_bytes))
    victims: dict[int, list[int]] = {}
    largest = [(-totals[share], share) for share in newest_first]
    heapify(largest)
    while largest and excess > 0:
        total, share = largest[0]
        if -total <= level or not newest_first[share]:
            heappop(largest)
            continue
        number, size_bytes = newest_first[share].pop()
        victims.setdefault(number, []).append(share)
        heapreplace(largest, (total + size_bytes, share))
        excess -= size_bytes
    return _ShareEviction(above, victims) if victims else None


def evicted_places(
    connection: sqlite3.Connection, channel_id: int, number: int, above: list[int], shares: list[int]
) -> list[tuple[int, int]]:
    """The interests that lose their results of an execution, each with the last place lost."""
    lost = connection.execute(
        """SELECT r.interest, max(r.place) FROM executions e CROSS JOIN results r ON r.id BETWEEN e.first AND e.last
        CROSS JOIN interests i ON i.id = r.interest AND r.place > i.lost
        WHERE e.channel_id = ?1 AND e.number = ?2
        AND EXISTS (SELECT 1 FROM holds h WHERE h.interest = r.interest
            AND h.share IN (SELECT value FROM json_each(?4)))
        AND NOT EXISTS (SELECT 1 FROM holds h WHERE h.interest = r.interest AND h.acknowledged < r.place
            AND h.share NOT IN (SELECT value FROM json_each(?3)))
        GROUP BY r.interest""",
        (channel_id, number, json.dumps(above), json.dumps(shares)),
    )
    return lost.fetchall()


# --- steps, on the writer's connection


def keep_counts(connection: sqlite3.Connection, counts: Iterable[tuple[int, int, int, int]]) -> None:
    count_rows = list(counts)
    for channel_id, number in {(channel_id, number) for channel_id, number, _, _ in count_rows}:
        forget(connection, channel_id, number)
    connection.executemany("INSERT INTO execution_shares VALUES (?, ?, ?, ?)", count_rows)


def forget(connection: sqlite3.Connection, channel_id: int, number: int) -> None:
    connection.execute("DELETE FROM execution_shares WHERE channel_id = ? AND number = ?", (channel_id, number))


def fair_level(wants: Iterable[float], capacity: float) -> float:
    """Max-min fair sharing: the most that each may have so that all together fit the capacity; infinite if all fit. A
    demand below the equal share is met in full, and the others share the rest."""
    ordered = sorted(wants)
    remaining = capacity
    for index, want in enumerate(ordered):
        equal_share = remaining / (len(ordered) - index)
        if want > equal_share:
            return max(0.0, equal_share)
        remaining -= want
    return float("inf")
