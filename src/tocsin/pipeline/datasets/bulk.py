"""A bulk load: writes a stream of rows into files and checks their keys.

It keeps only the hashes of the keys, eight bytes each. If the dataset's keys are in memory, each row is compared with
them as it passes. Keys that repeat within the stream, and keys of a dataset that is too large for an index, are found
after everything is written, and are then compared exactly from the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tocsin import faults
from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.data_files import DataFile
from tocsin.pipeline.datasets.keys import Hashes

if TYPE_CHECKING:
    from tocsin.pipeline.datasets.table import DatasetTable


class BulkLoad:
    """Iterate it to get the rows as they are stored; then call `checked`."""

    def __init__(
        self, table: DatasetTable, batches: Iterator[pa.RecordBatch], number: int, at_us: int, *, keys_are_new: bool
    ) -> None:
        self._table = table
        self._batches = batches
        self._number = number
        self._at_us = at_us
        self._keys_are_new = keys_are_new
        self._hashed: list[Hashes] = []
        self._by_index = not keys_are_new and table.lookup.index() is not None

    def __iter__(self) -> Iterator[pa.Table]:
        table = self._table
        for batch in self._batches:
            rows = table.fitting(pa.Table.from_batches([batch]))
            if rows.num_rows == 0:
                continue
            if not self._keys_are_new or table.lookup.loaded is not None:
                keys = keyed.of_rows(rows, table.keys)
                hashed = keyed.hashes(keys)
                if not self._keys_are_new:
                    table.lookup.refuse_repeated(keys, hashed)
                    if self._by_index:
                        table.lookup.refuse_present(keys, hashed)
                self._hashed.append(hashed)
            faults.reach("dataset.load.rows")
            yield table.stamp(rows, self._number, self._at_us)

    def checked(self, files: Sequence[DataFile]) -> Hashes | None:
        """The hashes of all keys in order (None if not needed). Raises ConflictError if a key occurs twice."""
        if not self._hashed:
            return None
        hashed = np.concatenate(self._hashed)
        if self._keys_are_new:
            return hashed
        ordered = np.sort(hashed)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        new = [file.name for file in files]
        if len(repeated):
            self._compare(new, [], repeated, "stands twice among the new records")
        if not self._by_index:
            old = list(self._table.log.state.files)
            common = [np.intersect1d(keyed.hashes(self._table.lookup.keys_in(name)), ordered) for name in old]
            shared = np.unique(np.concatenate(common)) if common else np.empty(0, np.uint64)
            if len(shared):
                self._compare(new, old, shared, "is in the dataset already")
        return hashed

    def _compare(self, new: Sequence[str], old: Sequence[str], suspects: Hashes, what: str) -> None:
        seen: set[tuple[Any, ...]] = set()
        for name in [*old, *new]:
            keys = self._table.lookup.keys_in(name)
            keys = keys.take(np.flatnonzero(np.isin(keyed.hashes(keys), suspects)))
            for position, key in enumerate(keys.tuples()):
                if key in seen:
                    raise keyed.duplicate(keys, position, self._table.keys, what)
                seen.add(key)
