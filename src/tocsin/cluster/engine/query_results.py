"""Runs a query in a Spark session and hands its result over: as a table in memory, as files, or as nothing but a plan.

A result of any size is written to files by Spark's tasks and read without Spark, so that a slow reader holds no thread
and no memory of the engine. Errors are Spark's own; the engine translates them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tocsin.pipeline.analysis import without_paths
from tocsin.pipeline.plan_check import analyse_query
from tocsin.wire.errors import StatementError

_READ_ROWS: Final = 64  # at once, of a result: each may have some MB
# How many rows Parquet writes before it looks at the size of a page. A page is unpacked whole, so large rows need small
# pages.
_RESULT_OPTIONS: Final = {"parquet.page.size.row.check.min": "1", "parquet.page.size.row.check.max": "32"}


class ResultFiles:
    """The files of a result that Spark writes. They are read without Spark, and need not be read at all. `removed` is
    called when they are no longer needed."""

    def __init__(self, folder: Path, removed: Callable[[Path], None]) -> None:
        self.folder = folder
        self._removed = removed

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in their order, a few at a time."""
        try:
            for part in sorted(self.folder.glob("part-*.parquet")):
                with pq.ParquetFile(part) as file:
                    yield from file.iter_batches(batch_size=_READ_ROWS, use_threads=False)
        except OSError as error:
            if "nested" not in str(error):
                raise
            raise StatementError("a result is nested too deep to be streamed", hint="ask for it whole") from None

    def remove(self) -> None:
        self._removed(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


class ResultFolders:
    """The folders of results below the scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._folders: set[Path] = set()

    def add(self) -> ResultFiles:
        files = ResultFiles(self._scratch / f"answer-{uuid4().hex}", self._folders.discard)
        self._folders.add(files.folder)
        return files

    def remove_abandoned(self) -> None:
        """Removes what a task of a cancelled query has written once more after its folder was removed."""
        for folder in self._scratch.glob("answer-*"):
            if folder not in self._folders:
                shutil.rmtree(folder, ignore_errors=True)


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
    writer = analyse_query(spark, sql).write.options(**_RESULT_OPTIONS)
    writer.parquet(str(files.folder), compression="zstd")


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
