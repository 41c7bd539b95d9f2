"""Runs many lean WebSocket clients in one process: they count, measure and acknowledge results.

    with Crowd() as crowd:
        crowd.ask(do="connect", port=8480, path="/v1/stream", count=10_000)

It reads requests as lines of JSON from standard input and answers on standard output. It imports nothing of Tocsin, so
that the same clients can use every server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import sys
import time
from array import array
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.child import Child

AT_ONCE: Final = 200
_TEXT, _CLOSE, _PING = 0x1, 0x8, 0x9
# A mask of zeros: the frame is masked as clients' must be, and costs nothing to mask.
_MASK: Final = b"\0\0\0\0"


class Crowd(Child):
    """The process, for who starts it."""

    def __init__(self) -> None:
        super().__init__("benchmarks.crowd")
        self.count = 0

    def connect(self, address: str, path: str, tokens: Path | None, count: int, say: list[dict[str, Any]]) -> None:
        """`count` more clients, each with a token of its own; each says these messages and waits for the replies."""
        self.count += count
        self.ask(
            do="connect", port=int(address.rsplit(":", 1)[1]), path=path, tokens=str(tokens or ""), count=count, say=say
        )


# ---------------------------------------------------------------- the process


def frame(message: bytes, opcode: int = _TEXT) -> bytes:
    """A client's frame."""
    size = len(message)
    if size < 126:
        return bytes((0x80 | opcode, 0x80 | size)) + _MASK + message
    return bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2, "big") + _MASK + message


def upgrade(path: str, token: str | None) -> bytes:
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    key = base64.b64encode(b"0123456789abcdef").decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{shown}"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


class Client(asyncio.Protocol):
    __slots__ = ("_all", "_open", "_ready", "_replies", "_rest", "_said", "_transport")

    def __init__(self, everybody: Everybody, first: bytes, said: bytes, replies: int) -> None:
        self._all = everybody
        self._said = (first, said)
        self._replies = replies
        self._rest = b""
        self._open = False
        self._ready: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self._transport: Any = None

    async def ready(self) -> None:
        assert self._ready is not None
        await self._ready
        self._ready, self._said = None, (b"", b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._said[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.fail(f"the connection was closed ({exc})")

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = 0
        if not self._open:
            at = data.find(b"\r\n\r\n") + 4
            if at < 4:
                self._rest = data
                return
            if b" 101 " not in data[:20]:
                self._all.fail(data[:600].decode(errors="replace"))
                return
            self._open = True
            if self._said[1]:
                self._transport.write(self._said[1])
            self._look_ready()
        end = len(data)
        while end - at >= 2:
            head, size = 2, data[at + 1]
            if size == 126:
                head, size = 4, int.from_bytes(data[at + 2 : at + 4], "big")
            elif size == 127:
                head, size = 10, int.from_bytes(data[at + 2 : at + 10], "big")
            if end - at < head + size:
                break
            self._take(data[at] & 0xF, data, at + head, at + head + size)
            at += head + size
        if at < end:
            self._rest = data[at:]

    def _take(self, opcode: int, data: bytes, begin: int, end: int) -> None:
        if opcode == _TEXT:
            if self._replies and data.startswith(b'{"ref"', begin):
                if data.startswith(b',"error"', data.find(b",", begin)):
                    self._all.fail(data[begin:end].decode())
                self._replies -= 1
                self._look_ready()
                return
            self._all.event(self._transport, data, begin, end)
        elif opcode == _PING:
            self._transport.write(frame(data[begin:end], 0xA))
        elif opcode == _CLOSE:
            self._all.fail(f"the server closed: {data[begin + 2 : end]!r}")

    def _look_ready(self) -> None:
        if not self._replies and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)


class Everybody:
    """All clients of this process."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._events = 0
        self._complete = 0
        self._acknowledging = False
        self._measuring = False
        self._announcing = True
        self._late = array("d")
        self._failed = False

    def event(self, transport: Any, data: bytes, begin: int, end: int) -> None:
        self._events += 1
        if self._measuring:
            # The publisher wrote the time into the result.
            at = data.find(b'"t":', begin, end) + 4
            self._late.append(time.time() - int(data[at : at + 16]) / 1e6)
        if self._acknowledging:
            at = data.find(b'"interest":"', begin, end) + 12
            interest = data[at : data.find(b'"', at)]
            at = data.find(b'"to":"', at, end) + 6
            transport.write(frame(b'{"ack":{"%b":"%b"}}' % (interest, data[at : data.find(b'"', at)])))
        if self._announcing and self._events == len(self._clients) * (self._complete + 1):
            self._complete += 1
            say(all=self._complete)

    def fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            say(failed=why)

    async def do(self, said: dict[str, Any]) -> None:
        match said["do"]:
            case "connect":
                await self._connect(said)
                say(connected=len(self._clients))
            case "acknowledge":
                self._acknowledging = said["on"]
                say(ok=True)
            case "measure":
                self._measuring, self._announcing = said["on"], False
                say(late_s=list(self._late), events=self._events)
                self._late = array("d")
            case other:
                say(failed=f"what is {other}?")

    async def _connect(self, said: dict[str, Any]) -> None:
        tokens = Path(said["tokens"]).read_text().split() if said["tokens"] else []
        words = b"".join(frame(json.dumps(message).encode()) for message in said["say"])
        room, loop = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()

        async def connect(number: int) -> Client:
            async with room:
                first = upgrade(said["path"], tokens[number] if tokens else None)
                client = Client(self, first, words, len(said["say"]))
                await loop.create_connection(lambda: client, "127.0.0.1", said["port"])
                await client.ready()
                return client

        begin = len(self._clients)
        self._clients += await asyncio.gather(*[connect(number) for number in range(begin, begin + said["count"])])


def say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def many_files() -> None:
    """A socket is a file; as many as the machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def main() -> None:
    many_files()
    everybody = Everybody()
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await everybody.do(json.loads(line))


if __name__ == "__main__":
    uvloop.run(main())
