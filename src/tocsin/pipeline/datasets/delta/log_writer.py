"""The text of a Delta log's entries: one JSON object per action, and what a table says of itself in them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from deltalake import DeltaTable

from tocsin.pipeline.datasets.delta.durability import LOG_FOLDER, entry_path, sync_file
from tocsin.pipeline.datasets.delta.log_entries import sign_entry
from tocsin.pipeline.datasets.delta.statistics import statistics_columns
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders


def write_draft(folder: Path, actions: Iterable[Mapping[str, Any]], info: Mapping[str, Any]) -> Path:
    """An entry under a name that no reader looks at, and that a crash leaves for the next opening to remove."""
    lines = [orjson.dumps({"commitInfo": {**info, "engineInfo": "tocsin"}}), *map(orjson.dumps, actions)]
    return _write_draft(folder, b"\n".join(lines))


def sign_first_entry(folder: Path) -> None:
    """Give the entry that made the table a checksum, which delta-rs does not; its content is on the disk then."""
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
    """What other engines are told of a table: which columns have statistics, how long old versions stay."""
    kept = f"interval {math.ceil(outside_readers.keep_s)} seconds"
    return {
        "delta.dataSkippingStatsColumns": statistics_columns(schema),
        "delta.deletedFileRetentionDuration": kept,
        "delta.logRetentionDuration": kept,
    }


def with_properties(table: DeltaTable, properties: Mapping[str, str]) -> dict[str, Any]:
    """The action that gives the table these properties, and leaves all else that it says of itself."""
    about = table.metadata()
    return {
        "metaData": {
            "id": str(about.id), "name": about.name, "description": about.description,
            "format": {"provider": "parquet", "options": {}}, "schemaString": table.schema().to_json(),
            "partitionColumns": about.partition_columns, "createdTime": about.created_time,
            "configuration": dict(properties),
        }
    }  # fmt: skip
