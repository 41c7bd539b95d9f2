"""Past states can be asked for, as long as they are kept, and readers wait for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.support.small_tables import KEYS, SCHEMA, MovedClock, content, reopened, rows
from tests.support.waiting import WITHIN_S, wait_until
from tocsin.pipeline.datasets.delta import log_files
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import clean_up, is_upkeep_due, upkeep
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import NotFoundError

EVERY_STORAGE = True


def test_a_clock_that_goes_back_does_not_disorder_the_commits(folder: StorageFolder) -> None:
    clock = MovedClock()
    table = DatasetTable.create(folder, SCHEMA, KEYS, clock=clock.of_table)
    first = table.insert(rows(1))
    clock.ahead_s = -time.time()
    second = table.insert(rows(2))
    assert second.at > first.at


def test_a_settled_time_gets_no_later_commit_whatever_the_clock_does(folder: StorageFolder) -> None:
    clock = MovedClock()
    table = DatasetTable.create(folder, SCHEMA, KEYS, clock=clock.of_table)
    first = table.insert(rows(1))
    at = first.at + timedelta(microseconds=5)
    wait_until(lambda: datetime.now(UTC) > at, "that time has come")
    assert table.settled_at(at).number == 1
    clock.ahead_s = -time.time()
    assert table.insert(rows(2)).at > at
    assert table.settled_at(at).number == 1


def test_a_commit_that_has_its_time_is_waited_for_before_that_time_is_settled(table: DatasetTable) -> None:
    goes_on, began = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        began.set()
        assert goes_on.wait(WITHIN_S)
        yield from rows(1).to_batches()

    loading = threading.Thread(target=lambda: table.load(batches()))
    loading.start()
    assert began.wait(WITHIN_S)
    found: list[int] = []
    settling = threading.Thread(target=lambda: found.append(table.settled_at(datetime.now(UTC)).number))
    settling.start()
    goes_on.set()
    for thread in (loading, settling):
        thread.join(WITHIN_S)
    assert found == [1]


def test_the_future_is_not_settled(table: DatasetTable) -> None:
    table.settled_at(datetime.now(UTC) + timedelta(days=1))
    assert table.insert(rows(1)).at < datetime.now(UTC) + timedelta(hours=1)


def test_a_dataset_only_appended_to_can_be_asked_for_any_commit_and_time(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, history=2)
    made = []
    for each in range(150):
        made.append(table.insert(rows(each)))
        if is_upkeep_due(table):
            upkeep(table)
    table = reopened(table, history=2)
    assert len(log_files.log_versions(table.log.folder)[0]) < 120
    for number in (0, 1, 77, 150):
        assert set(content(table.as_of_commit(number))) == set(range(number))
    for number in (1, 77, 150):
        assert table.as_of_time(made[number - 1].at).number == number
    assert table.as_of_time(made[0].at - timedelta(seconds=1)).number == 0
    # The first rewrite ends that: from now on the last two commits are kept.
    table.delete(rows(0))
    assert set(content(table.as_of_commit(150))) == set(range(150))
    with pytest.raises(NotFoundError, match="the oldest that can be asked for is commit 150 of 20"):
        table.as_of_commit(77)
    with pytest.raises(NotFoundError, match="commit 150"):
        table.as_of_time(made[3].at)


def test_a_longer_history_does_not_bring_back_what_a_shorter_one_gave_up(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, history=2)
    made = []
    for each in range(1, 41):
        made.append(table.upsert(rows(1, said=str(each))))
        upkeep(table)
    clean_up(table)
    with pytest.raises(NotFoundError, match="commit 39"):
        table.as_of_time(made[4].at)
    table = reopened(table, history=1000)
    with pytest.raises(NotFoundError, match="commit 39"):
        table.as_of_time(made[4].at)
    assert content(table.as_of_commit(39)) == {1: "39"}
    with pytest.raises(NotFoundError, match="commit 39"):
        table.as_of_commit(38)


def test_the_files_of_a_pinned_or_held_snapshot_stay(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, history=1)
    table.insert(rows(1, 2))
    held = table.snapshot()
    with table.pin(table.snapshot()):
        files = held.files
        del held
        table.upsert(rows(2, said="b"))
        clean_up(table)
        assert {path.rpartition("/")[2] for path in files} <= table.data.names()
    held = table.snapshot()
    table.upsert(rows(2, said="c"))
    clean_up(table)
    assert table.data.names().isdisjoint(path.rpartition("/")[2] for path in files)
    assert content(held) == {1: "a", 2: "b"}
    del held
    clean_up(table)
    assert len(table.data.names()) == 1


def test_readers_do_not_wait_for_a_writer(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.upsert(rows(1, said="b"))
    seen: list[Any] = []
    with table.writing:
        reader = threading.Thread(
            target=lambda: seen.append((table.snapshot().number, table.as_of_commit(1).number, table.past.state.rows))
        )
        reader.start()
        reader.join(timeout=WITHIN_S)
    assert seen == [(2, 1, 1)]
