"""An address that a feed polls, on a real server: what it answers is set by the test, and it counts who asks."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.waiting import until

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Address:
    """Answers with its items, until it is told to answer something else."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.instead: Answer | None = None
        self.requests: list[web.Request] = []
        self.answered = 0
        """How many requests have got their whole answer."""
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.instead is not None:
            return await self.instead(request)
        response = web.Response(body=BytesIO(json.dumps(self.items).encode()), content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        self.answered += 1
        return response

    def says(self, body: bytes, status: int = 200, **headers: str) -> None:
        async def answer(_: web.Request) -> web.StreamResponse:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(body=body, status=status, headers=named)

        self.instead = answer

    async def asked(self, more: int = 1) -> None:
        """Returns when this many more requests have come."""
        wanted = len(self.requests) + more
        await until(lambda: len(self.requests) >= wanted, f"{more} more requests")

    async def answered_again(self) -> None:
        """Returns when all that was there now has been answered, and what came of it is known: the next one asks."""
        wanted = self.answered + 2
        await until(lambda: self.answered >= wanted, "two more answers")
        await self.asked()


def packed(items: list[dict[str, Any]]) -> bytes:
    return gzip.compress(json.dumps(items).encode())


@asynccontextmanager
async def address() -> AsyncIterator[Address]:
    made = Address()
    app = web.Application()
    app.router.add_get("/items", made.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        made.url = str(server.make_url("/items"))
        yield made
