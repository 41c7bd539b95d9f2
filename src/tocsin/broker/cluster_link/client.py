"""The cluster's HTTP interface, as a broker uses it. Every failure is a TocsinError; what did not answer is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson

from tocsin.rules.model.cursors import Cursor, Position, Range
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.cursors import cursor_text, parse_cursor, parse_position, position_text
from tocsin.wire.errors import FencedError, TocsinError, UnavailableError, error_of
from tocsin.wire.generations import generation_header
from tocsin.wire.results import FetchedPart, FrameReader, NextRange, fetch_request

_PAGE: Final = 10_000
_PASSED_ON: Final = frozenset({"Content-Type", "Retry-After"})


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """`secret`: where it is a new one. `dropped`: how many channels ever were. `generation`: what we are now."""

    position: Position
    generation: Position
    secret: str | None = field(repr=False)
    dropped: int


@dataclass(frozen=True, slots=True)
class KnownSubscriptions:
    """Where the cluster tells us, how far it has, how many channels were ever dropped, and which of us it hears."""

    url: str | None
    position: Position | None
    generation: Position | None
    dropped: int


@dataclass(frozen=True, slots=True)
class GrantedSubscription:
    """What the cluster calls a subscription of ours."""

    subscription: str
    interest: int
    since: Cursor


@dataclass(frozen=True, slots=True)
class ClusterSubscription:
    """A subscription that the cluster holds for us. `channel` is None for one that is just going."""

    channel: str | None
    subscription: str
    interest: int
    application: str


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """An answer that is passed on as it is."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class ClusterClient:
    """`generation` is named with each request, once it is known. `on_fenced` hears that a newer broker has our name."""

    def __init__(self, url: str, token: str, broker: str, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._broker = broker
        self._place = f"/v1/brokers/{quote(broker, safe='')}"
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self.generation: Position | None = None
        self.on_away: Callable[[], None] = lambda: None
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
    ) -> RegistrationAnswer:
        had = None if generation is None else position_text(generation)
        asked = {"url": callback, "store": store, "generation": had, "starts": starts}
        said = await self._ask("PUT", self._place, asked)
        if said.get("generation") is None:
            raise UnavailableError("the cluster is older than this broker", hint="upgrade the cluster first")
        given = parse_position(said["generation"])
        return RegistrationAnswer(parse_position(said["position"]), given, said.get("secret"), said["dropped"])

    async def known(self) -> KnownSubscriptions:
        """What the cluster knows of us; NotFoundError when it does not know us."""
        said = await self._ask("GET", self._place)
        position, generation = (
            None if text is None else parse_position(text) for text in (said["position"], said["generation"])
        )
        return KnownSubscriptions(said["url"], position, generation, said["dropped"])

    async def new_secret(self) -> str:
        return str((await self._ask("POST", f"{self._place}/secret", {}))["secret"])

    async def news(self, after: Position) -> Announcement:
        return parse_announcement(await self._raw("GET", f"{self._place}/news?after={position_text(after)}"))

    async def acknowledge(self, cursors: Mapping[int, Cursor]) -> None:
        told = {str(interest): cursor_text(cursor) for interest, cursor in cursors.items()}
        await self._ask("POST", f"{self._place}/acks", {"cursors": told})

    # --- subscriptions

    async def subscribe(
        self, channel: str, wanted: Sequence[tuple[str, orjson.Fragment]], application: str
    ) -> list[GrantedSubscription]:
        """All of them (own ids, and values as JSON) for the application, or none where one does not fit."""
        asked = [{"id": identity, "parameters": values, "application": application} for identity, values in wanted]
        said = await self._ask("POST", self._channel(channel), {"broker": self._broker, "subscriptions": asked})
        return [
            GrantedSubscription(one["id"], one["interest"], parse_cursor(one["since"])) for one in said["subscriptions"]
        ]

    async def unsubscribe(self, channel: str, subscriptions: Sequence[str]) -> None:
        await self._ask("POST", f"{self._channel(channel)}:remove", {"ids": list(subscriptions)})

    async def held(self) -> AsyncIterator[list[ClusterSubscription]]:
        following: str | None = None
        while True:
            after = "" if following is None else f"&after={quote(following, safe='')}"
            said = await self._ask("GET", f"{self._place}/subscriptions?limit={_PAGE}{after}")
            yield [
                ClusterSubscription(one["channel"], one["id"], one["interest"], one["application"])
                for one in said["subscriptions"]
            ]
            following = said["next"]
            if following is None:
                return

    async def channels(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._ask("GET", "/v1/channels"))["channels"]
        return found

    # --- results

    async def fetch(self, ranges: Sequence[Range]) -> AsyncIterator[FetchedPart | NextRange]:
        """The parts as they come. Last, where the answer grew too large, where to go on."""
        reader = FrameReader()
        async with self._answer("POST", "/v1/results:fetch", fetch_request(ranges)) as response:
            await _check(response)
            async for some in response.content.iter_any():
                for part in reader.feed(some):
                    yield part
        following = reader.check()
        if following is not None:
            yield following

    # --- publishing

    async def publish(
        self, feed: str, query: str, body: bytes, headers: Mapping[str, str], wait_s: float
    ) -> ForwardedAnswer:
        path = f"/v1/feeds/{quote(feed, safe='')}{f'?{query}' if query else ''}"
        async with self._answer("POST", path, body, headers, wait_s) as response:
            kept = {
                name: response.headers[name] for name in ("Content-Type", "Retry-After") if name in response.headers
            }
            return ForwardedAnswer(response.status, await response.read(), kept)

    # --- inside

    def _channel(self, name: str) -> str:
        return f"/v1/channels/{quote(name, safe='')}/subscriptions"

    async def _ask(self, method: str, path: str, said: Any = None) -> Any:
        body = await self._raw(method, path, None if said is None else orjson.dumps(said))
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
            self.on_away()
            raise UnavailableError(
                f"the cluster at {self._url} does not answer: {str(error) or type(error).__name__}",
                hint="try again soon",
            ) from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    body = await response.read()
    error: TocsinError
    try:
        error = error_of(orjson.loads(body)["error"], response.status)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        error = UnavailableError(f"the cluster answered {response.status}")
    raise error
