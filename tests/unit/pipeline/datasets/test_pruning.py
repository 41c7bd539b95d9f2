"""A query leaves out the files that cannot have the rows that it wants, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.support.small_tables import KEYS, content, reopened
from tocsin.language.translate.scan_bounds import ColumnBound
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage.interface import StorageFolder

EVERY_STORAGE = True
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("said", pa.string()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("zone", pa.struct([("n", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int) -> dict[str, Any]:
    return {
        "id": number, "said": f"w{number:03d}", "x": number + 0.5, "at": DAY + timedelta(days=number),
        "zone": {"n": number}, "tags": ["t"],
    }  # fmt: skip


@pytest.fixture
def table(folder: StorageFolder) -> DatasetTable:
    """Ten files, each with ten rows."""
    table = DatasetTable.create(folder, SCHEMA, KEYS)
    for tens in range(10):
        table.insert(pa.Table.from_pylist([record(10 * tens + units) for units in range(10)], schema=SCHEMA))
    return table


def bound(path: str, least: Any = None, greatest: Any = None) -> ColumnBound:
    return ColumnBound(tuple(path.split(".")), least, greatest)


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ([bound("id", 42, 42)], 1),
        ([bound("id", 42.0, 42.0)], 1),
        ([bound("id", 39, 42)], 2),
        ([bound("id", greatest=9)], 1),
        ([bound("id", least=1000)], 0),
        ([bound("id", least=20), bound("id", greatest=39)], 2),
        ([bound("said", "w042", "w042")], 1),
        ([bound("x", 42, 42)], 1),
        ([bound("x", 10.0, 10.25)], 0),
        ([bound("at", DAY + timedelta(days=42), None)], 6),
        ([bound("zone.n", 42, 42)], 1),
        ([bound("said", "w0", "x"), bound("id", 3, 3)], 1),
        # Nothing is known, or the types do not fit.
        ([bound("tags", "t", "t")], 10),
        ([bound("none", 1, 1)], 10),
        ([bound("id", "w", "w")], 10),
        ([bound("said", 5, 5)], 10),
        ([bound("id", least=float(1 << 60))], 10),
        ([], 10),
    ],
)
def test_only_files_that_can_have_the_wanted_rows_are_read(
    table: DatasetTable, wanted: list[ColumnBound], files: int
) -> None:
    assert len(table.prune(table.snapshot(), wanted).files) == files
    # After a restart the log says the same.
    table = reopened(table)
    assert len(table.prune(table.snapshot(), wanted).files) == files


def test_compaction_and_rewrites_leave_no_wrong_bounds(table: DatasetTable) -> None:
    table.upsert(pa.Table.from_pylist([{**record(5), "x": 1000.0}], schema=SCHEMA))
    assert len(table.prune(table.snapshot(), [bound("x", 1000.0, 1000.0)]).files) == 1
    for number in range(100, 120):
        table.insert(pa.Table.from_pylist([record(number)], schema=SCHEMA))
    upkeep(table)
    snapshot = table.prune(table.snapshot(), [bound("id", 5, 5)])
    assert 5 in content(snapshot)
    past = table.as_of_commit(1)
    assert content(table.prune(past, [bound("x", 5.5, 5.5)]))[5] == "w005"


def test_a_column_with_nan_or_nulls_excludes_only_what_is_certain(folder: StorageFolder) -> None:
    table = DatasetTable.create(folder, SCHEMA, KEYS)
    for number in range(10):
        x = float("nan") if number < 5 else None
        table.insert(pa.Table.from_pylist([{**record(number), "x": x}], schema=SCHEMA))
    assert len(table.prune(table.snapshot(), [bound("x", least=10**6)]).files) == 10


def test_a_few_files_are_not_worth_another_view(table: DatasetTable) -> None:
    snapshot = table.snapshot()
    assert table.prune(snapshot, [bound("id", least=20)]) is snapshot
