"""Blocking work on threads: stopped when its time is over, and given up where it cannot be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from tocsin.wire.errors import DeadlineError, LimitError

T = TypeVar("T")

GIVE_UP_S: Final = 5.0
LOST_RETRY_AFTER_S: Final = 30  # what an asker is told whose work runs on


class WorkThreads:
    """Carries work out, and counts the threads that were given up and have not ended since."""

    def __init__(self, give_up_s: float = GIVE_UP_S) -> None:
        """`give_up_s`: how long work that was told to stop may take to end."""
        self._give_up_s = give_up_s
        self._lost: dict[asyncio.Future[Any], tuple[ThreadPoolExecutor, str | None]] = {}
        self._askers: dict[asyncio.Task[Any] | None, str] = {}

    @property
    def lost(self) -> int:
        return len(self._lost)

    @property
    def lost_askers(self) -> int:
        """How many have lost threads: one asker counts once, and work that nobody asked for counts each time."""
        return len({asker or future for future, (_, asker) in self._lost.copy().items()})

    def lost_of(self, pool: ThreadPoolExecutor) -> int:
        return sum(of is pool for of, _ in self._lost.copy().values())

    @contextmanager
    def asked_by(self, asker: str) -> Iterator[None]:
        """What this task has carried out within the block is the asker's. LimitError while the asker has a thread that
        was given up: so it holds no more of them than it had at work at once."""
        if any(asker == other for _, other in self._lost.values()):
            raise LimitError(
                f"an earlier statement of {asker} could not be stopped and still runs", status=429,
                hint="try again when it has ended", retry=True, retry_after_s=LOST_RETRY_AFTER_S,
            )  # fmt: skip
        # By task, since what a statement starts for good (a channel, a feed) has tasks of its own.
        task = asyncio.current_task()
        self._askers[task] = asker
        try:
            yield
        finally:
            del self._askers[task]

    def current_asker(self) -> str | None:
        """Whose the present task's work is."""
        return self._askers.get(asyncio.current_task())

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
        self._lost[future] = (pool, self._askers.get(asyncio.current_task()))
        future.add_done_callback(self._ended)
        return False

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._lost.pop(future, None)
        _retrieve(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody may want its exception: asyncio complains of those that nobody looked at."""
    if not future.cancelled():
        future.exception()
