"""Runs blocking work on threads, stops it at its deadline, and gives up on threads that cannot be stopped.

Python cannot end a thread, and a call into the JVM may never return. The caller then gets its error anyway, and the
lost thread is counted: per caller, to refuse its further work, and in total, for the watchdog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from tocsin.wire.errors import DeadlineError, LimitError

_T = TypeVar("_T")

GIVE_UP_S: Final = 5.0
_LOST_RETRY_AFTER_S: Final = 30  # what a caller is told while its earlier work still runs


class WorkThreads:
    """Runs work, and counts the threads that were given up and have not ended."""

    def __init__(self, give_up_s: float = GIVE_UP_S) -> None:
        """`give_up_s`: how long work may take to end after it was told to stop."""
        self._give_up_s = give_up_s
        self._lost: dict[asyncio.Future[Any], tuple[ThreadPoolExecutor, str | None]] = {}
        self._askers: dict[asyncio.Task[Any] | None, str] = {}

    @property
    def lost(self) -> int:
        return len(self._lost)

    @property
    def lost_askers(self) -> int:
        """The number of callers with lost threads. Each caller counts once; work without a caller counts each time."""
        return len({asker or future for future, (_, asker) in self._lost.copy().items()})

    @property
    def names_of_lost_askers(self) -> set[str]:
        return {asker for _, asker in self._lost.copy().values() if asker is not None}

    def lost_of(self, pool: ThreadPoolExecutor) -> int:
        return sum(lost_pool is pool for lost_pool, _ in self._lost.copy().values())

    @contextmanager
    def asked_by(self, asker: str) -> Iterator[None]:
        """Attributes the work of this task within the block to the asker. Raises LimitError while the asker has a lost
        thread, so it cannot lose more threads than it had at work at once."""
        if any(asker == other for _, other in self._lost.values()):
            raise LimitError(
                f"an earlier statement of {asker} could not be stopped and still runs", status=429,
                hint="try again when it has ended", retry=True, retry_after_s=_LOST_RETRY_AFTER_S,
            )  # fmt: skip
        # By task, because long-lived work that a statement starts (a channel, a feed) has tasks of its own.
        task = asyncio.current_task()
        self._askers[task] = asker
        try:
            yield
        finally:
            del self._askers[task]

    def current_asker(self) -> str | None:
        """Returns the caller of the current task's work."""
        return self._askers.get(asyncio.current_task())

    def forget_lost(self) -> None:
        """Forgets the lost threads when their session is gone: they end by themselves."""
        self._lost.clear()

    async def carry_out(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], _T],
        *,
        stop: Callable[[], bool],
        give_up: Callable[[], None] = lambda: None,
        keep_result: bool = False,
        deadline_s: float | None = None,
    ) -> _T:
        """Runs the work and returns its result.

        When the caller is cancelled, or the work has run for `deadline_s`, `stop` tells the work to end, and returns
        whether the thread may be given up. If so, and the work does not end, `give_up` is called, and the thread counts
        as lost until it ends. Otherwise this waits for the work, however long it takes.

        After the deadline it returns the result if the work still ended with one, or raises DeadlineError. After a
        cancellation it raises CancelledError, or with `keep_result` it returns the result if there is one, because the
        work's changes are made; the task's `cancelling()` then says that it should not continue.
        """
        loop = asyncio.get_running_loop()
        began: asyncio.Future[None] = loop.create_future()

        def begin() -> None:
            if not began.done():
                began.set_result(None)

        def run() -> _T:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(begin)
            return work()

        future = loop.run_in_executor(pool, run)
        try:
            if deadline_s is not None:
                # Waiting for a thread does not count as running time.
                await asyncio.wait((future, began), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((future,), timeout=deadline_s)
        except asyncio.CancelledError:
            if await self._stop(pool, future, stop, give_up) and keep_result and future.exception() is None:
                return future.result()
            raise
        if future.done():
            return future.result()
        if await self._stop(pool, future, stop, give_up) and future.exception() is None:
            return future.result()
        raise DeadlineError(f"the work was not done within {deadline_s:g} s")

    async def _stop(
        self,
        pool: ThreadPoolExecutor,
        future: asyncio.Future[Any],
        stop: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> bool:
        """Stops the work, and returns whether it has ended."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._give_up_s if stop() else None
        while not future.done() and (last_s is None or loop.time() < last_s):
            # A second cancellation does not end the wait.
            with suppress(asyncio.CancelledError):
                await asyncio.wait((future,), timeout=None if last_s is None else last_s - loop.time())
        if future.done():
            _retrieve(future)
            return True
        give_up()
        self._lost[future] = (pool, self._askers.get(asyncio.current_task()))
        future.add_done_callback(self._forget)
        return False

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self._lost.pop(future, None)
        _retrieve(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Marks the exception as retrieved: otherwise asyncio logs an exception that no caller looked at."""
    if not future.cancelled():
        future.exception()
