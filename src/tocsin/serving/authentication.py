"""Authentication: a bearer token on every request, except where only programs on this machine can connect.

Servers know only `TokenLookup`, so that accounts can replace tokens without a change to the servers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final, Protocol
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from tocsin.serving.addresses import is_forwarded, is_of_web_page
from tocsin.serving.answers import RequestHandler
from tocsin.serving.tokens import EVERYBODY_NAME, HOW_TO_MAKE, Token, secret_in
from tocsin.wire.errors import ForbiddenError, UnauthorizedError
from tocsin.wire.signatures import ID as MESSAGE_ID

# Where no token is needed, every client is an administrator, except that it cannot bring in code; that needs a token.
EVERYBODY: Final = Token(name=EVERYBODY_NAME, role="admin")

# The token of a request.
PRINCIPAL: Final = web.RequestKey("PRINCIPAL", Token)


class TokenLookup(Protocol):
    """Looks up the token of a secret."""

    async def check(self, secret: str, /) -> Token:
        """The token of the secret; raises `UnauthorizedError` for an unknown or revoked secret.

        It takes the same time for every wrong secret.
        """
        ...


def token_authentication(credentials: TokenLookup, open_paths: Collection[str]) -> Middleware:
    """Requires `Authorization: Bearer …` of every request, except those to `open_paths`."""

    @web.middleware
    async def authenticate(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        if request.path not in open_paths:
            request[PRINCIPAL] = await credentials.check(_secret(request))
        return await handler(request)

    return authenticate


def _secret(request: web.Request) -> str:
    headers = request.headers.getall(hdrs.AUTHORIZATION, [])
    if len(headers) > 1:
        raise UnauthorizedError("there is more than one Authorization header", hint="send one token")
    return secret_in(headers[0] if headers else None)


def optional_authentication(
    credentials: TokenLookup, open_paths: Collection[str], *, loopback: bool, forwarded: bool
) -> Middleware:
    """Programs need no token; web pages need one, and forwarded requests do unless `forwarded` is set.

    A proxy on this machine forwards for anybody. A page open in a browser must not reach the server without its user's
    knowledge, neither from its own origin nor, on a loopback server, by DNS rebinding. A request that shows a token is
    authenticated by it, here too.
    """

    @web.middleware
    async def admit(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
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
            raise UnauthorizedError("a request that comes through a proxy needs a token", hint=HOW_TO_MAKE)
        request[PRINCIPAL] = EVERYBODY
        return await handler(request)

    return admit


def refuse_messages(routes: Collection[str]) -> Middleware:
    """Refuses announcements and webhooks, which have a `webhook-id`, except at these routes.

    Users choose the addresses that these messages are sent to. A message must not act on a server that trusts the
    machine that sent it.
    """

    @web.middleware
    async def check_message(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        if MESSAGE_ID in request.headers:
            resource = request.match_info.route.resource
            if resource is None or resource.canonical not in routes:
                raise ForbiddenError(
                    f"a message with {MESSAGE_ID} is not taken here",
                    hint="give the broker or the webhook an address that receives messages",
                )
        return await handler(request)

    return check_message


def check_host(request: web.Request, *, hint: str) -> None:
    """Raises ForbiddenError if the Host header of a request to a loopback server does not name this machine.

    This prevents DNS rebinding: a web page can let its own host name resolve to this machine, and its requests then
    look like same-origin ones.
    """
    host = request.headers.get(hdrs.HOST, "")
    if host and not _names_a_machine(host):
        raise ForbiddenError(f"{host[:100]!r} is not a name of this machine", hint=hint)


def is_own_origin(request: web.Request, origin: str) -> bool:
    """Whether the origin is this server's own."""
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
