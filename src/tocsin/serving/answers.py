"""The form of all answers: JSON, and for every failure `{"error": {"code", "message", …}}`.

All exceptions of handlers pass through here. So no route writes error answers of its own, an unexpected error reveals
only an id to the client, and every answer carries the request's id in `Tocsin-Request-Id`.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog
from aiohttp import hdrs, web

from tocsin.serving.addresses import client_address
from tocsin.wire import errors

RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_HEADER: Final = "Tocsin-Request-Id"
REQUEST_ID_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}$"
REQUEST_ID: Final = web.RequestKey("REQUEST_ID", str)

_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)
_LEAST_BYTES_PER_S: Final = 64 * 1024
_CHANCE = random.Random()
_log = structlog.get_logger("tocsin.serving")


def answer(value: Any, *, status: int = 200) -> web.Response:
    """A JSON answer. `orjson.Fragment` in the value inserts bytes that already are JSON."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def refusal(error: errors.TocsinError, **beside: Any) -> web.Response:
    """The answer for an error; `beside` are further fields next to the error."""
    response = answer({"error": error_json(error), **beside}, status=error.status)
    response.headers.update(error_headers(error))
    return response


def error_headers(error: errors.TocsinError) -> dict[str, str]:
    """The headers of an error's answer."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.UnauthorizedError):
        headers[hdrs.WWW_AUTHENTICATE] = 'Bearer realm="tocsin"'
    if (retry_after_s := error.details.get("retry_after_s", 1 if error.status == 503 else None)) is not None:
        headers[hdrs.RETRY_AFTER] = str(max(1, math.ceil(retry_after_s)))
    if (allowed := error.details.get("allowed")) is not None:
        headers[hdrs.ALLOW] = ", ".join(allowed)
    return headers


def error_json(error: errors.TocsinError) -> orjson.Fragment:
    """The error's fields. Text from the request may be invalid Unicode; question marks replace such characters."""
    fields = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in error.to_json().items()
    }
    return orjson.Fragment(orjson.dumps(fields, default=str))


def internal_error(request_id: str, exc: BaseException) -> dict[str, Any]:
    """What a client may learn of an internal error; the log has the rest under the same id."""
    _log.error("an HTTP request failed unexpectedly", id=request_id, exc_info=exc)
    return {"code": "internal", "message": "something went wrong inside; the log tells more", "id": request_id}


def internal_answer(request_id: str, exc: BaseException, **beside: Any) -> web.Response:
    return answer({"error": internal_error(request_id, exc), **beside}, status=500)


def raw_refusal(error: errors.TocsinError) -> bytes:
    """The whole HTTP message of an error, where no request could be read. It closes the connection."""
    body = orjson.dumps({"error": error_json(error)})
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Server: tocsin\r\nConnection: close\r\n"
    )
    if error.status in (429, 503):
        head += "Retry-After: 1\r\n"
    return head.encode() + b"\r\n" + body


async def send_in_time(request: web.Request, response: web.StreamResponse, write_timeout_s: float) -> None:
    """Sends the answer and returns when the client has read nearly all of it. A client that reads too slowly is
    disconnected, so that its answer does not occupy memory forever."""
    await response.prepare(request)
    size_bytes = len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0
    try:
        async with asyncio.timeout(write_timeout_s + size_bytes / _LEAST_BYTES_PER_S):
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()


def _from_http(exc: web.HTTPException, request: web.BaseRequest) -> errors.TocsinError:
    """Translates a refusal of the HTTP library into our error."""
    if isinstance(exc, web.HTTPMethodNotAllowed):
        allowed = sorted(exc.allowed_methods)
        return errors.UnsupportedError(
            f"{request.method} is not possible here", status=405, hint=f"use {' or '.join(allowed)}", allowed=allowed
        )
    if exc.status == 404:
        return errors.NotFoundError("there is nothing at this address", hint="GET / lists what there is")
    if exc.status == 408:
        return errors.StoppedError("the request took too long to arrive")
    if exc.status in (413, 429, 431):
        return errors.LimitError("the request is too large", status=exc.status)
    return errors.UnsupportedError(HTTPStatus(exc.status).phrase, status=exc.status)


def _request_id(request: web.Request) -> str:
    """The request id that the client chose, or a new one."""
    chosen = request.headers.get(REQUEST_ID_HEADER)
    if chosen is None:
        # The id is no secret: a pseudo-random number is enough, and does not release the GIL as the system's would.
        return f"{_CHANCE.getrandbits(64):016x}"
    if _REQUEST_ID.fullmatch(chosen) is None:
        raise errors.InputError(f"{REQUEST_ID_HEADER} must be 1 to 64 letters, digits, dots, dashes or underscores")
    return chosen


def is_gone(request: web.BaseRequest, exc: BaseException) -> bool:
    """Whether the exception means that the client has disconnected, and not a failure behind the server."""
    return isinstance(exc, ConnectionError) and (request.transport is None or request.transport.is_closing())


async def answer_errors(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    """The handler's answer, or an error answer. It raises only on cancellation, when the client is gone, or for an
    HTTPException other than 4xx."""
    try:
        if REQUEST_ID not in request:
            request[REQUEST_ID] = _request_id(request)
        return await handler(request)
    except errors.TocsinError as error:
        return refusal(error)
    except web.HTTPException as exc:
        if not 400 <= exc.status < 500:
            raise
        return refusal(_from_http(exc, request))
    except Exception as exc:
        if is_gone(request, exc):
            raise
        return internal_answer(request.get(REQUEST_ID) or secrets.token_hex(8), exc)


@web.middleware
async def answer_middleware(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    response = await answer_errors(request, handler)
    _log.debug(
        "an HTTP request was answered",
        id=request.get(REQUEST_ID),
        method=request.method,
        path=request.rel_url.raw_path,
        status=response.status,
        client=client_address(request),
    )
    return response


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds headers to every answer: its request id, and no sniffing and caching."""
    if (identity := request.get(REQUEST_ID)) is not None:
        response.headers[REQUEST_ID_HEADER] = identity
    response.headers[hdrs.SERVER] = "tocsin"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
