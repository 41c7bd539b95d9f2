"""Says in a statement's answer which of its clauses and options have no effect here, and what does their work.

They tune the storage of AsterixDB. A script written for it keeps them, and its author learns what became of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tocsin.cluster.statements.outcomes import StatementSummary

_NODE_GROUPS: Final = "data are not divided among nodes: every worker of Spark reads all files"
_COMPACTION: Final = "small files are merged in tiers, without a choice of policy"

# Clauses and options of CREATE DATASET.
DATASET_NOTES: Final[Mapping[str, str]] = {
    "HINTS": "the engine estimates sizes by itself",
    "COMPACTION POLICY": _COMPACTION,
    "ON nodegroup": _NODE_GROUPS,
    "FILTER ON": "parts of files are skipped by the least and the greatest value of every declared field",
    "merge-policy": _COMPACTION,
    "storage-block-compression": "data files are Parquet, whose columns are always compressed",
    "storage-format": "data files are Parquet, which stores columns",
    "node-group": _NODE_GROUPS,
    "node-group-name": _NODE_GROUPS,
}


def with_notes(summary: StatementSummary, notes: Iterable[str]) -> StatementSummary:
    """Adds the notes to the answer of a statement, if there are any."""
    listed = list(notes)
    return {**summary, "notes": listed} if listed else summary


def no_effect(name: str, instead: str) -> str:
    return f"{name} has no effect: {instead}"


def storage_option(value: Any) -> Any:
    """Reads an option for AsterixDB's storage: a text, or an object such as {"name": "prefix"}."""
    if not isinstance(value, str | dict):
        raise ValueError(f'must be an object such as {{"name": "prefix"}}, got {value}')
    return value
