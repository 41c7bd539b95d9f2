"""Results over HTTP: many ranges of many interests in one streamed answer, or one range as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
from aiohttp import hdrs, web
from prometheus_client import Counter

from tocsin.rules.model.cursors import RESULT_BYTES, Cursor, Range
from tocsin.serving.answers import REQUEST_ID, answer, error_json, internal_error, is_gone
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.limits import Gate
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import askers_of, read_json, whole
from tocsin.serving.tokens import require
from tocsin.store.channel_rows import Fetched
from tocsin.store.channel_store import ChannelStore
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.errors import InputError, TocsinError
from tocsin.wire.results import FRAMES, Next, end, frame, parse_ranges

LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True)
class FetchLimits:
    answer_bytes: int = 64 << 20
    """Of one answer; what is beyond it is to be asked for again."""
    chunk_bytes: int = 1 << 20
    concurrent: int = 32
    waiting: int = 1_000
    write_timeout_s: float = 30.0
    """For a client to take a chunk: one that does not read must not keep others from reading."""


class ResultRoutes:
    def __init__(self, store: ChannelStore, metrics: ServerMetrics, limits: FetchLimits | None = None) -> None:
        self._store = store
        self._limits = limits or FetchLimits()
        self._gate = Gate(
            self._limits.concurrent,
            self._limits.waiting,
            "fetches",
            own_inside=-(-3 * self._limits.concurrent // 4),
            own_waiting=-(-3 * self._limits.waiting // 4),
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
        said: dict[str, Any] = {"interest": wanted.interest, "known": True, "gap": None}
        results: list[dict[str, Any]] = []
        size_bytes, more = 0, False
        async with self._gate.passed(*askers_of(request)), aclosing(self._fetch([wanted])) as chunks:
            async for chunk in chunks:
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
                if more:
                    break
        self._results.inc(len(results))
        return answer({**said, "results": results, "more": more})

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        require(request[PRINCIPAL], "reader")
        ranges = parse_ranges(await read_json(request, unpack=True))
        async with self._gate.passed(*askers_of(request)), aclosing(self._fetch(ranges)) as chunks:
            return await self._streamed(request, ranges, chunks)

    def _fetch(self, ranges: Sequence[Range]) -> AsyncGenerator[list[Fetched], None]:
        fetched = self._store.fetch(ranges, chunk_bytes=self._limits.chunk_bytes)
        return cast("AsyncGenerator[list[Fetched], None]", fetched)

    async def _streamed(
        self, request: web.Request, ranges: Sequence[Range], chunks: AsyncIterator[list[Fetched]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: FRAMES})
        pending, size_bytes, stopped = b"", 0, None
        sent = _Sent()
        try:
            async for chunk in chunks:
                # One behind, so that a short answer is one write.
                if pending:
                    await self._write(request, response, pending)
                if size_bytes >= self._limits.answer_bytes:
                    pending, stopped = b"", sent.next(ranges, chunk[0].range)
                    break
                pending = frame((one.range, one.results, one.gap, one.known) for one in chunk)
                size_bytes += len(pending)
                self._results.inc(sent.add(chunk))
            await self._write(request, response, pending + end(stopped))
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

    def add(self, chunk: Sequence[Fetched]) -> int:
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

    def next(self, ranges: Sequence[Range], place: int) -> Next:
        """Where to go on when what comes next is of this range."""
        _, after, _, limit, limit_bytes = ranges[place]
        if place != self.range or self.cursor is None:
            return Next(place, after, limit, limit_bytes)
        return Next(
            place,
            self.cursor,
            None if limit is None else limit - self.count,
            None if limit_bytes is None else limit_bytes - self.size_bytes,
        )
