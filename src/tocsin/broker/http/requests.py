"""What routes read of a request, and who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web

from tocsin.broker.accounts.accounts import OPERATOR, Accounts, ManagerIdentity, Principal
from tocsin.serving.addresses import is_local_program
from tocsin.serving.limits import MemoryBudget, ServerLimits, read_body
from tocsin.serving.tokens import secret_in
from tocsin.wire.errors import ForbiddenError, InputError, UnauthorizedError

NEEDED: Final = "send a subscriber's, an application's or the operator's (broker.accounts.admin_token)"


@dataclass(frozen=True, slots=True)
class RequestBodies:
    """Bodies that may be large: each within the limits, all together within the room, and those of one asker within its
    share. Each counts twice, for what is made of it."""

    limits: ServerLimits
    room: MemoryBudget

    @asynccontextmanager
    async def read(self, request: web.Request, *askers: str) -> AsyncIterator[bytes]:
        with self.room.share(*askers) as grow:
            yield await read_body(request, self.limits, unpack=True, grow=lambda size_bytes: grow(2 * size_bytes))


def token_of(request: web.Request) -> str | None:
    """The token that the request shows, if it shows one."""
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(given) > 1:
        raise UnauthorizedError("there is more than one Authorization header", hint="send one token")
    return secret_in(given[0]) if given else None


async def principal(accounts: Accounts, request: web.Request) -> Principal:
    """Who asks. Without a token nobody but a program of this machine, where those are the operator."""
    token = token_of(request)
    if token is None and not is_local_program(request):
        raise UnauthorizedError("web pages, and who comes through a proxy, need a token", hint=NEEDED)
    return await accounts.who(token)


async def operator(accounts: Accounts, request: web.Request) -> ManagerIdentity:
    """ForbiddenError unless it is the operator who asks."""
    who = await principal(accounts, request)
    if who != OPERATOR:
        raise ForbiddenError("this is for the broker's operator", hint="show the token of broker.accounts.admin_token")
    return OPERATOR


def names_of(given: object, what: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InputError(f"{what}: must be an array of names")
    return given
