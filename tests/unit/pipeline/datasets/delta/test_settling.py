"""A put that fails: the log tells whether the change was made. An entry that was put is never taken back."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from tests.support.dataset_files import entry_path
from tests.support.small_tables import content, reopened, rows
from tocsin.durable_files import sync_folder
from tocsin.pipeline.datasets.delta.log_files import log_versions
from tocsin.pipeline.datasets.delta.log_writers import LinkedLog, LogWriter
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage import local
from tocsin.wire.errors import StoreError, UnavailableError


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class LostAnswers:
    """A log whose puts fail: `put` says whether each comes to the log before that, `late` lets one come later."""

    def __init__(self, inner: LogWriter, puts: Sequence[bool], *, is_prompt: bool = False) -> None:
        self._inner = inner
        self._puts = iter(puts)
        self._under_way: list[tuple[Any, ...]] = []
        self.is_prompt = is_prompt

    def put(self, version: int, actions: Sequence[Mapping[str, Any]], info: Mapping[str, Any], at_us: int) -> None:
        arrives = next(self._puts, None)
        if arrives is not False:
            self._inner.put(version, actions, info, at_us)
        else:
            self._under_way.append((version, actions, info, at_us))
        if arrives is not None:
            raise TimeoutError("no answer")

    def arrive(self) -> None:
        for put in self._under_way:
            self._inner.put(*put)

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        self._inner.create(schema, properties)

    def refreshed(self, delta: DeltaTable) -> None:
        self._inner.refreshed(delta)


def losing(table: DatasetTable, *puts: bool, is_prompt: bool = False) -> LostAnswers:
    table.log._writer = LostAnswers(table.log._writer, puts, is_prompt=is_prompt)
    return table.log._writer


@contextmanager
def unsynced(folder: Path) -> Iterator[None]:
    def failing(path: Path) -> None:
        fail() if path == folder else sync_folder(path)

    with mock.patch.object(local, "sync_folder", failing):
        yield


def test_a_put_whose_answer_is_lost_was_made_once(table: DatasetTable) -> None:
    table.insert(rows(1))
    losing(table, True, True)
    assert table.insert(rows(2), positions={"feed": 7}).number == 2
    assert table.upsert(rows(1, said="b")).number == 3
    assert content(table.snapshot()) == {1: "b", 2: "a"}
    assert table.position("feed") == 7
    assert content(reopened(table).snapshot()) == {1: "b", 2: "a"}
    assert log_versions(table.log.folder)[0] == [0, 1, 2, 3]


def test_a_put_that_did_not_come_changes_nothing_where_none_can_be_under_way(table: DatasetTable) -> None:
    table.insert(rows(1))
    losing(table, False, is_prompt=True)
    with pytest.raises(TimeoutError):
        table.insert(rows(2))
    assert len(table.data.names()) == 1
    assert table.insert(rows(2)).number == 2
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a"}


def test_an_entry_that_comes_late_finds_its_data_files(table: DatasetTable) -> None:
    table.insert(rows(1))
    writer = losing(table, False)
    with pytest.raises(StoreError, match="not known"):
        table.insert(rows(2), positions={"feed": 7})
    upkeep(table)
    assert len(table.data.names()) == 2, "the files of an entry that may come stay"
    assert table.position("feed") is None
    writer.arrive()
    assert table.position("feed") == 7, "the next look finds the entry"
    assert content(table.snapshot()) == {1: "a", 2: "a"}
    assert table.insert(rows(3)).number == 3
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a", 3: "a"}


def test_an_entry_that_can_come_no_more_leaves_no_files(table: DatasetTable) -> None:
    table.insert(rows(1))
    writer = losing(table, False, False)
    for each in (2, 3):
        with pytest.raises(StoreError, match="not known"):
            table.insert(rows(each))
    assert len(table.data.names()) == 3
    assert table.insert(rows(4)).number == 2
    with pytest.raises(FileExistsError):
        writer.arrive()
    upkeep(table)
    assert content(reopened(table).snapshot()) == {1: "a", 4: "a"}
    assert len(table.data.names()) == 2


def test_a_change_that_meets_an_earlier_one_of_unknown_outcome_is_not_made_by_itself_again(table: DatasetTable) -> None:
    """A feed lands the same records again: first it must look at the position."""
    writer = losing(table, False)
    with pytest.raises(StoreError, match="not known"):
        table.insert(rows(1), positions={"feed": 7})
    put = LostAnswers.put

    def arriving(self: LostAnswers, *args: Any) -> None:
        writer.arrive()
        put(self, *args)

    with mock.patch.object(LostAnswers, "put", arriving), pytest.raises(UnavailableError, match="earlier change"):
        table.insert(rows(1), keys_are_new=True, positions={"feed": 7})
    assert table.position("feed") == 7
    assert content(table.snapshot()) == {1: "a"}


def test_an_entry_whose_name_could_not_be_synced_is_not_known_until_it_is(table: DatasetTable) -> None:
    table.insert(rows(1))
    entry = entry_path(table.log.folder, 2)
    with unsynced(entry.parent):
        with pytest.raises(StoreError, match=entry.name):
            table.insert(rows(2))
        table.leftovers = True
        with pytest.raises(StoreError, match=entry.name):
            upkeep(table)
        # Nothing is written on top of it.
        with pytest.raises(StoreError, match=entry.name):
            table.insert(rows(3))
    assert content(table.snapshot()) == {1: "a"}
    assert len(table.data.names()) == 2
    heard: list[int] = []
    table.listen(heard.append)
    assert table.insert(rows(3)).number == 3
    assert heard == [2, 3]
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a", 3: "a"}


def test_one_failed_sync_of_a_name_is_made_good(table: DatasetTable) -> None:
    answers = iter([sync_folder, fail])

    def failing_once(path: Path) -> None:
        next(answers, sync_folder)(path)

    with mock.patch.object(local, "sync_folder", failing_once):
        assert table.insert(rows(1)).number == 1
    assert content(reopened(table).snapshot()) == {1: "a"}


def test_an_entry_that_could_not_be_written_was_never_there(table: DatasetTable) -> None:
    table.insert(rows(1))
    with mock.patch.object(local, "sync_open", fail), pytest.raises(OSError, match="error"):
        table.delete(rows(1))
    table.insert(rows(2))
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a"}
    assert log_versions(table.log.folder)[0] == [0, 1, 2]


@pytest.mark.parametrize("interrupted", ["before", "after"])
def test_an_interrupted_change_is_made_or_not(table: DatasetTable, interrupted: str) -> None:
    table.insert(rows(1))
    put = LinkedLog.put

    def stopping(self: LinkedLog, *args: Any) -> None:
        if interrupted == "after":
            put(self, *args)
        raise KeyboardInterrupt

    with mock.patch.object(LinkedLog, "put", stopping), pytest.raises(KeyboardInterrupt):
        table.insert(rows(2))
    table.insert(rows(3))
    made = {1: "a", 3: "a"} | ({2: "a"} if interrupted == "after" else {})
    upkeep(table)
    assert content(table.snapshot()) == made
    assert content(reopened(table).snapshot()) == made
    assert len(table.data.names()) == len(made)


def append_as_another_program(table: DatasetTable, *ids: int) -> None:
    folder = table.log.folder
    write_deltalake(
        folder.delta_uri, rows(*ids), mode="append", schema_mode="merge", storage_options=folder.delta_options
    )


def test_the_commit_of_another_program_is_told_and_not_overwritten(table: DatasetTable) -> None:
    table.insert(rows(1), positions={"feed": 7})
    append_as_another_program(table, 2)
    with capture_logs() as logs:
        assert table.upsert(rows(1, 3, said="b"), positions={"feed": 8}).number == 2
    assert [entry["version"] for entry in logs if "another program" in entry["event"]] == [2]
    assert content(table.snapshot()) == {1: "b", 2: "a", 3: "b"}
    assert table.position("feed") == 8
    table = reopened(table)
    assert content(table.snapshot()) == {1: "b", 2: "a", 3: "b"}
    assert table.upsert(rows(2, said="c")).number == 3
    assert content(table.snapshot())[2] == "c"
    assert log_versions(table.log.folder)[0] == [0, 1, 2, 3, 4]


def test_a_key_of_another_program_is_seen_before_the_insert_is_made_again(table: DatasetTable) -> None:
    table.insert(rows(1))
    append_as_another_program(table, 2)
    with pytest.raises(Exception, match="is in the dataset already"):
        table.insert(rows(2))
    assert content(table.snapshot()) == {1: "a", 2: "a"}


def test_the_commit_of_another_program_is_noticed_without_a_commit_of_ours(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.notice_foreign_commits()
    append_as_another_program(table, 2)
    assert content(table.snapshot()) == {1: "a"}
    with capture_logs() as logs:
        table.notice_foreign_commits()
    assert len(logs) == 1
    assert content(table.snapshot()) == {1: "a", 2: "a"}


def test_rows_of_another_program_are_compacted_with_ours(table: DatasetTable) -> None:
    for each in range(20):
        table.insert(rows(each))
    append_as_another_program(table, 20, 21)
    table.insert(rows(22))
    assert upkeep(table).compacted_files
    assert content(table.snapshot()) == dict.fromkeys(range(23), "a")
    assert content(reopened(table).snapshot()) == dict.fromkeys(range(23), "a")


def test_an_entry_names_its_transaction(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.insert(rows(2))
    transactions = {
        json.loads(entry_path(table.log.folder, version).read_bytes().split(b"\n")[0])["commitInfo"]["tocsin.txn"]
        for version in (1, 2)
    }
    assert len(transactions) == 2
