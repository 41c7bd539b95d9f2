"""Reads requests for the routes: token, principal and body.

Large bodies share one memory budget, so that many publishers at once cannot exhaust the broker's memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web

from tocsin.broker.accounts.accounts import OPERATOR, Accounts, ManagerIdentity, Principal, Session
from tocsin.broker.service import BrokerService
from tocsin.serving.addresses import is_local_program
from tocsin.serving.limits import MemoryBudget, ServerLimits, read_body
from tocsin.serving.tokens import secret_in
from tocsin.wire.errors import ForbiddenError, UnauthorizedError

_NEEDED: Final = "send a subscriber's, an application's or the operator's (broker.accounts.admin_token)"


@dataclass(frozen=True, slots=True)
class RequestBodies:
    """Reads bodies that may be large: each within the limits, all together within the memory budget, and those of one
    client within its share. A body counts twice, for itself and for what is parsed from it."""

    limits: ServerLimits
    room: MemoryBudget

    @asynccontextmanager
    async def read(self, request: web.Request, *callers: str) -> AsyncIterator[bytes]:
        with self.room.share(*callers) as grow:
            yield await read_body(request, self.limits, unpack=True, grow=lambda size_bytes: grow(2 * size_bytes))


def token_of(request: web.Request) -> str | None:
    """The token in the Authorization header, if there is one."""
    headers = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(headers) > 1:
        raise UnauthorizedError("there is more than one Authorization header", hint="send one token")
    return secret_in(headers[0]) if headers else None


async def subscriber_of(service: BrokerService, request: web.Request, *, whole: bool = False) -> Session:
    """The session of the subscriber that asks, within its rate limit (`whole`: see BrokerService.check_rate)."""
    who = await service.identify(token_of(request))
    service.check_rate(who, whole=whole)
    return who


async def principal(accounts: Accounts, request: web.Request) -> Principal:
    """The principal of the request. Without a token only a program on this machine is accepted, as the operator."""
    token = token_of(request)
    if token is None and not is_local_program(request):
        raise UnauthorizedError("web pages, and who comes through a proxy, need a token", hint=_NEEDED)
    return await accounts.who(token)


async def operator(accounts: Accounts, request: web.Request) -> ManagerIdentity:
    """Raises ForbiddenError unless the operator asks."""
    who = await principal(accounts, request)
    if who != OPERATOR:
        raise ForbiddenError("this is for the broker's operator", hint="show the token of broker.accounts.admin_token")
    return OPERATOR


def json_answer(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
