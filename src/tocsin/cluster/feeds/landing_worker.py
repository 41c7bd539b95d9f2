"""Lands a feed's log in one of its datasets, batch by batch, and retries a batch that fails.

Each dataset has its own worker, so that a dataset that fails does not hold up the others. A failure becomes a
`Trouble`, which statements, publishers and the health endpoint can show.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.landing import LandableBatch
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.intake.log import IntakeLog
from tocsin.rules.backoff import BackOff
from tocsin.serving.trouble import Trouble
from tocsin.wire.errors import TocsinError

_log = structlog.get_logger()

_FEW_ROWS: Final = 2_000


def landing_back_off() -> BackOff:
    return BackOff(0.1, 10.0, factor=5.0)


class LandingTarget(Protocol):
    counted: bool
    """Whether this is a dataset that the feed is connected to, and not the one for rejected records."""
    position: int
    halted: bool
    """Whether the feed is ending. A failure after that says nothing about the records."""

    @property
    def dataset(self) -> Ref: ...

    @property
    def asks_spark(self) -> bool: ...

    def land(self, entries: Sequence[LandableBatch]) -> int: ...


class LandingProgress(Protocol):
    """Brings a feed's records into one of its datasets."""

    trouble: Trouble | None

    @property
    def target(self) -> LandingTarget: ...

    @property
    def position(self) -> int: ...

    def start(self) -> None: ...

    def hurry(self) -> None: ...

    async def end(self) -> None: ...


class LandingWorker:
    """Calls `landed` after each batch, in the thread that landed it, and `changed` after each attempt."""

    def __init__(
        self,
        feed: str,
        intake: IntakeLog,
        target: LandingTarget,
        engine: Engine,
        *,
        counts: FeedCounts,
        landed: Callable[[], None],
        changed: Callable[[], Awaitable[None]],
        back_off: BackOff | None = None,
        limits: FeedLimits = USUAL_LIMITS,
    ) -> None:
        self.target = target
        self.trouble: Trouble | None = None
        self._limits = limits
        self._feed = feed
        self._log = intake
        self._engine = engine
        self._counts = counts
        self._landed = landed
        self._changed = changed
        self._back_off = back_off or landing_back_off()
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def position(self) -> int:
        return self.target.position

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"landing {self._feed}")

    def hurry(self) -> None:
        """Runs the next batch, or the next retry, at once, because a caller waits for it."""
        self._hurry.set()

    async def end(self) -> None:
        """Ends the worker after the batch that is landing."""
        self.target.halted = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._log.wait(self.position)
            begun_s = time.monotonic()
            try:
                await self._engine.land(self._batch, f"feed {self._feed}", asks_spark=self.target.asks_spark)
            except Exception as error:
                self._note_failure(error)
            else:
                self._back_off.reset()
                self.trouble = None
                self._counts.batches += self.target.counted
                await self._changed()
                if self._log.end - self.position < _FEW_ROWS:
                    await self._rest(min(self._limits.longest_rest_s, self._limits.rest * (time.monotonic() - begun_s)))
                self._hurry.clear()
                continue
            self._counts.failures += 1
            await self._changed()
            if self._hurry.is_set():
                self._back_off.reset()
            self._hurry.clear()
            await self._rest(self._back_off.next_s())

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    def _note_failure(self, error: Exception) -> None:
        self.trouble = Trouble.of(f"landing in {self.target.dataset}", error, self.trouble)
        with suppress(Exception):  # an error in logging must not end the worker
            context = {"feed": self._feed, "dataset": str(self.target.dataset)}
            if isinstance(error, TocsinError):
                _log.warning("landing failed; retrying", **context, reason=self.trouble.reason)
            else:
                _log.error("landing failed unexpectedly; retrying", **context, exc_info=error)

    def _batch(self) -> None:
        entries = self._log.read(self.position, max_rows=self._limits.batch_rows, max_bytes=self._limits.batch_bytes)
        if entries:
            begun_s = time.perf_counter()
            self.target.land(entries)
            if self.target.counted:
                self._counts.landing_s += time.perf_counter() - begun_s
            self._landed()
