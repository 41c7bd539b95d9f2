"""Stores and fetches results, as rows of an SQLite connection. The caller holds the transaction.

Many interests can share a payload, so an execution stores each payload once.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, RESULT_BYTES, InterestId, Position, Range
from tocsin.store.channels.epochs import HIGHEST, Epochs
from tocsin.store.channels.rows import CommittedExecution, Execution, FetchedRange, ResultRow
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.wire.errors import ConflictError, InputError, LimitError

# The approximate size of a row besides its payload.
ROW_BYTES: Final = 48
# How many ranges one statement fetches.
RANGES: Final = 1_000

# CROSS JOIN and INDEXED BY fix the order of the loops, hence of the rows: range by range, each by place. Sorting would
# read all rows before it returns the first.
_FETCH: Final = f"""
    WITH asked (key, interest, after, upto, channel_id) AS MATERIALIZED (
        SELECT key, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?))
    SELECT a.key, r.place, coalesce(r.payload, s.payload), coalesce(e.tick_us, e.started_us)
    FROM asked a
    CROSS JOIN results r INDEXED BY results_place
        ON r.interest = a.interest AND r.place > a.after AND r.place <= a.upto
    CROSS JOIN executions e ON e.channel_id = a.channel_id AND e.number = r.place >> {ORDINAL_BITS}
    LEFT JOIN results s ON s.id = r.same_as
    """  # noqa: S608 - our own number
_LIMITED: Final = "SELECT place FROM results WHERE interest = ? AND place > ? ORDER BY place LIMIT 1 OFFSET ?"


def commit(
    connection: sqlite3.Connection,
    channel_id: int,
    execution: Execution,
    interests: Sequence[InterestId],
    payloads: Sequence[bytes],
    *,
    matches_at_most: int | None,
) -> tuple[CommittedExecution, list[InterestId]]:
    """Commits the results. Returns what was committed, and the interests that had more results than they may."""
    last = rows.last_execution(connection, channel_id)
    if execution.number != last + 1:
        raise ConflictError(f"execution {execution.number} cannot follow execution {last}")
    if len(interests) != len(payloads):
        raise InputError(f"{len(interests)} interests and {len(payloads)} payloads do not belong together")
    ended = _not_of(connection, channel_id, set(interests))
    # In the order of interests the index grows page by page; within an interest the given order stays.
    order = sorted(range(len(interests)), key=interests.__getitem__)
    if ended:
        order = [at for at in order if interests[at] not in ended]
    over: list[InterestId] = []
    matches = len(order)
    if matches_at_most is not None and matches > matches_at_most:
        order, over = _within(order, interests, matches_at_most)
    first = rows.reserve_numbers(connection, "result", len(order))
    new_rows = _NewRows(first, execution.number << ORDINAL_BITS, frozenset(over))
    connection.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", new_rows.of(order, interests, payloads))
    rows.add_execution(connection, channel_id, execution, first=first, count=len(order), size_bytes=new_rows.size_bytes)
    position = Position(rows.current_epoch(connection), rows.last_number(connection, "result"))
    return CommittedExecution(position, len(order), matches - len(order)), over


def _within(order: Sequence[int], interests: Sequence[InterestId], at_most: int) -> tuple[list[int], list[InterestId]]:
    """The last `at_most` results of each interest, in the same order, and the interests that had more."""
    counts = Counter(interests[at] for at in order)
    beyond = {interest: count - at_most for interest, count in counts.items() if count > at_most}
    over, within = list(beyond), []
    for at in order:
        if beyond.get(interests[at], 0) > 0:
            beyond[interests[at]] -= 1
        else:
            within.append(at)
    return within, over


class _NewRows:
    """Rows to insert, numbered from `first` on. Equal payloads are stored once: later rows refer to the first."""

    def __init__(self, first: int, first_place: int, over: frozenset[int]) -> None:
        """`over`: interests with too many results; their first place stands for the results that are left out."""
        self.size_bytes = 0
        self._over = over
        self._first = first
        self._first_place = first_place

    def of(
        self, order: Sequence[int], interests: Sequence[InterestId], payloads: Sequence[bytes]
    ) -> Iterator[tuple[int, int, int, bytes | None, int | None]]:
        stored_at: dict[bytes, int] = {}
        previous, place, size_bytes = None, 0, ROW_BYTES * len(order)
        for id_, at in enumerate(order, self._first):
            interest, payload = interests[at], payloads[at]
            if interest == previous:
                place += 1
                if place & LAST_ORDINAL == 0:
                    raise LimitError(f"an execution found more than {LAST_ORDINAL} results for one interest")
            else:
                previous, place = interest, self._first_place + (interest in self._over)
            first_id = stored_at.setdefault(payload, id_)
            if first_id == id_:
                size_bytes += len(payload)
                yield id_, interest, place, payload, None
            else:
                yield id_, interest, place, None, first_id
        self.size_bytes = size_bytes


def _not_of(connection: sqlite3.Connection, channel_id: int, interests: set[InterestId]) -> set[int]:
    sql = """SELECT j.value FROM json_each(?) j
        WHERE NOT EXISTS (SELECT 1 FROM interests i WHERE i.id = j.value AND i.channel_id = ?)"""
    return {row[0] for row in connection.execute(sql, (json.dumps(sorted(interests)), channel_id))}


# --- fetch


class _FetchRemainder(NamedTuple):
    """The rest of a range: the results after the place `after` (None before the first read)."""

    number: int
    range: Range
    left: int | None
    left_bytes: int
    after: int | None = None


def plan_fetch(ranges: Sequence[Range]) -> list[_FetchRemainder]:
    for range_ in ranges:
        if range_.limit is not None and not 0 < range_.limit <= HIGHEST:
            raise InputError(f"a limit of {range_.limit} results makes no sense", hint="at least 1")
        if range_.limit_bytes is not None and not 0 < range_.limit_bytes <= HIGHEST:
            raise InputError(f"a limit of {range_.limit_bytes} bytes makes no sense", hint="at least 1")
    # An interest number that cannot exist is treated as unknown, not refused.
    known = [
        range_ if -HIGHEST <= range_.interest <= HIGHEST else range_._replace(interest=InterestId(0))
        for range_ in ranges
    ]
    return [
        _FetchRemainder(number, range_, range_.limit, HIGHEST if range_.limit_bytes is None else range_.limit_bytes)
        for number, range_ in enumerate(known)
    ]


def fetch(
    connection: sqlite3.Connection, todo: Sequence[_FetchRemainder], chunk_bytes: int
) -> tuple[list[FetchedRange], list[_FetchRemainder]]:
    """Fetches a chunk of `todo`, which has at most RANGES ranges. Returns the chunk and the rest of `todo`."""
    epochs = rows.ChannelEpochs(connection)
    sql = """SELECT j.key, i.channel_id, i.lost FROM json_each(?) j CROSS JOIN interests i ON i.id = j.value
        CROSS JOIN channels c ON c.id = i.channel_id AND NOT c.dropped"""
    ids = orjson.dumps([remainder.range.interest for remainder in todo]).decode()
    interests = {key: (channel_id, lost) for key, channel_id, lost in connection.execute(sql, (ids,))}

    answers: list[FetchedRange] = []
    query: list[tuple[int, int, int, int]] = []
    owners: list[Epochs | None] = []
    for key, (number, (interest, begin, end, _, _), left, _, after) in enumerate(todo):
        if key not in interests:
            answers.append(FetchedRange(number, [], known=False))
            query.append((0, 0, 0, 0))
            owners.append(None)
            continue
        channel_id, lost = interests[key]
        channel_epochs = epochs[channel_id]
        owners.append(channel_epochs)
        if after is None:
            after = channel_epochs.place(begin)
        to = HIGHEST if end is None else channel_epochs.place(end)
        gap = None
        if after < lost:
            # A loss beyond the end of the range does not concern this range.
            gap = channel_epochs.cursor(min(lost, to)) if after < to else None
            after = lost
        answers.append(FetchedRange(number, [], gap))
        if left is not None:
            # Turn a limit into the place of the last result within it.
            last = connection.execute(_LIMITED, (interest, after, left - 1)).fetchone()
            to = to if last is None else min(to, last[0])
        query.append((interest, after, to, channel_id))

    size_bytes = passed_bytes = 0
    current, left_bytes = -1, 0
    fetched = connection.execute(_FETCH, (orjson.dumps(query).decode(),))
    for key, place, payload, executed_us in fetched:
        channel_epochs = owners[key]
        assert channel_epochs is not None, "only interests that are known have results"
        if key != current:
            current, left_bytes = key, todo[key].left_bytes
        if left_bytes <= 0:
            # This range has its bytes. Skip a few of its further rows; if there are many, begin a new query.
            passed_bytes += len(payload) + ROW_BYTES
            if passed_bytes < chunk_bytes // 4:
                continue
            fetched.close()
            return answers[: key + 1], list(todo[key + 1 :])
        answers[key].results.append(ResultRow(channel_epochs.cursor(place), executed_us, payload))
        left_bytes -= len(payload) + RESULT_BYTES
        size_bytes += len(payload) + ROW_BYTES
        if size_bytes >= chunk_bytes:
            fetched.close()
            remainder, count = todo[key], len(answers[key].results)
            left = None if remainder.left is None else remainder.left - count
            done = left == 0 or left_bytes <= 0
            rest = [] if done else [remainder._replace(after=place, left=left, left_bytes=left_bytes)]
            return answers[: key + 1], [*rest, *todo[key + 1 :]]
    return answers, []
