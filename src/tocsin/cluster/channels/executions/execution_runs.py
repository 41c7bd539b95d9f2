"""What executions of channels ask Spark: each question has a deadline, and some are asked while no other is."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar

from tocsin.cluster.engine.engine import CHANNEL_THREADS, Engine

T = TypeVar("T")
A = TypeVar("A")

DEADLINE_S: Final = 60.0
LOOK_EVERY_S: Final = 0.5  # whether there is an engine again


class SparkQuestion(Protocol):
    """Carries work out on a thread of the engine's; DeadlineError where it takes too long: `deadline_s`, or the usual
    time where that is shorter. Not on the event loop."""

    def __call__(self, work: Callable[[], T], *, alone: bool = False, deadline_s: float | None = None) -> T: ...


class SharedLock:
    """Held by many at once, or by one alone; in the order in which they came, so that nobody waits for ever."""

    def __init__(self) -> None:
        self._holders = 0
        self._is_alone = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, *, alone: bool) -> AsyncIterator[None]:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((alone, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._holders -= 1
                self._is_alone = False
            else:
                self._waiting.remove((alone, turn))
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._is_alone and not (self._waiting[0][0] and self._holders):
            self._is_alone, turn = self._waiting.popleft()
            self._holders += 1
            turn.set_result(None)


class ExecutionRuns:
    """Executions of all channels. Each is led by a thread of its own, which may ask the engine many times."""

    def __init__(self, engine: Engine, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._engine = engine
        self._lock = SharedLock()
        # As many as the engine has for what they ask: one that leads waits, so that none can be in another's way.
        self._leaders = ThreadPoolExecutor(CHANNEL_THREADS, thread_name_prefix="execution")

    async def lead(self, execute: Callable[[SparkQuestion], T], what: str) -> T:
        """What the execution comes to. Cancelled, it stops what Spark does for it, and waits until it has ended."""
        loop = asyncio.get_running_loop()
        current: asyncio.Task[object] | None = None
        is_cancelled = threading.Event()

        async def asked(question: Callable[[], A], alone: bool, deadline_s: float | None) -> A:
            nonlocal current
            current = asyncio.current_task()
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            return await self.ask(question, what, alone=alone, deadline_s=deadline_s)

        def ask(work: Callable[[], A], *, alone: bool = False, deadline_s: float | None = None) -> A:
            return asyncio.run_coroutine_threadsafe(asked(work, alone, deadline_s), loop).result()

        leading = loop.run_in_executor(self._leaders, execute, ask)
        try:
            return await asyncio.shield(leading)
        except asyncio.CancelledError:
            is_cancelled.set()
            if current is not None:
                current.cancel()
            while not leading.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((leading,))
            if not leading.cancelled():
                leading.exception()  # nobody else looks at it
            raise

    async def ask(
        self, question: Callable[[], T], what: str, *, alone: bool = False, deadline_s: float | None = None
    ) -> T:
        """What the engine answers; DeadlineError where it takes too long. One that is being replaced is waited for."""
        deadline_s = self.deadline_s if deadline_s is None else min(deadline_s, self.deadline_s)
        async with self._lock.acquire(alone=alone):
            while self._engine.trouble() is not None or not self._engine.is_alive():
                await self._engine.pause(LOOK_EVERY_S)
            return await self._engine.execution(question, what, deadline_s=deadline_s)

    def close(self) -> None:
        self._leaders.shutdown(wait=False, cancel_futures=True)
