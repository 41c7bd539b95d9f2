"""One dataset's table: keys, atomic durable commits, past states, upkeep."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.pipeline.datasets import commits, datafiles, durability
from tocsin.pipeline.datasets import upkeep as upkeep_module
from tocsin.pipeline.datasets.keyindex import KeyIndex
from tocsin.pipeline.datasets.table import DatasetTable, Snapshot
from tocsin.pipeline.datasets.upkeep import clean_up, upkeep
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StorageFullError, UnavailableError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])),
        ("said", pa.string()),
    ]
)
KEYS = (("id",),)


def rows(*ids: int, said: str = "a") -> pa.Table:
    records = [{"id": each, "zone": {"x": each / 2, "tags": ["t", None]}, "said": said} for each in ids]
    return pa.Table.from_pylist(records, schema=SCHEMA)


def content(snapshot: Snapshot) -> dict[Any, str]:
    seen: dict[Any, str] = {}
    for path in snapshot.files:
        for row in pq.ParquetFile(path).read().to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                assert row["id"] not in seen
                seen[row["id"]] = row["said"]
    return seen


@pytest.fixture
def table(tmp_path: Path) -> DatasetTable:
    return DatasetTable.create(tmp_path / "d", SCHEMA, KEYS)


def reopened(table: DatasetTable, **options: Any) -> DatasetTable:
    table.close()
    return DatasetTable.open(table.log.folder, table.schema, table.keys, **options)


# ---- keys


def test_a_taken_key_is_named_and_nothing_is_inserted(table: DatasetTable) -> None:
    table.insert(rows(1, 2))
    before = table.data.names()
    with pytest.raises(ConflictError, match="id = 2 is in the dataset already"):
        table.insert(rows(3, 2))
    with pytest.raises(ConflictError, match="id = 4 stands twice"):
        table.insert(rows(4, 5, 4))
    assert table.number == 1
    assert table.data.names() == before
    assert content(table.snapshot()) == {1: "a", 2: "a"}


def test_a_missing_key_is_refused(table: DatasetTable) -> None:
    with pytest.raises(InputError, match="the key id is missing or null"):
        table.insert(pa.Table.from_pylist([{"id": None, "said": "a"}], schema=SCHEMA))
    assert table.number == 0


@pytest.mark.parametrize(
    ("kind", "first", "same", "other"),
    [
        (pa.bool_(), True, True, False),
        (pa.int8(), -1, -1, 1),
        (pa.int16(), 7, 7, 8),
        (pa.int32(), 7, 7, 8),
        (pa.int64(), 2**53, 2**53, 2**53 + 1),
        (pa.float32(), -0.0, 0.0, 1.0),
        (pa.float64(), -0.0, 0.0, 5e-324),
        (pa.float64(), math.nan, -math.nan, math.inf),
        (pa.string(), "é", "é", "e\u0301"),
        (pa.string(), "", "", "\0"),
        (pa.binary(), b"\0\xff", b"\0\xff", b"\xff\0"),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 2)),
        (
            pa.timestamp("us", "UTC"),
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 1, microsecond=1, tzinfo=UTC),
        ),
        (pa.decimal128(20, 2), Decimal("1.50"), Decimal("1.50"), Decimal("1.51")),
    ],
)
@pytest.mark.parametrize("indexed_keys_max", [0, 100])
def test_keys_of_every_type_are_compared_exactly(
    tmp_path: Path, kind: pa.DataType, first: Any, same: Any, other: Any, indexed_keys_max: int
) -> None:
    schema = pa.schema([("zone", pa.struct([("key", kind)])), ("id", pa.int64()), ("said", pa.string())])

    def row(key: Any) -> pa.Table:
        return pa.Table.from_pylist([{"zone": {"key": key}, "id": 1, "said": "a"}], schema=schema)

    table = DatasetTable.create(tmp_path / "d", schema, (("zone", "key"), ("id",)), indexed_keys_max=indexed_keys_max)
    table.insert(row(first))
    with pytest.raises(ConflictError, match=r"zone\.key = .*, id = 1 is in the dataset"):
        table.insert(row(same))
    table.insert(row(other))
    assert table.row_count == 2
    assert table.upsert(row(same)).rows == 1
    assert table.row_count == 2
    assert reopened(table).delete(row(same)).rows == 1


def test_generated_keys_need_no_look_up_and_are_known_afterwards(table: DatasetTable) -> None:
    table.insert(rows(1))
    table = reopened(table)
    with mock.patch.object(table.lookup, "keys_in", side_effect=AssertionError("a look-up")):
        table.insert(rows(2), keys_are_new=True)
    with pytest.raises(ConflictError):
        table.insert(rows(2))
    table.insert(rows(3), keys_are_new=True)
    with pytest.raises(ConflictError):
        table.insert(rows(3))


def test_of_several_rows_with_one_key_the_last_wins(table: DatasetTable) -> None:
    table.insert(rows(1, 2))
    commit = table.upsert(pa.concat_tables([rows(2, 3, said="b"), rows(3, said="c")]))
    assert (commit.number, commit.rows) == (2, 2)
    assert content(table.snapshot()) == {1: "a", 2: "b", 3: "c"}


def test_an_upsert_of_new_keys_is_an_append(table: DatasetTable) -> None:
    table.insert(rows(1))
    files = set(table.snapshot().files)
    table.upsert(rows(2))
    assert files < set(table.snapshot().files)
    assert table.past.state.last_rewrite == 0


def test_a_rewrite_keeps_nested_values_and_the_commits_of_untouched_rows(table: DatasetTable) -> None:
    table.insert(rows(1, 2))
    table.upsert(rows(2, said="b"))
    stored = [row for path in table.snapshot().files for row in pq.ParquetFile(path).read().to_pylist()]
    assert {(row["id"], row["_commit"], row["zone"]["x"], tuple(row["zone"]["tags"])) for row in stored} == {
        (1, 1, 0.5, ("t", None)),
        (2, 2, 1.0, ("t", None)),
    }


def test_large_files_are_rewritten_one_by_one_and_small_ones_join_the_new_rows(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("said", pa.string())])
    table = DatasetTable.create(tmp_path / "d", schema, KEYS)
    noise = np.random.default_rng(1)
    for begin in (0, 1000):
        said = [noise.bytes(2000).hex() for _ in range(1000)]
        table.insert(pa.table({"id": range(begin, begin + 1000), "said": said}, schema=schema))
    table.insert(pa.table({"id": [5000, 5001], "said": ["a", "a"]}, schema=schema))
    table.upsert(pa.table({"id": [1, 1001, 5000, 9000], "said": ["b"] * 4}, schema=schema))
    assert sorted(file.rows for file in table.past.state.files.values()) == [5, 999, 999]
    table.delete(pa.table({"id": [2, 1, 9000]}))
    with pytest.raises(ConflictError):
        table.insert(pa.table({"id": [1002], "said": ["c"]}, schema=schema))
    table.insert(pa.table({"id": [1, 2, 9000], "said": ["c"] * 3}, schema=schema))
    assert content(table.snapshot())[1] == "c"
    assert table.row_count == 2003


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "replace", "delete", "move"]),
            st.sets(st.integers(0, 30), max_size=6),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_the_index_names_the_file_of_every_key(steps: list[tuple[str, set[int], bool]]) -> None:
    """Keys share hashes in pairs; a false candidate may be named, a true one must be."""
    index = KeyIndex()
    where: dict[int, str] = {}

    def hashed(keys: list[int]) -> Any:
        return np.array([key // 2 for key in keys], np.uint64)

    for place, (step, keys, tiny) in enumerate(steps):
        file = f"f{place}"
        with mock.patch.multiple("tocsin.pipeline.datasets.keyindex", _RECENT_MAX=8 if tiny else 800, _ORIGINS_MAX=5):
            if step == "add":
                new = sorted(keys - where.keys())
                index.add(hashed(new), file)
                where |= dict.fromkeys(new, file)
            elif step == "move":
                sources = {where[key] for key in keys & where.keys()}
                index.moved(sources, file)
                where = {key: file if source in sources else source for key, source in where.items()}
            else:
                known = sorted(keys & where.keys())
                index.replaced(hashed(known), [where[key] for key in known], file if step == "replace" else None)
                where = {
                    key: file if key in keys else source
                    for key, source in where.items()
                    if step == "replace" or key not in keys
                }
        found = index.candidates(hashed(list(where)))
        for position, source in enumerate(where.values()):
            assert position in found[source]


# ---- bulk loads


def test_a_load_is_one_commit_in_files_of_bounded_size(table: DatasetTable) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, 1000, 100):
            yield from rows(*range(begin, begin + 100)).to_batches()

    with (
        mock.patch.object(datafiles, "_ROW_GROUP_BYTES", 1),
        mock.patch.object(DatasetTable, "write_files", lambda self, rows: self.data.write(rows, largest_bytes=9000)),
    ):
        commit = table.load(batches(), positions={"feed": 4})
    assert (commit.number, commit.rows, table.row_count, table.position("feed")) == (1, 1000, 1000, 4)
    assert table.file_count > 1
    with pytest.raises(ConflictError, match="id = 999 "):
        table.insert(rows(999))
    with pytest.raises(ConflictError, match="id = 0 "):
        reopened(table).insert(rows(0))


@pytest.mark.parametrize("indexed_keys_max", [0, 100])
@pytest.mark.parametrize("ids", [[5, 6, 5], [5, 6, 2]])
def test_a_load_with_a_taken_key_leaves_nothing(tmp_path: Path, ids: list[int], indexed_keys_max: int) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, indexed_keys_max=indexed_keys_max)
    table.insert(rows(1, 2))
    before = table.data.names()
    with pytest.raises(ConflictError, match=f"id = {ids[-1]} "):
        table.load(batch for each in ids for batch in rows(each).to_batches())
    assert table.data.names() == before
    assert table.number == 1
    table.insert(rows(5, 6))


def test_a_load_whose_source_fails_leaves_nothing(table: DatasetTable) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(1).to_batches()
        raise RuntimeError("the file ends here")

    with pytest.raises(RuntimeError, match="ends here"):
        table.load(broken())
    assert table.data.names() == set()
    assert table.insert(rows(1)).number == 1


# ---- durability


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_as_delta_says(*_: object, **__: object) -> None:
    raise DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)")


@pytest.mark.parametrize("change", ["insert", "upsert", "delete", "load"])
@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (datafiles, "sync_file", full_disk),
        (commits, "sync_file", full_disk),
        (commits, "sync_folder", full_disk),
        (DeltaTable, "create_write_transaction", full_disk_as_delta_says),
    ],
)
def test_a_full_disk_is_told_and_changes_nothing(
    table: DatasetTable, change: str, place: Any, name: str, fault: Any
) -> None:
    table.insert(rows(1, 2), positions={"feed": 1})
    before, state = table.data.names(), table.past.state

    def try_it() -> None:
        if change == "insert":
            table.insert(rows(3), positions={"feed": 2})
        elif change == "upsert":
            table.upsert(rows(2, 3, said="b"), positions={"feed": 2})
        elif change == "delete":
            table.delete(rows(1))
        else:
            table.load(iter(rows(3).to_batches()), positions={"feed": 2})

    # The folder is synced again to take the entry back: the first failure is the full disk, the rest works.
    answers = iter([fault, *([getattr(place, name)] * 9)])

    def failing_once(*args: Any, **options: Any) -> Any:
        return next(answers)(*args, **options)

    with (
        mock.patch.object(place, name, failing_once),
        pytest.raises(StorageFullError),
    ):
        try_it()
    assert table.data.names() == before
    assert content(table.snapshot()) == {1: "a", 2: "a"}
    assert table.number == 1
    assert table.position("feed") == 1
    assert table.log.state.version == state.version
    try_it()
    assert table.number == 2
    assert DeltaTable(str(table.log.folder)).version() == 2


def test_an_entry_that_a_power_cut_tore_was_never_acknowledged_and_goes(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.insert(rows(2))
    entry = durability.entry_path(table.log.folder, 2)
    for left in (b"", b"\0" * 100, entry.read_bytes()[:50]):
        table.close()
        entry.write_bytes(left)
        table = reopened(table)
        assert content(table.snapshot()) == {1: "a"}
        assert upkeep(table).removed_data_files <= 1
        assert len(table.data.names()) == 1
        table.insert(rows(2))


def test_a_checkpoint_that_a_power_cut_tore_is_not_needed(table: DatasetTable) -> None:
    for each in range(30):
        table.insert(rows(each))
    assert upkeep(table).checkpoint is not None
    _, checkpoints = durability.log_versions(table.log.folder)
    durability.checkpoint_path(table.log.folder, checkpoints[-1]).write_bytes(b"")
    table = reopened(table)
    assert len(content(table.snapshot())) == 30


def test_other_engines_read_the_table_as_delta(table: DatasetTable) -> None:
    table.insert(rows(1, 2))
    table.upsert(rows(2, 3, said="b"))
    delta = DeltaTable(str(table.log.folder))
    assert {(row["id"], row["said"], row["_commit"]) for row in delta.to_pyarrow_table().to_pylist()} == {
        (1, "a", 1),
        (2, "b", 2),
        (3, "b", 2),
    }
    assert delta.history()[0]["tocsin.commit"] == 2


def test_a_position_is_committed_with_its_rows_or_alone(table: DatasetTable) -> None:
    assert table.position("feed") is None
    table.insert(rows(1), positions={"feed": 10, "other": 3})
    assert table.insert(rows(), positions={"feed": 11}).number == 2
    assert table.insert(rows()).number == 2
    table = reopened(table)
    assert (table.position("feed"), table.position("other"), table.position("none")) == (11, 3, None)


def test_a_closed_table_says_so(table: DatasetTable) -> None:
    table.close()
    with pytest.raises(UnavailableError):
        table.insert(rows(1))


def test_a_folder_holds_one_table(table: DatasetTable, tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        DatasetTable.create(table.log.folder, SCHEMA, KEYS)
    with pytest.raises(NotFoundError):
        DatasetTable.open(tmp_path / "none", SCHEMA, KEYS)


# ---- past states


def test_a_clock_that_goes_back_does_not_disorder_the_commits(table: DatasetTable) -> None:
    first = table.insert(rows(1))
    with mock.patch("tocsin.pipeline.datasets.commits.time.time_ns", return_value=0):
        second = table.insert(rows(2))
    assert second.at > first.at


def test_a_dataset_only_appended_to_can_be_asked_for_any_commit_and_time(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, history=2)
    made = []
    for each in range(150):
        made.append(table.insert(rows(each)))
        if table.upkeep_due():
            upkeep(table)
    table = reopened(table, history=2)
    assert len(durability.log_versions(table.log.folder)[0]) < 120
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


def test_a_longer_history_does_not_bring_back_what_a_shorter_one_gave_up(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, history=2)
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


def test_the_files_of_a_pinned_or_held_snapshot_stay(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, history=1)
    table.insert(rows(1, 2))
    held = table.snapshot()
    with table.pin(table.snapshot()):
        files = held.files
        del held
        table.upsert(rows(2, said="b"))
        clean_up(table)
        assert all(os.path.exists(path) for path in files)
    held = table.snapshot()
    table.upsert(rows(2, said="c"))
    clean_up(table)
    assert not any(os.path.exists(path) for path in files)
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
            target=lambda: seen.append((table.snapshot().number, table.as_of_commit(1).number, table.row_count))
        )
        reader.start()
        reader.join(timeout=20)
    assert seen == [(2, 1, 1)]


# ---- wide records

# As tables were created before the log was told which columns to keep statistics of.
NONE: dict[str, str] = {}
OLD = mock.patch.object(commits, "_PROPERTIES", NONE)


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
        table = DatasetTable.create(tmp_path / "d", schema, KEYS, history=4)
    table = same_opened_anew(table, history=4)
    expected: list[dict[int, int]] = [{}]

    def check() -> None:
        assert (table.number, table.row_count) == (len(expected) - 1, len(expected[-1]))
        assert commits_of(table.snapshot()) == expected[-1]
        for number in range(max(0, table.number - 3), table.number + 1):
            assert commits_of(table.as_of_commit(number)) == expected[number]

    hasty: dict[str, Any] = {"FILES_PER_COMPACTION": 2, "_CHECKPOINT_EVERY": 2, "_CLEAN_UP_EVERY": 1}
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
        with mock.patch.multiple(upkeep_module, **hasty):
            done = upkeep(table)
        assert done.checkpoint is not None
        check()
        table = same_opened_anew(table, history=4)
        check()
    assert durability.log_versions(table.log.folder)[0][0] > 0, "the log was trimmed"
    with mock.patch.object(commits, "sync_file", full_disk), pytest.raises(StorageFullError):
        table.insert(wide_rows(schema, 99))
    check()
    table.insert(wide_rows(schema, 99))


@pytest.mark.parametrize("name", [name for name in WIDE if "struct" not in name])
def test_other_engines_can_leave_out_the_files_of_other_commits(tmp_path: Path, name: str) -> None:
    table = DatasetTable.create(tmp_path / "d", WIDE[name], KEYS)
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
    schema = datafiles.stored_schema(pa.schema([("id", pa.int64()), ("zone", nested(1, 2))]))
    first = datetime(2026, 1, 1, microsecond=123457, tzinfo=UTC)
    ats = [first + timedelta(microseconds=each) for each in (3, 0, 9, 4)]
    stored = [{"id": each, "_commit": 2**53 + each, "_at": at} for each, at in enumerate(ats)]
    pq.write_table(
        pa.Table.from_pylist(stored, schema=schema), tmp_path / "f", row_group_size=2, write_statistics=statistics
    )
    listed = pa.table({"path": ["f"], "size_bytes": [77], "num_records": pa.array([None], pa.int64())})
    first_us = datafiles.to_us(first)
    assert datafiles.from_add_actions(listed, tmp_path) == {
        "f": datafiles.DataFile("f", 77, 4, 2**53, 2**53 + 3, first_us, first_us + 9)
    }


# ---- upkeep


def test_small_commits_are_compacted_and_the_log_stays_short(table: DatasetTable) -> None:
    rounds = 0
    for each in range(200):
        table.insert(rows(each))
        if table.upkeep_due():
            upkeep(table)
            rounds += 1
    assert table.number == 200
    assert 0 < rounds < 40
    assert table.file_count < 40
    assert len(table.data.names()) < 120
    entries, checkpoints = durability.log_versions(table.log.folder)
    assert len(entries) < 150
    assert len(checkpoints) < 10
    assert set(content(table.snapshot())) == set(range(200))
    with pytest.raises(ConflictError):
        table.insert(rows(17))
    assert set(content(reopened(table).snapshot())) == set(range(200))


def test_a_compaction_that_a_writer_overtook_is_dropped(table: DatasetTable) -> None:
    for each in range(20):
        table.insert(rows(each))
    real = datafiles.DataFolder.write

    def overtaken(self: datafiles.DataFolder, tables: Any, **options: Any) -> Any:
        written = real(self, tables, **options)
        with mock.patch.object(datafiles.DataFolder, "write", real):
            table.delete(rows(3))
        return written

    with mock.patch.object(datafiles.DataFolder, "write", overtaken):
        assert upkeep(table).compacted_files == 0
    assert len(content(table.snapshot())) == 19
    assert upkeep(table).compacted_files == 19
    assert len(content(table.snapshot())) == 19


def test_on_a_full_disk_upkeep_still_removes_what_nothing_needs(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, history=1)
    for each in range(20):
        table.insert(rows(each))
    table.upsert(rows(0, said="b"))
    before = len(table.data.names())
    with mock.patch.object(datafiles, "sync_file", full_disk), pytest.raises(StorageFullError):
        upkeep(table)
    assert len(table.data.names()) == before - 1
    assert len(content(table.snapshot())) == 20


def test_rows_end_with_their_retention_without_a_commit(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, retention_s=100)
    hour_ago = datafiles.to_us(datetime.now(UTC)) * 1000 - 3600 * 10**9
    with mock.patch("tocsin.pipeline.datasets.commits.time.time_ns", return_value=hour_ago):
        table.insert(rows(0))
        table.insert(rows(1, 2))
    table.insert(rows(3, 4))
    with mock.patch.object(upkeep_module, "FILES_PER_COMPACTION", 2):
        upkeep_module._compact(table, list(table.past.state.files.values())[1:])
    assert table.upkeep_due()
    assert upkeep(table).expired_rows == 3
    assert content(table.snapshot()) == {3: "a", 4: "a"}
    assert table.number == 3
    assert not table.upkeep_due()
    assert content(table.as_of_commit(2)) == {}
    assert content(reopened(table, retention_s=100).snapshot()) == {3: "a", 4: "a"}
    table = reopened(table)
    table.insert(rows(0, 1, 2))
    with pytest.raises(ConflictError):
        table.insert(rows(3))


def test_an_ended_key_is_free_again(tmp_path: Path) -> None:
    table = DatasetTable.create(tmp_path / "d", SCHEMA, KEYS, retention_s=0)
    table.insert(rows(1))
    with mock.patch("tocsin.pipeline.datasets.upkeep.time.time_ns", return_value=2**62):
        assert upkeep(table).expired_rows == 1
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
            upkeep(table)

    with mock.patch.multiple(upkeep_module, FILES_PER_COMPACTION=4, _CHECKPOINT_EVERY=5, _CLEAN_UP_EVERY=2):
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
