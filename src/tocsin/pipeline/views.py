"""Snapshots of datasets in Spark: a temporary view over the files of a snapshot.

Spark never reads the Delta log: delta-rs has it in memory, and Spark would run a job to learn the same.
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

_ALL_PARTITIONS: Final = 1 << 20
_numbers = itertools.count(1)  # shared by all sessions: a name never means another view


class DatasetViews:
    def __init__(self, spark: SparkSession, *, most: int = 256) -> None:
        """`most`: of the views of past and present states; the least recently used goes."""
        self._spark = spark
        self._most = most
        self._names: OrderedDict[tuple[str, int, int | None], str] = OrderedDict()
        self._pinned: Counter[str] = Counter()
        self._lock = threading.Lock()

    def of_snapshot(self, folder: str, snapshot: Snapshot, type_: ObjectType, *, pinned: bool = False) -> str:
        """Returns the name of the view. The caller keeps the snapshot while it uses the view.

        A pinned view stays until `unpin`; other views may be dropped when there are many.
        """
        key = (folder, snapshot.version, snapshot.rows_up_to)
        evicted: list[str] = []
        with self._lock:
            name = self._names.get(key)
            if name is None:
                name = f"tocsin_{folder.replace('-', '')}_{snapshot.version}_{next(_numbers)}"
                self._frame(snapshot, type_).createOrReplaceTempView(name)
                self._names[key] = name
                evicted = self._evicted()
            self._names.move_to_end(key)
            if pinned:
                self._pinned[name] += 1
        for old in evicted:
            self._spark.catalog.dropTempView(old)
        return name

    def unpin(self, name: str) -> None:
        with self._lock:
            self._pinned[name] -= 1
            if self._pinned[name] <= 0:
                del self._pinned[name]

    def _evicted(self) -> list[str]:
        """Removes the least recently used views, except the newest. Returns their names. The caller holds the lock."""
        excess = len(self._names) - self._most
        unpinned = (
            [key for key, name in list(self._names.items())[:-1] if name not in self._pinned] if excess > 0 else []
        )
        return [self._names.pop(key) for key in unpinned[: max(excess, 0)]]

    def of_part(self, snapshot: Snapshot, type_: ObjectType) -> str:
        """A view over the files of a snapshot for one use; the caller drops it with `drop`."""
        name = f"tocsin_part_{next(_numbers)}"
        self._frame(snapshot, type_).createOrReplaceTempView(name)
        return name

    def of_rows(self, rows: pa.Table) -> str:
        """A view over rows in memory; the caller drops it with `drop`.

        Spark computes what a query selects from local rows while it plans, and the plan then holds it twice: it may be
        far larger than the rows, and a JVM without memory cannot even report an error. A node in between prevents that.
        """
        name = f"tocsin_rows_{next(_numbers)}"
        self._spark.createDataFrame(rows).coalesce(_ALL_PARTITIONS).createOrReplaceTempView(name)
        return name

    def drop(self, name: str) -> None:
        self._spark.catalog.dropTempView(name)

    def _frame(self, snapshot: Snapshot, type_: ObjectType) -> DataFrame:
        schema = f"{layout.spark_schema(type_)}, `{COMMIT}` BIGINT, `{AT}` TIMESTAMP"
        if not snapshot.files:
            return self._spark.createDataFrame([], schema)
        # The paths are plain files: Spark must not treat them as patterns or list folders.
        reader = self._spark.read.schema(schema).option("__globPaths__", "false")
        frame = reader.parquet(*snapshot.files)
        return frame if snapshot.rows_up_to is None else frame.where(f"`{COMMIT}` <= {snapshot.rows_up_to}")
