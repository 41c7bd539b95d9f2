"""Whose a request is, where proxies stand between."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from tests.support.waiting import until
from tocsin.serving.addresses import TRUSTED_PROXIES, Networks, client_address, is_forwarded
from tocsin.serving.answers import answer
from tocsin.serving.application import application, bind_socket, listen
from tocsin.serving.limits import ServerLimits
from tocsin.serving.metrics import ServerMetrics


def asked(peer: str, *headers: tuple[str, str], trusted: str = "10.0.0.0/8 ::1") -> web.Request:
    app = web.Application()
    app[TRUSTED_PROXIES] = Networks(trusted.split())
    return make_mocked_request("GET", "/", headers=CIMultiDict(headers), app=app).clone(remote=peer)


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.9", [("X-Forwarded-For", "198.51.100.1")], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        ("::1", [("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        ("::ffff:10.0.0.1", [("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        # What a client said before the first proxy is not believed.
        ("10.0.0.1", [("X-Forwarded-For", "1.1.1.1, 198.51.100.1, 10.2.3.4")], "198.51.100.1"),
        ("10.0.0.1", [("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", [("X-Forwarded-For", "198.51.100.1, garbage")], "10.0.0.1"),
        ("10.0.0.1", [("X-Forwarded-For", "198.51.100.1, garbage, 10.9.9.9")], "10.9.9.9"),
        ("10.0.0.1", [("X-Forwarded-For", "10.5.5.5, 10.6.6.6")], "10.5.5.5"),
        ("10.0.0.1", [("X-Forwarded-For", "198.51.100.1:4711")], "198.51.100.1"),
        ("10.0.0.1", [("X-Forwarded-For", "[2001:db8::7]:4711")], "2001:db8::7"),
        ("10.0.0.1", [("X-Forwarded-For", "2001:db8::7")], "2001:db8::7"),
        ("10.0.0.1", [("Forwarded", 'for=1.1.1.1, For="[2001:db8::7]:80";proto=https')], "2001:db8::7"),
        ("10.0.0.1", [("Forwarded", "by=10.0.0.1;for=198.51.100.1;host=x")], "198.51.100.1"),
        ("10.0.0.1", [("Forwarded", "for=_hidden")], "10.0.0.1"),
        # The proxies that say both in truth are few; those that append to the first are many.
        ("10.0.0.1", [("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=1.1.1.1")], "198.51.100.1"),
        ("10.0.0.1", [("X-Real-IP", "198.51.100.1")], "198.51.100.1"),
    ],
)
def test_the_client_is_the_last_hop_that_is_not_trusted(peer: str, headers: list[tuple[str, str]], client: str) -> None:
    assert client_address(asked(peer, *headers)) == client


def test_a_request_of_a_trusted_proxy_is_forwarded_whatever_it_says() -> None:
    assert is_forwarded(asked("10.0.0.1"))
    assert not is_forwarded(asked("192.0.2.1"))
    assert is_forwarded(asked("192.0.2.1", ("X-FORWARDED-HOST", "x")))
    assert not is_forwarded(asked("127.0.0.1", trusted=""))


async def test_limits_by_address_are_for_the_clients_of_a_trusted_proxy_each() -> None:
    """A proxy's own connections are not counted; what it forwards is, for whom it says."""
    released, waiting = asyncio.Event(), 0

    async def wait(_request: web.Request) -> web.Response:
        nonlocal waiting
        waiting += 1
        await released.wait()
        return answer({})

    @web.middleware
    async def everybody(request: web.Request, handler: Any) -> Any:
        return await handler(request)

    limits = ServerLimits(address_connections_limit=1, trusted_proxies=Networks(["127.0.0.1"]))
    app = application(limits=limits, metrics=ServerMetrics(), access=everybody)
    app.add_routes([web.get("/", wait)])

    with bind_socket("127.0.0.1", 0) as (sock, url):
        async with listen(app, sock), AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())

            async def status(client: str) -> int:
                async with session.get(url, headers={"X-Forwarded-For": client}) as response:
                    return response.status

            async with asyncio.TaskGroup() as tasks:
                first = [tasks.create_task(status(f"198.51.100.{n}")) for n in (1, 2)]
                await until(lambda: waiting == 2)
                assert await status("198.51.100.1") == 429
                released.set()
            assert [request.result() for request in first] == [200, 200]
            assert await status("198.51.100.1") == 200


async def test_an_answer_that_nobody_reads_is_not_kept_for_ever() -> None:
    asked: list[web.Request] = []

    async def much(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(body=b"x" * (30 << 20))

    @web.middleware
    async def everybody(request: web.Request, handler: Any) -> Any:
        return await handler(request)

    app = application(limits=ServerLimits(write_timeout_s=0.2), metrics=ServerMetrics(), access=everybody)
    app.add_routes([web.get("/", much)])
    with bind_socket("127.0.0.1", 0) as (sock, url):
        async with listen(app, sock):
            _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port, limit=1)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: asked and (asked[0].transport is None or asked[0].transport.is_closing()))
            # Who reads has all of it, however long that takes.
            async with aiohttp.ClientSession(read_bufsize=1_024) as session, session.get(url) as response:
                size_bytes = 0
                async for some in response.content.iter_chunked(1 << 20):
                    size_bytes += len(some)
                    await asyncio.sleep(0.02)
            assert size_bytes == 30 << 20
            writer.transport.abort()
