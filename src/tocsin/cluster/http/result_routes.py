"""Fetches results over HTTP: many ranges of many interests in one streamed answer, or one range as JSON.

A fetch holds a slot of the waiting line only while the store reads a chunk for it, so a slow client blocks no other
fetch. The bytes that clients have not read yet count against a memory budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import orjson
from aiohttp import hdrs, web
from prometheus_client import Counter

from tocsin.rules.model.cursors import RESULT_BYTES, Cursor, InterestId, Range
from tocsin.serving.answers import REQUEST_ID, answer, error_json, internal_error, is_gone, send_in_time
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.limits import MemoryBudget, WaitingLine
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import callers_of, positive_int, read_message
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import FetchedRange
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.errors import InputError, TocsinError
from tocsin.wire.results import FRAMES, FetchedPage, FetchedPageItem, FetchRequest, NextRange, end, frame

_LIMIT: Final = 1_000

# A chunk of an answer with the chunk after it; None after the last.
_Chunk: TypeAlias = tuple[list[FetchedRange], list[FetchedRange] | None]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    answer_bytes: int = 64 << 20
    """The limit of one answer; the client asks again for the rest."""
    chunk_bytes: int = 1 << 20
    concurrent: int = 32
    waiting: int = 1_000
    write_timeout_s: float = 30.0
    """The time for a client to read a chunk; a client that does not read loses its connection."""
    unread_bytes: int = 256 << 20
    """The memory for all answers together; half of it for those of one caller."""


class ResultRoutes:
    def __init__(self, store: ChannelStore, metrics: ServerMetrics, limits: FetchLimits | None = None) -> None:
        self._store = store
        self._limits = limits or FetchLimits()
        self._gate = WaitingLine(
            self._limits.concurrent,
            self._limits.waiting,
            "fetches",
            own_inside=-(-3 * self._limits.concurrent // 4),
            own_waiting=-(-3 * self._limits.waiting // 4),
            refused=metrics.count_refused,
        )
        self._unread = MemoryBudget(
            self._limits.unread_bytes,
            own_limit_bytes=self._limits.unread_bytes // 2,
            name="fetched bytes",
            what="the fetched results that are not read yet",
            refused=metrics.count_refused,
        )
        self._results = Counter(
            "tocsin_results_fetched", "Results sent to brokers that fetched them.", registry=metrics.registry
        )

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/results:fetch", self.fetch), web.get("/v1/results/{interest}", self._fetch_one)]

    async def _fetch_one(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        interest_text = request.match_info["interest"]
        if not (interest_text.isascii() and interest_text.isdecimal() and len(interest_text) <= 20):
            raise InputError("an interest is a whole number")
        to = request.query.get("to")
        limit = positive_int(request, "limit", _LIMIT, most=100_000)
        if (after := request.query.get("after")) is None:
            raise InputError("after: which cursor?", hint="?after=0-0-0 asks for everything that is kept")
        # A number beyond 63 bits is simply not found.
        interest = InterestId(int(interest_text) if int(interest_text) < 1 << 63 else 0)
        requested = Range(interest, parse_cursor(after), None if to is None else parse_cursor(to), limit + 1)
        callers = callers_of(request)
        with self._unread.share(*callers) as grow:
            async with aclosing(self._fetch([requested], callers)) as chunks:
                response = answer((await self._whole(requested, limit, chunks, grow)).to_json())
            await send_in_time(request, response, self._limits.write_timeout_s)
        return response

    async def _whole(
        self, wanted: Range, limit: int, chunks: AsyncIterator[_Chunk], grow: Callable[[int], None]
    ) -> FetchedPage:
        results: list[FetchedPageItem] = []
        size_bytes, known, gap, more = 0, True, None, False
        async for chunk, _ in chunks:
            for part in chunk:
                known, gap = part.known, part.gap or gap
                for cursor, executed_us, payload in part.results:
                    if more := len(results) == limit or size_bytes >= self._limits.answer_bytes:
                        break
                    size_bytes += len(payload)
                    results.append(FetchedPageItem(cursor, executed_us, orjson.Fragment(payload)))
            grow(size_bytes)
            if more:
                break
        self._results.inc(len(results))
        return FetchedPage(wanted.interest, known, gap, tuple(results), more)

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        require(request[PRINCIPAL], "reader")
        wanted = await read_message(request, FetchRequest, unpack=True)
        ranges = [Range(part.interest, part.after, part.to, part.limit, part.limit_bytes) for part in wanted.ranges]
        callers = callers_of(request)
        with self._unread.share(*callers) as grow:
            async with aclosing(self._fetch(ranges, callers)) as chunks:
                return await self._stream(request, ranges, chunks, grow)

    async def _fetch(self, ranges: Sequence[Range], callers: tuple[str, ...]) -> AsyncGenerator[_Chunk, None]:
        """Yields each chunk with the chunk after it. A short answer then waits in line only once."""
        fetched = self._store.fetch(ranges, chunk_bytes=self._limits.chunk_bytes)
        async with aclosing(cast("AsyncGenerator[list[FetchedRange], None]", fetched)) as chunks:
            async with self._gate.hold_slot(*callers):
                chunk = await anext(chunks, None)
                following = None if chunk is None else await anext(chunks, None)
            while chunk is not None:
                yield chunk, following
                chunk = following
                if chunk is not None:
                    async with self._gate.hold_slot(*callers, is_back=True):
                        following = await anext(chunks, None)

    async def _stream(
        self, request: web.Request, ranges: Sequence[Range], chunks: AsyncIterator[_Chunk], grow: Callable[[int], None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: FRAMES})
        size_bytes, held_bytes, sent = 0, 0, _Sent()
        try:
            async for chunk, following in chunks:
                encoded = frame((fetched.range, fetched.results, fetched.gap, fetched.known) for fetched in chunk)
                size_bytes += len(encoded)
                # Count the following chunk too.
                held_bytes = max(held_bytes, len(encoded) if following is None else 2 * len(encoded))
                grow(held_bytes)
                self._results.inc(sent.add(chunk))
                if following is not None and size_bytes >= self._limits.answer_bytes:
                    await self._write(request, response, encoded + end(sent.next(ranges, following[0].range)))
                    break
                await self._write(request, response, encoded if following is not None else encoded + end(None))
            if not response.prepared:
                await self._write(request, response, end(None))
        except TimeoutError:
            # The client does not read. When it returns, it fetches after its last cursor.
            if request.transport is not None:
                request.transport.abort()
        except TocsinError as error:
            if not response.prepared:
                raise
            await self._write(request, response, orjson.dumps({"error": error_json(error)}) + b"\n")
        except Exception as exc:
            if not response.prepared or is_gone(request, exc):
                raise
            error_line = orjson.dumps({"error": internal_error(request[REQUEST_ID], exc)})
            await self._write(request, response, error_line + b"\n")
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        # Prepare the response as late as possible: an error before the first byte still gets its own status.
        if not response.prepared:
            await response.prepare(request)
        async with asyncio.timeout(self._limits.write_timeout_s):
            await response.write(data)


@dataclass(slots=True)
class _Sent:
    """The progress of an answer: the last range, the number and bytes of its results, and its last cursor."""

    range: int = -1
    count: int = 0
    size_bytes: int = 0
    cursor: Cursor | None = None

    def add(self, chunk: Sequence[FetchedRange]) -> int:
        """Adds a chunk, and returns the number of its results."""
        total = 0
        for part in chunk:
            if part.range != self.range:
                self.range, self.count, self.size_bytes, self.cursor = part.range, 0, 0, None
            if part.results:
                self.count += len(part.results)
                self.size_bytes += sum(result.size_bytes + RESULT_BYTES for result in part.results)
                self.cursor = part.results[-1].cursor
            total += len(part.results)
        return total

    def next(self, ranges: Sequence[Range], index: int) -> NextRange:
        """Returns where to continue if the next results belong to this range."""
        _, after, _, limit, limit_bytes = ranges[index]
        if index != self.range or self.cursor is None:
            return NextRange(index, after, limit, limit_bytes)
        return NextRange(
            index,
            self.cursor,
            None if limit is None else limit - self.count,
            None if limit_bytes is None else limit_bytes - self.size_bytes,
        )
