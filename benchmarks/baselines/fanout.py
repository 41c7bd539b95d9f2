"""Two servers that tell everybody who is connected what is posted to them, and do nothing else.

python -m benchmarks.baselines.fanout bare|tornado

`bare`: a protocol of asyncio on uvloop that makes a WebSocket's frame once and writes it to every transport. `tornado`:
in the style of the original prototype, `write_message(dict)` for each client. Both print their port when they are
ready.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import resource
import sys
from typing import Any, Final, cast

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(message: bytes) -> bytes:
    if len(message) < 126:
        return bytes((0x81, len(message))) + message
    return b"\x81\x7e" + len(message).to_bytes(2, "big") + message


class Bare(asyncio.Protocol):
    everybody: Final[set[asyncio.Transport]] = set()

    __slots__ = ("_open", "_rest", "_transport", "heard")

    def __init__(self) -> None:
        self._open = False
        self._rest = b""
        self.heard = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.everybody.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._open:
            self._hear(data)
            return
        head, found, body = data.partition(b"\r\n\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
        }
        if not found or len(body) < int(fields.get(b"content-length", 0)):
            self._rest = data
        elif head.startswith(b"POST"):
            message = frame(body)
            for transport in self.everybody:
                transport.write(message)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            accepted = base64.b64encode(hashlib.sha1(fields[b"sec-websocket-key"] + _GUID).digest())
            self._transport.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accepted + b"\r\n\r\n"
            )
            self._open = True
            self.everybody.add(self._transport)

    def _hear(self, data: bytes) -> None:
        """Cuts what came into frames and unmasks them."""
        at, end = 0, len(data)
        while end - at >= 6:
            head, size = 2, data[at + 1] & 0x7F
            if size == 126:
                head, size = 4, int.from_bytes(data[at + 2 : at + 4], "big")
            begin = at + head + 4
            if end < begin + size:
                break
            mask = data[at + head : begin] * (size // 4 + 1)
            message = int.from_bytes(data[begin : begin + size], "big") ^ int.from_bytes(mask[:size], "big")
            self.heard += len(message.to_bytes(size, "big")) > 0
            at = begin + size
        self._rest = data[at:]


async def bare() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def tornado_style() -> None:
    from tornado import httpserver, web, websocket

    everybody: set[Any] = set()

    class Listener(websocket.WebSocketHandler):
        def open(self, *_: str, **__: str) -> None:
            everybody.add(self)

        def on_close(self) -> None:
            everybody.discard(self)

        def on_message(self, message: str | bytes) -> None:
            pass

    class Publish(web.RequestHandler):
        async def post(self) -> None:
            said = json.loads(self.request.body)
            for each in everybody:
                each.write_message(said)

    server = httpserver.HTTPServer(web.Application([("/publish", Publish), ("/", Listener)]))
    server.listen(0, "127.0.0.1", backlog=1024)
    port = next(iter(server._sockets.values())).getsockname()[1]
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1:] == ["bare"]:
        import uvloop

        uvloop.run(bare())
    else:
        asyncio.run(tornado_style())
