"""The two ways a script's outcomes reach its client: whole, within bounds, or line by line without end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.outcome import Outcome
from tocsin.serving.answers import answer, error_json, internal_answer, internal_error, refusal
from tocsin.settings import StatementSettings
from tocsin.wire.errors import LimitError, TocsinError

NDJSON: Final = "application/x-ndjson"

_WRITE_BYTES = 64 * 1024
_LAST_LINE_S = 1.0


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """What scripts may take."""

    timeout_s: float
    rows_limit: int
    concurrent: int
    waiting: int = 64
    answer_limit_bytes: int = 64 * 1024 * 1024
    """For an answer that is not streamed: it is held in memory until it is whole."""
    grace_s: float = 10.0
    """For running scripts to finish when the cluster stops."""

    @staticmethod
    def of(settings: StatementSettings) -> StatementLimits:
        return StatementLimits(settings.timeout_s, settings.rows_limit, settings.concurrent)


class WholeAnswer:
    """`{"results": […]}`, held until the script is through: only up to a number of rows and bytes."""

    def __init__(self, limits: StatementLimits) -> None:
        self._limits = limits
        self._results: list[orjson.Fragment] = []
        self._rows: list[bytes] = []
        self._rows_count = 0
        self._size_bytes = 0

    async def begin(self) -> None:
        self._rows = []

    async def rows(self, outcome: Outcome, batch: list[bytes]) -> None:
        self._rows_count += len(batch)
        self._size_bytes += sum(map(len, batch))
        over = None
        if self._rows_count > self._limits.rows_limit:
            over = f"{self._limits.rows_limit} rows"
        elif self._size_bytes > self._limits.answer_limit_bytes:
            over = f"{self._limits.answer_limit_bytes} bytes"
        if over is not None:
            raise LimitError(
                f"the answer has more than {over}",
                hint=f'ask for a stream with "Accept: {NDJSON}", or use LIMIT',
                statement=outcome.statement,
            )
        self._rows += batch

    async def end(self, outcome: Outcome) -> None:
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


class StreamedAnswer:
    """One line per row and one per statement, sent as they come. A client that reads slowly slows the script down."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: NDJSON})
        self._count = 0

    async def begin(self) -> None:
        self._count = 0

    async def rows(self, outcome: Outcome, batch: list[bytes]) -> None:
        # Not sooner: a query that fails before its first row is then still answered with the status of its error.
        await self._prepare()
        self._count += len(batch)
        head = b'{"statement":%d,"row":' % outcome.statement
        pending = bytearray()
        for row in batch:
            pending += head
            pending += row
            pending += b"}\n"
            if len(pending) >= _WRITE_BYTES:
                await self._response.write(bytes(pending))
                pending.clear()
        if pending:
            await self._response.write(bytes(pending))

    async def end(self, outcome: Outcome) -> None:
        line: dict[str, Any] = {"statement": outcome.statement, "kind": outcome.kind, **outcome.summary}
        if outcome.rows is not None:
            line["rows"] = self._count
        await self._prepare()
        await self._response.write(orjson.dumps(line) + b"\n")

    async def finished(self) -> web.StreamResponse:
        await self._prepare()
        return self._response

    async def failed(self, error: TocsinError) -> web.StreamResponse:
        if not self._response.prepared:
            return refusal(error, results=[])
        return await self._last_line(error_json(error))

    async def broke(self, request_id: str, exc: BaseException) -> web.StreamResponse:
        if not self._response.prepared:
            return internal_answer(request_id, exc, results=[])
        return await self._last_line(internal_error(request_id, exc))

    async def _prepare(self) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)

    async def _last_line(self, error: dict[str, Any] | orjson.Fragment) -> web.StreamResponse:
        """A client that does not read must not hold us: it loses the connection instead of being told."""
        try:
            async with asyncio.timeout(_LAST_LINE_S):
                await self._response.write(orjson.dumps({"error": error}) + b"\n")
                await self._response.write_eof()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
        return self._response
