"""The client of the cluster's HTTP API, as a broker uses it.

Every failure is a TocsinError, and a cluster that does not answer is an UnavailableError, so that callers can decide
whether to retry without knowing HTTP.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson

from tocsin.rules.model.cursors import Cursor, InterestId, Position, Range
from tocsin.wire import cluster as wire
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.cluster import generation_header
from tocsin.wire.cursors import position_text
from tocsin.wire.errors import FencedError, TocsinError, UnavailableError, error_of
from tocsin.wire.results import FetchedPart, FrameReader, NextRange, fetch_request

_PAGE: Final = 10_000
_HEALTH_S: Final = 1.0
"""How long the answer to a health check is valid, so that frequent checks cost the cluster nothing."""
_HEALTH_PATIENCE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class _RegistrationAnswer:
    """The cluster's answer to a registration. `secret`: the new secret, or None if the known one is still valid.
    `dropped`: how many channels were ever dropped. `generation`: the generation of this broker from now on."""

    position: Position
    generation: Position
    secret: str | None = field(repr=False)
    dropped: int


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """An answer that the broker forwards unchanged."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class ClusterClient:
    """Every method is a request to the cluster. It carries `generation` once that is known. `on_unreachable` is called
    when the cluster does not answer, `on_fenced` when a newer broker has taken our name."""

    def __init__(self, url: str, token: str, broker: str, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._broker = broker
        self._path = f"/v1/brokers/{quote(broker, safe='')}"
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self.generation: Position | None = None
        self.on_unreachable: Callable[[], None] = lambda: None
        self.on_fenced: Callable[[FencedError], None] = lambda _error: None

    async def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=self._timeout_s)
        self._session = aiohttp.ClientSession(
            timeout=timeout, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- the broker itself

    async def register(
        self, callback: str, *, store: str, generation: Position | None, starts: bool
    ) -> _RegistrationAnswer:
        request = wire.RegistrationRequest(callback, store, generation, starts)
        answer = wire.BrokerInfo.parse(await self._ask("PUT", self._path, request.to_json()))
        if answer.generation is None or answer.position is None:
            raise UnavailableError("the cluster is older than this broker", hint="upgrade the cluster first")
        return _RegistrationAnswer(answer.position, answer.generation, answer.secret, answer.dropped)

    async def broker_info(self) -> wire.BrokerInfo:
        """What the cluster knows of us; raises NotFoundError if it does not know us."""
        return wire.BrokerInfo.parse(await self._ask("GET", self._path))

    async def new_secret(self) -> str:
        return str((await self._ask("POST", f"{self._path}/secret", {}))["secret"])

    async def announcement(self, after: Position) -> Announcement:
        """The announcement of everything after the position."""
        return parse_announcement(await self._raw("GET", f"{self._path}/announcements?after={position_text(after)}"))

    async def acknowledge(self, cursors: Mapping[InterestId, Cursor]) -> None:
        """Reports up to which cursor each interest is consumed."""
        await self._ask("POST", f"{self._path}/acks", wire.BrokerAcks(dict(cursors.items())).to_json())

    # --- subscriptions

    async def subscribe(
        self, channel: str, values_by_id: Sequence[tuple[str, orjson.Fragment]], application: str
    ) -> list[wire.GrantedSubscription]:
        """Subscribes to all values (pairs of our id and JSON) for the application, or to none if any is refused."""
        subscriptions = [
            {"id": identity, "parameters": values, "application": application} for identity, values in values_by_id
        ]
        answer = await self._ask(
            "POST", self._channel(channel), {"broker": self._broker, "subscriptions": subscriptions}
        )
        return [wire.GrantedSubscription.parse(granted) for granted in answer["subscriptions"]]

    async def unsubscribe(self, channel: str, subscriptions: Sequence[str]) -> None:
        ids = wire.SubscriptionIds(tuple(subscriptions))
        await self._ask("POST", f"{self._channel(channel)}:remove", ids.to_json())

    async def subscription_pages(self) -> AsyncIterator[list[wire.BrokerSubscription]]:
        """Yields pages of all backend subscriptions that the cluster has for this broker."""
        next_page: str | None = None
        while True:
            after = "" if next_page is None else f"&after={quote(next_page, safe='')}"
            answer = await self._ask("GET", f"{self._path}/subscriptions?limit={_PAGE}{after}")
            yield [wire.BrokerSubscription.parse(row) for row in answer["subscriptions"]]
            next_page = answer["next"]
            if next_page is None:
                return

    async def channels(self) -> list[dict[str, Any]]:
        channels: list[dict[str, Any]] = (await self._ask("GET", "/v1/channels"))["channels"]
        return channels

    # --- results

    async def fetch(self, ranges: Sequence[Range]) -> AsyncIterator[FetchedPart | NextRange]:
        """Yields the parts as they arrive. If the answer grew too large, the last item says where to continue."""
        reader = FrameReader()
        async with self._answer("POST", "/v1/results:fetch", fetch_request(ranges)) as response:
            await _check(response)
            async for chunk in response.content.iter_any():
                for part in reader.feed(chunk):
                    yield part
        next_range = reader.check()
        if next_range is not None:
            yield next_range

    # --- publishing

    async def publish(
        self, feed: str, query: str, body: bytes, headers: Mapping[str, str], wait_s: float
    ) -> ForwardedAnswer:
        """Forwards records to a feed; returns the cluster's answer even if it is an error."""
        path = f"/v1/feeds/{quote(feed, safe='')}{f'?{query}' if query else ''}"
        async with self._answer("POST", path, body, headers, wait_s) as response:
            passed_headers = {
                name: response.headers[name] for name in ("Content-Type", "Retry-After") if name in response.headers
            }
            return ForwardedAnswer(response.status, await response.read(), passed_headers)

    # --- requests

    def _channel(self, name: str) -> str:
        return f"/v1/channels/{quote(name, safe='')}/subscriptions"

    async def _ask(self, method: str, path: str, message: Any = None) -> Any:
        body = await self._raw(method, path, None if message is None else orjson.dumps(message))
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise UnavailableError(f"what answers at {self._url} is not a Tocsin cluster") from None

    async def _raw(self, method: str, path: str, body: bytes | None = None) -> bytes:
        async with self._answer(method, path, body) as response:
            await _check(response)
            return await response.read()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise UnavailableError("the broker is starting or stopping")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=wait_s or self._timeout_s)
        if self.generation is not None:
            headers = {**(headers or {}), **generation_header(self._broker, self.generation)}
        try:
            async with self._session.request(
                method, f"{self._url}{path}", data=body, headers=headers, timeout=timeout
            ) as response:
                yield response
        except FencedError as error:
            self.on_fenced(error)
            raise
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.on_unreachable()
            raise UnavailableError(
                f"the cluster at {self._url} does not answer: {str(error) or type(error).__name__}",
                hint="try again soon",
            ) from None


class ClusterHealth:
    """Caches the cluster's health, so that many checks cause few requests."""

    def __init__(self, client: ClusterClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_s = -math.inf
        self._up = False

    async def is_up(self) -> bool:
        """Whether the cluster answers. If it does not, this calls the client's `on_unreachable`."""
        async with self._asking:
            if self._clock() - self._asked_s >= _HEALTH_S:
                self._up = await self._ask()
                self._asked_s = self._clock()
            return self._up

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(_HEALTH_PATIENCE_S):
                await self._client.broker_info()
        except TimeoutError:
            self._client.on_unreachable()
            return False
        except TocsinError as error:
            # A refusal is an answer, too: the cluster is up.
            return not error.retry
        return True


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises the error that the cluster answered, if it did."""
    if response.status < 400:
        return
    body = await response.read()
    error: TocsinError
    try:
        error = error_of(orjson.loads(body)["error"], response.status)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        error = UnavailableError(f"the cluster answered {response.status}")
    raise error
