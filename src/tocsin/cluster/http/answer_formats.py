"""The forms in which a script's outcomes are written: lines of JSON, or the one object of AsterixDB's query service.

A format writes pieces in the order of the script and knows nothing of the connection, so that the same format serves
answers that are streamed and answers that are held back until they are whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.serving.answers import error_headers, error_json, internal_answer, internal_error, refusal
from tocsin.wire.errors import ScriptCancelledError, StoppedError, TocsinError

NDJSON: Final = "application/x-ndjson"
_JSON: Final = "application/json"
_WARNINGS_LIMIT: Final = 1_000


class AnswerFormat(Protocol):
    """Writes an answer in pieces. `refused` and `broken` are whole answers, for an error before the first piece."""

    @property
    def media_type(self) -> str: ...

    def rows(self, outcome: StatementOutcome, batch: list[bytes], /) -> bytes:
        """Some rows of a query, each encoded as JSON; at least one."""
        ...

    def statement(self, outcome: StatementOutcome, rows: int, /) -> bytes:
        """The end of a statement, after all its rows."""
        ...

    def end(self) -> bytes: ...

    def error_end(self, error: TocsinError) -> bytes:
        """The end of an answer whose script has failed."""
        ...

    def crash_end(self, request_id: str, exc: BaseException) -> bytes: ...

    def error_response(self, error: TocsinError) -> web.Response: ...

    def crash_response(self, request_id: str, exc: BaseException) -> web.Response: ...


class LineFormat:
    """One line per row, one per statement, and the error as the last line."""

    media_type = NDJSON

    def rows(self, outcome: StatementOutcome, batch: list[bytes]) -> bytes:
        head, tail = b'{"statement":%d,"row":' % outcome.statement, b"}\n"
        return b"".join((head, (tail + head).join(batch), tail))

    def statement(self, outcome: StatementOutcome, rows: int) -> bytes:
        line: dict[str, Any] = {"statement": outcome.statement, "kind": outcome.kind, **outcome.summary}
        if outcome.rows is not None:
            line["rows"] = rows
        return orjson.dumps(line) + b"\n"

    def end(self) -> bytes:
        return b""

    def error_end(self, error: TocsinError) -> bytes:
        return orjson.dumps({"error": error_json(error)}) + b"\n"

    def crash_end(self, request_id: str, exc: BaseException) -> bytes:
        return orjson.dumps({"error": internal_error(request_id, exc)}) + b"\n"

    def error_response(self, error: TocsinError) -> web.Response:
        return refusal(error, results=[])

    def crash_response(self, request_id: str, exc: BaseException) -> web.Response:
        return internal_answer(request_id, exc, results=[])


class ServiceFormat:
    """The answer of AsterixDB's query service: `{"requestID", …, "results", …, "status", "metrics"}`.

    The rows of the first query are `results`, those of further ones `results-0`, `results-1` and so on."""

    media_type = _JSON

    def __init__(self, request_id: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.client_context_id: str | None = None
        self.has_signature = True
        self.warnings_limit = 0
        self._request_id = request_id
        self._clock = clock
        self._began_s = clock()
        self._is_begun = False
        self._is_open = False
        self._queries = 0
        self._rows = 0
        self._size_bytes = 0
        self._warnings = 0
        self._shown_warnings: list[dict[str, Any]] = []

    # ------------------------------------------------------------ pieces

    def rows(self, _outcome: StatementOutcome, batch: list[bytes]) -> bytes:
        before = b",\n" if self._is_open else self._open()
        self._rows += len(batch)
        self._size_bytes += sum(map(len, batch))
        return before + b",\n".join(batch)

    def statement(self, outcome: StatementOutcome, _rows: int) -> bytes:
        for note in (*outcome.summary.get("notes", ()), *filter(None, [outcome.summary.get("note")])):
            self._warn(note)
        if outcome.rows is None:
            # The original answers the subscription's id, as it answers a query.
            if outcome.kind != "subscribe_statement":
                return b""
            return self.rows(outcome, [orjson.dumps(outcome.summary["subscription"])]) + self._close()
        return (b"" if self._is_open else self._open()) + self._close()

    def end(self) -> bytes:
        fields: dict[str, Any] = {"plans": {}}
        if self._shown_warnings:
            fields["warnings"] = self._shown_warnings
        return self._finish({**fields, "status": "success", "metrics": self._metrics()})

    def error_end(self, error: TocsinError) -> bytes:
        return self._fail(str(error), retriable=bool(error.to_json()["retry"]), status=_service_status(error)[0])

    def crash_end(self, request_id: str, exc: BaseException) -> bytes:
        fields = internal_error(request_id, exc)
        return self._fail(f"{fields['message']} (id {request_id})", retriable=False, status="fatal")

    def error_response(self, error: TocsinError) -> web.Response:
        return self.whole(self.error_end(error), _service_status(error)[1], error_headers(error))

    def crash_response(self, request_id: str, exc: BaseException) -> web.Response:
        return self.whole(self.crash_end(request_id, exc), 500)

    def whole(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
        return web.Response(body=body, status=status, headers={hdrs.CONTENT_TYPE: self.media_type, **(headers or {})})

    # ------------------------------------------------------------ parts of the object

    def _head(self) -> bytes:
        """The first fields, once."""
        if self._is_begun:
            return b""
        self._is_begun = True
        fields = {"requestID": self._request_id}
        if self.client_context_id:
            fields["clientContextID"] = self.client_context_id
        return orjson.dumps(fields)[:-1]

    def _open(self) -> bytes:
        signature = b',\n"signature":{"*":"*"}' if self.has_signature and not self._queries else b""
        name = b"results" if not self._queries else b"results-%d" % (self._queries - 1)
        self._queries += 1
        self._is_open = True
        return self._head() + signature + b',\n"' + name + b'":[ '

    def _close(self) -> bytes:
        self._is_open = False
        return b"\n]"

    def _finish(self, fields: Mapping[str, Any]) -> bytes:
        return self._head() + b",\n" + orjson.dumps(fields)[1:] + b"\n"

    def _fail(self, message: str, *, retriable: bool, status: str) -> bytes:
        error: dict[str, Any] = {"code": 1, "msg": message.encode("utf-8", "replace").decode()}
        if retriable:
            error["retriable"] = True
        close = self._close() if self._is_open else b""
        return close + self._finish({"errors": [error], "status": status, "metrics": self._metrics(errors=1)})

    def _warn(self, message: str) -> None:
        self._warnings += 1
        if len(self._shown_warnings) < min(self.warnings_limit, _WARNINGS_LIMIT):
            self._shown_warnings.append({"code": 1, "msg": message})

    def _metrics(self, *, errors: int = 0) -> dict[str, Any]:
        elapsed = _duration_text(self._clock() - self._began_s)
        metrics: dict[str, Any] = {
            "elapsedTime": elapsed,
            "executionTime": elapsed,
            "resultCount": self._rows,
            "resultSize": self._size_bytes,
            "processedObjects": 0,
        }
        if self._warnings:
            metrics["warningCount"] = self._warnings
        if errors:
            metrics["errorCount"] = errors
        return metrics


def _service_status(error: TocsinError) -> tuple[str, int]:
    """The `status` of the answer and its HTTP status, as the query service has them."""
    if isinstance(error, ScriptCancelledError):
        return "failed", 500
    if isinstance(error, StoppedError) and error.statement is not None:
        return "timeout", 200
    return "fatal", error.status


def _duration_text(seconds: float) -> str:
    return f"{seconds:.6f}s" if seconds >= 1 else f"{seconds * 1_000:.6f}ms"
