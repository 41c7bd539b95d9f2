"""The other clients of `benchmarks.hostile`: they publish, run scripts, and get results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

CHANNELS: Final = {"like": "Default.Alike", "least": "Default.Above"}
SCRIPT: Final = """
CREATE TYPE News AS {id: bigint, severity: double, text: string};
CREATE ACTIVE DATASET Reports(News) PRIMARY KEY id;
CREATE FEED ReportFeed WITH {"adapter-name": "http_adapter", "type-name": "News", "format": "json"};
CONNECT FEED ReportFeed TO DATASET Reports;
START FEED ReportFeed;
CREATE DATASET Filler(News) PRIMARY KEY id;
CREATE FEED FillerFeed WITH {"adapter-name": "http_adapter", "type-name": "News", "format": "json"};
CONNECT FEED FillerFeed TO DATASET Filler;
START FEED FillerFeed;
CREATE CONTINUOUS PUSH CHANNEL Alike(pattern: string) {
  SELECT r.id, "like" AS channel FROM Reports r WHERE is_new(r) AND r.text LIKE pattern
};
CREATE CONTINUOUS PUSH CHANNEL Above(least: double) {
  SELECT r.id, "least" AS channel FROM Reports r WHERE is_new(r) AND r.severity >= least
};
"""
TEXT: Final = (
    "The river has left its bed near the western bridge and the fields between the mill and the station are under "
    "water; people are asked to leave their cellars, to keep away from the embankment, and to help the elderly where "
    "they can. The brigade expects the level to rise until the evening. Trains between the two stations have been "
    "replaced by buses, which leave every ten minutes from the theatre. Schools remain closed."
)
FILLER: Final = 20_000
PUBLISH_EVERY_S: Final = 0.04
TOGETHER: Final = 10
"""Records are sent in groups: single ones would keep the channels' executions, and a core, always busy."""
ASK_EVERY_S: Final = 0.3
MEASURES: Final = ("acknowledged", "delivered", "by webhook", "scripts")

Late = dict[str, list[float]]


class Others:
    """What they see of each record, in seconds since it was sent."""

    def __init__(self, session: aiohttp.ClientSession, cluster: str, broker: str, token: str) -> None:
        self._session = session
        self._headers = {"Content-Type": "text/plain", "Authorization": f"Bearer {token}"}
        self._cluster = cluster
        self._broker = broker
        self._number = 0
        self._sent_s: dict[int, float] = {}
        self._late: Late = {}
        # Which results are still to come, each as often as it will.
        self._missing: dict[str, set[tuple[str, int]]] = {}

    async def fill(self) -> None:
        records = [{"id": number, "severity": 0.0, "text": "x" * 1_000} for number in range(FILLER)]
        for begin in range(0, FILLER, 5_000):
            body = b"\n".join(orjson.dumps(record) for record in records[begin : begin + 5_000])
            url = f"{self._cluster}/v1/feeds/FillerFeed?wait=visible"
            async with self._session.post(url, data=body, headers=self._headers) as answer:
                answer.raise_for_status()

    @asynccontextmanager
    async def listening(self, token: str, hooked: str) -> AsyncIterator[None]:
        """One subscriber over a WebSocket, on both channels, and one with a webhook."""
        app = web.Application(client_max_size=1 << 24)
        app.add_routes([web.post("/", self._posted)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await self._ask("PUT", "/v1/webhook", hooked, {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/"})
            await self._ask("POST", "/v1/subscriptions", hooked, {"channel": CHANNELS["least"], "parameters": [0.5]})
            await self._ask("POST", "/v1/subscriptions", token, {"channel": CHANNELS["least"], "parameters": [0.5]})
            await self._ask("POST", "/v1/subscriptions", token, {"channel": CHANNELS["like"], "parameters": ["%mill%"]})
            headers = {"Authorization": f"Bearer {token}"}
            async with self._session.ws_connect(f"{self._broker}/v1/stream", headers=headers) as socket:
                reading = asyncio.create_task(self._read(socket))
                try:
                    yield
                finally:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
        finally:
            await runner.cleanup()

    async def stretch(self, seconds: float, grace_s: float) -> Late:
        """How late everything was; what has not come `grace_s` after the end was as late as that."""
        self._late = {name: [] for name in MEASURES}
        self._missing = {name: set() for name in MEASURES}
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        tasks = [asyncio.create_task(self._ask_scripts(begun_s + seconds, grace_s))]
        for number in range(int(seconds / PUBLISH_EVERY_S)):
            await asyncio.sleep(max(0.0, begun_s + number // TOGETHER * TOGETHER * PUBLISH_EVERY_S - loop.time()))
            tasks.append(asyncio.create_task(self._publish(grace_s)))
        await asyncio.gather(*tasks)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(loop.time(), begun_s + seconds) + grace_s):
                while any(self._missing.values()):
                    await asyncio.sleep(0.02)
        for name, missing in self._missing.items():
            self._late[name] += [seconds + grace_s] * len(missing)
        return {name: sorted(late) for name, late in self._late.items()}

    async def are_served(self, within_s: float) -> bool:
        """Whether one record reaches everybody."""
        late = await self.stretch(PUBLISH_EVERY_S, within_s)
        return all(found and found[-1] < within_s for found in late.values())

    async def _publish(self, grace_s: float) -> None:
        self._number += 1
        number = self._number
        self._sent_s[number] = time.monotonic()
        self._missing["delivered"] |= {("least", number), ("like", number)}
        self._missing["by webhook"].add(("least", number))
        record = orjson.dumps({"id": number, "severity": 1.0, "text": TEXT})
        await self._timed("acknowledged", f"{self._cluster}/v1/feeds/ReportFeed", record, grace_s)

    async def _ask_scripts(self, until_s: float, grace_s: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            await self._timed("scripts", f"{self._cluster}/v1/statements", b"SELECT VALUE 1;", grace_s)
            if clock() >= until_s:
                return
            await asyncio.sleep(max(0.0, began_s + ASK_EVERY_S - clock()))

    async def _timed(self, name: str, url: str, body: bytes, grace_s: float) -> None:
        began_s, took_s = time.monotonic(), grace_s
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(grace_s), self._session.post(url, data=body, headers=self._headers) as answer:
                await answer.read()
                if answer.status == 200:
                    took_s = time.monotonic() - began_s
        self._late[name].append(took_s)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            said = orjson.loads(message.data)
            if "specversion" in said:
                self._arrived("delivered", said)
                await socket.send_bytes(orjson.dumps({"ack": {said["interest"]: said["data"]["to"]}}))

    async def _posted(self, request: web.Request) -> web.Response:
        self._arrived("by webhook", orjson.loads(await request.read()))
        return web.Response()

    def _arrived(self, name: str, said: dict[str, Any]) -> None:
        now_s = time.monotonic()
        for result in said["data"]["results"]:
            found = (result["result"]["channel"], result["result"]["id"])
            if found in self._missing.get(name, ()):
                self._missing[name].discard(found)
                self._late[name].append(now_s - self._sent_s[found[1]])

    async def _ask(self, method: str, path: str, token: str, said: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.request(method, f"{self._broker}{path}", json=said, headers=headers) as answer:
            if answer.status not in (200, 201):
                raise RuntimeError(f"{answer.status}: {await answer.text()}")
