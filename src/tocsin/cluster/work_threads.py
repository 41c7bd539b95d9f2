"""Blocking work on threads: stopped when its time is over, and given up where it cannot be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from tocsin.wire.errors import DeadlineError

T = TypeVar("T")

GIVE_UP_S: Final = 5.0


class WorkThreads:
    """Carries work out, and counts the threads that were given up and have not ended since."""

    def __init__(self, give_up_s: float = GIVE_UP_S) -> None:
        """`give_up_s`: how long work that was told to stop may take to end."""
        self._give_up_s = give_up_s
        self._lost: set[asyncio.Future[Any]] = set()

    @property
    def lost(self) -> int:
        return len(self._lost)

    def forget_lost(self) -> None:
        """What held the threads is gone: those that were given up end by themselves."""
        self._lost.clear()

    async def carry_out(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], T],
        *,
        stop: Callable[[], bool],
        give_up: Callable[[], None] = lambda: None,
        keep_result: bool = False,
        deadline_s: float | None = None,
    ) -> T:
        """What the work yields.

        When the caller is cancelled, or the work has run for `deadline_s`, `stop` tells the work to end, and says
        whether it may be given up where it does not: then `give_up` is called, and the thread counts as lost until it
        ends. Work that may not be given up is waited for, however long it takes.

        Past the deadline: the result, if the work ended with one while it was being stopped, or else DeadlineError.
        Cancelled: CancelledError, or with `keep_result` the result if there is one, since what the work did is done;
        the task's `cancelling()` says then that it should go no further.
        """
        loop = asyncio.get_running_loop()
        began: asyncio.Future[None] = loop.create_future()

        def begin() -> None:
            if not began.done():
                began.set_result(None)

        def run() -> T:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(begin)
            return work()

        future = loop.run_in_executor(pool, run)
        try:
            if deadline_s is not None:
                # The time in which it waits for a thread is not its own.
                await asyncio.wait((future, began), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((future,), timeout=deadline_s)
        except asyncio.CancelledError:
            if await self._stop(future, stop, give_up) and keep_result and future.exception() is None:
                return future.result()
            raise
        if future.done():
            return future.result()
        if await self._stop(future, stop, give_up) and future.exception() is None:
            return future.result()
        raise DeadlineError(f"the work was not done within {deadline_s:g} s")

    async def _stop(self, future: asyncio.Future[Any], stop: Callable[[], bool], give_up: Callable[[], None]) -> bool:
        """Whether it has ended."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._give_up_s if stop() else None
        while not future.done() and (last_s is None or loop.time() < last_s):
            # A caller that is cancelled a second time waits on, too.
            with suppress(asyncio.CancelledError):
                await asyncio.wait((future,), timeout=None if last_s is None else last_s - loop.time())
        if future.done():
            _retrieve(future)
            return True
        give_up()
        self._lost.add(future)
        future.add_done_callback(self._ended)
        return False

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._lost.discard(future)
        _retrieve(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody may want its exception: asyncio complains of those that nobody looked at."""
    if not future.cancelled():
        future.exception()
