"""Spark as statements use it: jobs that can be stopped, answers as Arrow, errors as people read them."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tocsin.pipeline import session
from tocsin.pipeline.analysis import SparkOracle, reason, without_paths
from tocsin.pipeline.plan_check import checked_query
from tocsin.pipeline.python.called import CallError, found_in
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.views import Views
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import ConflictError, StatementError, StorageFullError, TocsinError, UnavailableError

T = TypeVar("T")

LANDING_THREADS: Final = 4
CHANNEL_THREADS: Final = 16  # a thread waits while its job runs: few long executions leave room for short ones
_FULL = ("No space left on device", "Disk quota exceeded", "java.io.IOException: File too large")
# Spark's context ends by itself when its own threads fail, for want of memory above all; the JVM lives on without it.
_ENDED = ("stopped SparkContext", "SparkContext was shut down", 'SparkContext.dagScheduler()" is null')


class Shows(Protocol):
    """Reads datasets that are no tables: what channels have, and what procedures did."""

    def rows(self, shown: Any) -> pa.Table: ...

    def executions(self, channels: Sequence[Any], kind: ObjectType) -> pa.Table: ...

    def runs(self, kind: ObjectType) -> pa.Table: ...


class Engine:
    def __init__(self, spark: SparkSession, python: PythonFunctions, scratch: Path, *, threads: int) -> None:
        self.spark = spark
        self.python = python
        self.oracle = SparkOracle(spark)
        self.views = Views(spark)
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="statement")
        # Of their own: however many statements run or wait, records land, and the other way round.
        self._landing = ThreadPoolExecutor(LANDING_THREADS, thread_name_prefix="landing")
        self._channels = ThreadPoolExecutor(CHANNEL_THREADS, thread_name_prefix="channel")
        self.shows: Shows | None = None

    def is_alive(self) -> bool:
        """Whether Spark still runs. It does not start again by itself."""
        if session.jvm_process(self.spark).poll() is not None:
            return False
        try:
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # a JVM that cannot be asked is as good as gone
            return False

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._landing.shutdown(wait=False, cancel_futures=True)
        self._channels.shutdown(wait=False, cancel_futures=True)

    async def land(self, work: Callable[[], T], what: str, *, asks_spark: bool) -> T:
        """As `work`, on the threads of the feeds. Work that does not ask Spark is not announced to it."""
        return await self._carried_out(self._landing, work, what, None, asks_spark=asks_spark)

    async def execution(self, work: Callable[[], T], what: str) -> T:
        """As `work`, on the threads of the channels."""
        return await self._carried_out(self._channels, work, what, None)

    async def work(self, work: Callable[[], T], what: str = "", *, stop: Callable[[], None] | None = None) -> T:
        """Runs blocking work on a thread of its own. Cancelled, it stops the Spark jobs the work has started or will
        start, and waits for the work to end, so that nothing goes on behind the caller's back.

        Work that changes something brings `stop`, which tells it to end before it has. If it has all the same, that is
        what the caller learns: the result is returned, and the task's `cancelling()` says that it should go no further.
        """
        return await self._carried_out(self._threads, work, what, stop)

    async def _carried_out(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], T],
        what: str,
        stop: Callable[[], None] | None,
        *,
        asks_spark: bool = True,
    ) -> T:
        group = uuid4().hex
        announced = partial(self._grouped, group, what, work) if asks_spark else work
        future = asyncio.get_running_loop().run_in_executor(threads, announced)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if stop is not None:
                stop()
            if asks_spark:
                with suppress(Py4JError, ConnectionError):
                    self.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group, "cancelled")
            while not future.done():
                # Whoever is cancelled a second time waits on, too.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((future,))
            if future.exception() is None and stop is not None:
                return future.result()
            raise

    def _grouped(self, group: str, what: str, work: Callable[[], T]) -> T:
        context = self.spark.sparkContext
        try:
            context.setJobGroup(group, what[:200], interruptOnCancel=True)
            # Spark is fair between pools; within one it serves whoever came first. So each thread has its own.
            context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
            return work()
        except (PySparkException, Py4JError) as error:
            raise told(error) from error
        except CallError as error:
            raise called(error) from None
        except RecursionError:
            raise StatementError("the statement is nested too deeply", hint="break it up with LET or WITH") from None
        except pa.ArrowInvalid as error:
            if "recursion depth" not in str(error):
                raise
            raise StatementError("the answer is nested too deeply", hint="at most 60 objects or arrays deep") from None
        except ConnectionError as error:
            if self.is_alive():
                raise
            raise _stopped() from error
        finally:
            with suppress(Py4JError, ConnectionError):
                context._jsc.sc().clearJobGroup()

    def asked(self, work: Callable[[], T]) -> T:
        """What the work yields, with Spark's errors as people read them."""
        try:
            return work()
        except (PySparkException, Py4JError) as error:
            raise told(error) from error

    def rows(self, sql: str, limit: int | None = None) -> pa.Table:
        """The whole answer in memory; with a limit, at most so many rows of it."""
        return self.asked(lambda: self._collected(sql, limit))

    def _collected(self, sql: str, limit: int | None) -> pa.Table:
        frame = checked_query(self.spark, sql)
        frame = _nullable(frame if limit is None else frame.limit(limit))
        # Planned here and not by the thread that serves the rows: if that one lacks memory it ends without a word, and
        # whoever waits for its rows waits for ever.
        planned: Any = frame
        planned._jdf.queryExecution().executedPlan()
        return frame.toArrow()

    def discard(self, sql: str) -> None:
        """Runs a query to its end; its rows go nowhere."""
        checked_query(self.spark, sql).write.format("noop").mode("overwrite").save()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """An answer of any size: Spark puts it on the disk, from where it is read in order, a little at a time."""
        folder = self._scratch / f"answer-{uuid4().hex}"
        try:
            checked_query(self.spark, sql).write.parquet(str(folder), compression="zstd")
            yield from self._read(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, folder: Path) -> Iterator[pa.RecordBatch]:
        for part in sorted(folder.glob("part-*.parquet")):
            with pq.ParquetFile(part) as file:
                yield from file.iter_batches(batch_size=2_000)

    def plan(self, sql: str) -> str:
        frame: Any = checked_query(self.spark, sql)
        return without_paths(
            frame._jdf.queryExecution().explainString(
                frame._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
            )
        )


def _nullable(frame: DataFrame) -> DataFrame:
    """The same rows. Spark says of a struct of constants that its fields are never NULL, and Arrow, told so, refuses
    the struct where the whole of it is NULL: nullif, an index beyond the end, an aggregate of nothing."""
    fields = frame.schema.fields
    loose = [_loose(field.dataType) for field in fields]
    if all(field.dataType == kind for field, kind in zip(fields, loose, strict=True)):
        return frame
    return frame.select(*(
        frame[f"`{field.name}`"].cast(kind).alias(field.name) for field, kind in zip(fields, loose, strict=True)
    ))  # fmt: skip


def _loose(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _loose(field.dataType)) for field in kind.fields])
    return ArrayType(_loose(kind.elementType)) if isinstance(kind, ArrayType) else kind


def told(error: Exception) -> TocsinError:
    """What went wrong in Spark, as an error of ours. What a statement can cause is a statement's error."""
    try:
        text = str(error)
    except Exception:  # it asks the JVM, and that may be gone
        return _stopped()
    if isinstance(error, Py4JNetworkError) or any(said in text for said in _ENDED):
        return _stopped()
    if any(said in text for said in _FULL):
        return StorageFullError("there is no room left for the query's intermediate data")
    if "StackOverflowError" in text:
        return StatementError("the statement is nested too deeply for the engine", hint="break it up with LET or WITH")
    if "OutOfMemoryError" in text or "SparkOutOfMemoryError" in text:
        return StatementError(
            "the statement needs more memory than the engine has", hint="raise cluster.spark.driver_memory"
        )
    if (failed := found_in(text)) is not None:
        return called(failed)
    if "Python worker exited unexpectedly" in text:
        return StatementError(
            "a function in Python has ended its process", hint="it crashed, or took all of the memory"
        )
    if isinstance(error, PythonException):
        return StatementError(f"a worker in Python failed: {text.strip().splitlines()[-1]}"[:500])
    if isinstance(error, PySparkException):
        return StatementError(reason(text))
    # What Java threw around the cause says nothing.
    causes = re.findall(r"^(?:Caused by|):? ?[\w.$]+(?:Exception|Error): (.+)$", text, re.MULTILINE)
    return StatementError(reason(causes[-1] if causes else text or type(error).__name__)[:500])


def called(failed: CallError) -> TocsinError:
    """A function in Python that failed is the fault of what it was given; one that cannot be called, of nothing."""
    return (StatementError if failed.usable else ConflictError)(failed.message, hint=failed.hint)


def _stopped() -> UnavailableError:
    return UnavailableError("the engine has stopped", hint="restart the cluster")
