"""Runs a query in a Spark session and hands its result over: as a table in memory, as files, or as nothing but a plan.

A result of any size is written to files by Spark's tasks, where this process can read them, and read without Spark, so
that a slow reader holds no thread and no memory of the engine. Errors are Spark's own; the engine translates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tocsin.pipeline.analysis import without_paths
from tocsin.pipeline.plan_check import analyse_query
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import StatementError

_READ_ROWS: Final = 64  # at once, of a result: each may have some MB
# How many rows Parquet writes before it looks at the size of a page. A page is unpacked whole, so large rows need small
# pages.
_RESULT_OPTIONS: Final = {"parquet.page.size.row.check.min": "1", "parquet.page.size.row.check.max": "32"}

# In an object store a rename is a copy: a task's file gets its final name by one and not by two. Nobody reads the files
# before the job has succeeded.
_OBJECT_STORE_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_FOLDER: Final = "answer-"


class ResultFiles:
    """The files of a result that Spark writes. They are read without Spark, and need not be read at all. `removed` is
    called when they are no longer needed."""

    def __init__(self, storage: StorageFolder, name: str, removed: Callable[[str], None]) -> None:
        self._folder = storage.child(name)
        self._name = name
        self._removed = removed

    @property
    def spark_path(self) -> str:
        return self._folder.spark_path()

    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._folder.list_files())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in their order, a few at a time."""
        names = (file.name for file in self._folder.list_files())
        try:
            for name in sorted(name for name in names if name.startswith("part-") and name.endswith(".parquet")):
                with self._folder.open_input(name) as source, pq.ParquetFile(source) as file:
                    yield from file.iter_batches(batch_size=_READ_ROWS, use_threads=False)
        except OSError as error:
            if "nested" not in str(error):
                raise
            raise StatementError("a result is nested too deep to be streamed", hint="ask for it whole") from None

    def remove(self) -> None:
        self._removed(self._name)
        self._folder.remove_all()


class ResultFolders:
    """The folders of results in the storage for them."""

    def __init__(self, storage: StorageFolder) -> None:
        self._storage = storage
        self._names: set[str] = set()

    def add(self) -> ResultFiles:
        name = f"{_FOLDER}{uuid4().hex}"
        self._names.add(name)
        return ResultFiles(self._storage, name, self._names.discard)

    def remove_abandoned(self) -> None:
        """Removes what a task of a cancelled query has written once more after its folder was removed, and what an
        earlier process has left."""
        for name in self._storage.list_children():
            if name.startswith(_FOLDER) and name not in self._names:
                self._storage.child(name).remove_all()


def collect_rows(spark: SparkSession, sql: str, limit: int | None) -> pa.Table:
    frame = analyse_query(spark, sql)
    frame = _nullable(frame if limit is None else frame.limit(limit))
    # Plan the query here and not in the thread that serves the rows: if that thread runs out of memory, it ends
    # silently, and the reader waits for ever.
    planned: Any = frame
    planned._jdf.queryExecution().executedPlan()
    return frame.toArrow()


def discard_rows(spark: SparkSession, sql: str) -> None:
    analyse_query(spark, sql).write.format("noop").mode("overwrite").save()


def write_rows(spark: SparkSession, sql: str, files: ResultFiles) -> None:
    options = _RESULT_OPTIONS if files.spark_path.startswith("/") else {**_RESULT_OPTIONS, **_OBJECT_STORE_OPTIONS}
    analyse_query(spark, sql).write.options(**options).parquet(files.spark_path, compression="zstd")


def explain_plan(spark: SparkSession, sql: str) -> str:
    frame: Any = analyse_query(spark, sql)
    return without_paths(
        frame._jdf.queryExecution().explainString(
            frame._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
        )
    )


def _nullable(frame: DataFrame) -> DataFrame:
    """Makes all fields of structs nullable.

    Spark declares the fields of a struct of constants as never NULL. Arrow then refuses a struct that is NULL as a
    whole, as from nullif, an index beyond the end, or an aggregate of no rows.
    """
    fields = frame.schema.fields
    types = [_loose(field.dataType) for field in fields]
    if all(field.dataType == kind for field, kind in zip(fields, types, strict=True)):
        return frame
    return frame.select(*(
        frame[f"`{field.name}`"].cast(kind).alias(field.name) for field, kind in zip(fields, types, strict=True)
    ))  # fmt: skip


def _loose(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _loose(field.dataType)) for field in kind.fields])
    return ArrayType(_loose(kind.elementType)) if isinstance(kind, ArrayType) else kind
