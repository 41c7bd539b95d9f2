"""Real broker processes for tests, and subscribers that live through whatever happens to them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.support.real_processes import environment
from tests.support.waiting import WITHIN_S
from tocsin.serving.application import bind_socket

PASSWORD = "correct horse battery"
QUICK = {
    "TOCSIN_BROKER__CLUSTER__FIRST_RETRY_S": "0.05",
    "TOCSIN_BROKER__CLUSTER__LAST_RETRY_S": "0.2",
    "TOCSIN_BROKER__DELIVERY__FETCH_RETRY_S": "0.1",
}
FAILURES = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


def free_port() -> int:
    with bind_socket("127.0.0.1", 0) as (sock, _):
        port: int = sock.getsockname()[1]
        return port


@dataclass(slots=True)
class BrokerProcess:
    """`tocsin broker` in a process of its own."""

    process: asyncio.subprocess.Process
    url: str

    async def died(self) -> None:
        assert await self.process.wait() == -signal.SIGKILL

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def broker_process(
    data: Path, cluster: str, port: int, *arguments: str, crash_at: str | None = None, **variables: str
) -> AsyncIterator[BrokerProcess]:
    """A broker that is ready (or has died before it was, where it should)."""
    more = {**QUICK, **variables} if crash_at is None else {**QUICK, **variables, "TOCSIN_CRASH_AT": crash_at}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tocsin.cli.main", "broker", "--name", "Default.b", "--data", str(data),
        "--port", str(port), "--cluster", cluster, *arguments,
        env=environment(**more), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        assert line.startswith("tocsin broker Default.b ready at http://"), line
        yield BrokerProcess(process, line.split()[5])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@dataclass(slots=True)
class Subscriber:
    """Holds on to its subscriptions whatever happens: asks until it is answered, connects again and again, drops what
    it has seen by interest and cursor, acknowledges what it has."""

    url: str
    user: str
    got: dict[str, list[Any]] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    again: int = 0
    connections: int = 0
    gaps: list[Any] = field(default_factory=list)
    token: str = ""
    _task: asyncio.Task[None] | None = None

    async def ask(self, method: str, path: str, said: Any = None) -> Any:
        """Until it is answered well."""
        while True:
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            try:
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session,
                    session.request(
                        method, self.url + path, data=None if said is None else orjson.dumps(said), headers=headers
                    ) as response,
                ):
                    answered = orjson.loads(await response.read())
                    if response.status < 300 or (path == "/v1/register" and response.status == 409):
                        return answered
                    assert response.status in (404, 429, 503), answered
            except FAILURES:
                pass
            await asyncio.sleep(0.02)

    async def enter(self) -> None:
        credentials = {"user": self.user, "password": PASSWORD}
        await self.ask("POST", "/v1/register", credentials)
        self.token = (await self.ask("POST", "/v1/login", credentials))["token"]

    async def subscribe(self, channel: str, *parameters: Any) -> dict[str, Any]:
        said: dict[str, Any] = await self.ask(
            "POST", "/v1/subscriptions", {"channel": channel, "parameters": list(parameters)}
        )
        return said

    def listen(self) -> None:
        self._task = asyncio.create_task(self._listen())

    async def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, wanted: dict[str, Sequence[Any]], within_s: float = 30.0) -> None:
        """Until all of this has come, each once and in order, and nothing else has."""
        try:
            async with asyncio.timeout(within_s):
                while any(len(self.got.get(interest, ())) < len(all_) for interest, all_ in wanted.items()):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            lost = {item: [x for x in all_ if x not in self.got.get(item, ())] for item, all_ in wanted.items()}
            raise AssertionError(f"{self.user} lacks {lost}") from None
        assert {interest: self.got[interest] for interest in wanted} == {k: list(v) for k, v in wanted.items()}

    async def _listen(self) -> None:
        while True:
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.ws_connect(
                        f"{self.url}/v1/stream", headers={"Authorization": f"Bearer {self.token}"}, max_msg_size=0
                    ) as socket,
                ):
                    self.connections += 1
                    async for message in socket:
                        said = orjson.loads(message.data)
                        if said.get("type") == "tocsin.results":
                            self._take(said)
                            await socket.send_bytes(orjson.dumps({"ack": {said["interest"]: said["data"]["to"]}}))
            except FAILURES:
                pass
            await asyncio.sleep(0.02)

    def _take(self, said: dict[str, Any]) -> None:
        interest = said["interest"]
        if said["data"]["gap"] is not None:
            self.gaps.append(said["data"]["gap"])
        for result in said["data"]["results"]:
            if _place(result["cursor"]) <= _place(self.seen.get(interest, "0-0-0")):
                self.again += 1
                continue
            self.seen[interest] = result["cursor"]
            self.got.setdefault(interest, []).append(result["result"])


def _place(cursor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cursor.split("-"))
