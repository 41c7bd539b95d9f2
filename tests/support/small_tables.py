"""A small dataset's table, and short ways to fill and to read it."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa

from tests.support.s3_server import read_data_file
from tocsin.clock import now_us
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.table import DatasetTable, Snapshot
from tocsin.pipeline.datasets.upkeep import UpkeepLimits

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])),
        ("said", pa.string()),
    ]
)
KEYS = (("id",),)
# With these limits upkeep finds something to do in a small dataset.
EAGER = UpkeepLimits(files_per_compaction=2, checkpoint_every=2, clean_up_every=1)


class MovedClock:
    """The wall clock, moved by `ahead_s`."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.of_table = TableClock(self._now_us, self._now_us)

    def _now_us(self) -> int:
        return now_us() + int(self.ahead_s * 1e6)


def rows(*ids: int, said: str = "a") -> pa.Table:
    records = [{"id": each, "zone": {"x": each / 2, "tags": ["t", None]}, "said": said} for each in ids]
    return pa.Table.from_pylist(records, schema=SCHEMA)


def content(snapshot: Snapshot) -> dict[Any, str]:
    seen: dict[Any, str] = {}
    for path in snapshot.files:
        for row in read_data_file(path).to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                assert row["id"] not in seen
                seen[row["id"]] = row["said"]
    return seen


def reopened(table: DatasetTable, **options: Any) -> DatasetTable:
    table.close()
    return DatasetTable.open(table.log.folder, table.schema, table.keys, **options)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
