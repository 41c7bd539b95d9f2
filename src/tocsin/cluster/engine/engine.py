"""Spark as statements use it: jobs that can be stopped, answers as Arrow, errors as people read them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
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
from tocsin.cluster.engine.spark_errors import called, told
from tocsin.cluster.engine.work_threads import GIVE_UP_S, WorkThreads
from tocsin.pipeline.analysis import SparkTypeAnalyser, without_paths
from tocsin.pipeline.plan_check import analyse_query
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.python.protocol import CallError
from tocsin.pipeline.views import DatasetViews
from tocsin.rules.model.types import ObjectType
from tocsin.wire.errors import (
    DeadlineError,
    InputError,
    StatementError,
    StoreError,
    UnavailableError,
)

T = TypeVar("T")

LANDING_THREADS: Final = 4
CHANNEL_THREADS: Final = 16  # a thread waits while its job runs: few long executions leave room for short ones
_GONE_S: Final = 1.0


class VirtualDatasetReader(Protocol):
    """Reads datasets that are no tables: what channels have, and what procedures did."""

    def rows(self, shown: Any) -> pa.Table: ...

    def executions(self, channels: Sequence[Any], kind: ObjectType) -> pa.Table: ...

    def runs(self, kind: ObjectType) -> pa.Table: ...


@dataclass(eq=False, slots=True)
class _EngineWork:
    """What a thread carries out."""

    group: str
    asker: str | None = None
    session: EngineSession | None = None
    is_stopped: bool = False
    is_given_up: bool = False


class Engine:
    """The present session, and the threads that use it.

    A session can be replaced by another at any time. Work keeps the one that it began with: when that is lost, the work
    fails with UnavailableError and is repeated with the next one, by those who repeat it. Nothing here asks the JVM on
    the event loop.
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
    ) -> None:
        """`lost_limit`: so many may lose threads before the session is replaced; there are as many to spare."""
        self._make_python = make_python
        self._scratch = scratch
        self._threads = ThreadPoolExecutor(threads + lost_limit, thread_name_prefix="statement")
        # Of their own: however many statements run or wait, records land, and the other way round.
        self._landing = ThreadPoolExecutor(LANDING_THREADS, thread_name_prefix="landing")
        self._channels = ThreadPoolExecutor(CHANNEL_THREADS + lost_limit, thread_name_prefix="channel")
        self._errands = ThreadPoolExecutor(1, thread_name_prefix="errand")
        # One: with each more thread that computes in Python the event loop waits longer for its turn.
        self._bodies = ThreadPoolExecutor(1, thread_name_prefix="body")
        self._needed = ((self._threads, threads), (self._channels, CHANNEL_THREADS))
        self._work_threads = WorkThreads(give_up_s)
        self._bound = threading.local()
        self._generations = 0
        self._pauses: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._session: EngineSession | None = None
        self.has_cancelled = False
        """Whether work was stopped in this session: Spark may have tasks of it that cannot be."""
        self.trouble: Callable[[], str | None] = lambda: None
        """Why the engine should not be given work now, as far as the one knows who watches it."""
        self.shows: VirtualDatasetReader | None = None
        self.adopt(spark)

    # ------------------------------------------------------------ the session

    def adopt(self, spark: SparkSession) -> None:
        """Work that begins from now on uses this session."""
        self._generations += 1
        self.has_cancelled = False
        self._session = EngineSession(
            self._generations, spark, self._make_python(spark), SparkTypeAnalyser(spark), DatasetViews(spark)
        )
        for loop, over in list(self._pauses):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(over.set)

    def abandon(self) -> None:
        """There is no session until `adopt`: work fails with UnavailableError, also that which goes on."""
        if self._session is not None:
            self._session.is_lost = True
        self._session = None
        self._work_threads.forget_lost()

    @property
    def session(self) -> EngineSession:
        """Of the work that this thread carries out, or else the present one."""
        work: _EngineWork | None = getattr(self._bound, "work", None)
        if work is not None and work.is_given_up:
            raise UnavailableError("the work was given up")
        found = self._session if work is None else work.session
        if found is None:
            raise engine_lost()
        return found

    @property
    def generation(self) -> int:
        """Of the session: what was made with another one is gone."""
        return self.session.generation

    @property
    def spark(self) -> SparkSession:
        return self.session.spark

    @property
    def python(self) -> PythonFunctions:
        return self.session.python

    @property
    def oracle(self) -> SparkTypeAnalyser:
        return self.session.oracle

    @property
    def views(self) -> DatasetViews:
        return self.session.views

    def is_alive(self) -> bool:
        """Whether there is a session whose JVM runs; it may hang."""
        found = self._session
        return found is not None and not found.has_ended()

    @property
    def lost_threads(self) -> int:
        """Threads that were given up in this session and have not ended."""
        return self._work_threads.lost

    @property
    def lost_askers(self) -> int:
        """Who has such threads: one asker counts once, and work that nobody asked for counts each time."""
        return self._work_threads.lost_askers

    def is_exhausted(self) -> bool:
        """Whether such threads leave no more than the spare ones."""
        return any(self._work_threads.lost_of(threads) >= needed for threads, needed in self._needed)

    def asked_by(self, asker: str) -> AbstractContextManager[None]:
        """What this task asks of the engine within the block is the asker's; LimitError while it has such threads."""
        return self._work_threads.asked_by(asker)

    def close(self) -> None:
        for threads in (self._threads, self._landing, self._channels, self._errands, self._bodies):
            threads.shutdown(wait=False, cancel_futures=True)

    async def pause(self, seconds: float) -> None:
        """Waits before work is tried again: so long, or until there is a new session."""
        own = (asyncio.get_running_loop(), asyncio.Event())
        self._pauses.add(own)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await own[1].wait()
        finally:
            self._pauses.discard(own)

    # ------------------------------------------------------------ work

    async def land(self, work: Callable[[], T], what: str, *, asks_spark: bool) -> T:
        """As `work`, on the threads of the feeds, and never given up."""
        if not asks_spark:
            return await self._work_threads.carry_out(self._landing, work, stop=lambda: False)
        return await self._carry_out(self._landing, work, what, always_awaited=True)

    async def execution(self, work: Callable[[], T], what: str, *, deadline_s: float | None = None) -> T:
        """As `work`, on the threads of the channels. The work must change nothing.

        If it has run for `deadline_s` (the time in which it waits for a thread is not its own) it is stopped as if it
        were cancelled. DeadlineError then says that its time was over, soon after the deadline, whether or not Spark
        could be stopped. A thread that could not be is given up: it gets nothing from the engine any more, and its jobs
        are cancelled, those to come as well; so it ends with an error, some day, and its result goes nowhere. While the
        engine as a whole does not answer, no work is said to have overrun: EngineLostError asks to repeat it.
        """
        try:
            return await self._carry_out(self._channels, work, what, deadline_s=deadline_s)
        except DeadlineError as error:
            if self.trouble() is not None:
                raise engine_lost() from error
            raise

    async def work(
        self,
        work: Callable[[], T],
        what: str = "",
        *,
        stop: Callable[[], bool] | None = None,
        asks_spark: bool = True,
    ) -> T:
        """Runs blocking work on a thread of its own. Cancelled, it stops the Spark jobs the work has started or will
        start, and waits for the work to end. Work that does not end soon all the same is given up: Spark can stop jobs,
        but neither its optimizer nor a task that never looks up.

        Work that changes something brings `stop`, which tells it to end before it has, and says whether it will. If it
        says no, the work is waited for, and the caller learns what it did: the result is returned, and the task's
        `cancelling()` says that it should go no further.

        Work that does not ask Spark needs no session, and is always waited for.
        """
        if not asks_spark:
            return await self._work_threads.carry_out(self._threads, work, stop=lambda: False)
        return await self._carry_out(self._threads, work, what, stop=stop)

    async def compute(self, work: Callable[[], T]) -> T:
        """Runs what Python does by itself and changes nothing, on the threads of `work`: it needs no session, and is
        given up when the caller is cancelled."""

        def run() -> T:
            try:
                return work()
            except Exception as error:
                explained = _explained(error)
                if explained is error:
                    raise
                raise explained from error

        return await self._work_threads.carry_out(self._threads, run, stop=lambda: True)

    async def read_body(self, work: Callable[[], T]) -> T:
        """Runs what Python does by itself with a large body, to its end. Bodies wait for each other, and nothing else
        waits for them."""
        return await self._work_threads.carry_out(self._bodies, work, stop=lambda: False)

    async def _carry_out(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], T],
        what: str,
        *,
        stop: Callable[[], bool] | None = None,
        always_awaited: bool = False,
        deadline_s: float | None = None,
    ) -> T:
        own = _EngineWork(uuid4().hex, self._work_threads.current_asker())

        def stop_all() -> bool:
            self.has_cancelled = own.is_stopped = True
            may_be_given_up = stop is None or stop()
            self._errand(partial(self._cancel_jobs, own))
            return may_be_given_up and not always_awaited

        def give_up() -> None:
            own.is_given_up = True

        return await self._work_threads.carry_out(
            threads, partial(self._run, own, what, work, changes=stop is not None or always_awaited),
            stop=stop_all, give_up=give_up, keep_result=stop is not None, deadline_s=deadline_s,
        )  # fmt: skip

    def _run(self, own: _EngineWork, what: str, work: Callable[[], T], *, changes: bool) -> T:
        own.session = current = self._session
        if current is None:
            raise engine_lost()
        if own.is_stopped:
            raise UnavailableError("the work was stopped before it began")
        context = current.spark.sparkContext
        self._bound.work = own
        try:
            context.setJobGroup(own.group, what[:200], interruptOnCancel=True)
            # Spark is fair between pools. One for each asker, so that who asks much at once gets no more than others;
            # what nobody asked for, executions and landings, has one for each thread.
            pool = threading.current_thread().name if own.asker is None else current.pool_of(own.asker)
            context.setLocalProperty("spark.scheduler.pool", pool)
            done = work()
        except Exception as error:
            explained = self.explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._bound.work = None
            with suppress(Exception):  # the JVM may be gone
                context._jsc.sc().clearJobGroup()
        if current.is_lost and not changes:
            raise engine_lost()  # some of it may have come from the session after
        return done

    def _cancel_jobs(self, own: _EngineWork) -> None:
        if own.session is not None and not own.session.has_ended():
            own.session.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(own.group, "cancelled")

    def drop_views(self, names: Sequence[str]) -> None:
        """Soon, on a thread: the caller may be the event loop."""
        if names and (current := self._session) is not None:
            self._errand(partial(current.drop_views, list(names)))

    def _errand(self, errand: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(Exception):  # the JVM may be gone, and with it what was asked for
                errand()

        with suppress(RuntimeError):  # the engine is closed
            self._errands.submit(run)

    def explain(self, error: Exception) -> Exception:
        """The error as people read it. While the session is lost none is taken for the fault of what was asked."""
        if isinstance(error, UnavailableError | StoreError | InputError) and not isinstance(error, StatementError):
            return error  # which is so, whatever the session does
        work: _EngineWork | None = getattr(self._bound, "work", None)
        current = self._session if work is None else work.session
        if current is None or (work is not None and work.is_given_up):
            return engine_lost()
        # A connection breaks a moment before its JVM is seen to be gone.
        broken = isinstance(error, EOFError | ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
        if current.has_ended(_GONE_S if broken else 0.0):
            return engine_lost()
        if isinstance(error, PySparkException | Py4JError) and current.is_stopped():
            return engine_lost()
        return _explained(error)

    def asked(self, work: Callable[[], T]) -> T:
        """What the work yields, with Spark's errors as people read them."""
        try:
            return work()
        except (PySparkException, Py4JError, EOFError, ConnectionError) as error:
            explained = self.explain(error)
            if explained is error:
                raise
            raise explained from error

    def rows(self, sql: str, limit: int | None = None) -> pa.Table:
        """The whole answer in memory; with a limit, at most so many rows of it."""
        return self.asked(lambda: self._collected(sql, limit))

    def _collected(self, sql: str, limit: int | None) -> pa.Table:
        frame = analyse_query(self.spark, sql)
        frame = _nullable(frame if limit is None else frame.limit(limit))
        # Planned here and not by the thread that serves the rows: if that one lacks memory it ends without a word, and
        # whoever waits for its rows waits for ever.
        planned: Any = frame
        planned._jdf.queryExecution().executedPlan()
        return frame.toArrow()

    def discard(self, sql: str) -> None:
        """Runs a query to its end; its rows go nowhere."""
        analyse_query(self.spark, sql).write.format("noop").mode("overwrite").save()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """An answer of any size: Spark puts it on the disk, from where it is read in order, a little at a time."""
        folder = self._scratch / f"answer-{uuid4().hex}"
        try:
            analyse_query(self.spark, sql).write.parquet(str(folder), compression="zstd")
            yield from self._read(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, folder: Path) -> Iterator[pa.RecordBatch]:
        for part in sorted(folder.glob("part-*.parquet")):
            with pq.ParquetFile(part) as file:
                yield from file.iter_batches(batch_size=2_000)

    def plan(self, sql: str) -> str:
        frame: Any = analyse_query(self.spark, sql)
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


def _explained(error: Exception) -> Exception:
    """The error as one of ours where it tells of Spark, or of a limit that a statement met; else as it is."""
    if isinstance(error, PySparkException | Py4JError):
        return told(error)
    if isinstance(error, CallError):
        return called(error)
    if isinstance(error, RecursionError):
        return StatementError("the statement is nested too deeply", hint="break it up with LET or WITH")
    if isinstance(error, pa.ArrowInvalid) and "recursion depth" in str(error):
        return StatementError("the answer is nested too deeply", hint="at most 60 objects or arrays deep")
    return error
