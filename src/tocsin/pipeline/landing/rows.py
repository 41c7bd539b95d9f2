"""Converts records of a feed's type to rows of a dataset.

If every column of the feed is a column of the dataset, only the generated key is added: the rows stay Arrow from the
feed's log to the dataset's files. Otherwise each record is read, checked and written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.keys import KeyPath
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.open_form import field_key
from tocsin.rules.model.type_check import RecordError, checker
from tocsin.rules.model.types import ObjectType
from tocsin.rules.model.values import MISSING


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A record that does not fit its dataset: its index in the batch, and the reason."""

    index: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class FittedRows:
    """`keys_are_new`: every key was generated just now. `refused` records are left out of `rows`."""

    rows: pa.Table
    keys_are_new: bool
    refused: tuple[RefusedRow, ...] = ()


def fitter(feed: ObjectType, dataset: ObjectType, generated: KeyPath | None) -> Callable[[pa.Table], FittedRows]:
    """Returns a function from rows of the feed's layout to rows of the dataset's layout."""
    same = _same_columns(feed, dataset, generated)

    def fit(rows: pa.Table) -> FittedRows:
        if same and not (generated is not None and feed.open and _may_hold(rows, generated[0])):
            return _with_key(rows, dataset, generated)
        return check_rows(layout.from_arrow(rows, feed), dataset, generated)

    return fit


def check_rows(values: Sequence[Any], dataset: ObjectType, generated: KeyPath | None) -> FittedRows:
    """Checks records that are values, one by one."""
    check = checker(dataset)
    records: list[dict[str, Any]] = []
    refused: list[RefusedRow] = []
    all_new = generated is not None
    for index, value in enumerate(values):
        if generated is not None and isinstance(value, dict):
            all_new = generate(value, generated) and all_new
        try:
            if not isinstance(value, dict):
                raise RecordError("", "a record is an object")
            records.append(check(value))
        except RecordError as error:
            refused.append(RefusedRow(index, error.field, error.reason))
    return FittedRows(layout.to_arrow(records, dataset), all_new, tuple(refused))


def generate(record: dict[str, Any], path: KeyPath) -> bool:
    """Sets a new uuid at the key's path, unless the record has one there. Returns whether it did."""
    container: Any = record
    for name in path[:-1]:
        container = container.setdefault(name, {}) if isinstance(container, dict) else None
    if not isinstance(container, dict) or container.get(path[-1], MISSING) is not MISSING:
        return False
    container[path[-1]] = uuid4()
    return True


def _same_columns(feed: ObjectType, dataset: ObjectType, generated: KeyPath | None) -> bool:
    """Whether the feed's columns can be used unchanged, and the dataset needs no others."""
    if feed.open and not dataset.open:
        return False
    generated_names = {generated[0]} if generated is not None and len(generated) == 1 else set()
    feed_names = {field.name for field in feed.fields}
    if generated_names & feed_names or {field.name for field in dataset.fields} != feed_names | generated_names:
        return False
    for field in feed.fields:
        other = dataset.find(field.name)
        if other is None or other.type != field.type or field.optional != other.optional:
            return False
    return generated is None or bool(generated_names)


def _may_hold(rows: pa.Table, name: str) -> bool:
    """Whether a record may contain the key itself, as a field that its feed does not declare."""
    may_hold = pc.any(pc.match_substring(rows.column(OPEN), json.dumps(field_key(name), ensure_ascii=False))).as_py()
    return bool(may_hold)


def _with_key(rows: pa.Table, dataset: ObjectType, generated: KeyPath | None) -> FittedRows:
    schema = layout.record_schema(dataset)
    columns: dict[str, Any] = {name: rows.column(name) for name in rows.column_names}
    if generated is not None:
        columns[physical(generated[0])] = _uuids(rows.num_rows)
    if keeps_open(dataset) and OPEN not in columns:
        columns[OPEN] = pa.nulls(rows.num_rows, pa.string())
    return FittedRows(pa.table([columns[field.name] for field in schema], schema=schema), generated is not None)


def _uuids(count: int) -> pa.Array:
    """Makes random uuids (version 4), all at once."""
    raw = np.frombuffer(os.urandom(16 * count), dtype=np.uint8).reshape(count, 16).copy()
    raw[:, 6] = (raw[:, 6] & 0x0F) | 0x40
    raw[:, 8] = (raw[:, 8] & 0x3F) | 0x80
    return pa.array([str(UUID(bytes=row.tobytes())) for row in raw], pa.string())
