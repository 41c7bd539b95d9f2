"""Parses what several routes read from a request: a script, its time limit, the form of the answer, and names.

Errors say where, as those of a script do, because people write these requests by hand.
"""

from __future__ import annotations

import math

import orjson
from aiohttp import hdrs, web

from tocsin.cluster.catalog.catalog import DEFAULT
from tocsin.cluster.http.answer_formats import NDJSON
from tocsin.wire.cluster import ScriptRequest
from tocsin.wire.errors import InputError, UnsupportedError


def read_timeout_s(request: web.Request) -> float:
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
    return ScriptRequest.parse(value).script


def split_full_name(text: str) -> tuple[str, str]:
    """Splits `dataverse.name`; a name alone is in the dataverse Default."""
    dataverse, dot, name = text.rpartition(".")
    return (dataverse if dot else DEFAULT), name


def path_name(request: web.Request) -> tuple[str, str]:
    return split_full_name(request.match_info["name"])
