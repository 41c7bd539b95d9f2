"""A broker in the test process, over the world of a cluster without Spark, and clients that speak plainly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson

from tests.support.sparkless_cluster import SparklessCluster
from tests.support.waiting import WITHIN_S, until
from tocsin import compose_broker
from tocsin.broker.app import RunningBroker
from tocsin.broker.service import BrokerParts
from tocsin.serving.application import bind_socket, listen
from tocsin.serving.name_resolver import NameResolver
from tocsin.settings import Settings
from tocsin.store.broker.sqlite.store import SqliteBrokerStore

PASSWORD = "correct horse battery"


@dataclass(slots=True)
class InProcessBroker:
    """A broker that listens; asked over HTTP as anybody would."""

    url: str
    running: RunningBroker
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> BrokerParts:
        return self.running.parts

    async def ask(
        self, method: str, path: str, said: Any = None, *, user: str | None = None, token: str | None = None,
        data: bytes | None = None, headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:  # fmt: skip
        shown = self.tokens[user] if user is not None else token
        given = {**(headers or {}), **({} if shown is None else {"Authorization": f"Bearer {shown}"})}
        body = orjson.dumps(said) if said is not None else data
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, data=body, headers=given) as response,
        ):
            answered = await response.read()
            return response.status, orjson.loads(answered) if response.content_type == "application/json" else answered

    async def user(self, name: str, application: str | None = None, token: str | None = None) -> str:
        """Registers and logs in; the token."""
        credentials = {"user": name, "password": PASSWORD}
        if application is not None:
            credentials["application"] = application
        status, said = await self.ask("POST", "/v1/register", credentials, token=token)
        assert status == 201, said
        return await self.login(name, application)

    async def login(self, name: str, application: str | None = None) -> str:
        credentials = {"user": name, "password": PASSWORD}
        if application is not None:
            credentials["application"] = application
        status, said = await self.ask("POST", "/v1/login", credentials)
        assert status == 200, said
        self.tokens[name] = said["token"]
        return str(said["token"])

    async def subscribe(self, user: str, channel: str, *parameters: Any, **more: Any) -> dict[str, Any]:
        asked = {"channel": channel, "parameters": list(parameters), **more}
        status, said = await self.ask("POST", "/v1/subscriptions", asked, user=user)
        assert status in (200, 201), said
        found: dict[str, Any] = said
        return found

    async def idle(self) -> None:
        """Until the broker has met the cluster."""
        await until(lambda: self.parts.link.connected)


@asynccontextmanager
async def broker(
    data: Path, cluster: str, *, trace: Path | None = None, port: int = 0, take_over: bool = False,
    store_type: type[SqliteBrokerStore] = SqliteBrokerStore, resolver: NameResolver | None = None, **flags: Any,
) -> AsyncIterator[InProcessBroker]:  # fmt: skip
    """A broker on this folder. `flags`: settings of the section `broker`, with __ for dots."""
    chosen = {f"broker.{name.replace('__', '.')}": value for name, value in flags.items()}
    quick = {"broker.name": "Default.b", "broker.cluster.first_retry_s": 0.02, "broker.cluster.last_retry_s": 0.1}
    settings = Settings.load(None, {}, {"data": data, "broker.cluster.url": cluster, **quick, **chosen})
    with bind_socket("127.0.0.1", port) as (sock, address):
        async with (
            compose_broker.broker(
                settings, address, trace, take_over=take_over, store_type=store_type, resolver=resolver
            ) as made,
            listen(made.app, sock),
        ):
            yield InProcessBroker(address, made)


@asynccontextmanager
async def both(data: Path, here: SparklessCluster, **flags: Any) -> AsyncIterator[InProcessBroker]:
    """A broker that has met the cluster of this world, with the user ada logged in."""
    async with broker(data, here.url, **flags) as made:
        await made.idle()
        await made.user("ada")
        yield made


class Listener:
    """A subscriber's WebSocket."""

    def __init__(self, url: str, token: str, *, login: bool = False) -> None:
        self._url, self._token, self._login = url, token, login
        self.events: list[dict[str, Any]] = []
        self.replies: dict[int, Any] = {}
        self.errors: list[Any] = []
        self.close_code: int | None = None
        self._ref = 0
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        headers = {} if self._login else {"Authorization": f"Bearer {self._token}"}
        self.socket = await self._session.ws_connect(f"{self._url}/v1/stream", headers=headers)
        if self._login:
            await self.socket.send_bytes(orjson.dumps({"ref": 0, "login": {"token": self._token}}))
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await self.socket.close()
        await self._session.close()

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            async for message in self.socket:
                said = orjson.loads(message.data)
                if "specversion" in said:
                    self.events.append(said)
                elif "ref" in said:
                    self.replies[said["ref"]] = said
                else:
                    self.errors.append(said["error"])
                self._changed.set()
            self.close_code = self.socket.close_code
            self._changed.set()

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not what():
                self._changed.clear()
                await self._changed.wait()

    async def ask(self, **said: Any) -> Any:
        self._ref += 1
        ref = self._ref
        await self.socket.send_bytes(orjson.dumps({"ref": ref, **said}))
        await self.until(lambda: ref in self.replies)
        return self.replies[ref]

    async def ack(self, interest: str, cursor: str) -> None:
        said = await self.ask(ack={interest: cursor})
        assert "ok" in said, said

    @property
    def values(self) -> list[Any]:
        """The results that came, in the order they came."""
        return values(self.events)

    async def values_until(self, count: int) -> list[Any]:
        await self.until(lambda: len(self.values) >= count)
        return self.values


def values(events: list[dict[str, Any]]) -> list[Any]:
    return [
        result["result"] for event in events if event["type"] == "tocsin.results" for result in event["data"]["results"]
    ]
