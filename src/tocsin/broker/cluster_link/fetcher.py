"""Fetches results from the cluster: whatever the core wants at one moment is one request."""

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
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.delivery.cached_payload import kept
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import RESULT_BYTES, Cursor, Range
from tocsin.wire.errors import TocsinError
from tocsin.wire.results import FetchedPart, NextRange, following

TOGETHER: Final = 2_000
"""Ranges in one request, so that one with very many does not hold up all others."""
_BREATH: Final = 50

_log = structlog.get_logger("tocsin.broker.fetcher")


@dataclass(slots=True)
class _Coming:
    fetch: ac.Fetch
    results: list[BrokerResult] = field(default_factory=list)
    size_bytes: int = 0
    gap: Cursor | None = None
    known: bool = True
    done: bool = False


class ResultFetcher:
    """`on_gone` hears of interests that the cluster does not know."""

    def __init__(
        self,
        client: ClusterClient,
        machine: CoreRuntime,
        figures: BrokerCounters,
        on_gone: Callable[[int], None],
        at_once: int,
    ) -> None:
        self._client = client
        self._machine = machine
        self._figures = figures
        self._on_gone = on_gone
        self._at_once = at_once
        self._wanted: list[ac.Fetch] = []
        self._running: set[asyncio.Task[None]] = set()
        self._called = False
        machine.on(ac.Fetch, self.add)

    def add(self, fetch: ac.Fetch) -> None:
        self._wanted.append(fetch)
        self._soon()

    async def close(self) -> None:
        self._wanted.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _soon(self) -> None:
        if not self._called and len(self._running) < self._at_once:
            self._called = True
            # After all that happens now, so that it goes together.
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._called = False
        while self._wanted and len(self._running) < self._at_once:
            now, self._wanted = self._wanted[:TOGETHER], self._wanted[TOGETHER:]
            task = asyncio.get_running_loop().create_task(self._run(now))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a fetch broke", exc_info=error)
        if self._wanted:
            self._soon()

    async def _run(self, fetches: Sequence[ac.Fetch]) -> None:
        began_s = time.monotonic()
        coming = [_Coming(one) for one in fetches]
        self._figures.fetches += 1
        try:
            await self._fetch(coming, began_s)
        except TocsinError as error:
            self._figures.fetch_failures += 1
            _log.debug("a fetch failed", ranges=len(fetches), error=str(error))
        finally:
            # Whatever happened, the core hears of each: else it would wait for ever.
            for one in coming:
                if not one.done:
                    self._machine.handle(ev.FetchFailed(one.fetch.fetch))

    async def _fetch(self, coming: Sequence[_Coming], began_s: float) -> None:
        ranges = [_range(one.fetch) for one in coming]
        first = 0
        while True:
            stopped: NextRange | None = None
            last = first
            async for part in self._client.fetch(ranges):
                if isinstance(part, NextRange):
                    stopped = part
                    continue
                place = first + part.range
                for done in range(last, place):
                    await self._finish(coming[done], done, began_s)
                last = place
                self._take(coming[place], part)
            if stopped is None:
                break
            for done in range(last, first + stopped.range):
                await self._finish(coming[done], done, began_s)
            ranges = following(ranges, stopped)
            first += stopped.range
        for done in range(last, len(coming)):
            await self._finish(coming[done], done, began_s)

    def _take(self, one: _Coming, part: FetchedPart) -> None:
        one.results += [kept(each) for each in part.results]
        one.size_bytes += sum(len(each.payload) + RESULT_BYTES for each in part.results)
        one.known = one.known and part.known
        if part.gap is not None:
            one.gap = part.gap

    async def _finish(self, one: _Coming, place: int, began_s: float) -> None:
        if one.done:
            return
        one.done = True
        fetch = one.fetch
        if not one.known:
            self._machine.handle(ev.FetchFailed(fetch.fetch))
            self._on_gone(int(str(fetch.interest)))
            return
        whole = len(one.results) < fetch.limit and one.size_bytes < fetch.limit_bytes
        to = fetch.to if whole else one.results[-1].cursor
        took_s = time.monotonic() - began_s
        self._machine.handle(ev.FetchSucceeded(fetch.fetch, to, tuple(one.results), took_s, one.gap))
        self._machine.arrived(fetch.interest)
        if place % _BREATH == _BREATH - 1:
            await asyncio.sleep(0)


def _range(fetch: ac.Fetch) -> Range:
    return Range(int(str(fetch.interest)), fetch.after, fetch.to, fetch.limit, fetch.limit_bytes)
