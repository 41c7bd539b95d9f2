"""Sends a script's outcomes to its client: whole, within limits, or streamed line by line.

A whole answer has an error's own status, but must fit into memory. A stream has no limit, but may end with an error.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.http.answer_formats import NDJSON, AnswerFormat, LineFormat, ServiceFormat
from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.serving.answers import answer, internal_answer, refusal, send_in_time
from tocsin.serving.limits import BudgetShare
from tocsin.settings import StatementSettings
from tocsin.wire.errors import LimitError, TocsinError

_LEAST_BYTES_PER_S: Final = 1 << 20
"""The script waits without a limit for a client that reads at least this fast."""


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
    script_limit_bytes: int = 8 << 20

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
            script_limit_bytes=settings.script_limit_bytes,
        )


class _HeldRows:
    """Reads the rows of an answer that is held in memory, up to a number of rows and bytes."""

    def __init__(
        self, limits: StatementLimits, grow: Callable[[int], None], count_rows: Callable[[int], None], hint: str
    ) -> None:
        self._limits = limits
        self._grow = grow
        self._count_rows = count_rows
        self._hint = hint
        self._rows_count = 0
        self._size_bytes = 0

    async def read(self, outcome: StatementOutcome) -> AsyncGenerator[list[bytes], None]:
        """Yields the rows of an outcome, and closes them. Raises LimitError."""
        if outcome.rows is None:
            return
        try:
            async for batch in outcome.rows.batches:
                self._count(outcome, batch)
                yield batch
        finally:
            await outcome.rows.close()

    def _count(self, outcome: StatementOutcome, batch: list[bytes]) -> None:
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
                hint=f"ask for a stream with {self._hint}, or use LIMIT",
                statement=outcome.statement,
            )
        self._grow(self._size_bytes)
        self._count_rows(len(batch))


class BufferedResponse:
    """`{"results": […]}`, held in memory until the script has ended, up to a number of rows and bytes."""

    def __init__(
        self,
        limits: StatementLimits,
        grow: Callable[[int], None],
        count_rows: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._write_timeout_s = limits.write_timeout_s
        self._rows = _HeldRows(limits, grow, count_rows, f'"Accept: {NDJSON}"')
        self._results: list[orjson.Fragment] = []

    async def take(self, outcome: StatementOutcome) -> None:
        """Reads the outcome with its rows."""
        result: dict[str, Any] = {"statement": outcome.statement, "kind": outcome.kind, **outcome.summary}
        if outcome.rows is not None:
            rows: list[bytes] = []
            async with aclosing(self._rows.read(outcome)) as batches:
                async for batch in batches:
                    rows += batch
            result["rows"] = orjson.Fragment(b"[" + b",".join(rows) + b"]")
        self._results.append(orjson.Fragment(orjson.dumps(result)))

    async def finish(self) -> web.Response:
        return answer({"results": self._results})

    async def fail(self, error: TocsinError) -> web.Response:
        return refusal(error, results=self._results)

    async def crash(self, request_id: str, exc: BaseException) -> web.Response:
        return internal_answer(request_id, exc, results=self._results)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Returns when the client has read almost all of it, or has taken too long."""
        await send_in_time(request, response, self._write_timeout_s)

    async def close(self) -> None:
        """Does nothing: it holds no files."""


class BufferedAnswer:
    """The answer of the query service, held in memory until the script has ended: an error has its own status."""

    def __init__(
        self,
        limits: StatementLimits,
        grow: Callable[[int], None],
        form: ServiceFormat,
        count_rows: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._write_timeout_s = limits.write_timeout_s
        self._rows = _HeldRows(limits, grow, count_rows, '"stream": true')
        self._form = form
        self._pieces: list[bytes] = []

    async def take(self, outcome: StatementOutcome) -> None:
        count = 0
        async with aclosing(self._rows.read(outcome)) as batches:
            async for batch in batches:
                count += len(batch)
                if batch:
                    self._pieces.append(self._form.rows(outcome, batch))
        self._pieces.append(self._form.statement(outcome, count))

    async def finish(self) -> web.Response:
        return self._form.whole(b"".join([*self._pieces, self._form.end()]))

    async def fail(self, error: TocsinError) -> web.Response:
        return self._with_results(self._form.error_response(error))

    async def crash(self, request_id: str, exc: BaseException) -> web.Response:
        return self._with_results(self._form.crash_response(request_id, exc))

    def _with_results(self, response: web.Response) -> web.Response:
        """Puts what the script had answered before it failed in front."""
        assert isinstance(response.body, bytes)
        response.body = b"".join([*self._pieces, response.body])
        return response

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        await send_in_time(request, response, self._write_timeout_s)

    async def close(self) -> None:
        """Does nothing: it holds no files."""


class StreamedResponse:
    """One line per row and one per statement. The rows wait on the disk, and are read and sent one answer after the
    other, while the script goes on or after it has ended: a slow client delays only its own answer.

    `space` is the disk space of the rows that are not sent yet. Above its limit the script waits for its client
    (backpressure), at most `patience_s` in all for one that reads slowly; then the answer is cut off.
    """

    def __init__(
        self,
        request: web.Request,
        space: BudgetShare,
        write_timeout_s: float,
        count_rows: Callable[[int], None] = lambda _count: None,
        *,
        patience_s: float | None = None,
        response: web.StreamResponse | None = None,
        form: AnswerFormat | None = None,
    ) -> None:
        self._request = request
        self._form = form or LineFormat()
        self._response = response or web.StreamResponse(headers={hdrs.CONTENT_TYPE: self._form.media_type})
        self._space = space
        self._is_cut_off = False
        self._write_timeout_s = write_timeout_s
        self._patience_s = write_timeout_s if patience_s is None else patience_s
        self._count_rows = count_rows
        self._queue: deque[StatementOutcome] = deque()
        self._held_bytes = self._sent_bytes = 0
        self._last: Callable[[], bytes] | None = None  # writes the end of the answer, once it is known
        self._error: Exception | None = None  # ended the sending
        self._filled, self._progress = asyncio.Event(), asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def take(self, outcome: StatementOutcome) -> None:
        """Queues the outcome. Raises the error that has ended the sending, LimitError if the client is too slow."""
        if outcome.rows is not None:
            self._held_bytes += outcome.rows.held_bytes
        self._queue.append(outcome)
        self._filled.set()
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        while (full := self._space.take_what_fits(self._held_bytes)) is not None:
            await self._wait_for_client(full)
        if self._error is not None:
            raise self._error

    async def finish(self) -> web.StreamResponse:
        """Waits until the client has read everything, or is gone. Raises the error that has ended the sending."""
        await self._end(self._form.end)
        if self._error is not None and not isinstance(self._error, ConnectionResetError):
            raise self._error
        return self._response

    async def fail(self, error: TocsinError) -> web.StreamResponse:
        return await self._end_with(lambda: self._form.error_end(error)) or self._form.error_response(error)

    async def crash(self, request_id: str, exc: BaseException) -> web.StreamResponse:
        end = await self._end_with(lambda: self._form.crash_end(request_id, exc))
        return end or self._form.crash_response(request_id, exc)

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Does nothing: the answer was sent while the script ran."""

    async def close(self) -> None:
        """Ends the sending and frees the disk space, whether or not the client has read the rows."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        while self._queue:
            await self._drop(self._queue.popleft())

    # ------------------------------------------------------------ the client

    async def _send(self) -> None:
        try:
            while await self._has_more():
                if not self._is_cut_off:
                    await self._send_outcome(self._queue[0])
                await self._drop(self._queue.popleft())
            await self._prepare()
            if self._last is not None and (last := self._last()):
                await self._write(last)
        except (TimeoutError, ConnectionError) as error:
            self._error = ConnectionResetError("the client does not read")
            self._error.__cause__ = error
            # A client that does not read must not block the server: it loses the connection.
            if self._request.transport is not None:
                self._request.transport.abort()
        except Exception as error:
            self._error = error
        finally:
            self._progress.set()

    async def _has_more(self) -> bool:
        while not self._queue and self._last is None:
            self._filled.clear()
            await self._filled.wait()
        return bool(self._queue)

    async def _send_outcome(self, outcome: StatementOutcome) -> None:
        count = 0
        if outcome.rows is not None:
            async for batch in outcome.rows.batches:
                if self._is_cut_off:
                    return
                count += len(batch)
                self._count_rows(len(batch))
                if batch:
                    await self._write(self._form.rows(outcome, batch))
        if piece := self._form.statement(outcome, count):
            await self._write(piece)

    async def _write(self, piece: bytes) -> None:
        await self._prepare()
        async with asyncio.timeout(self._write_timeout_s):
            await self._response.write(piece)
        self._sent_bytes += len(piece)
        self._progress.set()

    async def _prepare(self) -> None:
        # As late as possible: a query that fails before its first row still gets its own status.
        if not self._response.prepared:
            await self._response.prepare(self._request)

    async def _end(self, last: Callable[[], bytes]) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        self._last = last
        self._filled.set()
        await self._sending

    async def _end_with(self, error: Callable[[], bytes]) -> web.StreamResponse | None:
        """Sends the error as the end. None if nothing was sent before: then the error can be the whole answer."""
        if self._sending is None:
            return None
        await self._end(error)
        if self._error is None or isinstance(self._error, ConnectionResetError):
            return self._response
        if not self._response.prepared:
            return None
        with suppress(TimeoutError, ConnectionError):
            await self._write(error())
        return self._response

    # ------------------------------------------------------------ disk space

    async def _drop(self, outcome: StatementOutcome) -> None:
        if outcome.rows is not None:
            await outcome.rows.close()
            self._held_bytes -= outcome.rows.held_bytes
            self._space.take_what_fits(self._held_bytes)
            self._progress.set()

    async def _wait_for_client(self, full: LimitError) -> None:
        clock = asyncio.get_running_loop().time
        began_s, sent_before_bytes = clock(), self._sent_bytes
        if self._error is not None:
            raise self._error
        self._progress.clear()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._progress.wait()
        except TimeoutError:
            self._is_cut_off = True
            raise LimitError(
                f"the client reads too slowly: {full.message}", status=429, retry=True, retry_after_s=1,
                hint="read faster, ask for less with LIMIT, or raise cluster.statements.spool_limit_bytes",
            ) from None  # fmt: skip
        read_bytes = self._sent_bytes - sent_before_bytes
        self._patience_s -= max(0.0, clock() - began_s - read_bytes / _LEAST_BYTES_PER_S)
