"""Lets a payload that does not depend on the interest leave Spark once per record, not once per match.

A shared query yields a payload with every match. Where one task finds all matches, a function in Java tells when the
task sees a record for the first time, and only that match keeps its payload. This costs almost nothing. The matches of
several tasks are grouped by record instead, which takes a shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.language.channels.compiler import SharedQuery

FIND_RECORD: Final = "tocsin_find_record"


def with_single_payloads(query: SharedQuery, sql: str, *, in_one_task: bool) -> str:
    """Returns the query's text changed so that it yields a payload once per record. A payload that depends on the
    interest has no record's number and stays with its match."""
    if not query.is_numbered:
        return sql
    columns = ["interest", "place"] if query.is_placed else ["interest"]
    return _in_one_task(sql, columns) if in_one_task else _grouped(sql, columns)


def _in_one_task(sql: str, columns: Sequence[str]) -> str:
    matches = f"SELECT /*+ COALESCE(1) */ * FROM ({sql})"  # noqa: S608 - our own query
    records = f"SELECT *, {FIND_RECORD}(`number`) AS `record` FROM ({matches})"  # noqa: S608
    # In Arrow a NULL array takes 4 bytes, but a NULL struct takes as many as its fields of fixed width.
    payload = "IF(`record` < 0, array(named_struct('number', `number`, 'result', `result`)), NULL)"
    names = ", ".join(f"`{name}`" for name in columns)
    return f"SELECT {names}, `record`, {payload} AS `payload` FROM ({records})"  # noqa: S608


def _grouped(sql: str, columns: Sequence[str]) -> str:
    # A payload without a number is a group of its own.
    number = "coalesce(`number`, -1 - monotonically_increasing_id())"
    numbered = f"SELECT * EXCEPT (`number`), {number} AS `number` FROM ({sql})"  # noqa: S608
    fields = ", ".join(f"'{name}', `{name}`" for name in columns)
    payloads = f"`number`, any_value(`result`) AS `result`, collect_list(named_struct({fields})) AS `matches`"
    return f"SELECT {payloads} FROM ({numbered}) GROUP BY `number`"  # noqa: S608


@dataclass(frozen=True, slots=True)
class FoundMatches:
    """An answer of Spark's. A match has an interest, a place and the index of its payload; a payload has the number of
    its record (0: it depends on the interest) and the result."""

    interests: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    payloads: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    results: Any


def read_matches(table: pa.Table) -> FoundMatches:
    """Reads the answer to a query `with_single_payloads`."""
    if "matches" in table.column_names:
        lists = table.column("matches").combine_chunks()
        payloads = lists.value_parent_indices().to_numpy(zero_copy_only=False)
        return _matches(pa.Table.from_struct_array(lists.flatten()), payloads, table)
    if "record" in table.column_names:
        records = table.column("record").to_numpy()
        # The payloads are in the order in which the task has seen their records.
        own = pa.Table.from_struct_array(table.column("payload").combine_chunks().flatten())
        return _matches(table, np.where(records < 0, ~records, records), own)
    return _matches(table, np.arange(table.num_rows), table)


def _matches(matches: pa.Table, payloads: npt.NDArray[Any], own: pa.Table) -> FoundMatches:
    nothing = np.zeros(matches.num_rows, np.int64)
    places = _integers(matches, "place") if "place" in matches.column_names else nothing
    numbers = np.maximum(_integers(own, "number"), 0)
    return FoundMatches(
        _integers(matches, "interest"), places, payloads.astype(np.int64), numbers, own.column("result")
    )


def _integers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = table.column(name).fill_null(0).to_numpy()
    return found
