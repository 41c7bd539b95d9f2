"""Rows of the last commits in memory: told whole and as they are current, or not at all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tocsin.pipeline.datasets.recent_rows import RecentRows

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


@pytest.fixture
def recent() -> RecentRows:
    made = RecentRows(SCHEMA)
    made.want()
    return made


def ids(table: pa.Table | None) -> list[int] | None:
    return None if table is None else table.column("id").to_pylist()


def test_the_rows_of_some_commits_are_those_of_all_of_them(recent: RecentRows) -> None:
    for number in (4, 5, 6):
        recent.record(number, rows(number, 10 * number), rewrite=False)
    assert ids(recent.between(3, 6)) == [4, 40, 5, 50, 6, 60]
    assert ids(recent.between(4, 5)) == [5, 50]
    assert ids(recent.between(2, 6)) is None, "commit 3 is not known"
    assert ids(recent.between(3, 7)) is None, "commit 7 is not known yet"


def test_where_nothing_is_new_there_are_no_rows(recent: RecentRows) -> None:
    for since, until in ((0, 0), (7, 7), (9, 7)):
        found = recent.between(since, until)
        assert found is not None
        assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_a_commit_that_replaced_rows_hides_how_those_before_it_are_now(recent: RecentRows) -> None:
    recent.record(1, rows(1), rewrite=False)
    recent.record(2, rows(1, 2), rewrite=True)
    recent.record(3, rows(3), rewrite=False)
    assert ids(recent.between(0, 2)) is None
    assert ids(recent.between(1, 3)) == [1, 2, 3]


def test_a_commit_that_is_not_held_ends_what_is_known(recent: RecentRows) -> None:
    recent.record(1, rows(1), rewrite=False)
    recent.record(2, None, rewrite=False)
    recent.record(3, rows(3), rewrite=False)
    assert ids(recent.between(0, 3)) is None
    assert ids(recent.between(2, 3)) == [3]


def test_what_is_kept_is_bounded_in_commits_and_in_bytes() -> None:
    recent = RecentRows(SCHEMA, most_commits=3)
    recent.want()
    for number in range(1, 10):
        recent.record(number, rows(number), rewrite=False)
    assert ids(recent.between(6, 9)) == [7, 8, 9]
    assert ids(recent.between(5, 9)) is None
    recent = RecentRows(SCHEMA, most_bytes=2 * rows(1).nbytes)
    recent.want()
    for number in range(8, 11):
        recent.record(number, rows(number), rewrite=False)
    assert ids(recent.between(8, 10)) == [9, 10]
    assert ids(recent.between(7, 10)) is None
    recent.record(11, rows(1, 2, 3), rewrite=False)
    assert ids(recent.between(10, 11)) is None, "too large by itself"


def test_nothing_is_kept_while_nobody_wants_it() -> None:
    recent = RecentRows(SCHEMA)
    recent.record(1, rows(1), rewrite=False)
    assert ids(recent.between(0, 1)) is None
    recent.want()
    recent.want()
    recent.record(2, rows(2), rewrite=False)
    recent.let_go()
    assert ids(recent.between(1, 2)) == [2], "another wants it still"
    recent.let_go()
    assert ids(recent.between(1, 2)) is None
