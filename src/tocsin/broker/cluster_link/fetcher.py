"""Fetches results from the cluster. All fetches that the core wants at one moment go into one request.

One execution often has results for many interests, and a request for each would cost more than the results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import to_broker_result
from tocsin.broker.metrics import BrokerCounters
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import RESULT_BYTES, Cursor, InterestId, Range
from tocsin.wire.errors import TocsinError
from tocsin.wire.results import FetchedPart, NextRange, list_remaining_ranges

_TOGETHER: Final = 2_000
"""The largest number of ranges in one request, so that a very large request does not hold up the others."""
_BREATH: Final = 50

_log = structlog.get_logger("tocsin.broker.fetcher")


@dataclass(slots=True)
class _FetchInProgress:
    fetch: ac.Fetch
    results: list[BrokerResult] = field(default_factory=list)
    size_bytes: int = 0
    gap: Cursor | None = None
    known: bool = True
    done: bool = False


class ResultFetcher:
    """Performs the core's Fetch actions, at most `at_once` requests at a time. `on_gone` is called with interests that
    the cluster does not know."""

    def __init__(
        self,
        client: ClusterClient,
        runtime: CoreRuntime,
        counters: BrokerCounters,
        on_gone: Callable[[InterestId], None],
        at_once: int,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._counters = counters
        self._on_gone = on_gone
        self._at_once = at_once
        self._queue: list[ac.Fetch] = []
        self._running: set[asyncio.Task[None]] = set()
        self._begins_soon = False

    def add(self, fetch: ac.Fetch) -> None:
        self._queue.append(fetch)
        self._soon()

    async def close(self) -> None:
        self._queue.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _soon(self) -> None:
        if not self._begins_soon and len(self._running) < self._at_once:
            self._begins_soon = True
            # Wait for the next iteration of the event loop, so that all fetches of this moment go together.
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins_soon = False
        while self._queue and len(self._running) < self._at_once:
            batch, self._queue = self._queue[:_TOGETHER], self._queue[_TOGETHER:]
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._log_end)

    def _log_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a fetch failed unexpectedly", exc_info=error)
        if self._queue:
            self._soon()

    async def _run(self, fetches: Sequence[ac.Fetch]) -> None:
        began_s = time.monotonic()
        in_progress_fetches = [_FetchInProgress(fetch) for fetch in fetches]
        self._counters.fetches += 1
        try:
            await self._fetch(in_progress_fetches, began_s)
        except TocsinError as error:
            self._counters.fetch_failures += 1
            _log.debug("a fetch failed", ranges=len(fetches), error=str(error))
        finally:
            # Report every fetch to the core in any case; otherwise the core would wait for it forever.
            for pending in in_progress_fetches:
                if not pending.done:
                    self._runtime.handle(ev.FetchFailed(pending.fetch.fetch))

    async def _fetch(self, in_progress_fetches: Sequence[_FetchInProgress], began_s: float) -> None:
        """Fetches the ranges, and continues where an answer stopped because it was too large. A range is reported to
        the core as soon as the next one begins."""
        ranges = [_range(pending.fetch) for pending in in_progress_fetches]
        first = 0
        while True:
            next_range: NextRange | None = None
            last = first
            async for part in self._client.fetch(ranges):
                if isinstance(part, NextRange):
                    next_range = part
                    continue
                index = first + part.range
                for finished in range(last, index):
                    await self._finish(in_progress_fetches[finished], finished, began_s)
                last = index
                self._take(in_progress_fetches[index], part)
            if next_range is None:
                break
            for finished in range(last, first + next_range.range):
                await self._finish(in_progress_fetches[finished], finished, began_s)
            ranges = list_remaining_ranges(ranges, next_range)
            first += next_range.range
        for finished in range(last, len(in_progress_fetches)):
            await self._finish(in_progress_fetches[finished], finished, began_s)

    def _take(self, in_progress: _FetchInProgress, part: FetchedPart) -> None:
        in_progress.results += [to_broker_result(result) for result in part.results]
        in_progress.size_bytes += sum(len(result.payload) + RESULT_BYTES for result in part.results)
        in_progress.known = in_progress.known and part.known
        if part.gap is not None:
            in_progress.gap = part.gap

    async def _finish(self, in_progress: _FetchInProgress, index: int, began_s: float) -> None:
        """Reports one fetch to the core."""
        if in_progress.done:
            return
        in_progress.done = True
        fetch = in_progress.fetch
        if not in_progress.known:
            self._runtime.handle(ev.FetchFailed(fetch.fetch))
            self._on_gone(fetch.interest)
            return
        whole = len(in_progress.results) < fetch.limit and in_progress.size_bytes < fetch.limit_bytes
        to = fetch.to if whole else in_progress.results[-1].cursor
        took_s = time.monotonic() - began_s
        self._runtime.handle(ev.FetchSucceeded(fetch.fetch, to, tuple(in_progress.results), took_s, in_progress.gap))
        self._runtime.wake_waiters(fetch.interest)
        if index % _BREATH == _BREATH - 1:
            await asyncio.sleep(0)


def _range(fetch: ac.Fetch) -> Range:
    return Range(fetch.interest, fetch.after, fetch.to, fetch.limit, fetch.limit_bytes)
