"""Upkeep keeps files few and histories short, beside everybody's work."""

from __future__ import annotations

import os
import threading
from typing import Any
from unittest import mock

import pytest

from tests.support.small_tables import KEYS, SCHEMA, MovedClock, content, full_disk, reopened, rows
from tocsin.pipeline.datasets import data_files
from tocsin.pipeline.datasets.delta import log_files
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, clean_up, is_upkeep_due, upkeep
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import ConflictError, StorageFullError

EVERY_STORAGE = True


def test_small_commits_are_compacted_and_the_log_stays_short(table: DatasetTable) -> None:
    rounds = 0
    for each in range(200):
        table.insert(rows(each))
        if is_upkeep_due(table):
            upkeep(table)
            rounds += 1
    assert table.number == 200
    assert 0 < rounds < 40
    assert len(table.past.state.files) < 40
    assert len(table.data.names()) < 120
    entries, checkpoints = log_files.log_versions(table.log.folder)
    assert len(entries) < 150
    assert len(checkpoints) < 10
    assert set(content(table.snapshot())) == set(range(200))
    with pytest.raises(ConflictError):
        table.insert(rows(17))
    assert set(content(reopened(table).snapshot())) == set(range(200))


def test_a_compaction_that_a_writer_overtook_is_dropped(table: DatasetTable) -> None:
    for each in range(20):
        table.insert(rows(each))
    real = data_files.DataFolder.write

    def overtaken(self: data_files.DataFolder, tables: Any, **options: Any) -> Any:
        written = real(self, tables, **options)
        with mock.patch.object(data_files.DataFolder, "write", real):
            table.delete(rows(3))
        return written

    with mock.patch.object(data_files.DataFolder, "write", overtaken):
        assert upkeep(table).compacted_files == 0
    assert len(content(table.snapshot())) == 19
    assert upkeep(table).compacted_files == 19
    assert len(content(table.snapshot())) == 19


def test_on_a_full_disk_upkeep_still_removes_what_nothing_needs(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, history=1)
    for each in range(20):
        table.insert(rows(each))
    table.upsert(rows(0, said="b"))
    before = len(table.data.names())
    with mock.patch.object(data_files, "compute_checksum", full_disk), pytest.raises(StorageFullError):
        upkeep(table)
    assert len(table.data.names()) == before - 1
    assert len(content(table.snapshot())) == 20


def test_rows_end_with_their_retention_without_a_commit(folder: StorageFolder) -> None:
    clock = MovedClock()
    table = DatasetTable.create(folder, SCHEMA, KEYS, clock=clock.of_table)
    clock.ahead_s = -3600.0
    table.insert(rows(0, said=os.urandom(200_000).hex()))  # too large for a compaction with the others
    table.insert(rows(1, 2))
    clock.ahead_s = 0.0
    table.insert(rows(3, 4))
    assert upkeep(table, UpkeepLimits(files_per_compaction=2)).compacted_files == 2
    table = reopened(table, retention_s=100)
    assert is_upkeep_due(table)
    assert upkeep(table).expired_rows == 3
    assert content(table.snapshot()) == {3: "a", 4: "a"}
    assert table.number == 3
    assert not is_upkeep_due(table)
    assert content(table.as_of_commit(2)) == {}
    assert content(reopened(table, retention_s=100).snapshot()) == {3: "a", 4: "a"}
    table = reopened(table)
    table.insert(rows(0, 1, 2))
    with pytest.raises(ConflictError):
        table.insert(rows(3))


def test_nothing_ends_by_age_while_the_time_that_tells_ages_stands_still(folder: StorageFolder) -> None:
    times = {"now": 10**15, "age": 10**15}
    clock = TableClock(lambda: times["now"], lambda: times["age"])
    outside_readers = OutsideReaders(keep_s=60.0)
    table = DatasetTable.create(
        folder, SCHEMA, KEYS, retention_s=100, history=1, outside_readers=outside_readers, clock=clock
    )
    table.upsert(rows(1))
    times["now"] += 3600 * 10**6
    table.upsert(rows(1, 2, said="b"))
    table.upsert(rows(2, said="c"))
    table.leftovers = True
    upkeep(table)
    assert content(table.snapshot()) == {1: "b", 2: "c"}
    assert len(table.past.tombstones) == 2
    # From now on it is told again: of the files, the first was removed an hour ago and the second a minute later.
    times["now"] += 61 * 10**6
    times["age"] = times["now"]
    upkeep(table)
    assert content(table.snapshot()) == {1: "b", 2: "c"}
    assert len(table.past.tombstones) == 0
    times["now"] = times["age"] = times["now"] + 100 * 10**6
    assert upkeep(table).expired_rows == 2


def test_what_a_clock_said_that_was_ahead_is_not_kept_until_then(folder: StorageFolder) -> None:
    times = {"now": 10**15}
    clock = TableClock(lambda: times["now"], lambda: times["now"])
    outside_readers = OutsideReaders(keep_s=60.0)
    table = DatasetTable.create(folder, SCHEMA, KEYS, history=1, outside_readers=outside_readers, clock=clock)
    times["now"] += 10**14
    table.upsert(rows(1))
    table.upsert(rows(1, said="b"))
    times["now"] -= 10**14
    clean_up(table)
    assert len(table.past.tombstones) == 1
    times["now"] += 61 * 10**6
    assert is_upkeep_due(table)
    clean_up(table)
    assert len(table.past.tombstones) == 0


def test_an_ended_key_is_free_again(folder: StorageFolder) -> None:
    clock = MovedClock()
    table = DatasetTable.create(folder, SCHEMA, KEYS, retention_s=0, clock=clock.of_table)
    table.insert(rows(1))
    clock.ahead_s = 1e9
    assert upkeep(table).expired_rows == 1
    clock.ahead_s = 0.0
    assert table.insert(rows(1)).number == 2


def test_commits_readers_and_upkeep_go_on_beside_each_other(table: DatasetTable) -> None:
    problems: list[BaseException] = []
    stop = threading.Event()

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(begin: int) -> None:
        for each in range(begin, begin + 40):
            table.upsert(rows(each, 7))

    def read() -> None:
        while not stop.is_set():
            snapshot = table.snapshot()
            assert 7 in content(snapshot) or snapshot.number == 0
            old = table.as_of_commit(max(0, snapshot.number - 3))
            content(old)

    def keep_up() -> None:
        while not stop.is_set():
            upkeep(table, UpkeepLimits(files_per_compaction=4, checkpoint_every=5, clean_up_every=2))

    writers = [guarded(lambda begin=begin: write(begin)) for begin in (100, 200)]
    others = [guarded(read), guarded(keep_up)]
    for writer in writers:
        writer.join()
    stop.set()
    for other in others:
        other.join()
    assert problems == []
    assert table.number == 80
    assert len(content(table.snapshot())) == 81
