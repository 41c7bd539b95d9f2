"""What routes read of a request: numbers, JSON, and whose limits it counts against."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, Final

import orjson
from aiohttp import web

from tocsin.serving.addresses import client_address, is_own, place_of
from tocsin.serving.application import LIMITS, ROOM
from tocsin.serving.authentication import EVERYBODY, PRINCIPAL
from tocsin.serving.limits import read_body
from tocsin.wire.errors import InputError, LimitError

JSON_LIMIT_BYTES: Final = 16 << 20
VALUES_LIMIT: Final = 2_000_000
"""In the JSON of one request: each takes some 60 bytes of memory, though it may be written with two."""


def askers_of(request: web.Request) -> tuple[str, ...]:
    """Whose limits the request counts against: its token's, and its address's unless that is this machine's own."""
    holder = request.get(PRINCIPAL, EVERYBODY)
    address = client_address(request)
    askers = () if holder == EVERYBODY else (f"the token {holder.name}",)
    return askers if is_own(address) else (*askers, f"the address {place_of(address)}")


async def read_json(request: web.Request, *, unpack: bool = False, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """The body's value; with `unpack` it may be packed with gzip."""
    limits = request.app[LIMITS]
    limits = dataclasses.replace(limits, body_limit_bytes=min(limits.body_limit_bytes, limit_bytes))
    with request.app[ROOM].share(*askers_of(request)) as grow:
        body = await read_body(request, limits, unpack=unpack, grow=grow)
    if len(body) > VALUES_LIMIT and sum(map(body.count, (b",", b"[", b"{"))) > VALUES_LIMIT:
        raise LimitError(f"the body holds more than {VALUES_LIMIT} values", hint="send it in parts")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None


async def read_object(
    request: web.Request, shape: str, needed: Collection[str], allowed: Collection[str] = (), *, unpack: bool = False
) -> dict[str, Any]:
    """The body's object, which has all of `needed` and beside it nothing but `allowed`."""
    said = await read_json(request, unpack=unpack)
    if not isinstance(said, dict) or not set(needed) <= said.keys() <= {*needed, *allowed}:
        raise InputError(f"expected {shape}")
    return said


def check_query(request: web.Request, *known: str) -> None:
    for given in request.query:
        if given not in known:
            raise InputError(f'there is no parameter "{given[:100]}"', hint=f"known: {', '.join(known) or 'none'}")


def whole(request: web.Request, name: str, default: int, *, most: int) -> int:
    """A whole number above 0 of the query."""
    given = request.query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 20 and 1 <= int(given) <= most):
        raise InputError(f"{name}: must be a whole number from 1 to {most}")
    return int(given)


def seconds(request: web.Request, name: str, *, most: float) -> float:
    """A number of seconds of the query, 0 when it is not there; more than `most` is not granted."""
    given = request.query.get(name)
    if given is None:
        return 0.0
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{name}: must be a number of seconds")
    return min(value, most)
