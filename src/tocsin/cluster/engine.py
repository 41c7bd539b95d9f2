"""Spark as statements use it: jobs that can be stopped, answers as Arrow, errors as people read them."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tocsin.pipeline.analysis import SparkOracle, reason
from tocsin.pipeline.views import Views
from tocsin.wire.errors import StatementError, StorageFullError, TocsinError, UnavailableError

T = TypeVar("T")


class Engine:
    def __init__(self, spark: SparkSession, scratch: Path, *, threads: int) -> None:
        self.spark = spark
        self.oracle = SparkOracle(spark)
        self.views = Views(spark)
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="statement")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def work(self, work: Callable[[], T], what: str = "") -> T:
        """Runs blocking work on a thread of its own. Cancelled, it stops the Spark jobs the work has started or will
        start, and waits for the work to end, so that nothing goes on behind the caller's back."""
        group = uuid4().hex
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._grouped, group, what, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(Py4JError):
                self.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group, "cancelled")
            await asyncio.gather(future, return_exceptions=True)
            raise

    def _grouped(self, group: str, what: str, work: Callable[[], T]) -> T:
        context = self.spark.sparkContext
        context.setJobGroup(group, what[:200], interruptOnCancel=True)
        try:
            return work()
        except (PySparkException, Py4JError) as error:
            raise told(error) from error
        except RecursionError:
            raise StatementError("the statement is nested too deeply", hint="break it up with LET or WITH") from None
        except pa.ArrowInvalid as error:
            if "recursion depth" not in str(error):
                raise
            raise StatementError("the answer is nested too deeply", hint="at most 60 objects or arrays deep") from None
        finally:
            with suppress(Py4JError):
                context._jsc.sc().clearJobGroup()

    def rows(self, sql: str, limit: int | None = None) -> pa.Table:
        """The whole answer in memory; with a limit, at most so many rows of it."""
        frame = self.spark.sql(sql)
        return (frame if limit is None else frame.limit(limit)).toArrow()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """An answer of any size: Spark puts it on the disk, from where it is read in order, a little at a time."""
        folder = self._scratch / f"answer-{uuid4().hex}"
        try:
            self.spark.sql(sql).write.parquet(str(folder), compression="zstd")
            yield from self._read(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, folder: Path) -> Iterator[pa.RecordBatch]:
        for part in sorted(folder.glob("part-*.parquet")):
            with pq.ParquetFile(part) as file:
                yield from file.iter_batches(batch_size=2_000)

    def plan(self, sql: str) -> str:
        frame: Any = self.spark.sql(sql)
        return str(
            frame._jdf.queryExecution().explainString(
                frame._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
            )
        )


def told(error: Exception) -> TocsinError:
    """What went wrong in Spark, as an error of ours. What a statement can cause is a statement's error."""
    text = str(error)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return StorageFullError("there is no room left for the query's intermediate data")
    if "StackOverflowError" in text:
        return StatementError("the statement is nested too deeply for the engine", hint="break it up with LET or WITH")
    if "OutOfMemoryError" in text or "SparkOutOfMemoryError" in text:
        return StatementError(
            "the statement needs more memory than the engine has", hint="raise cluster.spark.driver_memory"
        )
    if isinstance(error, PySparkException):
        return StatementError(reason(error))
    if "Connection refused" in text or "Answer from Java side is empty" in text:
        return UnavailableError("the engine has stopped", hint="restart the cluster")
    # What Java threw around the cause says nothing.
    causes = re.findall(r"^(?:Caused by|):? ?[\w.$]+(?:Exception|Error): (.+)$", text, re.MULTILINE)
    return StatementError((causes[-1] if causes else text.splitlines()[0] if text else type(error).__name__)[:500])
