"""Runs Spark work for statements, feeds and channels: cancellable jobs, results as Arrow, readable errors.

Work runs on thread pools, one pool per kind, so that statements, landings and executions cannot starve each other. Each
piece of work has a Spark job group, which is how it is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tocsin.cluster.engine import query_results
from tocsin.cluster.engine.engine_session import EngineSession, engine_lost
from tocsin.cluster.engine.query_results import ResultFiles, ResultFolders
from tocsin.cluster.engine.refused_askers import RefusedAskers
from tocsin.cluster.engine.spark_errors import ASK_FOR_LESS, translate_work_error
from tocsin.cluster.engine.work_threads import GIVE_UP_S, WorkThreads
from tocsin.cluster.shared_lock import SharedLock
from tocsin.pipeline.analysis import SparkTypeAnalyser
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.running_tasks import ASKER, RunningTasks
from tocsin.pipeline.views import DatasetViews
from tocsin.rules.model.types import ObjectType
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import CapacityError, DeadlineError, InputError, StatementError, StoreError, UnavailableError

_T = TypeVar("_T")

_LANDING_THREADS: Final = 4
CHANNEL_THREADS: Final = 16  # a thread blocks while its job runs: few long executions leave room for short ones
HUGE_BYTES: Final = 1 << 20
TURN_S: Final = 0.02
_GONE_S: Final = 1.0
_SETTLE_S: Final = 1.0  # how long the tasks of failed work usually take to end, at most
_CLEAR_S: Final = 30.0  # how long work under way may hold up work that must run alone
_LOOK_EVERY_S: Final = 0.5


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
    took_memory: bool = False
    """Stopped because the engine was short of memory."""


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
        results: StorageFolder,
        *,
        threads: int,
        lost_limit: int,
        give_up_s: float = GIVE_UP_S,
        virtual_datasets: VirtualDatasetReader | None = None,
    ) -> None:
        """`results`: where Spark's tasks write large results. `lost_limit` callers may lose threads before the
        session is replaced; each pool has as many spare threads."""
        self._make_python = make_python
        self._result_folders = ResultFolders(results)
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
        self._lock = SharedLock()
        self._running: dict[str, _EngineWork] = {}
        self.refused = RefusedAskers()
        self.trouble: Callable[[], str | None] = lambda: None
        """Says why the engine should get no work now, or None. The engine's watch replaces this function."""
        self.request_replacement: Callable[[str], bool] = lambda _reason: False
        """Has the session replaced soon, and returns whether it will be. The engine's watch replaces this function."""
        self.virtual_datasets = virtual_datasets
        self.adopt(spark)

    # ------------------------------------------------------------ session

    def adopt(self, spark: SparkSession) -> None:
        """Uses this session for work that begins from now on."""
        self._generations += 1
        self._session = EngineSession(
            self._generations, spark, self._make_python(spark), SparkTypeAnalyser(spark), DatasetViews(spark),
            RunningTasks(spark),
        )  # fmt: skip
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
    def names_of_lost_askers(self) -> set[str]:
        return self._work_threads.names_of_lost_askers

    @property
    def lost_askers(self) -> int:
        """The number of callers with lost threads. Each caller counts once; work without a caller counts each time."""
        return self._work_threads.lost_askers

    def is_exhausted(self) -> bool:
        """Whether lost threads have used up all but the spare threads of a pool."""
        return any(self._work_threads.lost_of(threads) >= needed for threads, needed in self._needed)

    def asked_by(self, asker: str) -> AbstractContextManager[None]:
        """Attributes this task's work within the block to the asker. LimitError while the asker has lost threads or
        tasks that could not be stopped, or must wait because of earlier work."""
        self.refused.check(asker)
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

    @asynccontextmanager
    async def alone(self, *, is_clear: bool) -> AsyncIterator[None]:
        """Holds back all other work within the block. It waits, and does not fail. If work under way does not end
        soon, the session is replaced, so that its callers try again. With `is_clear`, the session is also replaced if
        tasks or threads of earlier work cannot be stopped: they would share its memory with the block."""
        what = "an execution is tried while nothing else runs"
        loop = asyncio.get_running_loop()
        reminder = loop.call_later(_CLEAR_S, self.request_replacement, f"{what}, and other work did not end")
        try:
            async with self._lock.acquire(alone=True):
                reminder.cancel()
                current = self._session
                if is_clear and current is not None and await asyncio.to_thread(self._has_leftovers, current):
                    reason = f"{what}, and earlier work could not be stopped"
                    while self.request_replacement(reason) and self._session is current:
                        await self.pause(_LOOK_EVERY_S)
                yield
        finally:
            reminder.cancel()

    def _has_leftovers(self, current: EngineSession) -> bool:
        """Whether earlier work still runs after a moment."""
        until_s = time.monotonic() + GIVE_UP_S
        try:
            while self.lost_threads or ((load := current.tasks.read()) is not None and load.tasks):
                if time.monotonic() >= until_s:
                    return True
                time.sleep(_SETTLE_S / 20)
        except Exception:  # the JVM may be gone
            return False
        return False

    async def land(self, work: Callable[[], _T], what: str, *, asks_spark: bool) -> _T:
        """Runs work on the threads of the feeds, like `work`. It is never given up."""
        if not asks_spark:
            return await self._work_threads.carry_out(self._landing, work, stop=lambda: False)
        return await self._carry_out(self._landing, work, what, always_awaited=True)

    async def execution(
        self, work: Callable[[], _T], what: str, *, deadline_s: float | None = None, is_alone: bool = False
    ) -> _T:
        """Runs work on the threads of the channels, like `work`. The work must change nothing. `is_alone`: the caller
        holds `alone`.

        After `deadline_s` of running time (waiting for a thread does not count) the work is cancelled, and soon after
        that DeadlineError is raised, whether or not Spark could stop the jobs. A thread that does not stop is given up:
        the engine refuses all its calls and cancels its jobs, including later ones, so it ends with an error at some
        time, and its result is dropped. While the whole engine does not answer, no deadline counts: EngineLostError
        asks the caller to repeat the work.
        """
        try:
            return await self._carry_out(self._channels, work, what, deadline_s=deadline_s, is_alone=is_alone)
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
                translated = translate_work_error(error)
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
        is_alone: bool = False,
    ) -> _T:
        engine_work = _EngineWork(uuid4().hex, self._work_threads.current_asker())

        def stop_all() -> bool:
            engine_work.is_stopped = True
            may_be_given_up = stop is None or stop()
            self._errand(partial(self._cancel_jobs, engine_work))
            return may_be_given_up and not always_awaited

        def give_up() -> None:
            engine_work.is_given_up = True

        async with nullcontext() if is_alone else self._lock.acquire(alone=False):
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
        self._running[own.group] = own
        try:
            context.setJobGroup(own.group, what[:200], interruptOnCancel=True)
            # Spark schedules fairly between pools. Each caller has a pool, so a caller with many jobs gets no more than
            # others. Executions and landings have no caller, so they have a pool for each thread.
            pool = threading.current_thread().name if own.asker is None else current.pool_of(own.asker)
            context.setLocalProperty("spark.scheduler.pool", pool)
            context.setLocalProperty(ASKER, own.asker or "")
            result = work()
        except Exception as error:
            if own.asker is not None:
                self._await_tasks(own.group, own.asker, current)
            if own.took_memory:
                raise CapacityError(
                    "the engine ran short of memory, and this statement had taken the most", hint=ASK_FOR_LESS
                ) from error
            translated = self.translate_error(error)
            if translated is error:
                raise
            raise translated from error
        finally:
            self._bound.work = None
            self._running.pop(own.group, None)
            with suppress(Exception):  # the JVM may be gone
                context._jsc.sc().clearJobGroup()
        if current.is_lost and not changes:
            raise engine_lost()  # part of the result may come from the next session
        return result

    def _await_tasks(self, group: str, asker: str, current: EngineSession) -> None:
        """Waits a moment until the tasks of failed work have ended. Their caller is refused while they run on."""
        until_s = time.monotonic() + _SETTLE_S
        with suppress(Exception):  # the JVM may be gone
            while (load := current.tasks.read()) is not None and any(task.group == group for task in load.tasks):
                if time.monotonic() >= until_s:
                    self.refused.add_stuck(group, asker)
                    return
                time.sleep(_SETTLE_S / 20)

    def stop_for_memory(self, group: str) -> None:
        """Stops a statement because the engine is short of memory; its caller has to wait before the next one. Calls
        the JVM."""
        own = self._running.get(group)
        if own is not None and own.asker is not None and not own.took_memory:
            own.took_memory = True
            self.refused.memory_taken(own.asker)
            self._cancel_jobs(own)

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
        return translate_work_error(error)

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
            raise CapacityError("the engine stopped in the middle of its answer", hint=ASK_FOR_LESS) from error

    # ------------------------------------------------------------ rows

    def rows(self, sql: str, limit: int | None = None) -> pa.Table:
        """Returns the whole result in memory; with a limit, at most that many rows."""
        return self.with_translated_errors(lambda: query_results.collect_rows(self.spark, sql, limit))

    def discard(self, sql: str) -> None:
        """Runs a query to its end and drops its rows."""
        query_results.discard_rows(self.spark, sql)

    def result_files(self) -> ResultFiles:
        """Returns the place of a result of any size, which `write_rows` fills. The caller removes it, in any case."""
        return self._result_folders.add()

    def write_rows(self, sql: str, files: ResultFiles) -> None:
        """Has Spark's tasks write a result to the storage for results."""
        self._result_folders.remove_abandoned()
        query_results.write_rows(self.spark, sql, files)

    def plan(self, sql: str) -> str:
        return query_results.explain_plan(self.spark, sql)
