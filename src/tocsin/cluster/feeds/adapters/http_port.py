"""A port of a feed's own that takes HTTP POSTs, as the option `addresses` of the original asks for.

It is a second server of the cluster for one feed. So it has the walls of the first one: the same authentication, the
same limits on connections and bodies, and one budget of memory for the bodies of all servers together.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.feeds.running_feed import AcceptedRecords, RunningFeed
from tocsin.serving.addresses import is_loopback
from tocsin.serving.answers import answer
from tocsin.serving.application import LIMITS, MEMORY_BUDGET, application, bind_socket, listen
from tocsin.serving.authentication import PRINCIPAL, optional_authentication, token_authentication
from tocsin.serving.connections import LimitedServer
from tocsin.serving.limits import MemoryBudget, ServerLimits, read_body
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import callers_of, check_query
from tocsin.serving.tokens import Token, require_feed
from tocsin.serving.trouble import reason_of
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, TocsinError, UnauthorizedError


class _NoTokens:
    async def check(self, _secret: str) -> Token:
        raise UnauthorizedError("there are no tokens")


def _without_tokens(loopback: bool) -> Middleware:
    if loopback:
        return optional_authentication(_NoTokens(), (), loopback=True, forwarded=False)
    return token_authentication(_NoTokens(), ())


@dataclass(frozen=True, slots=True)
class PortAccess:
    """The walls of all ports. `authentication` returns the middleware for a port, on loopback or not. `budget` is the
    memory for bodies, shared with the cluster's server."""

    authentication: Callable[[bool], Middleware] = _without_tokens
    limits: ServerLimits = field(default_factory=ServerLimits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    budget: MemoryBudget | None = None


class HttpPort:
    """Listens for one feed, at one or several addresses."""

    def __init__(self, feed: RunningFeed, path: str, access: PortAccess) -> None:
        self._feed = feed
        self._path = path
        self._access = access
        self._stack = AsyncExitStack()
        self._servers: list[LimitedServer] = []

    async def listen(self, addresses: Sequence[tuple[str, int]]) -> None:
        try:
            for host, port in addresses:
                await self._listen(host, port)
        except (TocsinError, OSError, UnicodeError) as error:
            await self.close()
            raise ConflictError(f"addresses: cannot listen at {host}:{port}: {reason_of(error)}") from None

    async def _listen(self, host: str, port: int) -> None:
        # Resolve the name beside the event loop; `bind_socket` then meets an address.
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        sock, _ = self._stack.enter_context(bind_socket(str(found[0][4][0]), port))
        # Judge the address that is bound: a name may stand for an address that others can reach.
        app = self._application(loopback=is_loopback(sock.getsockname()[0]))
        self._servers.append(await self._stack.enter_async_context(listen(app, sock)))

    def _application(self, *, loopback: bool) -> web.Application:
        access = self._access
        app = application(
            limits=access.limits, metrics=access.metrics, access=access.authentication(loopback), budget=access.budget,
            message_routes=("/{path}",),  # the route below, as aiohttp writes it
        )  # fmt: skip
        # One route for all paths, because metrics have a series per route, and paths are the users' choice.
        app.add_routes([web.post("/{path:.*}", self._publish)])
        return app

    @property
    def open(self) -> int:
        """The number of open connections."""
        return sum(len(server.connections) for server in self._servers)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _publish(self, request: web.Request) -> web.Response:
        if request.path != self._path:
            raise NotFoundError(
                "there is nothing at this address", hint="POST records to the path in the feed's option addresses"
            )
        require_feed(request[PRINCIPAL], full_name(self._feed.entry))
        accepted = await publish_records(request, self._accept)
        # The original answers the number of records. What was rejected needs more words.
        wants_json = "application/json" in request.headers.get(hdrs.ACCEPT, "")
        if accepted.answer["rejected"] or wants_json:
            return answer(dict(accepted.answer), status=accepted.status)
        return web.Response(text=str(accepted.answer["accepted"]), status=accepted.status)

    async def _accept(self, body: bytes, key: str | None, visible: bool) -> AcceptedRecords:
        try:
            accepted = await self._feed.accept(body, key)
        except TocsinError as error:
            self._feed.counts.refused[error.status] += 1
            raise
        if visible:
            await self._feed.until_landed(accepted.position)
        return accepted


async def publish_records(
    request: web.Request, accept: Callable[[bytes, str | None, bool], Awaitable[AcceptedRecords]]
) -> AcceptedRecords:
    """Calls `accept` with the body, the idempotency key, and whether to wait until queries see the records."""
    check_query(request, "wait")
    wait = request.query.get("wait", "")
    if wait not in ("", "visible"):
        raise InputError(f'wait: must be "visible", got "{wait}"')
    key = request.headers.get("Idempotency-Key")
    with request.app[MEMORY_BUDGET].share(*callers_of(request)) as grow:
        # Count the body twice: decoding makes a log payload of about the same size.
        body = await read_body(request, request.app[LIMITS], unpack=True, grow=lambda size_bytes: grow(2 * size_bytes))
        return await accept(body, key, wait == "visible")
