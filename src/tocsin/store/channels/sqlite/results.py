"""Results of a channel store, in and out, as rows of an SQLite connection. The caller holds the transaction."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, RESULT_BYTES, Position, Range
from tocsin.store.channels.epochs import HIGHEST, Epochs
from tocsin.store.channels.rows import CommittedExecution, Execution, FetchedRange, ResultRow
from tocsin.store.channels.sqlite import channel_rows as rows
from tocsin.wire.errors import ConflictError, InputError, LimitError

# What a row takes besides its payload, about.
ROW_BYTES: Final = 48
# Ranges asked for in one statement.
RANGES: Final = 1_000

# CROSS JOIN and INDEXED BY fix the order of the loops, hence of the rows: range after range, and each by place. Sorting
# instead would read all before the first.
FETCH: Final = f"""
    WITH asked (key, interest, after, upto, channel_id) AS MATERIALIZED (
        SELECT key, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?))
    SELECT a.key, r.place, coalesce(r.payload, s.payload), coalesce(e.tick_us, e.started_us)
    FROM asked a
    CROSS JOIN results r INDEXED BY results_place
        ON r.interest = a.interest AND r.place > a.after AND r.place <= a.upto
    CROSS JOIN executions e ON e.channel_id = a.channel_id AND e.number = r.place >> {ORDINAL_BITS}
    LEFT JOIN results s ON s.id = r.same_as
    """  # noqa: S608 - our own number
LIMITED: Final = "SELECT place FROM results WHERE interest = ? AND place > ? ORDER BY place LIMIT 1 OFFSET ?"


def commit(
    connection: sqlite3.Connection,
    channel_id: int,
    execution: Execution,
    interests: Sequence[int],
    payloads: Sequence[bytes],
    *,
    matches_at_most: int | None,
) -> tuple[CommittedExecution, list[int]]:
    """What was committed, and the interests that had more results than they may."""
    last = rows.last_execution(connection, channel_id)
    if execution.number != last + 1:
        raise ConflictError(f"execution {execution.number} cannot follow execution {last}")
    if len(interests) != len(payloads):
        raise InputError(f"{len(interests)} interests and {len(payloads)} payloads do not belong together")
    gone = _not_of(connection, channel_id, set(interests))
    # In the order of interests the index grows page by page; within an interest the order given stays.
    order = sorted(range(len(interests)), key=interests.__getitem__)
    if gone:
        order = [at for at in order if interests[at] not in gone]
    over: list[int] = []
    found = len(order)
    if matches_at_most is not None and found > matches_at_most:
        order, over = _within(order, interests, matches_at_most)
    first = rows.give(connection, "result", len(order))
    new = _NewRows(first, execution.number << ORDINAL_BITS, frozenset(over))
    connection.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", new.of(order, interests, payloads))
    rows.add_execution(connection, channel_id, execution, first=first, count=len(order), size_bytes=new.size_bytes)
    position = Position(rows.current_epoch(connection), rows.given(connection, "result"))
    return CommittedExecution(position, len(order), found - len(order)), over


def _within(order: Sequence[int], interests: Sequence[int], at_most: int) -> tuple[list[int], list[int]]:
    """The last so many of each interest, in the same order, and the interests that had more."""
    counts = Counter(interests[at] for at in order)
    beyond = {interest: count - at_most for interest, count in counts.items() if count > at_most}
    over, kept = list(beyond), []
    for at in order:
        if beyond.get(interests[at], 0) > 0:
            beyond[interests[at]] -= 1
        else:
            kept.append(at)
    return kept, over


class _NewRows:
    """Rows as they are kept, numbered from `first` on: a payload that comes again names the row that has it."""

    def __init__(self, first: int, first_place: int, over: frozenset[int]) -> None:
        """`over`: of these interests the first place stands for the results that are not kept."""
        self.size_bytes = 0
        self._over = over
        self._first = first
        self._first_place = first_place

    def of(
        self, order: Sequence[int], interests: Sequence[int], payloads: Sequence[bytes]
    ) -> Iterator[tuple[int, int, int, bytes | None, int | None]]:
        holder: dict[bytes, int] = {}
        previous, place, size_bytes = None, 0, ROW_BYTES * len(order)
        for id_, at in enumerate(order, self._first):
            interest, payload = interests[at], payloads[at]
            if interest == previous:
                place += 1
                if place & LAST_ORDINAL == 0:
                    raise LimitError(f"an execution found more than {LAST_ORDINAL} results for one interest")
            else:
                previous, place = interest, self._first_place + (interest in self._over)
            held_by = holder.setdefault(payload, id_)
            if held_by == id_:
                size_bytes += len(payload)
                yield id_, interest, place, payload, None
            else:
                yield id_, interest, place, None, held_by
        self.size_bytes = size_bytes


def _not_of(connection: sqlite3.Connection, channel_id: int, interests: set[int]) -> set[int]:
    sql = """SELECT j.value FROM json_each(?) j
        WHERE NOT EXISTS (SELECT 1 FROM interests i WHERE i.id = j.value AND i.channel_id = ?)"""
    return {row[0] for row in connection.execute(sql, (json.dumps(sorted(interests)), channel_id))}


# --- fetch


class FetchRemainder(NamedTuple):
    """What is left of a range: the results after `after` (a place; None before the first look)."""

    number: int
    range: Range
    left: int | None
    left_bytes: int
    after: int | None = None


def asked(ranges: Sequence[Range]) -> list[FetchRemainder]:
    for each in ranges:
        if each.limit is not None and not 0 < each.limit <= HIGHEST:
            raise InputError(f"a limit of {each.limit} results makes no sense", hint="at least 1")
        if each.limit_bytes is not None and not 0 < each.limit_bytes <= HIGHEST:
            raise InputError(f"a limit of {each.limit_bytes} bytes makes no sense", hint="at least 1")
    # A number that no interest can have is not found, rather than refused.
    known = [each if -HIGHEST <= each.interest <= HIGHEST else each._replace(interest=0) for each in ranges]
    return [
        FetchRemainder(number, each, each.limit, HIGHEST if each.limit_bytes is None else each.limit_bytes)
        for number, each in enumerate(known)
    ]


def fetch(
    connection: sqlite3.Connection, todo: Sequence[FetchRemainder], chunk_bytes: int
) -> tuple[list[FetchedRange], list[FetchRemainder]]:
    """A chunk of what is asked for, and what is left to do of `todo`, which has at most RANGES ranges."""
    epochs = rows.ChannelEpochs(connection)
    sql = """SELECT j.key, i.channel_id, i.lost FROM json_each(?) j CROSS JOIN interests i ON i.id = j.value
        CROSS JOIN channels c ON c.id = i.channel_id AND NOT c.dropped"""
    ids = orjson.dumps([each.range.interest for each in todo]).decode()
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
        own = epochs[channel_id]
        owners.append(own)
        if after is None:
            after = own.place(begin)
        to = HIGHEST if end is None else own.place(end)
        gap = None
        if after < lost:
            # What is gone beyond the range's end is none of this range's business.
            gap = own.cursor(min(lost, to)) if after < to else None
            after = lost
        answers.append(FetchedRange(number, [], gap))
        if left is not None:
            # A limit is the place of the last result within it.
            last = connection.execute(LIMITED, (interest, after, left - 1)).fetchone()
            to = to if last is None else min(to, last[0])
        query.append((interest, after, to, channel_id))

    size_bytes = passed_bytes = 0
    of, left_bytes = -1, 0
    found = connection.execute(FETCH, (orjson.dumps(query).decode(),))
    for key, place, payload, executed_us in found:
        own = owners[key]
        assert own is not None, "only interests that are known have results"
        if key != of:
            of, left_bytes = key, todo[key].left_bytes
        if left_bytes <= 0:
            # This range has its bytes. A little of what follows is passed over; before it is much, look anew.
            passed_bytes += len(payload) + ROW_BYTES
            if passed_bytes < chunk_bytes // 4:
                continue
            found.close()
            return answers[: key + 1], list(todo[key + 1 :])
        answers[key].results.append(ResultRow(own.cursor(place), executed_us, payload))
        left_bytes -= len(payload) + RESULT_BYTES
        size_bytes += len(payload) + ROW_BYTES
        if size_bytes >= chunk_bytes:
            found.close()
            each, count = todo[key], len(answers[key].results)
            left = None if each.left is None else each.left - count
            done = left == 0 or left_bytes <= 0
            rest = [] if done else [each._replace(after=place, left=left, left_bytes=left_bytes)]
            return answers[: key + 1], [*rest, *todo[key + 1 :]]
    return answers, []
