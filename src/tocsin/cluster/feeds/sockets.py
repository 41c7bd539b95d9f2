"""The socket adapter: whoever connects sends records, one after another. A socket has no way to acknowledge them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from tocsin.cluster.feeds.feed import RunningFeed
from tocsin.cluster.feeds.options import FeedOptions
from tocsin.rules.model.framing import Braces, FrameError, Framing, Lines
from tocsin.wire.errors import ConflictError, InputError, TocsinError

log = structlog.get_logger()

RECORD_LIMIT_BYTES: Final = 1 << 20
CONNECTIONS_LIMIT: Final = 1_000
# For a record to be whole, once it is begun. Between records a connection may be silent for ever, but see `_make_room`.
RECORD_TIMEOUT_S: Final = 30.0
_CHUNK_BYTES: Final = 1 << 18
_RETRY_S: Final = 1.0


class SocketServer:
    """Listens for one feed. Reading goes on only when what was read is in the feed's log, so a sender that is too fast
    is slowed by its own connection."""

    def __init__(self, feed: RunningFeed, options: FeedOptions) -> None:
        self._feed = feed
        self._counts = feed.counts
        self._by_lines = options.by_lines
        self._has_header = options.has_header
        self._servers: list[asyncio.Server] = []
        # In the order in which they last brought a record: the first has been silent for longest.
        self._connections: OrderedDict[asyncio.Task[None], None] = OrderedDict()

    async def listen(self, places: Sequence[tuple[str, int]]) -> None:
        try:
            for host, port in places:
                self._servers.append(await asyncio.start_server(self._connected, host, port, limit=_CHUNK_BYTES))
        except OSError as error:
            await self.close()
            raise ConflictError(f"sockets: cannot listen at {host}:{port}: {error.strerror or error}") from None

    @property
    def ports(self) -> list[int]:
        return [one.getsockname()[1] for server in self._servers for one in server.sockets]

    @property
    def open(self) -> int:
        """How many are connected."""
        return len(self._connections)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._make_room()
        self._connections[task] = None
        framing: Framing = Lines(RECORD_LIMIT_BYTES) if self._by_lines else Braces(RECORD_LIMIT_BYTES)
        try:
            await self._read(reader, framing, task)
        except FrameError as error:
            self._counts.unframed += 1
            self._dropped(str(error))
        except TimeoutError:
            self._counts.unframed += 1
            self._dropped(f"a record was not whole within {RECORD_TIMEOUT_S:g} s")
        except ConnectionError as error:
            self._told("a socket broke off", str(error))
        finally:
            self._connections.pop(task, None)
            with suppress(ConnectionError):
                writer.close()

    def _make_room(self) -> None:
        """Whoever holds connections and sends nothing loses them first, so that nobody can take all for nothing."""
        if len(self._connections) >= CONNECTIONS_LIMIT:
            silent, _ = self._connections.popitem(last=False)
            silent.cancel()
            self._dropped(f"there may be {CONNECTIONS_LIMIT}, and this one has been silent for longest")

    def _dropped(self, reason: str) -> None:
        self._counts.sockets_dropped += 1
        self._told("a socket was dropped", reason)

    def _told(self, event: str, reason: str) -> None:
        # Records are taken whether or not it can be told.
        with suppress(Exception):
            log.warning(event, feed=self._feed.entry.name, reason=reason)

    async def _read(self, reader: asyncio.StreamReader, framing: Framing, task: asyncio.Task[None]) -> None:
        header: list[bytes] = []
        clock = asyncio.get_running_loop().time
        begun_s = clock()

        async def take(records: list[bytes]) -> None:
            if records and self._has_header and not header:
                # The first line of a connection names the columns of all that follow.
                header.append(records.pop(0))
            if records:
                await self._take([*header, *records])
                self._connections.move_to_end(task)

        while True:
            await self._feed.opened()
            async with asyncio.timeout_at(begun_s + RECORD_TIMEOUT_S if framing.is_begun else None):
                data = await reader.read(_CHUNK_BYTES)
            if not data:
                break
            was_begun = framing.is_begun
            try:
                records = framing.feed(data)
            except FrameError as error:
                await take([record for _, record in error.numbered])
                raise
            await take(records)
            if records or not was_begun:
                begun_s = clock()
        rest = framing.finish()
        if rest and self._by_lines:
            await take([rest])
        elif rest:
            self._counts.unframed += 1

    async def _take(self, records: Sequence[bytes]) -> None:
        while True:
            # While a statement waits for the feed's records to land, senders wait too.
            await self._feed.opened()
            try:
                await self._feed.accept(b"\n".join(records))
                return
            except InputError as error:
                if not error.retry and error.status != 429:
                    self._counts.unframed += len(records)
                    self._told("records could not be read", error.message)
                    return
            except TocsinError as error:
                self._told("a socket must wait", error.message)
            await asyncio.sleep(_RETRY_S)
