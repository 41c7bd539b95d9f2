"""Runs the queries of executions on Spark, each with a deadline, and some while nothing else runs on it.

An exclusive run shows whether a query fails because of its own size, or because others use the memory meanwhile:
statements, landings, other executions, and tasks that were cancelled and still run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Final, Protocol, TypeVar

from tocsin.cluster.engine.engine import CHANNEL_THREADS, Engine

_T = TypeVar("_T")
_A = TypeVar("_A")

_COLD_STARTS: Final = 2  # channels that compile or warm up at the same time; more would only make each of them slower
_LOOK_EVERY_S: Final = 0.5  # how often to check whether a lost engine has been replaced


class SparkQuestion(Protocol):
    """Runs work on an engine thread. Raises DeadlineError after `deadline_s`, or after the usual deadline if that is
    shorter. Must not be called on the event loop."""

    def __call__(self, work: Callable[[], _T], *, alone: bool = False, deadline_s: float | None = None) -> _T: ...


class ExecutionRuns:
    """Runs the executions of all channels. A thread of its own leads each execution and may query the engine many
    times."""

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.cold_starts = asyncio.Semaphore(_COLD_STARTS)
        self._engine = engine
        # As many as the engine has channel threads: a leader only waits for its queries, so leaders cannot block each
        # other.
        self._leaders = ThreadPoolExecutor(CHANNEL_THREADS, thread_name_prefix="execution")

    async def lead(self, execute: Callable[[SparkQuestion], _T], what: str) -> _T:
        """Runs an execution on a leader thread and returns its result. If cancelled, it stops the current Spark query
        and waits until the execution has ended."""
        loop = asyncio.get_running_loop()
        current_query: asyncio.Task[object] | None = None
        is_cancelled = threading.Event()

        async def asked(question: Callable[[], _A], alone: bool, deadline_s: float | None) -> _A:
            nonlocal current_query
            current_query = asyncio.current_task()
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            return await self.ask(question, what, alone=alone, deadline_s=deadline_s)

        def ask(work: Callable[[], _A], *, alone: bool = False, deadline_s: float | None = None) -> _A:
            return asyncio.run_coroutine_threadsafe(asked(work, alone, deadline_s), loop).result()

        execution = loop.run_in_executor(self._leaders, execute, ask)
        try:
            return await asyncio.shield(execution)
        except asyncio.CancelledError:
            is_cancelled.set()
            if current_query is not None:
                current_query.cancel()
            while not execution.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((execution,))
            if not execution.cancelled():
                execution.exception()  # retrieve the exception, so that asyncio does not log it as lost
            raise

    async def ask(
        self, question: Callable[[], _T], what: str, *, alone: bool = False, deadline_s: float | None = None
    ) -> _T:
        """Runs one query on the engine. Raises DeadlineError if it takes too long. Waits while the engine is being
        replaced."""
        is_hurried = deadline_s is not None
        deadline_s = self.deadline_s if deadline_s is None else min(deadline_s, self.deadline_s)
        # A hurried try follows others of the same interest, whose tasks may still run: they count against it.
        async with self._engine.alone(is_clear=not is_hurried) if alone else nullcontext():
            while self._engine.trouble() is not None or not self._engine.is_alive():
                await self._engine.pause(_LOOK_EVERY_S)
            return await self._engine.execution(question, what, deadline_s=deadline_s, is_alone=alone)

    def close(self) -> None:
        self._leaders.shutdown(wait=False, cancel_futures=True)
