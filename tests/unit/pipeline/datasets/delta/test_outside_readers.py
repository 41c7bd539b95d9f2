"""Other engines read a version for as long as it is kept for them, whatever is committed and compacted meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.dataset_files import entry_path, path_of
from tests.support.small_tables import KEYS, SCHEMA, MovedClock, content, full_disk, reopened, rows
from tocsin.pipeline.datasets.delta import log_files
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable, TableOptions
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, clean_up, is_upkeep_due, upkeep
from tocsin.storage import local
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import StorageFullError

HOUR = OutsideReaders(keep_s=3600.0)
# Upkeep has something to do after every few commits.
LIMITS = UpkeepLimits(files_per_compaction=3, checkpoint_every=4, clean_up_every=2)


def changed(table: DatasetTable, count: int) -> None:
    """So many commits that add, replace and delete rows, with upkeep after each."""
    for each in range(table.number, table.number + count):
        if each % 3 == 2:
            table.delete(rows(each - 1))
        else:
            table.upsert(rows(each, 0, said=str(each)))
        upkeep(table, LIMITS)


def outside(table: DatasetTable, version: int | None = None) -> dict[int, str]:
    opened = DeltaTable(str(table.log.folder), version=version)
    return {row["id"]: row["said"] for row in opened.to_pyarrow_table().to_pylist()}


def test_a_reader_in_another_process_meets_no_error_while_commits_and_compactions_go_on(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR)
    changed(table, 3)
    command = [sys.executable, "-m", "tests.support.outside_reader", str(table.log.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        changed(table, 150)
        reader.stdin.write("enough\n")
        reader.stdin.flush()
        told = json.loads(reader.stdout.readline() or "null")
    assert reader.returncode == 0
    assert told["reads"] > 0


def test_every_version_within_the_time_can_be_opened_from_outside(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR)
    expected: dict[int, dict[int, str]] = {}
    for _ in range(40):
        changed(table, 1)
        expected[table.log.state.version] = content(table.snapshot())
    table = reopened(table, history=2, outside_readers=HOUR)
    upkeep(table, LIMITS)
    assert {version: outside(table, version) for version in expected} == expected


def test_what_nobody_may_need_goes_when_its_time_is_over_also_after_a_restart(tmp_path: Path) -> None:
    clock = MovedClock()
    options: TableOptions = {"history": 2, "outside_readers": HOUR, "clock": clock.of_table}
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, **options)
    changed(table, 40)
    many = len(table.data.names())
    table = reopened(table, **options)
    upkeep(table, LIMITS)
    assert len(table.data.names()) == many, "a restart ends nobody's time"
    assert not is_upkeep_due(table, LIMITS)
    clock.ahead_s = 3500.0
    assert not is_upkeep_due(table, LIMITS)
    clock.ahead_s = 3700.0
    assert is_upkeep_due(table, LIMITS)
    upkeep(table, LIMITS)
    assert not is_upkeep_due(table, LIMITS)
    assert len(table.data.names()) < 10
    assert len(log_files.log_versions(table.log.folder)[0]) < 20
    assert len(table.past.tombstones) == table.past.tombstones.size_bytes == 0
    assert outside(table) == content(table.snapshot())
    with pytest.raises(TableNotFoundError):
        outside(table, 3)


def test_times_of_files_do_not_count_which_a_wrong_clock_may_have_set(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR)
    changed(table, 20)
    versions = log_files.log_versions(table.log.folder)[0]
    for version in versions:
        os.utime(entry_path(table.log.folder, version), (0, 0))
    table = reopened(table, history=2, outside_readers=HOUR)
    upkeep(table, LIMITS)
    assert log_files.log_versions(table.log.folder)[0] == versions
    assert outside(table, versions[0]) == {}


def test_nothing_goes_by_age_while_ages_stand_still(tmp_path: Path) -> None:
    ages_us = [time.time_ns() // 1_000]
    suspect = TableClock(now_us=lambda: time.time_ns() // 1_000 + 864 * 10**8, age_us=lambda: ages_us[0])
    table = DatasetTable.create(
        LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR, clock=suspect
    )
    changed(table, 20)
    kept, versions = table.data.names(), log_files.log_versions(table.log.folder)[0]
    for _ in range(2):
        table = reopened(table, history=2, outside_readers=HOUR, clock=suspect)
        upkeep(table, LIMITS)
        assert (table.data.names(), log_files.log_versions(table.log.folder)[0]) == (kept, versions)
    ages_us[0] = suspect.now_us() + int(3700e6)
    upkeep(table, LIMITS)
    assert len(table.data.names()) < len(kept)


def test_nothing_is_kept_where_the_setting_says_so(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2)
    changed(table, 40)
    assert len(table.data.names()) < 10
    assert len(log_files.log_versions(table.log.folder)[0]) < 20


def test_beyond_so_many_bytes_the_oldest_go_earlier_and_that_is_told(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR)
    changed(table, 20)
    kept = table.past.tombstones
    newest = max(kept).name
    limit = OutsideReaders(keep_s=3600.0, keep_bytes=kept.size_bytes // 2)
    table = reopened(table, history=2, outside_readers=limit)
    done = upkeep(table, LIMITS)
    assert 0 < done.removed_early == done.removed_data_files
    assert table.past.tombstones.size_bytes <= limit.keep_bytes
    assert (path_of(table.log.folder) / newest).exists()
    assert upkeep(table, LIMITS).removed_early == 0


def test_a_full_disk_ends_what_is_kept_for_others(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=1, outside_readers=HOUR)
    changed(table, 20)
    assert len(table.past.tombstones) > 0
    for each in range(100, 103):
        table.insert(rows(each))
    with mock.patch.object(local, "sync_file", full_disk), pytest.raises(StorageFullError):
        upkeep(table, LIMITS)
    assert len(table.past.tombstones) == 0
    assert outside(table) == content(table.snapshot())


def test_readers_inside_keep_their_files_beyond_that_time(tmp_path: Path) -> None:
    clock = MovedClock()
    table = DatasetTable.create(
        LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=1, outside_readers=HOUR, clock=clock.of_table
    )
    table.insert(rows(1, 2))
    held = table.snapshot()
    table.upsert(rows(2, said="b"))
    clock.ahead_s = 3700.0
    clean_up(table)
    assert content(held) == {1: "a", 2: "a"}
    del held
    assert clean_up(table).removed_data_files == 1


def test_the_table_says_how_long_versions_stay_and_a_changed_setting_is_said_by_upkeep(tmp_path: Path) -> None:
    def said() -> Any:
        properties = DeltaTable(str(table.log.folder)).metadata().configuration
        return [properties[f"delta.{name}RetentionDuration"] for name in ("deletedFile", "log")]

    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, outside_readers=HOUR)
    assert said() == ["interval 3600 seconds"] * 2
    table.insert(rows(1), positions={"feed": 7})
    table = reopened(table, outside_readers=OutsideReaders(keep_s=60.0))
    assert is_upkeep_due(table, LIMITS)
    upkeep(table, LIMITS)
    assert said() == ["interval 60 seconds"] * 2
    assert not is_upkeep_due(table, LIMITS)
    assert table.insert(rows(2)).number == 2
    table = reopened(table, outside_readers=OutsideReaders(keep_s=60.0))
    assert (content(table.snapshot()), table.position("feed")) == ({1: "a", 2: "a"}, 7)
    assert content(table.as_of_commit(1)) == {1: "a"}


def test_a_commit_lists_neither_the_log_nor_the_data_files(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS, history=2, outside_readers=HOUR)
    changed(table, 10)
    with (
        mock.patch.object(Path, "iterdir", side_effect=AssertionError("listed")),
        mock.patch("os.scandir", side_effect=AssertionError("listed")),
        mock.patch("tocsin.pipeline.datasets.delta.delta_log.open_delta", side_effect=AssertionError("opened")),
    ):
        table.upsert(rows(1, 50), positions={"feed": 1})
        table.delete(rows(50))
        clean_up(table)
    assert table.position("feed") == 1


def test_an_entry_of_another_process_is_not_overwritten(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS)
    table.insert(rows(1))
    strange = entry_path(table.log.folder, 2)
    strange.write_text(json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}}))
    before = strange.read_bytes()
    assert table.insert(rows(2)).number == 2
    assert strange.read_bytes() == before
    assert outside(table) == {1: "a", 2: "a"}
