"""The socket adapter: clients connect and send one record after another.

A socket has no way to acknowledge records. Backpressure is the TCP connection: the adapter reads on only after the
feed's log has the records.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.options import FeedOptions
from tocsin.cluster.feeds.running_feed import RunningFeed
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.record_frames import Braces, FrameError, Lines, RecordFraming
from tocsin.serving.addresses import address_key
from tocsin.wire.errors import ConflictError, InputError, TocsinError

_log = structlog.get_logger()

_RECORD_LIMIT_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 18
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 2.0
# An HTTP request line: a web page could make a browser post records here, so such a connection is dropped.
_REQUEST_LINE: Final = re.compile(rb"[A-Za-z-]+ \S+ HTTP/\d(\.\d)?")


class SocketServer:
    """Listens for one feed. It reads on only after the feed's log has the records, which slows a fast sender."""

    def __init__(self, feed: RunningFeed, options: FeedOptions, limits: FeedLimits) -> None:
        self._limits = limits
        self._feed = feed
        self._counts = feed.counts
        self._by_lines = options.by_lines
        self._has_header = options.has_header
        self._servers: list[asyncio.Server] = []
        # The address of each connection, ordered by its last record: the first one has been silent for longest.
        self._connections: OrderedDict[asyncio.Task[None], str] = OrderedDict()
        self._open_of: Counter[str] = Counter()

    async def listen(self, addresses: Sequence[tuple[str, int]]) -> None:
        try:
            for host, port in addresses:
                self._servers.append(await asyncio.start_server(self._serve, host, port, limit=_CHUNK_BYTES))
        except OSError as error:
            await self.close()
            raise ConflictError(f"sockets: cannot listen at {host}:{port}: {error.strerror or error}") from None

    @property
    def ports(self) -> list[int]:
        return [socket.getsockname()[1] for server in self._servers for socket in server.sockets]

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) else None
        key = address_key(address)
        self._make_room(key, is_counted=not self._limits.is_exempt(address))
        self._connections[task] = key
        self._open_of[key] += 1
        framing: RecordFraming = Lines(_RECORD_LIMIT_BYTES) if self._by_lines else Braces(_RECORD_LIMIT_BYTES)
        try:
            await self._read(reader, framing, task)
        except FrameError as error:
            self._counts.unframed += 1
            self._count_drop(str(error))
        except TimeoutError:
            self._counts.unframed += 1
            self._count_drop(f"a record was not whole within {self._limits.record_timeout_s:g} s")
        except ConnectionError as error:
            self._warn("a socket connection broke off", str(error))
        finally:
            self._forget(task)
            with suppress(ConnectionError):
                writer.close()

    def _make_room(self, key: str, *, is_counted: bool) -> None:
        """Makes room for a new connection, so that no client can take all connections from the others. If an address is
        at its limit, its longest silent connection is dropped. If all connections are taken, the longest silent
        connection of the address with the most connections is dropped."""
        of_all, of_one = self._limits.connections, self._limits.address_connections
        if is_counted and self._open_of[key] >= of_one:
            self._drop_silent(key, f"{key} may have {of_one}")
        elif len(self._connections) >= of_all:
            most = max(self._open_of.values())
            silent = next(address for address in self._connections.values() if self._open_of[address] == most)
            self._drop_silent(silent, f"there may be {of_all}, and {silent} has most of them")

    def _drop_silent(self, key: str, reason: str) -> None:
        silent = next(task for task, address in self._connections.items() if address == key)
        self._forget(silent)
        silent.cancel()
        self._count_drop(f"{reason}; this one has been silent for longest")

    def _forget(self, task: asyncio.Task[None]) -> None:
        key = self._connections.pop(task, None)
        if key is not None:
            self._open_of[key] -= 1
            if not self._open_of[key]:
                del self._open_of[key]

    def _count_drop(self, reason: str) -> None:
        self._counts.sockets_dropped += 1
        self._warn("a socket connection was dropped", reason)

    def _warn(self, event: str, reason: str) -> None:
        _log.warning(event, feed=self._feed.entry.name, reason=reason)

    async def _read(self, reader: asyncio.StreamReader, framing: RecordFraming, task: asyncio.Task[None]) -> None:
        header: list[bytes] = []
        is_first = True
        clock = asyncio.get_running_loop().time
        begun_s = clock()

        async def take(records: list[bytes]) -> None:
            nonlocal is_first
            if records and is_first:
                is_first = False
                if _REQUEST_LINE.fullmatch(records[0]) is not None:
                    raise FrameError(1, "this is HTTP: records are posted to /v1/feeds/NAME of the cluster", [])
            if records and self._has_header and not header:
                # The first line of a connection names the columns of all following lines.
                header.append(records.pop(0))
            if records:
                await self._take([*header, *records])
                if task in self._connections:
                    self._connections.move_to_end(task)

        while True:
            await self._feed.until_open()
            async with asyncio.timeout_at(begun_s + self._limits.record_timeout_s if framing.is_begun else None):
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
        back_off = BackOff(_FIRST_RETRY_S, _LAST_RETRY_S)
        while True:
            # While a statement drains the feed, senders wait too.
            await self._feed.until_open()
            try:
                await self._feed.accept(b"\n".join(records))
                return
            except InputError as error:
                if not error.retry and error.status != 429:
                    self._counts.unframed += len(records)
                    self._warn("records of a socket could not be read", error.message)
                    return
            except TocsinError as error:
                self._warn("records of a socket could not be stored; retrying", error.message)
            await asyncio.sleep(back_off.next_s())
