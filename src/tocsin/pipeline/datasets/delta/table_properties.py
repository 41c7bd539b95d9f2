"""The properties of a Delta table, which other engines read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tocsin.pipeline.datasets.delta.statistics import statistics_columns
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders


def table_properties(schema: pa.Schema, outside_readers: OutsideReaders) -> dict[str, str]:
    """The properties of our tables: which columns have statistics, and how long old versions stay."""
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
