"""Who asks: a bearer token on every request, except where only this machine can ask.

Servers know `TokenLookup` only, so tokens can become accounts without a server changing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final, Protocol
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from tocsin.serving.addresses import is_forwarded, is_of_web_page
from tocsin.serving.answers import Handler
from tocsin.serving.tokens import EVERYBODY_NAME, HOW_TO_MAKE, Token, secret_in
from tocsin.wire.errors import ForbiddenError, UnauthorizedError

# Where no token is asked for, whoever reaches the server owns it; but brings no code into it, for that needs a token.
EVERYBODY: Final = Token(name=EVERYBODY_NAME, role="admin")

# Who a request comes from.
PRINCIPAL: Final = web.RequestKey("PRINCIPAL", Token)


class TokenLookup(Protocol):
    """Knows who a secret belongs to."""

    async def check(self, secret: str) -> Token:
        """The holder of the secret; `UnauthorizedError` for a secret that is unknown or revoked.

        Takes the same time for a wrong secret whatever it looks like.
        """
        ...


def token_authentication(credentials: TokenLookup, open_paths: Collection[str]) -> Middleware:
    """Every request but those to `open_paths` names its holder by `Authorization: Bearer …`."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths:
            request[PRINCIPAL] = await credentials.check(_secret(request))
        return await handler(request)

    return authenticate


def _secret(request: web.Request) -> str:
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(given) > 1:
        raise UnauthorizedError("there is more than one Authorization header", hint="send one token")
    return secret_in(given[0] if given else None)


def optional_authentication(
    credentials: TokenLookup, open_paths: Collection[str], *, loopback: bool, forwarded: bool
) -> Middleware:
    """Programs need no token; web pages do, and so does, without `forwarded`, whatever a proxy forwards.

    A proxy on this machine forwards for anybody, and a page open in a browser must not reach the server behind its
    user's back, neither from its own origin nor, on a loopback server, by a host name of its own that resolves to this
    machine. Whoever shows a token is its holder, here too.
    """

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        if hdrs.AUTHORIZATION in request.headers:
            request[PRINCIPAL] = await credentials.check(_secret(request))
            return await handler(request)
        if is_of_web_page(request):
            raise ForbiddenError(
                "requests from web pages are not taken without a token",
                hint='make one with "tocsin token create NAME" and send it as Authorization: Bearer tocsin_…',
            )
        if not is_forwarded(request):
            if loopback:
                check_host(request, hint="use localhost or an address")
        elif not forwarded:
            raise UnauthorizedError(
                "a request that comes through a proxy needs a token",
                hint=HOW_TO_MAKE,
            )
        request[PRINCIPAL] = EVERYBODY
        return await handler(request)

    return admit


def check_host(request: web.Request, *, hint: str) -> None:
    """ForbiddenError where a loopback server is asked by a name that is not this machine's.

    A web page can let a name of its own resolve to this machine; its requests then look as if they were the server's.
    """
    asked = request.headers.get(hdrs.HOST, "")
    if asked and not _names_a_machine(asked):
        raise ForbiddenError(f"{asked[:100]!r} is not a name of this machine", hint=hint)


def is_own_origin(request: web.Request, origin: str) -> bool:
    """Whether a page of this origin is one that this server could have given."""
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get(hdrs.HOST, "").lower()
    except ValueError:
        return False


def _names_a_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
