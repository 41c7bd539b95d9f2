"""What brokers deal with at a cluster, without Spark: real stores, the real HTTP server, executions made by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from tests.support.fake_cluster import FakeCredentials, FakeStatements
from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.catalog import CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import ChannelEntry, DataverseEntry
from tocsin.cluster.channels.announcements.announcement_builder import AnnouncementBuilder
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.broker_notifier import AnnouncerTiming
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.announcements.notification_builder import NotificationBuilder
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.result_routes import FetchLimits
from tocsin.cluster.http.routes import cluster_application
from tocsin.rules.model import types as t
from tocsin.rules.model.cursors import Range
from tocsin.rules.model.types import Type
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.serving.application import bind_socket, listen
from tocsin.serving.tokens import Token
from tocsin.settings import ClusterSettings
from tocsin.store.channels.rows import BrokerName, Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.cluster import SubscriptionRequest
from tocsin.wire.errors import UnauthorizedError
from tocsin.wire.results import FetchedPart, FrameReader, NextRange, fetch_request
from tocsin.wire.signatures import verify

QUICK = AnnouncerTiming(timeout_s=5.0, first_retry_s=0.01, last_retry_s=0.05)


@dataclass(slots=True)
class SparklessCluster:
    catalog: CatalogStore
    store: SqliteChannelStore
    announcer: Announcer
    brokers: Brokers
    retention: Retention
    door: BrokerApi
    url: str = ""
    token: str | None = None

    async def channel(self, name: str, *types: Type, push: bool = False, **fields: Any) -> ChannelEntry:
        """A channel of this name in the dataverse v, with parameters of these types."""
        if "v" not in {dataverse.name for dataverse in self.catalog.catalog.dataverses}:
            await self.catalog.apply([Put(DataverseEntry("v"))])
        types = types or (t.BIGINT,)
        entry = ChannelEntry(
            "v", name, await self.store.add_channel(), True, push, None, tuple(f"p{i}" for i in range(len(types))),
            types, "select 1", None, datetime(2026, 11, 15, tzinfo=UTC), fields.get("retention_s"),
            fields.get("retention_bytes"), (),
        )  # fmt: skip
        await self.catalog.apply([Put(entry)])
        return entry

    async def drop(self, channel: ChannelEntry) -> None:
        await self.catalog.apply([Remove(channel.ref)])
        await self.store.drop_channel(channel.channel_id)
        self.announcer.announce_drop()

    async def execute(
        self,
        channel: ChannelEntry,
        found: Mapping[int, Sequence[Any]],
        at_us: int | None = None,
        ended_us: int | None = None,
    ) -> None:
        """One execution that finds these values for these interests."""
        at_us = time.time_ns() // 1_000 if at_us is None else at_us
        ended_us = at_us if ended_us is None else ended_us
        number = (await self.store.state(channel.channel_id)).last_execution + 1
        pairs = [(interest, orjson.dumps(value)) for interest, values in found.items() for value in values]
        committed = await self.store.commit_execution(
            channel.channel_id,
            Execution(number, at_us, ended_us, {}),
            [item for item, _ in pairs],
            [item for _, item in pairs],
        )
        self.announcer.announce_commit(committed)
        self.retention.wake()

    async def until_kept(self, broker: BrokerName) -> None:
        """Until it is kept that the broker knows everything: killed before, it would be told some of it again."""
        async with asyncio.timeout(WITHIN_S):
            while (
                kept := await self.store.registration(broker)
            ) is None or kept.position < await self.store.position():
                await asyncio.sleep(0.01)

    async def ask(
        self, method: str, path: str, said: Any = None, *, data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:  # fmt: skip
        given = {**(headers or {}), **({} if self.token is None else {"Authorization": f"Bearer {self.token}"})}
        body = orjson.dumps(said) if said is not None else data
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, data=body, headers=given) as response,
        ):
            answer = await response.read()
            return response.status, orjson.loads(answer) if response.content_type == "application/json" else answer

    async def subscribe(self, channel: str, broker: str, *parameters: Sequence[Any]) -> list[int]:
        status, said = await self.ask(
            "POST", f"/v1/channels/{channel}/subscriptions",
            {"broker": broker, "subscriptions": [{"parameters": list(parameter)} for parameter in parameters]},
        )  # fmt: skip
        assert status == 200, said
        return [subscription["interest"] for subscription in said["subscriptions"]]

    async def fetch(self, *ranges: Range) -> tuple[list[FetchedPart], NextRange | None]:
        status, body = await self.ask("POST", "/v1/results:fetch", data=fetch_request(ranges))
        assert status == 200, body
        reader = FrameReader()
        # In small pieces, as a network may bring them.
        parts = [part for at in range(0, len(body), 100) for part in reader.feed(body[at : at + 100])]
        return parts, reader.check()

    async def register(self, name: str, url: str | None = None) -> str:
        status, said = await self.ask("PUT", f"/v1/brokers/{name}", {"url": url})
        assert status == 201, said
        return str(said["secret"])


@asynccontextmanager
async def opened(
    data: Path,
    *,
    limits: FetchLimits | None = None,
    timing: AnnouncerTiming = QUICK,
    announced: Mapping[str, int] | None = None,
    notified: Mapping[str, int] | None = None,
    upkeep_s: float = 3_600.0,
    guard: AddressGuard = UNGUARDED,
    **channels: Any,
) -> AsyncIterator[SparklessCluster]:
    """A world on this folder; what was there before goes on."""
    data.mkdir(exist_ok=True)
    store, kept = SqliteStore(data / "catalog.db"), SqliteChannelStore(data / "channels.db")
    await store.open()
    await kept.open()
    settings = ClusterSettings.model_validate({"channels": {"upkeep_period_s": upkeep_s, **channels}})
    catalog = CatalogStore(store)
    await catalog.load()
    announcer = Announcer(
        catalog, kept, builder=AnnouncementBuilder(catalog, kept, **(announced or {})),
        notifications=NotificationBuilder(catalog, kept, **(notified or {})), timing=timing, guard=guard,
    )  # fmt: skip
    brokers = Brokers(catalog, kept, announcer)
    retention = Retention(catalog, kept, settings.channels)
    subscriptions = Subscriptions(catalog, kept, settings.channels.interests_limit)
    door = BrokerApi(kept, subscriptions, brokers, announcer, retention, limits)
    made = SparklessCluster(catalog, kept, announcer, brokers, retention, door)
    try:
        await announcer.start()
        retention.start()
        yield made
    finally:
        await retention.close()
        await announcer.close()
        await kept.close()
        await store.close()


@asynccontextmanager
async def world(data: Path, *, auth: str = "auto", port: int = 0, **options: Any) -> AsyncIterator[SparklessCluster]:
    """The same behind the real server."""
    async with opened(data, **options) as made:
        settings = ClusterSettings.model_validate({"auth": {"mode": auth}})
        app = cluster_application(settings, FakeStatements(), FakeCredentials(), brokers=made.door)
        with bind_socket("127.0.0.1", port) as (sock, address):
            async with listen(app, sock):
                made.url = address
                yield made


@asynccontextmanager
async def furnished(data: Path) -> AsyncIterator[BrokerApi]:
    """A door with a channel v.c, a push channel v.p and a broker v.b behind it, who holds interests with results."""
    async with opened(data) as made:
        channels = [await made.channel("c"), await made.channel("p", push=True)]
        broker = (await made.brokers.register("v", "b", None, Token("ada", "admin"))).broker
        for channel in channels:
            wanted = [SubscriptionRequest([n], f"s{n}") for n in range(3)]
            held = await made.door.subscriptions.subscribe(channel, broker, wanted)
            await made.execute(channel, {holding.interest: [{"n": 1}, "two"] for holding in held})
        yield replace(made.door, wait_limit_s=0.05)


@dataclass(slots=True)
class AnnouncementReceiver:
    """A broker's callback: takes what is signed with its secret (anything while `trusting`); `answers` are given
    first, then 200."""

    url: str = ""
    secret: str = ""
    got: list[Announcement] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    hold: asyncio.Event | None = None
    trusting: bool = False
    asked: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        status = self.answers.pop(0) if self.answers else 200
        message_id = request.headers["webhook-id"]
        try:
            if not self.trusting:
                verify(self.secret, request.headers, body, now_s=datetime.now(UTC).timestamp())
        except UnauthorizedError as error:
            self.refused.append(error.message)
            status = 401
        if status == 200:
            self.ids.append(message_id)
            self.got.append(parse_announcement(body))
        async with self._changed:
            self._changed.notify_all()
        return web.Response(status=status)

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(what)

    @property
    def told(self) -> dict[int, str]:
        """The last cursor of each interest that came, in whatever way."""
        found: dict[int, str] = {}
        for announcement in self.got:
            for interests in announcement.heads.values():
                found |= {interest: f"{cursor.execution}-{cursor.ordinal}" for interest, cursor in interests}
            for pushed in announcement.pushed:
                last = pushed.results[-1].cursor
                found[pushed.interest] = f"{last.execution}-{last.ordinal}"
        return found


@asynccontextmanager
async def fake_broker(port: int = 0) -> AsyncIterator[AnnouncementReceiver]:
    made = AnnouncementReceiver()
    app = web.Application()
    app.add_routes([web.post("/announcements", made.take)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/announcements"
        yield made
    finally:
        await runner.cleanup()
