"""Three hostile clients in one process: one never reads, one sends garbage, and one opens a thousand subscriptions a
second. Requests are lines of JSON, as for `benchmarks.crowd`.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import uvloop

from benchmarks.child import Child
from benchmarks.crowd import frame, say, upgrade

PER_S: Final = 1_000
_STEP_S: Final = 0.02
_SMALL_BYTES: Final = 4_096


class Hostile(Child):
    """The process, for who starts it."""

    def __init__(self, address: str) -> None:
        super().__init__("benchmarks.hostile_clients", address.rsplit(":", 1)[1])

    def begin(self, tokens: list[str], greedy: list[dict[str, Any]], wanted: str) -> None:
        """`greedy`: what the one that never reads subscribes to. `wanted`: the channel that the last one wants so much
        of."""
        self.ask(tokens=tokens, greedy=greedy, wanted=wanted)

    def end(self) -> dict[str, int]:
        """All have left; what became of them."""
        return self.ask()


# ---------------------------------------------------------------- the process


async def never_reads(port: int, token: str, greedy: list[dict[str, Any]], seen: Counter[str]) -> None:
    """Asks for much and takes nothing of it. What the machine takes for it is little, too."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        words = [
            frame(json.dumps({"ref": number, "subscribe": request}).encode()) for number, request in enumerate(greedy)
        ]
        await loop.sock_sendall(sock, upgrade("/v1/stream", token) + b"".join(words))
        seen["never_reading"] += 1
        await asyncio.Event().wait()


async def garbage(port: int, token: str, seen: Counter[str]) -> None:
    """A thousand pieces a second: what is no message, what is no frame, what is no HTTP. Comes back when it is cut."""
    chance, per_step = random.Random(0), int(PER_S * _STEP_S)
    while True:
        kind = chance.randrange(3)
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            seen["garbage_connections"] += 1
            try:
                if kind > 0:
                    writer.write(upgrade("/v1/stream", token))
                    await reader.readuntil(b"\r\n\r\n")
                while not reader.at_eof() and not writer.is_closing():
                    for _ in range(per_step):
                        some = chance.randbytes(chance.randrange(1, 120))
                        writer.write(frame(some) if kind == 1 else some)
                        seen["garbage_pieces"] += 1
                    await writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_STEP_S):
                            await reader.read(1 << 16)
            finally:
                writer.close()
        await asyncio.sleep(_STEP_S)


async def subscribes(port: int, token: str, channel: str, seen: Counter[str]) -> None:
    """A thousand subscriptions a second, each to something else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def read() -> None:
        while some := await reader.read(1 << 16):
            seen["subscriptions_made"] += some.count(b'"ok"')
            seen["subscriptions_refused"] += some.count(b'"error"')

    try:
        writer.write(upgrade("/v1/stream", token))
        await reader.readuntil(b"\r\n\r\n")
        reading = asyncio.create_task(read())
        try:
            number, begun_s = time.time_ns(), time.monotonic()
            while not reading.done():
                due = int((time.monotonic() - begun_s) * PER_S) - seen["subscriptions_wanted"]
                for _ in range(due):
                    number += 1
                    asked = {"ref": 1, "subscribe": {"channel": channel, "parameters": [number]}}
                    writer.write(frame(json.dumps(asked).encode()))
                seen["subscriptions_wanted"] += due
                # Also when the server does not take them: they are meant.
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await writer.drain()
                await asyncio.sleep(_STEP_S)
        finally:
            reading.cancel()
    finally:
        writer.close()


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks: list[asyncio.Task[None]] = []
    seen: Counter[str] = Counter()
    while line := await lines.readline():
        said = json.loads(line)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                seen[f"ended by {type(error).__name__}"] += 1
        tasks.clear()
        if said:
            seen = Counter()
            tokens = said["tokens"]
            tasks += [
                asyncio.create_task(never_reads(port, tokens[0], said["greedy"], seen)),
                asyncio.create_task(garbage(port, tokens[1], seen)),
                asyncio.create_task(subscribes(port, tokens[2], said["wanted"], seen)),
            ]
        say(**seen)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
