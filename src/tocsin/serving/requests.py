"""Reads requests for the routes: query parameters, JSON, and the clients whose limits apply.

Parsed JSON takes many times the memory of its text. So the number of its values is limited before it is parsed, beside
the number of its bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar

import orjson
from aiohttp import web

from tocsin.serving.addresses import address_key, client_address, is_loopback
from tocsin.serving.application import LIMITS, MEMORY_BUDGET
from tocsin.serving.authentication import EVERYBODY, PRINCIPAL
from tocsin.serving.limits import read_body
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.messages import Message

_M = TypeVar("_M", bound=Message)

_JSON_LIMIT_BYTES: Final = 16 << 20
_VALUES_LIMIT: Final = 2_000_000
"""The largest number of values in a JSON body: a value takes some 60 bytes of memory, though two may be enough to write
it."""


def callers_of(request: web.Request) -> tuple[str, ...]:
    """The clients whose limits the request counts against: its token, and its address unless that is this machine's."""
    token = request.get(PRINCIPAL, EVERYBODY)
    address = client_address(request)
    callers = () if token == EVERYBODY else (f"the token {token.name}",)
    return callers if is_loopback(address) else (*callers, f"the address {address_key(address)}")


async def read_json(request: web.Request, *, unpack: bool = False, limit_bytes: int = _JSON_LIMIT_BYTES) -> Any:
    """The JSON value of the body; with `unpack` the body may be compressed with gzip."""
    limits = request.app[LIMITS]
    limits = dataclasses.replace(limits, body_limit_bytes=min(limits.body_limit_bytes, limit_bytes))
    with request.app[MEMORY_BUDGET].share(*callers_of(request)) as grow:
        body = await read_body(request, limits, unpack=unpack, grow=grow)
    return parse_json(body)


def parse_json(body: bytes) -> Any:
    """The JSON value of a body. Raises LimitError if it has too many values."""
    if len(body) > _VALUES_LIMIT and sum(map(body.count, (b",", b"[", b"{"))) > _VALUES_LIMIT:
        raise LimitError(f"the body holds more than {_VALUES_LIMIT} values", hint="send it in parts")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None


async def read_message(
    request: web.Request, kind: type[_M], *, unpack: bool = False, limit_bytes: int = _JSON_LIMIT_BYTES
) -> _M:
    """The message in the body."""
    return kind.parse(await read_json(request, unpack=unpack, limit_bytes=limit_bytes))


def check_query(request: web.Request, *known: str) -> None:
    for parameter in request.query:
        if parameter not in known:
            raise InputError(f'there is no parameter "{parameter[:100]}"', hint=f"known: {', '.join(known) or 'none'}")


def positive_int(request: web.Request, name: str, default: int, *, most: int) -> int:
    """A positive whole number from the query."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and 1 <= int(text) <= most):
        raise InputError(f"{name}: must be a whole number from 1 to {most}")
    return int(text)


def seconds(request: web.Request, name: str, *, most: float) -> float:
    """A number of seconds from the query, 0 if it is absent, capped at `most`."""
    text = request.query.get(name)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{name}: must be a number of seconds")
    return min(value, most)
