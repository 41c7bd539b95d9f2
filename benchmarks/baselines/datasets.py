"""Emergency reports, and a Delta table as delta-rs alone keeps it: no keys, no numbers, no sync, its own defaults."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import Transaction

REPORT = pa.schema(
    [
        ("recordId", pa.string()),
        ("severity", pa.int64()),
        ("impactZone", pa.struct([("x", pa.float64()), ("y", pa.float64()), ("radius", pa.float64())])),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("message", pa.string()),
        ("emergencyType", pa.string()),
        ("userName", pa.string()),
        ("_open", pa.string()),
    ]
)
STORED = REPORT.append(pa.field("_commit", pa.int64())).append(pa.field("_at", pa.timestamp("us", "UTC")))
_TYPES = ("fire", "flood", "earthquake", "storm", "crash")


def reports(count: int, seed: int) -> pa.Table:
    """New emergency reports with keys of their own."""
    chance = np.random.default_rng(seed)
    now = datetime.now(UTC)
    kinds = chance.integers(0, len(_TYPES), count)
    zone = pa.StructArray.from_arrays(
        [
            pa.array(chance.uniform(-90, 90, count)),
            pa.array(chance.uniform(-90, 90, count)),
            pa.array(np.full(count, 0.5)),
        ],
        fields=list(REPORT.field("impactZone").type),
    )
    return pa.Table.from_arrays(
        [
            pa.array([str(uuid.uuid4()) for _ in range(count)]),
            pa.array(chance.integers(0, 10, count)),
            zone,
            pa.array([now] * count, pa.timestamp("us", "UTC")),
            pa.array([f"{_TYPES[kind]} reported near block {kind * 31 % 977}" for kind in kinds.tolist()]),
            pa.array([_TYPES[kind] for kind in kinds.tolist()]),
            pa.array([f"user{each}" for each in chance.integers(0, 5000, count).tolist()]),
            pa.nulls(count, pa.string()),
        ],
        schema=REPORT,
    )


def stamped(rows: pa.Table, number: int) -> pa.Table:
    """With the two columns that the other side stores as well."""
    now = pa.array([datetime.now(UTC)] * rows.num_rows, pa.timestamp("us", "UTC"))
    numbers = pa.array(np.full(rows.num_rows, number, np.int64))
    return pa.Table.from_arrays([*rows.columns, numbers, now], schema=STORED)


class BareDelta:
    """delta-rs as its documentation uses it, the table object kept open."""

    def __init__(self, folder: Path) -> None:
        self._delta = DeltaTable.create(str(folder), schema=STORED)
        self._number = 0

    def _properties(self) -> CommitProperties:
        self._number += 1
        return CommitProperties(app_transactions=[Transaction("bench", self._number)])

    def append(self, rows: pa.Table) -> None:
        properties = self._properties()
        write_deltalake(self._delta, stamped(rows, self._number), mode="append", commit_properties=properties)

    def merge(self, rows: pa.Table) -> None:
        properties = self._properties()
        merging = self._delta.merge(
            stamped(rows, self._number),
            "old.recordId = new.recordId",
            source_alias="new",
            target_alias="old",
            commit_properties=properties,
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def write_at_once(rows: pa.Table, folder: Path) -> tuple[str, ...]:
    """The same rows as one ordinary Parquet file."""
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "all.parquet")
    return (str(folder / "all.parquet"),)
