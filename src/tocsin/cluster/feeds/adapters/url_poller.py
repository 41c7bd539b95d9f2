"""The URL adapter: asks an address at a period, and takes each item of its answers once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any, Final, Protocol

import structlog

from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.feeds.adapters.seen_items import SeenItems, mark
from tocsin.cluster.feeds.adapters.url_client import (
    BODY_LIMIT_BYTES,
    TIMEOUT_S,
    FetchError,
    UrlAnswer,
    UrlClient,
)
from tocsin.cluster.feeds.adapters.url_options import UrlOptions
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.pipeline.sources.items import items
from tocsin.pipeline.sources.polled_items import Judge
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.wire.errors import ConflictError, TocsinError

log = structlog.get_logger()

# Items in one write: an answer may hold very many, and none of them needs to wait for the others.
CHUNK: Final = 1_000
_FIRST_BACK_OFF_S: Final = 5.0
_LAST_BACK_OFF_S: Final = 900.0
_SPREAD: Final = 0.25
_LEAST_PAUSE_S: Final = 1.0


class ItemReceiver(Protocol):
    """What takes the items: a started feed."""

    entry: FeedEntry

    async def opened(self) -> None:
        """Returns when records are taken."""

    async def take(self, decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
        """Keeps the records and the marks of the items that they are, as one; ConflictError while none are taken."""


def back_off_s(failures: int, period_s: float, retry_after_s: float, rng: Random) -> float:
    """How long to wait after so many failures in a row: at most the period or a quarter of an hour, whichever is
    longer, and never less than the server asked for. Spread, so that those who fail together do not return together."""
    first_s, last_s = min(period_s, _FIRST_BACK_OFF_S), max(period_s, _LAST_BACK_OFF_S)
    wait_s = min(first_s * 2.0 ** min(failures - 1, 30), last_s)
    return max(wait_s, retry_after_s) * rng.uniform(1.0, 1.0 + _SPREAD)


class UrlPoller:
    """Polls for one feed from `start` to `close`; one poll at a time."""

    def __init__(
        self,
        taker: ItemReceiver,
        polling: UrlOptions,
        seen: SeenItems,
        judge: Judge,
        counts: FeedCounts,
        *,
        rng: Random | None = None,
        timeout_s: float = TIMEOUT_S,
        body_limit_bytes: int = BODY_LIMIT_BYTES,
        guard: AddressGuard = UNGUARDED,
    ) -> None:
        self._counts = counts
        self._name = taker.entry.name
        self._taker = taker
        self._polling = polling
        self._seen = seen
        self._judge = judge
        self._rng = rng or Random()
        self._fetcher = UrlClient(polling, timeout_s=timeout_s, body_limit_bytes=body_limit_bytes, guard=guard)
        self._trouble = ""
        self._failures = 0
        self._closing = False
        self._taking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    @property
    def open(self) -> None:
        """Nobody connects to it."""

    async def close(self) -> None:
        """No poll is under way when this returns, and none comes. What was being kept is kept."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._fetcher:
            while True:
                await self._taker.opened()
                began_s = loop.time()
                pause_s = await self._polled()
                if pause_s is None:
                    # From beginning to beginning, but a server that takes long is left alone for a moment.
                    left_s = self._polling.period_s - (loop.time() - began_s)
                    pause_s = max(left_s, min(self._polling.period_s, _LEAST_PAUSE_S))
                await asyncio.sleep(pause_s)

    async def _polled(self) -> float | None:
        """One poll; how long to wait where it failed."""
        self._counts.polls += 1
        try:
            fetched = await self._fetcher.fetch()
            if fetched is None:
                self._counts.polls_unchanged += 1
            else:
                # Not broken off by a STOP: what is being written then is taken, and lands.
                self._taking = asyncio.create_task(self._take(fetched))
                await asyncio.shield(self._taking)
        except ConflictError:
            return 0.0  # it is being stopped; should it go on, what was not kept is asked for again
        except FetchError as error:
            return self._failed(error.what, str(error), error.retry_after_s)
        except TocsinError as error:
            # Its answer cannot be read, or its records cannot be kept now.
            return self._failed(error.code, str(error), float(error.details.get("retry_after_s", 0.0)))
        except Exception as error:
            if not self._trouble:
                self._told("error", "polling failed", exc_info=error)
            return self._failed(type(error).__name__, str(error), 0.0)
        self._worked()
        return None

    async def _take(self, fetched: UrlAnswer) -> None:
        marks, fresh = await asyncio.to_thread(self._unseen, fetched.body)
        chunks = self._chunks(fetched.body, fresh)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            if self._closing:
                return  # the rest comes when the feed is started again
            decoded = await asyncio.to_thread(self._judge, [item for _, item in chunk])
            await self._taker.take(decoded, [marks[place] for place, _ in chunk])
        self._counts.taken_bytes += len(fetched.body) if fresh else 0
        await asyncio.to_thread(self._seen.answered, marks)
        self._fetcher.done(fetched)

    def _unseen(self, body: bytes) -> tuple[list[bytes], set[int]]:
        """The marks of all items, and the places of those that were never taken."""
        marks = [mark(identity) for identity, _ in items(body, self._polling.format)]
        return marks, set(self._seen.unseen(marks))

    def _chunks(self, body: bytes, places: set[int]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """The items at these places. They are parsed once more: all of them at once would take too much memory."""
        if not places:
            return
        found = enumerate(record for _, record in items(body, self._polling.format))
        wanted = (item for item in found if item[0] in places)
        while chunk := list(islice(wanted, CHUNK)):
            yield chunk

    # ------------------------------------------------------------ how it goes

    def _failed(self, what: str, reason: str, retry_after_s: float) -> float:
        self._counts.polls_failed += 1
        self._failures += 1
        wait_s = back_off_s(self._failures, self._polling.period_s, retry_after_s, self._rng)
        if what != self._trouble:
            # Once, not each time: what goes on for a day is one trouble.
            self._trouble = what
            self._told("warning", "polling fails", host=self._polling.host, reason=reason)
        return wait_s

    def _worked(self) -> None:
        if self._trouble:
            self._told("info", "polling works again", host=self._polling.host, failures=self._failures)
        self._trouble, self._failures = "", 0

    def _told(self, level: str, event: str, **about: Any) -> None:
        # Polling goes on whether or not it can be told.
        with suppress(Exception):
            getattr(log, level)(event, feed=self._name, **about)
