"""Results over HTTP: many ranges of many interests in one streamed answer, or one range as JSON.

A fetch holds one of the places only while the store reads for it, a chunk at a time: slow clients keep nobody else from
fetching. What they have not taken yet is counted in bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import orjson
from aiohttp import hdrs, web
from prometheus_client import Counter

from tocsin.rules.model.cursors import RESULT_BYTES, Cursor, Range
from tocsin.serving.answers import REQUEST_ID, answer, error_json, internal_error, is_gone, send_in_time
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.limits import MemoryBudget, WaitingLine
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import askers_of, read_json, whole
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import FetchedRange
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.errors import InputError, TocsinError
from tocsin.wire.results import FRAMES, NextRange, end, frame, parse_ranges

LIMIT: Final = 1_000

# Of an answer, and the next one; None after the last.
_Chunk: TypeAlias = tuple[list[FetchedRange], list[FetchedRange] | None]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    answer_bytes: int = 64 << 20
    """Of one answer; what is beyond it is to be asked for again."""
    chunk_bytes: int = 1 << 20
    concurrent: int = 32
    waiting: int = 1_000
    write_timeout_s: float = 30.0
    """For a client to take a chunk: one that does not read loses its connection."""
    unread_bytes: int = 256 << 20
    """What answers may take in memory together; half of it those of one asker."""


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
        self._results = Counter("tocsin_results_fetched", "Results handed to brokers.", registry=metrics.registry)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/results:fetch", self.fetch), web.get("/v1/results/{interest}", self.one)]

    async def one(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        asked = request.match_info["interest"]
        if not (asked.isascii() and asked.isdecimal() and len(asked) <= 20):
            raise InputError("an interest is a whole number")
        to = request.query.get("to")
        limit = whole(request, "limit", LIMIT, most=100_000)
        if (after := request.query.get("after")) is None:
            raise InputError("after: which cursor?", hint="?after=0-0-0 asks for everything that is kept")
        # A number that no interest can have is not found, rather than refused.
        interest = int(asked) if int(asked) < 1 << 63 else 0
        wanted = Range(interest, parse_cursor(after), None if to is None else parse_cursor(to), limit + 1)
        askers = askers_of(request)
        with self._unread.share(*askers) as grow:
            async with aclosing(self._fetch([wanted], askers)) as chunks:
                response = answer(await self._whole(wanted, limit, chunks, grow))
            await send_in_time(request, response, self._limits.write_timeout_s)
        return response

    async def _whole(
        self, wanted: Range, limit: int, chunks: AsyncIterator[_Chunk], grow: Callable[[int], None]
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"interest": wanted.interest, "known": True, "gap": None}
        results: list[dict[str, Any]] = []
        size_bytes, more = 0, False
        async for chunk, _ in chunks:
            for part in chunk:
                said["known"] = part.known
                if part.gap is not None:
                    said["gap"] = cursor_text(part.gap)
                for cursor, executed_us, payload in part.results:
                    if more := len(results) == limit or size_bytes >= self._limits.answer_bytes:
                        break
                    size_bytes += len(payload)
                    results.append(
                        {
                            "cursor": cursor_text(cursor),
                            "executed_us": executed_us,
                            "result": orjson.Fragment(payload),
                        }
                    )
            grow(size_bytes)
            if more:
                break
        self._results.inc(len(results))
        return {**said, "results": results, "more": more}

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        require(request[PRINCIPAL], "reader")
        ranges = parse_ranges(await read_json(request, unpack=True))
        askers = askers_of(request)
        with self._unread.share(*askers) as grow:
            async with aclosing(self._fetch(ranges, askers)) as chunks:
                return await self._streamed(request, ranges, chunks, grow)

    async def _fetch(self, ranges: Sequence[Range], askers: tuple[str, ...]) -> AsyncGenerator[_Chunk, None]:
        """Each chunk, and the one after it: so a short answer takes one turn at the gate."""
        fetched = self._store.fetch(ranges, chunk_bytes=self._limits.chunk_bytes)
        async with aclosing(cast("AsyncGenerator[list[FetchedRange], None]", fetched)) as chunks:
            async with self._gate.passed(*askers):
                chunk = await anext(chunks, None)
                following = None if chunk is None else await anext(chunks, None)
            while chunk is not None:
                yield chunk, following
                chunk = following
                if chunk is not None:
                    async with self._gate.passed(*askers, is_back=True):
                        following = await anext(chunks, None)

    async def _streamed(
        self,
        request: web.Request,
        ranges: Sequence[Range],
        chunks: AsyncIterator[_Chunk],
        grow: Callable[[int], None],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: FRAMES})
        size_bytes, held_bytes, sent = 0, 0, _Sent()
        try:
            async for chunk, following in chunks:
                some = frame((one.range, one.results, one.gap, one.known) for one in chunk)
                size_bytes += len(some)
                # As much again for the chunk that follows.
                held_bytes = max(held_bytes, len(some) if following is None else 2 * len(some))
                grow(held_bytes)
                self._results.inc(sent.add(chunk))
                if following is not None and size_bytes >= self._limits.answer_bytes:
                    await self._write(request, response, some + end(sent.next(ranges, following[0].range)))
                    break
                await self._write(request, response, some if following is not None else some + end(None))
            if not response.prepared:
                await self._write(request, response, end(None))
        except TimeoutError:
            # Nobody reads: whoever comes back fetches after the last cursor it has.
            if request.transport is not None:
                request.transport.abort()
        except TocsinError as error:
            if not response.prepared:
                raise
            await self._write(request, response, orjson.dumps({"error": error_json(error)}) + b"\n")
        except Exception as exc:
            if not response.prepared or is_gone(request, exc):
                raise
            told = orjson.dumps({"error": internal_error(request[REQUEST_ID], exc)})
            await self._write(request, response, told + b"\n")
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, some: bytes) -> None:
        # Not sooner: what fails before its first byte is then still answered with the status of its error.
        if not response.prepared:
            await response.prepare(request)
        async with asyncio.timeout(self._limits.write_timeout_s):
            await response.write(some)


@dataclass(slots=True)
class _Sent:
    """How far an answer has come: the last range, how many of its results and bytes, and the last of them."""

    range: int = -1
    count: int = 0
    size_bytes: int = 0
    cursor: Cursor | None = None

    def add(self, chunk: Sequence[FetchedRange]) -> int:
        """How many results the chunk has."""
        total = 0
        for part in chunk:
            if part.range != self.range:
                self.range, self.count, self.size_bytes, self.cursor = part.range, 0, 0, None
            if part.results:
                self.count += len(part.results)
                self.size_bytes += sum(one.size_bytes + RESULT_BYTES for one in part.results)
                self.cursor = part.results[-1].cursor
            total += len(part.results)
        return total

    def next(self, ranges: Sequence[Range], place: int) -> NextRange:
        """Where to go on when what comes next is of this range."""
        _, after, _, limit, limit_bytes = ranges[place]
        if place != self.range or self.cursor is None:
            return NextRange(place, after, limit, limit_bytes)
        return NextRange(
            place,
            self.cursor,
            None if limit is None else limit - self.count,
            None if limit_bytes is None else limit_bytes - self.size_bytes,
        )
