"""Parses a request to run a script: its text, its time limit, and whether the rows are streamed."""

from __future__ import annotations

import math

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.http.script_responses import NDJSON
from tocsin.wire.errors import InputError, UnsupportedError


def asked_timeout_s(request: web.Request) -> float:
    text = request.query.get("timeout")
    if text is None:
        return math.inf
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InputError("timeout must be a number of seconds above 0")
    return timeout_s


def wants_stream(request: web.Request) -> bool:
    accepted = (part.partition(";")[0].strip().lower() for part in request.headers.get(hdrs.ACCEPT, "").split(","))
    return NDJSON in accepted


def script_of(request: web.Request, body: bytes) -> str:
    """Returns the script in the body: plain text, or JSON with one field."""
    if hdrs.CONTENT_TYPE in request.headers and request.content_type not in ("text/plain", "application/json"):
        raise UnsupportedError(
            f"a script is text/plain, not {request.content_type[:100]}",
            hint='send "Content-Type: text/plain" (curl: -H "Content-Type: text/plain" --data-binary @FILE)',
        )
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedError(f"a script is UTF-8, not {(request.charset or '')[:100]}", hint="convert it to UTF-8")
    if request.content_type == "application/json":
        return _script_of_json(body)
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = body[: exc.start]
        raise InputError(
            f"the script is not UTF-8: byte {exc.start} cannot be read",
            hint="convert it to UTF-8",
            line=before.count(b"\n") + 1,
            column=len(before[before.rfind(b"\n") + 1 :].decode()) + 1,
        ) from None


def _script_of_json(body: bytes) -> str:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None
    if not isinstance(value, dict) or list(value) != ["script"] or not isinstance(value["script"], str):
        raise InputError('the body must be {"script": "…"}', hint="or send the script itself as text/plain")
    return value["script"]
