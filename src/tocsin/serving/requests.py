"""What routes read of a request: numbers, JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from aiohttp import web

from tocsin.serving.application import LIMITS
from tocsin.serving.limits import read_body
from tocsin.wire.errors import InputError


async def read_json(request: web.Request, *, unpack: bool = False) -> Any:
    """The body's value; with `unpack` it may be packed with gzip."""
    body = await read_body(request, request.app[LIMITS], unpack=unpack)
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
