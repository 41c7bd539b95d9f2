"""Writes the entries of a Delta log: one JSON object per action, and the properties of the table.

Tocsin writes entries itself: it has the table's state in memory, so a commit need not read the log first, and it adds
checksums. delta-rs creates and opens tables, and writes checkpoints.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from deltalake import DeltaTable

from tocsin.durable_files import sync_file
from tocsin.pipeline.datasets.delta.log_entries import sign_entry
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, entry_path
from tocsin.pipeline.datasets.delta.statistics import statistics_columns
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders


def write_draft(folder: Path, actions: Iterable[Mapping[str, Any]], info: Mapping[str, Any]) -> Path:
    """Writes an entry under a name that readers ignore; after a crash the next opening removes it."""
    lines = [orjson.dumps({"commitInfo": {**info, "engineInfo": "tocsin"}}), *map(orjson.dumps, actions)]
    return _write_draft(folder, b"\n".join(lines))


def sign_first_entry(folder: Path) -> None:
    """Adds a checksum to the entry that created the table, which delta-rs does not do, and syncs it."""
    entry = entry_path(folder, 0)
    draft = _write_draft(folder, sign_entry(entry.read_bytes()))
    sync_file(draft)
    draft.rename(entry)


def _write_draft(folder: Path, content: bytes) -> Path:
    draft = folder / LOG_FOLDER / f"_commit_{uuid.uuid4().hex}.json.tmp"
    try:
        draft.write_bytes(content)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def table_properties(schema: pa.Schema, outside_readers: OutsideReaders) -> dict[str, str]:
    """The properties that other engines read: which columns have statistics, and how long old versions stay."""
    retention = f"interval {math.ceil(outside_readers.keep_s)} seconds"
    return {
        "delta.dataSkippingStatsColumns": statistics_columns(schema),
        "delta.deletedFileRetentionDuration": retention,
        "delta.logRetentionDuration": retention,
    }


def with_properties(table: DeltaTable, properties: Mapping[str, str]) -> dict[str, Any]:
    """The action that sets these properties and leaves the other metadata of the table unchanged."""
    metadata = table.metadata()
    return {
        "metaData": {
            "id": str(metadata.id), "name": metadata.name, "description": metadata.description,
            "format": {"provider": "parquet", "options": {}}, "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns, "createdTime": metadata.created_time,
            "configuration": dict(properties),
        }
    }  # fmt: skip
