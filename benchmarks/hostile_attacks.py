"""The attacks of `benchmarks.hostile`. Each runs in a process of its own, with requests as lines of JSON.

gzip-members     bodies of 4 MiB that are nothing but empty gzip files, to a feed and to a broker's announcements
empty-objects    [{},{},…], 4 MiB packed into 4 KB, to a feed
like             one subscription whose pattern has many wildcards
match-all        a thousand subscriptions that match every record
silent-webhooks  two hundred webhooks whose receivers accept and do not answer
unread-streams   sixteen streamed answers that are not read
endless-rows     statements with a second to run, which aggregate more rows than anybody can count
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp

from benchmarks.child import Child

BODY_BYTES: Final = 4 << 20
PAUSE_S: Final = 0.5
PATTERN: Final = "%e%e%e%e%e%e%zq%"
SUBSCRIPTIONS: Final = 1_000
WEBHOOKS: Final = 200
STREAMS: Final = 16
_AT_ONCE: Final = 16
_STANDS_S: Final = 60.0


class Attack(Child):
    """The process, for who starts it."""

    def __init__(self, name: str, cluster: str, broker: str) -> None:
        super().__init__("benchmarks.hostile_attacks", name, cluster, broker)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, token: str, tokens: list[str], channels: Mapping[str, str]) -> None:
        """Returns when all that the attack prepares is there. `token`: for the cluster. `tokens`: of subscribers, for
        the broker."""
        self.ask(token=token, tokens=tokens, channels=channels)

    def end(self) -> dict[str, int]:
        """All have left; what became of what they did."""
        return self.ask()


# ---------------------------------------------------------------- the process


class Place:
    def __init__(self, cluster: str, broker: str, session: aiohttp.ClientSession, said: dict[str, Any]) -> None:
        self.cluster, self.broker, self._session = cluster, broker, session
        self.token: str = said["token"]
        self.tokens: list[str] = said["tokens"]
        self.channels: dict[str, str] = said["channels"]
        self.seen: Counter[str] = Counter()
        self.stands = asyncio.Event()
        """Set when all that the attack prepares is there."""

    async def ask(self, method: str, url: str, token: str | None = None, **options: Any) -> None:
        headers = {**options.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._session.request(method, url, headers=headers, **options) as answer:
                await answer.read()
                self.seen[f"answered {answer.status}"] += 1


async def gzip_members(place: Place) -> None:
    body = gzip.compress(b"") * (BODY_BYTES // len(gzip.compress(b"")))
    packed = {"Content-Encoding": "gzip"}
    place.stands.set()
    while True:
        signed = {"webhook-id": "x", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"}
        await asyncio.gather(
            place.ask("POST", f"{place.cluster}/v1/feeds/ReportFeed", place.token, data=body, headers=packed),
            place.ask("POST", f"{place.broker}/v1/announcements", data=body, headers={**packed, **signed}),
        )
        await asyncio.sleep(PAUSE_S)


async def empty_objects(place: Place) -> None:
    body = gzip.compress(b"[" + b",".join([b"{}"] * (BODY_BYTES // 3)) + b"]")
    place.stands.set()
    while True:
        headers = {"Content-Encoding": "gzip"}
        await place.ask("POST", f"{place.cluster}/v1/feeds/ReportFeed", place.token, data=body, headers=headers)
        await asyncio.sleep(PAUSE_S)


async def like(place: Place) -> None:
    asked = {"channel": place.channels["like"], "parameters": [PATTERN]}
    await place.ask("POST", f"{place.broker}/v1/subscriptions", place.tokens[0], json=asked)


async def match_all(place: Place) -> None:
    async def subscribe(first: int) -> None:
        for number in range(first, SUBSCRIPTIONS, _AT_ONCE):
            asked = {"channel": place.channels["least"], "parameters": [-number / 1_000]}
            await place.ask("POST", f"{place.broker}/v1/subscriptions", place.tokens[0], json=asked)

    await asyncio.gather(*[subscribe(first) for first in range(_AT_ONCE)])


async def silent_webhooks(place: Place) -> None:
    async def accept(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        place.seen["messages that nobody answers"] += 1
        with suppress(asyncio.CancelledError, ConnectionError):
            await reader.read(-1)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def register(first: int) -> None:
        for number in range(first, WEBHOOKS, _AT_ONCE):
            token, url = place.tokens[number], f"http://127.0.0.1:{port}/{number}"
            await place.ask("PUT", f"{place.broker}/v1/webhook", token, json={"url": url})
            asked = {"channel": place.channels["least"], "parameters": [0.0]}
            await place.ask("POST", f"{place.broker}/v1/subscriptions", token, json=asked)

    try:
        await asyncio.gather(*[register(first) for first in range(_AT_ONCE)])
        place.stands.set()
        await asyncio.Event().wait()
    finally:
        server.close()


async def unread_streams(place: Place) -> None:
    host, _, port = place.cluster.removeprefix("http://").partition(":")
    script = b"SELECT VALUE f FROM Filler f;"
    head = (
        b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b"Authorization: Bearer %s\r\nAccept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s"
        % (place.token.encode(), len(script), script)
    )
    writers = []
    try:
        for _ in range(STREAMS):
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            writers.append(writer)
            writer.write(head)
            place.seen["streams that nobody reads"] += 1
        place.stands.set()
        await asyncio.Event().wait()
    finally:
        for writer in writers:
            writer.transport.abort()


async def endless_rows(place: Place) -> None:
    item = "CASE WHEN r.id < 10 THEN r.id ELSE NULL END"
    script = f"SELECT VALUE array_agg({item}) FROM range(0, 300000000000) r;"
    place.stands.set()
    while True:
        url, headers = f"{place.cluster}/v1/statements?timeout=1", {"Content-Type": "text/plain"}
        await place.ask("POST", url, place.token, data=script, headers=headers)
        await asyncio.sleep(PAUSE_S)


ATTACKS: Final[Mapping[str, Callable[[Place], Awaitable[None]]]] = {
    "gzip-members": gzip_members,
    "empty-objects": empty_objects,
    "like": like,
    "match-all": match_all,
    "silent-webhooks": silent_webhooks,
    "unread-streams": unread_streams,
    "endless-rows": endless_rows,
}


async def main(name: str, cluster: str, broker: str) -> None:
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    task: asyncio.Future[None] | None = None
    seen: Counter[str] = Counter()
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        while line := await lines.readline():
            said = json.loads(line)
            if task is not None:
                task.cancel()
                for error in await asyncio.gather(task, return_exceptions=True):
                    if isinstance(error, Exception):
                        seen[f"ended by {type(error).__name__}"] += 1
                task = None
            if said:
                place = Place(cluster, broker, session, said)
                seen = place.seen
                task = asyncio.ensure_future(ATTACKS[name](place))
                task.add_done_callback(lambda _task, place=place: place.stands.set())  # type: ignore[misc]
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STANDS_S):
                        await place.stands.wait()
            print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
