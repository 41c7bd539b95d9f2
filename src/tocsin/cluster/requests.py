"""What routes read of a request: names, numbers, JSON."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from tocsin.cluster.catalog import DEFAULT
from tocsin.serving.application import LIMITS
from tocsin.serving.limits import read_body
from tocsin.wire.errors import InputError


def full_name(text: str) -> tuple[str, str]:
    """Dataverse and name of `dataverse.name`, or of a name alone in the dataverse Default."""
    dataverse, dot, name = text.rpartition(".")
    return (dataverse if dot else DEFAULT), name


def path_name(request: web.Request) -> tuple[str, str]:
    return full_name(request.match_info["name"])


async def read_json(request: web.Request) -> Any:
    """The body's value; it may be packed with gzip."""
    body = await read_body(request, request.app[LIMITS], unpack=True)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None


async def read_object(request: web.Request, shape: str, needed: set[str], allowed: set[str]) -> dict[str, Any]:
    """The body's object, which has all of `needed` and nothing but `allowed`."""
    said = await read_json(request)
    if not isinstance(said, dict) or not needed <= said.keys() <= needed | allowed:
        raise InputError(f"expected {shape}")
    return said


def whole(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    """A whole number of the query."""
    given = request.query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 20 and least <= int(given) <= most):
        raise InputError(f"{name}: must be a whole number from {least} to {most}")
    return int(given)


def seconds(request: web.Request, name: str, *, most: float) -> float:
    """A number of seconds of the query, none when it is not there; more than `most` is not granted."""
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
