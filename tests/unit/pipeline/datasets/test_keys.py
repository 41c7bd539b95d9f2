"""No two rows of a dataset have one key, however they come into it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.s3_server import read_data_file
from tests.support.small_tables import KEYS, SCHEMA, content, reopened, rows
from tocsin.pipeline.datasets.key_index import KeyIndex
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import ConflictError, InputError

EVERY_STORAGE = True


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
    folder: StorageFolder, kind: pa.DataType, first: Any, same: Any, other: Any, indexed_keys_max: int
) -> None:
    schema = pa.schema([("zone", pa.struct([("key", kind)])), ("id", pa.int64()), ("said", pa.string())])

    def row(key: Any) -> pa.Table:
        return pa.Table.from_pylist([{"zone": {"key": key}, "id": 1, "said": "a"}], schema=schema)

    table = DatasetTable.create(folder, schema, (("zone", "key"), ("id",)), indexed_keys_max=indexed_keys_max)
    table.insert(row(first))
    with pytest.raises(ConflictError, match=r"zone\.key = .*, id = 1 is in the dataset"):
        table.insert(row(same))
    table.insert(row(other))
    assert table.past.state.rows == 2
    assert table.upsert(row(same)).rows == 1
    assert table.past.state.rows == 2
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
    stored = [row for path in table.snapshot().files for row in read_data_file(path).to_pylist()]
    assert {(row["id"], row["_commit"], row["zone"]["x"], tuple(row["zone"]["tags"])) for row in stored} == {
        (1, 1, 0.5, ("t", None)),
        (2, 2, 1.0, ("t", None)),
    }


def test_large_files_are_rewritten_one_by_one_and_small_ones_join_the_new_rows(folder: StorageFolder) -> None:
    schema = pa.schema([("id", pa.int64()), ("said", pa.string())])
    table = DatasetTable.create(folder, schema, KEYS)
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
    assert table.past.state.rows == 2003


@settings(max_examples=examples(200), deadline=None)
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
    index = KeyIndex(most_origins=5)
    where: dict[int, str] = {}

    def hashed(keys: list[int]) -> Any:
        return np.array([key // 2 for key in keys], np.uint64)

    for place, (step, keys, tiny) in enumerate(steps):
        file = f"f{place}"
        index.most_recent = 8 if tiny else 800
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


def test_a_load_is_one_commit_in_files_of_bounded_size(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, largest_file_bytes=9000)

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, 1000, 100):
            yield from rows(*range(begin, begin + 100)).to_batches()

    commit = table.load(batches(), positions={"feed": 4})
    assert (commit.number, commit.rows, table.past.state.rows, table.position("feed")) == (1, 1000, 1000, 4)
    assert len(table.past.state.files) > 1
    with pytest.raises(ConflictError, match="id = 999 "):
        table.insert(rows(999))
    with pytest.raises(ConflictError, match="id = 0 "):
        reopened(table).insert(rows(0))


@pytest.mark.parametrize("indexed_keys_max", [0, 100])
@pytest.mark.parametrize("ids", [[5, 6, 5], [5, 6, 2]])
def test_a_load_with_a_taken_key_leaves_nothing(folder: StorageFolder, ids: list[int], indexed_keys_max: int) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS, indexed_keys_max=indexed_keys_max)
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
