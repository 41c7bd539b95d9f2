"""Runs Spark work for statements, feeds and channels: cancellable jobs, results as Arrow, readable errors.

Work runs on thread pools, one pool per kind, so that statements, landings and executions cannot starve each other. Each
piece of work has a Spark job group, which is how it is cancelled.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from tocsin.cluster.engine.engine_session import EngineSession, engine_lost
from tocsin.cluster.engine.spark_errors import translate_call_error, translate_spark_error
from tocsin.cluster.engine.work_threads import GIVE_UP_S, WorkThreads
from tocsin.pipeline.analysis import SparkTypeAnalyser, without_paths
from tocsin.pipeline.plan_check import analyse_query
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.python.protocol import CallError
from tocsin.pipeline.views import DatasetViews
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import CapacityError, DeadlineError, InputError, StatementError, StoreError, UnavailableError

_T = TypeVar("_T")

_LANDING_THREADS: Final = 4
CHANNEL_THREADS: Final = 16  # a thread blocks while its job runs: few long executions leave room for short ones
HUGE_BYTES: Final = 1 << 20
TURN_S: Final = 0.02
_GONE_S: Final = 1.0
_READ_ROWS: Final = 64  # at once, of a result: each may have some MB
# Parquet looks at the size of a page after so many rows. A page is unpacked whole, so large rows need small pages.
_RESULT_OPTIONS: Final = {"parquet.page.size.row.check.min": "1", "parquet.page.size.row.check.max": "32"}
_LESS: Final = "ask for less at once"


class VirtualDatasetReader(Protocol):
    """Reads datasets that are not tables: the state of channels and the runs of procedures."""

    def rows(self, shown: Any) -> pa.Table: ...

    def executions(self, channels: Sequence[Any], kind: ObjectType) -> pa.Table: ...

    def runs(self, kind: ObjectType) -> pa.Table: ...


@dataclass(eq=False, slots=True)
class _EngineWork:
    """One piece of work on a thread."""

    group: str
    asker: str | None = None
    session: EngineSession | None = None
    is_stopped: bool = False
    is_given_up: bool = False


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


class Engine:
    """Owns the current Spark session and the threads that use it.

    The watch can replace the session at any time. Work keeps the session that it began with. If that session is lost,
    the work fails with UnavailableError, and callers that may repeat it do so in the next session. The engine never
    calls the JVM on the event loop.
    """

    def __init__(
        self,
        spark: SparkSession,
        make_python: Callable[[SparkSession], PythonFunctions],
        scratch: Path,
        *,
        threads: int,
        lost_limit: int,
        give_up_s: float = GIVE_UP_S,
        virtual_datasets: VirtualDatasetReader | None = None,
    ) -> None:
        """`lost_limit` callers may lose threads before the session is replaced; each pool has as many spare threads."""
        self._make_python = make_python
        self._scratch = scratch
        self._result_folders: set[Path] = set()
        self._threads = ThreadPoolExecutor(threads + lost_limit, thread_name_prefix="statement")
        # Separate pools: records land however many statements run or wait, and vice versa.
        self._landing = ThreadPoolExecutor(_LANDING_THREADS, thread_name_prefix="landing")
        self._channels = ThreadPoolExecutor(CHANNEL_THREADS + lost_limit, thread_name_prefix="channel")
        self._errands = ThreadPoolExecutor(1, thread_name_prefix="errand")
        # A single thread each: each further thread that computes in Python delays the event loop. Beside them, a body
        # of ordinary size never waits for the part of a huge one that cannot be interrupted.
        self._bodies = ThreadPoolExecutor(1, thread_name_prefix="body")
        self._huge_bodies = ThreadPoolExecutor(1, thread_name_prefix="huge-body")
        self._needed = ((self._threads, threads), (self._channels, CHANNEL_THREADS))
        self._work_threads = WorkThreads(give_up_s)
        self._bound = threading.local()
        self._generations = 0
        self._pauses: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._session: EngineSession | None = None
        self.has_cancelled = False
        """Whether work was cancelled in this session. Spark may still run tasks of it that cannot be stopped."""
        self.trouble: Callable[[], str | None] = lambda: None
        """Says why the engine should get no work now, or None. The engine's watch replaces this function."""
        self.virtual_datasets = virtual_datasets
        self.adopt(spark)

    # ------------------------------------------------------------ session

    def adopt(self, spark: SparkSession) -> None:
        """Uses this session for work that begins from now on."""
        self._generations += 1
        self.has_cancelled = False
        self._session = EngineSession(
            self._generations, spark, self._make_python(spark), SparkTypeAnalyser(spark), DatasetViews(spark)
        )
        for loop, resumed in list(self._pauses):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(resumed.set)

    def abandon(self) -> None:
        """Drops the session until `adopt`. Until then all work fails with UnavailableError, even work under way."""
        if self._session is not None:
            self._session.is_lost = True
        self._session = None
        self._work_threads.forget_lost()

    @property
    def session(self) -> EngineSession:
        """The session of the work that this thread runs, or else the current session."""
        work: _EngineWork | None = getattr(self._bound, "work", None)
        if work is not None and work.is_given_up:
            raise UnavailableError("the work was given up")
        current = self._session if work is None else work.session
        if current is None:
            raise engine_lost()
        return current

    @property
    def generation(self) -> int:
        """The number of the session. Views and other objects of an older session no longer exist."""
        return self.session.generation

    @property
    def spark(self) -> SparkSession:
        return self.session.spark

    @property
    def python(self) -> PythonFunctions:
        return self.session.python

    @property
    def type_analyser(self) -> SparkTypeAnalyser:
        return self.session.type_analyser

    @property
    def views(self) -> DatasetViews:
        return self.session.views

    def is_alive(self) -> bool:
        """Whether there is a session whose JVM process runs. The JVM may hang nevertheless."""
        current = self._session
        return current is not None and not current.has_ended()

    @property
    def lost_threads(self) -> int:
        """The threads that were given up in this session and have not ended."""
        return self._work_threads.lost

    @property
    def lost_askers(self) -> int:
        """The number of callers with lost threads. Each caller counts once; work without a caller counts each time."""
        return self._work_threads.lost_askers

    def is_exhausted(self) -> bool:
        """Whether lost threads have used up all but the spare threads of a pool."""
        return any(self._work_threads.lost_of(threads) >= needed for threads, needed in self._needed)

    def asked_by(self, asker: str) -> AbstractContextManager[None]:
        """Attributes this task's work within the block to the asker. LimitError while the asker has lost threads."""
        return self._work_threads.asked_by(asker)

    def close(self) -> None:
        for threads in (self._threads, self._landing, self._channels, self._errands, self._bodies, self._huge_bodies):
            threads.shutdown(wait=False, cancel_futures=True)

    async def pause(self, seconds: float) -> None:
        """Waits before a retry, for this time or until there is a new session."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._pauses.add(waiter)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiter[1].wait()
        finally:
            self._pauses.discard(waiter)

    # ------------------------------------------------------------ work

    async def land(self, work: Callable[[], _T], what: str, *, asks_spark: bool) -> _T:
        """Runs work on the threads of the feeds, like `work`. It is never given up."""
        if not asks_spark:
            return await self._work_threads.carry_out(self._landing, work, stop=lambda: False)
        return await self._carry_out(self._landing, work, what, always_awaited=True)

    async def execution(self, work: Callable[[], _T], what: str, *, deadline_s: float | None = None) -> _T:
        """Runs work on the threads of the channels, like `work`. The work must change nothing.

        After `deadline_s` of running time (waiting for a thread does not count) the work is cancelled, and soon after
        that DeadlineError is raised, whether or not Spark could stop the jobs. A thread that does not stop is given up:
        the engine refuses all its calls and cancels its jobs, including later ones, so it ends with an error at some
        time, and its result is dropped. While the whole engine does not answer, no deadline counts: EngineLostError
        asks the caller to repeat the work.
        """
        try:
            return await self._carry_out(self._channels, work, what, deadline_s=deadline_s)
        except DeadlineError as error:
            if self.trouble() is not None:
                raise engine_lost() from error
            raise

    async def work(
        self, work: Callable[[], _T], what: str = "", *, stop: Callable[[], bool] | None = None, asks_spark: bool = True
    ) -> _T:
        """Runs blocking work on a thread. A cancellation stops the Spark jobs that the work has started or will start,
        and waits for the work to end. Work that does not end soon is given up: Spark can stop jobs, but not its
        optimizer, nor a task that never checks for interruption.

        Work that changes data passes `stop`, which asks the work to end before it changes anything, and returns whether
        it will. If `stop` returns False, the caller waits and gets the result, and the task's `cancelling()` says that
        it should not continue.

        Work that does not use Spark needs no session, and is always waited for.
        """
        if not asks_spark:
            return await self._work_threads.carry_out(self._threads, work, stop=lambda: False)
        return await self._carry_out(self._threads, work, what, stop=stop)

    async def compute(self, work: Callable[[], _T]) -> _T:
        """Runs pure Python work that changes nothing. It needs no session, and a cancellation gives it up."""

        def run() -> _T:
            try:
                return work()
            except Exception as error:
                translated = _translate(error)
                if translated is error:
                    raise
                raise translated from error

        return await self._work_threads.carry_out(self._threads, run, stop=lambda: True)

    async def read_body(self, steps: Generator[None, None, _T], size_bytes: int) -> _T:
        """Decodes a large body, and returns what its steps return. Bodies share a thread, or another if they are huge,
        so they delay nothing but each other. They take turns: after TURN_S of steps, the next body goes on.
        """

        def take_turn() -> tuple[_T] | None:
            until_s = time.monotonic() + TURN_S
            try:
                while time.monotonic() < until_s:
                    next(steps)
            except StopIteration as ended:
                return (ended.value,)
            return None

        threads = self._bodies if size_bytes <= HUGE_BYTES else self._huge_bodies
        while True:
            result = await self._work_threads.carry_out(threads, take_turn, stop=lambda: False)
            if result is not None:
                return result[0]

    async def _carry_out(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], _T],
        what: str,
        *,
        stop: Callable[[], bool] | None = None,
        always_awaited: bool = False,
        deadline_s: float | None = None,
    ) -> _T:
        engine_work = _EngineWork(uuid4().hex, self._work_threads.current_asker())

        def stop_all() -> bool:
            self.has_cancelled = engine_work.is_stopped = True
            may_be_given_up = stop is None or stop()
            self._errand(partial(self._cancel_jobs, engine_work))
            return may_be_given_up and not always_awaited

        def give_up() -> None:
            engine_work.is_given_up = True

        return await self._work_threads.carry_out(
            threads, partial(self._run, engine_work, what, work, changes=stop is not None or always_awaited),
            stop=stop_all, give_up=give_up, keep_result=stop is not None, deadline_s=deadline_s,
        )  # fmt: skip

    def _run(self, own: _EngineWork, what: str, work: Callable[[], _T], *, changes: bool) -> _T:
        own.session = current = self._session
        if current is None:
            raise engine_lost()
        if own.is_stopped:
            raise UnavailableError("the work was stopped before it began")
        context = current.spark.sparkContext
        self._bound.work = own
        try:
            context.setJobGroup(own.group, what[:200], interruptOnCancel=True)
            # Spark schedules fairly between pools. Each caller has a pool, so a caller with many jobs gets no more than
            # others. Executions and landings have no caller, so they have a pool for each thread.
            pool = threading.current_thread().name if own.asker is None else current.pool_of(own.asker)
            context.setLocalProperty("spark.scheduler.pool", pool)
            result = work()
        except Exception as error:
            translated = self.translate_error(error)
            if translated is error:
                raise
            raise translated from error
        finally:
            self._bound.work = None
            with suppress(Exception):  # the JVM may be gone
                context._jsc.sc().clearJobGroup()
        if current.is_lost and not changes:
            raise engine_lost()  # part of the result may come from the next session
        return result

    def _cancel_jobs(self, own: _EngineWork) -> None:
        if own.session is not None and not own.session.has_ended():
            own.session.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(own.group, "cancelled")

    def drop_views(self, names: Sequence[str]) -> None:
        """Drops the views soon, on a thread, because the caller may be the event loop."""
        if names and (current := self._session) is not None:
            self._errand(partial(current.drop_views, list(names)))

    def _errand(self, errand: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(Exception):  # the JVM may be gone, and the views with it
                errand()

        with suppress(RuntimeError):  # the engine is closed
            self._errands.submit(run)

    def translate_error(self, error: Exception) -> Exception:
        """Translates an error for users. While the session is lost, no error counts as the fault of the statement."""
        if isinstance(error, UnavailableError | StoreError | InputError) and not isinstance(error, StatementError):
            return error  # these errors are right whatever the state of the session
        work: _EngineWork | None = getattr(self._bound, "work", None)
        current = self._session if work is None else work.session
        if current is None or (work is not None and work.is_given_up):
            return engine_lost()
        # A connection breaks a moment before its JVM process is seen to be gone.
        broken = isinstance(error, EOFError | ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
        if current.has_ended(_GONE_S if broken else 0.0):
            return engine_lost()
        if isinstance(error, PySparkException | Py4JError) and current.is_stopped():
            return engine_lost()
        return _translate(error)

    def with_translated_errors(self, work: Callable[[], _T]) -> _T:
        """Runs the work and translates Spark's errors."""
        try:
            return work()
        except (PySparkException, Py4JError) as error:
            raise self.translate_error(error) from error
        except (EOFError, ConnectionError) as error:
            translated = self.translate_error(error)
            if translated is not error:
                raise translated from error
            # The JVM lives, but its thread that served the rows has died: that takes an OutOfMemoryError.
            raise CapacityError("the engine stopped in the middle of its answer", hint=_LESS) from error

    def rows(self, sql: str, limit: int | None = None) -> pa.Table:
        """Returns the whole result in memory; with a limit, at most that many rows."""
        return self.with_translated_errors(lambda: self._collect(sql, limit))

    def _collect(self, sql: str, limit: int | None) -> pa.Table:
        frame = analyse_query(self.spark, sql)
        frame = _nullable(frame if limit is None else frame.limit(limit))
        # Plan the query here and not in the thread that serves the rows: if that thread runs out of memory, it ends
        # silently, and the reader waits for ever.
        planned: Any = frame
        planned._jdf.queryExecution().executedPlan()
        return frame.toArrow()

    def discard(self, sql: str) -> None:
        """Runs a query to its end and drops its rows."""
        analyse_query(self.spark, sql).write.format("noop").mode("overwrite").save()

    def result_files(self) -> ResultFiles:
        """Returns the place of a result of any size, which `write_rows` fills. The caller removes it, in any case."""
        files = ResultFiles(self._scratch / f"answer-{uuid4().hex}", self._result_folders.discard)
        self._result_folders.add(files.folder)
        return files

    def write_rows(self, sql: str, files: ResultFiles) -> None:
        """Has Spark write a result to the disk."""
        # A task of a cancelled query may have written once more after its folder was removed.
        for folder in self._scratch.glob("answer-*"):
            if folder not in self._result_folders:
                shutil.rmtree(folder, ignore_errors=True)
        writer = analyse_query(self.spark, sql).write.options(**_RESULT_OPTIONS)
        writer.parquet(str(files.folder), compression="zstd")

    def plan(self, sql: str) -> str:
        frame: Any = analyse_query(self.spark, sql)
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


def _translate(error: Exception) -> Exception:
    """Translates errors of Spark, and of limits that a statement met; returns other errors unchanged."""
    if isinstance(error, PySparkException | Py4JError):
        return translate_spark_error(error)
    if isinstance(error, CallError):
        return translate_call_error(error)
    if isinstance(error, MemoryError):  # pyarrow's, too
        return CapacityError("the answer needs more memory than the cluster has", hint=_LESS)
    if isinstance(error, RecursionError):
        return StatementError("the statement is nested too deeply", hint="break it up with LET or WITH")
    if isinstance(error, pa.ArrowInvalid) and "recursion depth" in str(error):
        return StatementError("the answer is nested too deeply", hint="at most 60 objects or arrays deep")
    return error
