"""What routes read of a request, and who asks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from aiohttp import hdrs, web

from tocsin.broker.accounts.accounts import OPERATOR, Accounts, Manager, Principal
from tocsin.serving.application import LIMITS
from tocsin.serving.limits import read_body
from tocsin.serving.tokens import secret_in
from tocsin.wire.errors import ForbiddenError, InputError, UnauthorizedError


def token_of(request: web.Request) -> str | None:
    """The token that the request shows, if it shows one."""
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(given) > 1:
        raise UnauthorizedError("there is more than one Authorization header", hint="send one token")
    return secret_in(given[0]) if given else None


async def principal(accounts: Accounts, request: web.Request) -> Principal:
    return await accounts.who(token_of(request))


async def operator(accounts: Accounts, request: web.Request) -> Manager:
    """ForbiddenError unless it is the operator who asks."""
    who = await principal(accounts, request)
    if who != OPERATOR:
        raise ForbiddenError("this is for the broker's operator", hint="show the token of broker.accounts.admin_token")
    return OPERATOR


async def read_json(request: web.Request) -> Any:
    body = await read_body(request, request.app[LIMITS])
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None


async def read_object(
    request: web.Request, shape: str, needed: Collection[str], allowed: Collection[str] = ()
) -> dict[str, Any]:
    """The body's object, which has all of `needed` and beside it nothing but `allowed`."""
    said = await read_json(request)
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
    if not (given.isascii() and given.isdecimal() and len(given) <= 18 and 1 <= int(given) <= most):
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


def names_of(given: object, what: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InputError(f"{what}: must be an array of names")
    return given
