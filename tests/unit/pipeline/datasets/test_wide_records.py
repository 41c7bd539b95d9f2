"""A table of any width is after a restart what it was before."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.small_tables import EAGER, KEYS, full_disk, reopened
from tocsin.clock import to_us
from tocsin.pipeline.datasets import data_files
from tocsin.pipeline.datasets.delta import delta_log, log_files
from tocsin.pipeline.datasets.table import DatasetTable, Snapshot
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage import local
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import StorageFullError

# As tables were created before they said anything of themselves.
OLD = mock.patch.object(delta_log, "table_properties", return_value={})


def flat(columns: int) -> pa.Schema:
    return pa.schema([("id", pa.int64()), *((f"c{each}", pa.string()) for each in range(columns - 1))])


def nested(depth: int, width: int) -> pa.DataType:
    """A struct of structs; its leaves are called as our own columns are."""
    if depth == 0:
        return pa.struct([("_commit", pa.string()), ("_at", pa.int64()), ("many", pa.list_(pa.float64()))])
    return pa.struct([(f"s{each}", nested(depth - 1, width)) for each in range(width)])


WIDE = {
    **{f"{columns} columns": flat(columns) for columns in (1, 29, 30, 31, 32, 33, 40, 200)},
    "a wide struct": pa.schema([("id", pa.int64()), ("zone", nested(1, 20))]),
    "deep structs first": pa.schema([("zone", nested(3, 4)), ("id", pa.int64())]),
    "wide lists": pa.schema([("id", pa.int64()), ("list", pa.list_(nested(1, 20)))]),
}


def wide_rows(schema: pa.Schema, *ids: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": each, "c0": str(each)} for each in ids], schema=schema)


def commits_of(snapshot: Snapshot) -> dict[int, int]:
    seen: dict[int, int] = {}
    for path in snapshot.files:
        for row in pq.ParquetFile(path).read(columns=["id", "_commit"]).to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                seen[row["id"]] = row["_commit"]
    return seen


def same_opened_anew(table: DatasetTable, **options: Any) -> DatasetTable:
    """The table closed and opened: it must know of every file what it knew."""
    before = table.log.state
    table = reopened(table, **options)
    assert table.log.state == before
    return table


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("name", WIDE)
def test_a_table_of_any_width_is_after_a_restart_what_it_was_before(tmp_path: Path, name: str, *, old: bool) -> None:
    schema = WIDE[name]
    with OLD if old else nullcontext():
        table = DatasetTable.create(LocalFolder(tmp_path / "d"), schema, KEYS, history=4)
    table = same_opened_anew(table, history=4)
    expected: list[dict[int, int]] = [{}]

    def check() -> None:
        assert (table.number, table.past.state.rows) == (len(expected) - 1, len(expected[-1]))
        assert commits_of(table.snapshot()) == expected[-1]
        for number in range(max(0, table.number - 3), table.number + 1):
            assert commits_of(table.as_of_commit(number)) == expected[number]

    for number in range(1, 13, 3):
        table.insert(wide_rows(schema, number, number + 1))
        expected.append({**expected[-1], number: number, number + 1: number})
        table = same_opened_anew(table, history=4)
        table.upsert(wide_rows(schema, number, number + 2))
        expected.append({**expected[-1], number: number + 1, number + 2: number + 1})
        table = same_opened_anew(table, history=4)
        table.delete(wide_rows(schema, number + 1))
        expected.append({key: value for key, value in expected[-1].items() if key != number + 1})
        check()
        done = upkeep(table, EAGER)
        assert done.checkpoint is not None
        check()
        table = same_opened_anew(table, history=4)
        check()
    assert log_files.log_versions(table.log.folder)[0][0] > 0, "the log was trimmed"
    with mock.patch.object(local, "sync_open", full_disk), pytest.raises(StorageFullError):
        table.insert(wide_rows(schema, 99))
    check()
    table.insert(wide_rows(schema, 99))


@pytest.mark.parametrize("name", [name for name in WIDE if "struct" not in name])
def test_other_engines_can_leave_out_the_files_of_other_commits(tmp_path: Path, name: str) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), WIDE[name], KEYS)
    for each in range(3):
        table.insert(wide_rows(WIDE[name], each))
    delta = DeltaTable(str(table.log.folder))
    for listed in (delta.get_add_actions(flatten=True), _checkpointed(delta).get_add_actions(flatten=True)):
        actions = pa.table(listed)
        assert sorted(actions.column("min._commit").to_pylist()) == [1, 2, 3]
        assert sorted(actions.column("max._commit").to_pylist()) == [1, 2, 3]
        assert actions.column("min._at").null_count == actions.column("max._at").null_count == 0


def _checkpointed(delta: DeltaTable) -> DeltaTable:
    delta.create_checkpoint()
    for entry in Path(delta.table_uri.removeprefix("file://")).glob("_delta_log/*.json"):
        entry.unlink()
    return DeltaTable(delta.table_uri)


@pytest.mark.parametrize("statistics", [True, False])
def test_what_the_log_does_not_say_of_a_file_the_file_says(tmp_path: Path, *, statistics: bool) -> None:
    schema = data_files.stored_schema(pa.schema([("id", pa.int64()), ("zone", nested(1, 2))]))
    first = datetime(2026, 1, 1, microsecond=123457, tzinfo=UTC)
    ats = [first + timedelta(microseconds=each) for each in (3, 0, 9, 4)]
    stored = [{"id": each, "_commit": 2**53 + each, "_at": at} for each, at in enumerate(ats)]
    pq.write_table(
        pa.Table.from_pylist(stored, schema=schema), tmp_path / "f", row_group_size=2, write_statistics=statistics
    )
    listed = pa.table({"path": ["f"], "size_bytes": [77], "num_records": pa.array([None], pa.int64())})
    first_us = to_us(first)
    assert data_files.from_add_actions(listed, LocalFolder(tmp_path)) == {
        "f": data_files.DataFile("f", 77, 4, 2**53, 2**53 + 3, first_us, first_us + 9)
    }
