"""Sends a script's outcomes to its client: whole, within limits, or streamed line by line.

A whole answer has an error's own status, but must fit into memory. A stream has no limit, but may end with an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.http.response_spool import ResponseSpool
from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.serving.answers import answer, error_json, internal_answer, internal_error, refusal, send_in_time
from tocsin.settings import StatementSettings
from tocsin.wire.errors import LimitError, TocsinError

NDJSON: Final = "application/x-ndjson"

_WRITE_BYTES = 256 * 1024  # each piece that goes to a file changes threads twice


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """The limits of scripts."""

    timeout_s: float
    rows_limit: int
    concurrent: int
    waiting: int = 64
    answer_limit_bytes: int = 64 * 1024 * 1024
    """For an answer that is not streamed: it is held in memory until it is complete."""
    grace_s: float = 10.0
    """How long running scripts may take to finish when the cluster stops."""

    own_concurrent: int = 0
    """Scripts of one token or address at once; 0 means three quarters of all."""
    spool_limit_bytes: int = 1 << 30
    write_timeout_s: float = 30.0

    @staticmethod
    def of(settings: StatementSettings, cores: int | None = None) -> StatementLimits:
        # More scripts than cores would be no faster for this caller, and slower for all others.
        default = min(-(-3 * settings.concurrent // 4), max(2, cores or os.cpu_count() or 1))
        return StatementLimits(
            settings.timeout_s,
            settings.rows_limit,
            settings.concurrent,
            own_concurrent=settings.token_concurrent or default,
            spool_limit_bytes=settings.spool_limit_bytes,
            write_timeout_s=settings.write_timeout_s,
        )


class BufferedResponse:
    """`{"results": […]}`, held in memory until the script has ended, up to a number of rows and bytes."""

    def __init__(self, limits: StatementLimits, grow: Callable[[int], None]) -> None:
        self._limits = limits
        self._grow = grow
        self._results: list[orjson.Fragment] = []
        self._rows: list[bytes] = []
        self._rows_count = 0
        self._size_bytes = 0

    async def begin(self) -> None:
        self._rows = []

    async def rows(self, outcome: StatementOutcome, batch: list[bytes]) -> None:
        self._rows_count += len(batch)
        self._size_bytes += sum(map(len, batch))
        exceeded = None
        if self._rows_count > self._limits.rows_limit:
            exceeded = f"{self._limits.rows_limit} rows"
        elif self._size_bytes > self._limits.answer_limit_bytes:
            exceeded = f"{self._limits.answer_limit_bytes} bytes"
        if exceeded is not None:
            raise LimitError(
                f"the answer has more than {exceeded}",
                hint=f'ask for a stream with "Accept: {NDJSON}", or use LIMIT',
                statement=outcome.statement,
            )
        self._grow(self._size_bytes)
        self._rows += batch

    async def end(self, outcome: StatementOutcome) -> None:
        result: dict[str, Any] = {"statement": outcome.statement, "kind": outcome.kind, **outcome.summary}
        if outcome.rows is not None:
            result["rows"] = orjson.Fragment(b"[" + b",".join(self._rows) + b"]")
        self._results.append(orjson.Fragment(orjson.dumps(result)))
        self._rows = []

    async def finished(self) -> web.Response:
        return answer({"results": self._results})

    async def failed(self, error: TocsinError) -> web.Response:
        return refusal(error, results=self._results)

    async def broke(self, request_id: str, exc: BaseException) -> web.Response:
        return internal_answer(request_id, exc, results=self._results)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Returns when the client has read almost all of it, or has taken too long."""
        await send_in_time(request, response, self._limits.write_timeout_s)

    async def close(self) -> None:
        """Does nothing: it holds no files."""


class StreamedResponse:
    """One line per row and one per statement, sent as they are produced. A spool holds what the client has not read
    yet, and outlives the script, so a slow client delays only its own answer."""

    def __init__(self, request: web.Request, spool: ResponseSpool, write_timeout_s: float) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: NDJSON})
        self._spool = spool
        self._write_timeout_s = write_timeout_s
        self._sending: asyncio.Task[None] | None = None
        self._count = 0

    async def begin(self) -> None:
        self._count = 0

    async def rows(self, outcome: StatementOutcome, batch: list[bytes]) -> None:
        # Prepare the response as late as possible: a query that fails before its first row still gets its own status.
        await self._prepare()
        self._count += len(batch)
        head, tail = b'{"statement":%d,"row":' % outcome.statement, b"}\n"
        # Estimate the number of rows and join them without a look at each: this runs on the event loop.
        rows_at_once = max(1, len(batch) * _WRITE_BYTES // (sum(map(len, batch)) or 1))
        for start in range(0, len(batch), rows_at_once):
            rows = batch[start : start + rows_at_once]
            await self._spool.put(b"".join((head, (tail + head).join(rows), tail)))

    async def end(self, outcome: StatementOutcome) -> None:
        line: dict[str, Any] = {"statement": outcome.statement, "kind": outcome.kind, **outcome.summary}
        if outcome.rows is not None:
            line["rows"] = self._count
        await self._prepare()
        await self._spool.put(orjson.dumps(line) + b"\n")

    async def finished(self) -> web.StreamResponse:
        await self._prepare()
        return await self._sent(b"")

    async def failed(self, error: TocsinError) -> web.StreamResponse:
        if not self._response.prepared:
            return refusal(error, results=[])
        return await self._sent(orjson.dumps({"error": error_json(error)}) + b"\n")

    async def broke(self, request_id: str, exc: BaseException) -> web.StreamResponse:
        if not self._response.prepared:
            return internal_answer(request_id, exc, results=[])
        return await self._sent(orjson.dumps({"error": internal_error(request_id, exc)}) + b"\n")

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Does nothing: the answer was sent while the script ran."""

    async def close(self) -> None:
        """Ends the sending and deletes the files, whether or not the client has read them."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self._spool.close()

    async def _prepare(self) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while (piece := await self._spool.take()) is not None:
                async with asyncio.timeout(self._write_timeout_s):
                    await self._response.write(piece)
        except BaseException as error:
            self._spool.break_off(error)
            if not isinstance(error, TimeoutError | ConnectionError):
                raise
            # A client that does not read must not block the server: it loses the connection.
            if self._request.transport is not None:
                self._request.transport.abort()

    async def _sent(self, last: bytes) -> web.StreamResponse:
        """Waits until the client has read everything, including this last line, or is gone."""
        assert self._sending is not None
        self._spool.end(last)
        await self._sending
        return self._response
