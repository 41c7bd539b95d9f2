"""States of datasets as Spark sees them: a temporary view over the files of a snapshot.

Spark never reads the Delta log: delta-rs has it in memory, and Spark would run a job of its own to learn the same.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.rules.model.types import ObjectType

KEPT: Final = 256  # views of past and present states; the least recently used goes
_numbers = itertools.count(1)  # of all sessions: a name that was given out never means another view


class DatasetViews:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._names: OrderedDict[tuple[str, int, int | None], str] = OrderedDict()
        self._pinned: Counter[str] = Counter()
        self._lock = threading.Lock()

    def of_snapshot(self, folder: str, snapshot: Snapshot, type_: ObjectType, *, pinned: bool = False) -> str:
        """The view's name. The caller holds on to the snapshot while it uses the view.

        A view that is pinned stays until `unpin`; another may go when many others are asked for.
        """
        key = (folder, snapshot.version, snapshot.rows_up_to)
        gone: list[str] = []
        with self._lock:
            name = self._names.get(key)
            if name is None:
                name = f"tocsin_{folder.replace('-', '')}_{snapshot.version}_{next(_numbers)}"
                self._frame(snapshot, type_).createOrReplaceTempView(name)
                self._names[key] = name
                gone = self._evicted()
            self._names.move_to_end(key)
            if pinned:
                self._pinned[name] += 1
        for old in gone:
            self._spark.catalog.dropTempView(old)
        return name

    def unpin(self, name: str) -> None:
        with self._lock:
            self._pinned[name] -= 1
            if self._pinned[name] <= 0:
                del self._pinned[name]

    def _evicted(self) -> list[str]:
        """Those that go, the least recently used first; the newest stays. The caller has the lock."""
        over = len(self._names) - KEPT
        free = [key for key, name in list(self._names.items())[:-1] if name not in self._pinned] if over > 0 else []
        return [self._names.pop(key) for key in free[: max(over, 0)]]

    def of_part(self, snapshot: Snapshot, type_: ObjectType) -> str:
        """A view over the files of a snapshot that nobody else will ask for; `drop` it afterwards."""
        name = f"tocsin_part_{next(_numbers)}"
        self._frame(snapshot, type_).createOrReplaceTempView(name)
        return name

    def of_rows(self, rows: pa.Table) -> str:
        """A view over rows in memory; `drop` it afterwards."""
        name = f"tocsin_rows_{next(_numbers)}"
        self._spark.createDataFrame(rows).createOrReplaceTempView(name)
        return name

    def drop(self, name: str) -> None:
        self._spark.catalog.dropTempView(name)

    def _frame(self, snapshot: Snapshot, type_: ObjectType) -> DataFrame:
        schema = f"{layout.spark_schema(type_)}, `{COMMIT}` BIGINT, `{AT}` TIMESTAMP"
        if not snapshot.files:
            return self._spark.createDataFrame([], schema)
        # The paths are files, whatever characters they hold: no patterns, and no listing of folders.
        reader = self._spark.read.schema(schema).option("__globPaths__", "false")
        frame = reader.parquet(*snapshot.files)
        return frame if snapshot.rows_up_to is None else frame.where(f"`{COMMIT}` <= {snapshot.rows_up_to}")
