"""The engine: what it says when Spark is the trouble, whose session work uses, what becomes of work when one goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import TimeoutExpired
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests import conftest
from tests.support.waiting import WITHIN_S, until
from tocsin.cluster.engine.engine import HUGE_BYTES, TURN_S, Engine
from tocsin.cluster.engine.engine_session import EngineLostError
from tocsin.cluster.engine.watchdog import PingAnswered, WatchdogLimits
from tocsin.cluster.engine.watchdog_thread import EngineCollector, EngineWatch, task_slots
from tocsin.cluster.statements.dml import CancellationToken
from tocsin.pipeline.running_tasks import EngineLoad, RunningTask
from tocsin.wire.errors import (
    CapacityError,
    ConflictError,
    DeadlineError,
    LimitError,
    StatementError,
    StoppedError,
    UnavailableError,
)


async def test_no_test_asks_the_jvm_on_an_event_loop_unseen(spark: SparkSession) -> None:
    with pytest.raises(AssertionError, match="on an event loop"):
        spark.range(1).count()
    assert conftest.asked_on_a_loop
    conftest.asked_on_a_loop.clear()


# ---------------------------------------------------------------- a fake of Spark's


class FakeProcess:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return -9 if self.ended.is_set() else None

    def wait(self, timeout_s: float) -> int:
        if not self.ended.wait(timeout_s):
            raise TimeoutExpired("java", timeout_s)
        return -9


class FakeSpark:
    """A session that notes which groups of jobs were cancelled."""

    def __init__(self) -> None:
        self.process = FakeProcess()
        self.is_stopped = False
        self.cancelled: list[str] = []
        self.properties: list[tuple[str, str]] = []
        scala = SimpleNamespace(
            clearJobGroup=lambda: None, isStopped=lambda: self.is_stopped, taskScheduler=MagicMock(),
            cancelJobGroupAndFutureJobs=lambda group, _why: self.cancelled.append(group),
        )  # fmt: skip
        self.sparkContext: Any = SimpleNamespace(
            setJobGroup=lambda *_, **__: None, setLocalProperty=lambda *named: self.properties.append(named),
            _jsc=SimpleNamespace(sc=lambda: scala), _gateway=SimpleNamespace(proc=self.process), _jvm=MagicMock(),
        )  # fmt: skip


@contextmanager
def engine_of(spark: Any, tmp_path: Path, give_up_s: float = 0.01) -> Iterator[Engine]:
    made = Engine(spark, lambda _spark: SimpleNamespace(), tmp_path, threads=2, lost_limit=4, give_up_s=give_up_s)  # type: ignore[arg-type, return-value]
    yield made
    made.close()


async def test_large_bodies_are_read_one_after_the_other_while_others_compute(tmp_path: Path) -> None:
    begun: list[int] = []
    let = threading.Event()

    def read(number: int) -> Generator[None, None, int]:
        begun.append(number)
        let.wait()
        yield
        return number

    with engine_of(FakeSpark(), tmp_path) as engine:
        reading = [asyncio.create_task(engine.read_body(read(number), 10_000)) for number in range(3)]
        await until(lambda: begun)
        assert await engine.compute(lambda: list(begun)) == [0]
        let.set()
        assert await asyncio.gather(*reading) == [0, 1, 2]
    assert begun == [0, 1, 2]


async def test_a_body_that_takes_long_lets_others_take_turns(tmp_path: Path) -> None:
    has_ended = threading.Event()

    def read_long() -> Generator[None, None, None]:
        while not has_ended.wait(TURN_S):
            yield

    def read_short() -> Generator[None, None, str]:
        yield
        return "read"

    with engine_of(FakeSpark(), tmp_path) as engine:
        for size_bytes in (10_000, 2 * HUGE_BYTES):
            has_ended.clear()
            reading = asyncio.create_task(engine.read_body(read_long(), size_bytes))
            await asyncio.sleep(0)
            async with asyncio.timeout(WITHIN_S):
                assert await engine.read_body(read_short(), size_bytes) == "read"
            assert not reading.done()
            has_ended.set()
            await reading


async def test_no_step_of_a_huge_body_holds_up_an_ordinary_body(tmp_path: Path) -> None:
    let = threading.Event()

    def scan() -> Generator[None, None, None]:
        let.wait()
        yield

    def read() -> Generator[None, None, str]:
        yield
        return "read"

    with engine_of(FakeSpark(), tmp_path) as engine:
        scanning = asyncio.create_task(engine.read_body(scan(), HUGE_BYTES + 1))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(WITHIN_S):
                assert await engine.read_body(read(), HUGE_BYTES) == "read"
        finally:
            let.set()
        await scanning


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


# What py4j says of a JVM that died over a call names neither a network nor an end.
VAGUE = Py4JError("An error occurred while calling o151.getResult")


@pytest.mark.parametrize(
    "error", [VAGUE, EOFError(), ConnectionResetError(), StatementError("no such view"), OSError(5)]
)
async def test_whatever_fails_with_a_dead_jvm_is_repeated_and_nobodys_fault(error: Exception, tmp_path: Path) -> None:
    spark = FakeSpark()
    with engine_of(spark, tmp_path) as engine:
        with pytest.raises(type(error) if not isinstance(error, Py4JError) else CapacityError):
            await engine.execution(raising(error), "")
        # A connection breaks before its process is seen to be gone.
        threading.Timer(0.05, spark.process.ended.set).start()
        if not isinstance(error, EOFError | ConnectionError | Py4JError):
            await asyncio.to_thread(spark.process.ended.wait)
        with pytest.raises(EngineLostError) as lost:
            await engine.execution(raising(error), "")
        assert (lost.value.status, lost.value.retry, lost.value.details["retry_after_s"]) == (503, True, 5)
        with pytest.raises(ConflictError):
            await engine.work(raising(ConflictError("the key is taken")))


@pytest.mark.parametrize("error", [VAGUE, EOFError(), ConnectionResetError(), MemoryError()])
async def test_an_answer_that_breaks_off_in_a_living_jvm_is_a_lack_of_capacity(
    error: Exception, tmp_path: Path
) -> None:
    with engine_of(FakeSpark(), tmp_path) as engine, pytest.raises(CapacityError):
        await engine.execution(lambda: engine.with_translated_errors(raising(error)), "")


async def test_an_engine_that_has_ended_is_no_fault_of_the_statement(tmp_path: Path) -> None:
    spark = FakeSpark()
    with engine_of(spark, tmp_path) as engine:
        for words in ("Job 7 cancelled because SparkContext was shut down", "stopped SparkContext"):
            with pytest.raises(StatementError):
                await engine.execution(raising(PySparkException(words)), "")
        spark.is_stopped = True
        with pytest.raises(EngineLostError):
            await engine.execution(raising(PySparkException("[DIVIDE_BY_ZERO] Division by zero.")), "")


async def test_within_work_too_nothing_of_a_dead_jvm_looks_like_a_statements_fault(tmp_path: Path) -> None:
    """A search for poison begins where an execution sees a StatementError."""
    spark, seen = FakeSpark(), []

    def work() -> None:
        spark.process.ended.set()
        try:
            engine.with_translated_errors(raising(VAGUE))
        except Exception as error:
            seen.append(type(error))
            raise

    with engine_of(spark, tmp_path) as engine, pytest.raises(EngineLostError):
        await engine.execution(work, "")
    assert seen == [EngineLostError]


async def test_nothing_has_overrun_while_the_engine_does_not_answer(tmp_path: Path) -> None:
    let = threading.Event()
    with engine_of(FakeSpark(), tmp_path) as engine:
        with pytest.raises(DeadlineError):
            await engine.execution(let.wait, "", deadline_s=0.01)
        engine.trouble = lambda: "it has not answered for 6 s"
        with pytest.raises(EngineLostError):
            await engine.execution(let.wait, "", deadline_s=0.01)
        let.set()


async def test_work_keeps_the_session_that_it_began_with(tmp_path: Path) -> None:
    first, second = FakeSpark(), FakeSpark()
    began, go_on, seen = threading.Event(), threading.Event(), []

    def work() -> str:
        seen.append(engine.spark)
        began.set()
        go_on.wait()
        seen.append(engine.spark)
        return "done"

    with engine_of(first, tmp_path) as engine:
        task = asyncio.create_task(engine.execution(work, ""))
        await asyncio.to_thread(began.wait)
        engine.abandon()
        with pytest.raises(EngineLostError):
            await engine.work(lambda: None)
        assert await engine.work(lambda: "needs none", asks_spark=False) == "needs none"
        engine.adopt(second)  # type: ignore[arg-type]
        go_on.set()
        with pytest.raises(EngineLostError):
            await task
        assert seen == [first, first]
        assert await engine.work(lambda: (engine.spark, engine.generation)) == (second, 2)


async def test_who_waits_to_try_again_does_so_with_the_next_session(tmp_path: Path) -> None:
    with engine_of(FakeSpark(), tmp_path) as engine:
        pause = asyncio.create_task(engine.pause(3_600))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.adopt, FakeSpark())
        await pause


async def test_a_statement_gives_its_place_back_when_its_time_is_over_whatever_spark_does(tmp_path: Path) -> None:
    spark, let, late = FakeSpark(), threading.Event(), []

    def deaf() -> None:
        let.wait()
        try:
            engine.views.of_rows(None)  # type: ignore[arg-type]
        except UnavailableError as error:
            late.append(error)

    with engine_of(spark, tmp_path) as engine:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.work(deaf)
        assert engine.lost_threads == 1
        await until(lambda: spark.cancelled, "its jobs are cancelled")
        assert await engine.work(lambda: "the next one") == "the next one"
        let.set()
        await until(lambda: not engine.lost_threads, "the thread has ended")
        assert late, "a thread that was given up gets nothing of the engine any more"


async def test_all_work_of_one_asker_has_one_share_and_what_nobody_asked_for_one_each_time(tmp_path: Path) -> None:
    spark, both_run = FakeSpark(), threading.Barrier(2)

    async def run(asker: str | None) -> None:
        with nullcontext() if asker is None else engine.asked_by(asker):
            await engine.work(lambda: both_run.wait(WITHIN_S) and None)

    with engine_of(spark, tmp_path) as engine:
        for askers in (("ann", "ann"), ("ann", "bob"), (None, None)):
            spark.properties.clear()
            await asyncio.gather(*[run(asker) for asker in askers])
            names = [name for key, name in spark.properties if key == "spark.scheduler.pool"]
            assert len(names) == 2
            assert (names[0] == names[1]) is (askers == ("ann", "ann"))


async def test_lost_threads_of_one_asker_count_once_and_the_pools_are_exhausted_at_their_size(tmp_path: Path) -> None:
    let, begun = threading.Event(), threading.Semaphore(0)

    def deaf() -> None:
        begun.release()
        let.wait()

    async def run(asker: str) -> None:
        with engine.asked_by(asker):
            await engine.work(deaf)

    async def ask(asker: str) -> None:
        task = asyncio.create_task(run(asker))
        await asyncio.to_thread(begun.acquire)
        task.cancel()
        await asyncio.wait((task,))

    with engine_of(FakeSpark(), tmp_path) as engine:
        await ask("ann")
        assert (engine.lost_askers, engine.is_exhausted()) == (1, False)
        with pytest.raises(LimitError):
            await run("ann")
        await ask("bob")
        assert (engine.lost_threads, engine.lost_askers, engine.is_exhausted()) == (2, 2, True), "of 2, and 4 to spare"
        engine.abandon()
        assert (engine.lost_askers, engine.is_exhausted()) == (0, False)
        engine.adopt(FakeSpark())  # type: ignore[arg-type]
        assert await engine.work(lambda: "free") == "free"
        let.set()


async def test_work_that_is_stopped_before_it_has_a_thread_never_begins(tmp_path: Path) -> None:
    let, done = threading.Event(), []
    with engine_of(FakeSpark(), tmp_path, give_up_s=60) as engine:
        before = [asyncio.create_task(engine.work(let.wait)) for _ in range(6)]  # as many as there are threads
        await asyncio.sleep(0)
        task = asyncio.create_task(engine.work(lambda: done.append(1)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        let.set()
        await asyncio.gather(*before)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == []


async def test_a_change_that_is_stopped_changes_nothing_ever_and_one_that_commits_is_told(tmp_path: Path) -> None:
    began, let, changed = threading.Event(), threading.Event(), []

    def change(going: CancellationToken) -> str:
        began.set()
        let.wait()
        cancellation.commit()
        changed.append(going)
        return "changed"

    with engine_of(FakeSpark(), tmp_path) as engine:
        cancellation = CancellationToken()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.work(lambda: change(cancellation), stop=cancellation.stop)
        let.set()
        await until(lambda: not engine.lost_threads, "the thread has ended")
        assert changed == []

        committing, end = threading.Event(), threading.Event()

        def commit() -> str:
            cancellation.commit()
            committing.set()
            end.wait()
            return "changed"

        cancellation = CancellationToken()
        task = asyncio.create_task(engine.work(commit, stop=cancellation.stop))
        await asyncio.to_thread(committing.wait)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        end.set()
        assert await task == "changed"
        assert engine.lost_threads == 0


async def test_what_lands_is_waited_for_and_its_caller_ends_all_the_same(tmp_path: Path) -> None:
    began, let = threading.Event(), threading.Event()

    def land() -> None:
        began.set()
        let.wait()

    for asks_spark in (True, False):
        with engine_of(FakeSpark(), tmp_path) as engine:
            task = asyncio.create_task(engine.land(land, "", asks_spark=asks_spark))
            await asyncio.to_thread(began.wait)
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done()
            let.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.lost_threads == 0
        let.clear()


def test_a_change_is_stopped_before_its_commit_or_not_at_all() -> None:
    cancellation = CancellationToken()
    assert cancellation.stop()
    for step in (cancellation.raise_if_stopped, cancellation.commit):
        with pytest.raises(StoppedError):
            step()
    cancellation = CancellationToken()
    cancellation.commit()
    assert not cancellation.stop()
    cancellation.raise_if_stopped()


# ---------------------------------------------------------------- the thread that watches


class FakeSessions:
    def __init__(self) -> None:
        self.made: list[FakeSpark] = []
        self.killed = 0
        self.failures = 0

    def start(self) -> FakeSpark:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("Spark did not start: no memory")
        self.made.append(FakeSpark())
        return self.made[-1]

    def kill(self) -> None:
        self.killed += 1


async def test_a_dead_engine_and_one_that_does_not_answer_are_replaced(tmp_path: Path) -> None:
    sessions, hangs = FakeSessions(), threading.Event()

    def ping(_session: Any) -> PingAnswered:
        if hangs.is_set():
            threading.Event().wait(60)
        return PingAnswered()

    limits = WatchdogLimits(ping_timeout_s=0.2, lost_limit=4, ping_period_s=0.0, silent_s=0.1, replacements=9)
    with capture_logs() as logged, engine_of(sessions.start(), tmp_path) as engine:
        watch = EngineWatch(engine, sessions, limits, ping=ping)  # type: ignore[arg-type]
        assert not watch.is_watching()
        watch.start()
        try:
            sessions.failures = 1
            sessions.made[0].process.ended.set()
            assert watch.trouble() is not None, "known at once, although nobody has looked yet"
            await until(lambda: len(sessions.made) == 2 and watch.trouble() is None, "it is replaced")
            assert (sessions.killed, watch.replacements) == (2, 2)
            await until(
                lambda: (
                    ("warning", "the engine was replaced") in [(line["log_level"], line["event"]) for line in logged]
                ),
                "the end of a replacement is told by default",
            )
            hangs.set()
            await until(lambda: watch.trouble() is not None, "it has not answered")
            await until(lambda: len(sessions.made) > 2, "it is replaced")
            hangs.clear()
            await until(lambda: watch.trouble() is None and engine.is_alive(), "it answers")
            assert await engine.work(lambda: engine.spark) is sessions.made[-1]
            figures = {metric.name: metric.samples[0].value for metric in EngineCollector(watch).collect()}
            assert figures["tocsin_engine_up"] == 1
            assert figures["tocsin_engine_replacements"] == watch.replacements >= 3
            assert watch.is_watching()
        finally:
            await asyncio.to_thread(watch.close)


def test_the_master_of_a_local_engine_says_how_many_tasks_it_runs_at_once() -> None:
    masters = ("local[4]", "local[12,3]", "local[*]", "spark://host:7077")
    assert [task_slots(master) for master in masters] == [4, 12, None, None]


# ---------------------------------------------------------------- leftovers of stopped work


class FakeTasks:
    """The tasks of a session, as Spark's scheduler knows them."""

    def __init__(self) -> None:
        self.tasks: list[RunningTask] = []
        self.heap_bytes = 0
        self.collection_ms = 0

    def read(self) -> EngineLoad:
        return EngineLoad(list(self.tasks), self.heap_bytes, 1_000, self.collection_ms)


def with_tasks(engine: Engine) -> FakeTasks:
    tasks = FakeTasks()
    engine.session.tasks = tasks  # type: ignore[assignment]
    return tasks


async def test_who_leaves_a_task_behind_gets_no_more_until_it_has_ended(tmp_path: Path) -> None:
    def leave_one(asker: str) -> None:
        (group,) = engine._running
        tasks.tasks.append(RunningTask(True, 0, group, asker))
        raise StatementError("stopped")

    with engine_of(FakeSpark(), tmp_path) as engine:
        tasks = with_tasks(engine)
        with engine.asked_by("ann"), pytest.raises(StatementError):
            await engine.work(lambda: leave_one("ann"))
        for _ in range(3):
            with pytest.raises(LimitError, match="ann could not be stopped") as refused, engine.asked_by("ann"):
                pass
            assert (refused.value.status, refused.value.details["retry_after_s"]) == (429, 30)
            engine.refused.see_ended_jobs({task.group: task.asker for task in tasks.tasks})
        with engine.asked_by("bob"):
            assert await engine.work(lambda: "free") == "free"
        engine.refused.see_ended_jobs({})
        with engine.asked_by("ann"):
            assert await engine.work(lambda: "free") == "free"


async def test_work_that_runs_alone_holds_back_all_other_work_which_waits_and_does_not_fail(tmp_path: Path) -> None:
    begun, order = threading.Event(), []
    let = threading.Event()

    def first() -> None:
        begun.set()
        let.wait(WITHIN_S)
        order.append("statement")

    async def run_alone() -> None:
        async with engine.alone(is_clear=True):
            await engine.execution(lambda: order.append("alone"), "x", is_alone=True)

    with engine_of(FakeSpark(), tmp_path) as engine:
        with_tasks(engine)
        statement = asyncio.create_task(engine.work(first))
        await asyncio.to_thread(begun.wait)
        alone = asyncio.create_task(run_alone())
        await asyncio.sleep(0)
        others = [
            asyncio.create_task(engine.work(lambda: order.append("other"))),
            asyncio.create_task(engine.land(lambda: order.append("other"), "x", asks_spark=True)),
            asyncio.create_task(engine.execution(lambda: order.append("other"), "x")),
        ]
        await asyncio.sleep(0)
        assert order == []
        let.set()
        await asyncio.gather(statement, alone, *others)
    assert order == ["statement", "alone", "other", "other", "other"]


async def test_work_that_runs_alone_gets_a_new_engine_if_tasks_of_earlier_work_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.cluster.engine.engine.GIVE_UP_S", 0.1)
    asked: list[str] = []

    def replace(reason: str) -> bool:
        if not asked:
            engine.abandon()
            engine.adopt(FakeSpark())  # type: ignore[arg-type]
            with_tasks(engine)
        asked.append(reason)
        return True

    with engine_of(FakeSpark(), tmp_path) as engine:
        engine.request_replacement = replace
        with_tasks(engine).tasks.append(RunningTask(True, 600, "g", "ann"))
        async with engine.alone(is_clear=False):
            assert engine.generation == 1
        async with engine.alone(is_clear=True):
            assert engine.generation == 2
        async with engine.alone(is_clear=True):
            assert engine.generation == 2, "nothing is left there"
    assert asked == ["an execution is tried while nothing else runs, and earlier work could not be stopped"]


async def test_work_that_does_not_end_is_ended_with_its_engine_for_work_that_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.cluster.engine.engine._CLEAR_S", 0.1)
    ended, begun = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        ended.wait(WITHIN_S)
        raise EngineLostError("gone")

    def replace(_reason: str) -> bool:
        ended.set()
        return True

    with engine_of(FakeSpark(), tmp_path) as engine:
        engine.request_replacement = replace
        with_tasks(engine)
        statement = asyncio.create_task(engine.work(endless))
        await asyncio.to_thread(begun.wait)
        async with engine.alone(is_clear=False):
            assert ended.is_set()
        with pytest.raises(UnavailableError):
            await statement


async def test_a_statement_that_takes_the_memory_is_stopped_and_its_asker_waits(tmp_path: Path) -> None:
    begun, spark = threading.Event(), FakeSpark()

    def take() -> None:
        begun.set()
        while not spark.cancelled:
            threading.Event().wait(0.01)
        raise StatementError("cancelled")

    async def run() -> None:
        with engine.asked_by("ann"):
            await engine.work(take)

    with engine_of(spark, tmp_path) as engine:
        with_tasks(engine)
        task = asyncio.create_task(run())
        await asyncio.to_thread(begun.wait)
        (group,) = engine._running
        await asyncio.to_thread(engine.stop_for_memory, group)
        with pytest.raises(CapacityError, match="had taken the most"):
            await task
        with pytest.raises(LimitError, match="too much memory") as refused, engine.asked_by("ann"):
            pass
        assert 0 < refused.value.details["retry_after_s"] <= 10
        with engine.asked_by("bob"):
            pass
