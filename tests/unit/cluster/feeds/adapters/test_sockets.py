"""Who may send over a feed's socket: nobody takes another's connection, and no web page sends at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.waiting import WITHIN_S, until
from tocsin.cluster.feeds.adapters.sockets import SocketServer
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.options import FeedOptions
from tocsin.cluster.feeds.running_feed import RunningFeed


class FakeFeed:
    """Takes whatever comes."""

    def __init__(self) -> None:
        self.entry = SimpleNamespace(name="F")
        self.counts = FeedCounts()
        self.taken: list[bytes] = []

    async def until_open(self) -> None:
        pass

    async def accept(self, body: bytes) -> None:
        self.taken.append(body)


@asynccontextmanager
async def listening(*, by_lines: bool = True, has_header: bool = False, **limits: Any) -> AsyncIterator[Any]:
    feed = FakeFeed()
    options = SimpleNamespace(by_lines=by_lines, has_header=has_header)
    server = SocketServer(cast("RunningFeed", feed), cast("FeedOptions", options), FeedLimits(**limits))
    await server.listen([("127.0.0.1", 0)])
    try:
        yield SimpleNamespace(feed=feed, server=server, port=server.ports[0])
    finally:
        await server.close()


class Sender:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, place: Any, address: str) -> Sender:
        before = place.server.open
        made = cls(*await asyncio.open_connection("127.0.0.1", place.port, local_addr=(address, 0)))
        await until(lambda: place.server.open != before or place.feed.counts.sockets_dropped)
        return made

    async def send(self, place: Any, record: bytes) -> None:
        before = len(place.feed.taken)
        self._writer.write(record + b"\n")
        await until(lambda: len(place.feed.taken) > before)

    async def is_dropped(self) -> bool:
        with suppress(ConnectionError):
            async with asyncio.timeout(WITHIN_S):
                return await self._reader.read(1) == b""
        return True

    def close(self) -> None:
        self._writer.transport.abort()


async def test_who_opens_many_connections_loses_its_own_and_no_silent_publisher_does() -> None:
    async with listening(connections=4) as place:
        silent = await Sender.connected(place, "127.0.0.2")
        await silent.send(place, b"1|first")
        many = [await Sender.connected(place, "127.0.0.3") for _ in range(3)]
        for number, sender in enumerate(many):
            await sender.send(place, b"%d|mine" % number)
        for _ in range(5):
            many.append(await Sender.connected(place, "127.0.0.3"))
            await many[-1].send(place, b"9|more")
        assert await many[0].is_dropped()
        await silent.send(place, b"2|still here")
        assert place.feed.taken[-1] == b"2|still here"
        assert place.server.open == 4
        for sender in [silent, *many]:
            sender.close()


async def test_an_address_that_has_all_it_may_loses_its_most_silent() -> None:
    # All addresses that a test can have are this machine's own, which are not counted.
    async with listening(address_connections=2, is_exempt=lambda address: address == "127.0.0.2") as place:
        own = [await Sender.connected(place, "127.0.0.2") for _ in range(3)]
        others = [await Sender.connected(place, "127.0.0.3") for _ in range(2)]
        await others[0].send(place, b"1|a")
        others.append(await Sender.connected(place, "127.0.0.3"))
        assert await others[1].is_dropped()
        await others[0].send(place, b"2|b")
        assert place.server.open == 5
        for sender in [*own, *others]:
            sender.close()


@pytest.mark.parametrize("has_header", [False, True])
@pytest.mark.parametrize("by_lines", [False, True])
@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"post /x?y=z HTTP/1.0\n", b"\r\nPRI * HTTP/2.0\r\n"])
async def test_what_a_web_page_posts_is_no_record(line: bytes, by_lines: bool, has_header: bool) -> None:
    async with listening(by_lines=by_lines, has_header=has_header) as place:
        page = await Sender.connected(place, "127.0.0.1")
        page._writer.write(line + b'Host: localhost\r\nContent-Length: 20\r\n\r\n1|a\n2|b\n{"id": 3}\n')
        assert await page.is_dropped()
        await until(lambda: place.server.open == 0)
        assert place.feed.taken == []
        assert place.feed.counts.sockets_dropped == 1
        page.close()
