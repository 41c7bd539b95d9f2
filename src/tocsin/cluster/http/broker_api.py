"""Assembles the cluster's HTTP API for brokers, and serves their registration, announcements and acknowledgements.

Every route is fenced: a broker that another process of the same name has replaced gets an error instead of an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.brokers import BrokerFence, Brokers, check_url
from tocsin.cluster.channels.metrics import AnnouncementCollector
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.http.requests import path_name, split_full_name
from tocsin.cluster.http.result_routes import FetchLimits, ResultRoutes
from tocsin.cluster.http.subscription_routes import SubscriptionRoutes
from tocsin.serving.answers import answer
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import read_message, seconds
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName
from tocsin.wire.cluster import BROKER_HEADER, BrokerAcks, BrokerInfo, RegistrationRequest, parse_generation_header
from tocsin.wire.cursors import parse_position
from tocsin.wire.results import FRAMES

WAIT_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BrokerApi:
    store: ChannelStore
    subscriptions: Subscriptions
    brokers: Brokers
    announcer: Announcer
    retention: Retention
    limits: FetchLimits | None = None
    wait_limit_s: float = WAIT_LIMIT_S

    def routes(self, metrics: ServerMetrics) -> list[web.RouteDef]:
        metrics.registry.register(AnnouncementCollector(self.announcer.figures))
        results = ResultRoutes(self.store, metrics, self.limits)
        subscriptions = SubscriptionRoutes(self.subscriptions, self.brokers, self.retention)
        brokers = _RegistrationRoutes(self.brokers, self.announcer, self.store, self.retention, self.wait_limit_s)
        return [
            *(_fence_route(route, self.brokers.fence, changes=False) for route in results.routes()),
            *(
                # Do not fence the registration: there a broker gets its generation.
                route
                if route.method == "PUT"
                else _fence_route(route, self.brokers.fence, changes=route.method != "GET")
                for route in (*subscriptions.routes(), *brokers.routes())
            ),
        ]


def _fence_route(route: web.RouteDef, fence: BrokerFence, *, changes: bool) -> web.RouteDef:
    """Refuses requests of an older generation of a broker; passes the newest, and requests without the header."""

    async def handle(request: web.Request) -> web.StreamResponse:
        header = request.headers.get(BROKER_HEADER)
        if header is None:
            return await route.handler(request)
        name, generation = parse_generation_header(header)
        broker = BrokerName(*split_full_name(name))
        if not changes:
            await fence.check(broker, generation)
            return await route.handler(request)
        async with fence.change(broker, generation):
            return await route.handler(request)

    return web.route(route.method, route.path, handle, **route.kwargs)


class _RegistrationRoutes:
    """Routes of registration and announcements. A broker fetches announcements after a pause in which the cluster could
    not reach it."""

    def __init__(
        self,
        brokers: Brokers,
        announcer: Announcer,
        store: ChannelStore,
        retention: Retention,
        wait_limit_s: float = WAIT_LIMIT_S,
    ) -> None:
        self._wait_limit_s = wait_limit_s
        self._brokers = brokers
        self._announcer = announcer
        self._store = store
        self._retention = retention

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/v1/brokers/{name}", self._register),
            web.get("/v1/brokers/{name}", self._show),
            web.delete("/v1/brokers/{name}", self._remove),
            web.post("/v1/brokers/{name}/secret", self._renew_secret),
            web.get("/v1/brokers/{name}/announcements", self._announcements),
            web.post("/v1/brokers/{name}/acks", self._acknowledge),
        ]

    async def _register(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        dataverse, name = path_name(request)
        wanted = await read_message(request, RegistrationRequest, unpack=True)
        if wanted.url is not None:
            self._announcer.guard.check(check_url(wanted.url), "the broker's address")
        # A broker that does not name its store gets no generation.
        claim = None if wanted.store is None else BrokerClaim(wanted.store, wanted.generation, wanted.starts)
        registration = await self._brokers.register(dataverse, name, wanted.url, request[PRINCIPAL], claim)
        info = BrokerInfo(
            full_name(registration.broker),
            registration.url,
            registration.position,
            await self._store.dropped(),
            registration.generation,
            registration.secret,
        )
        return answer(info.to_json(), status=201 if registration.made else 200)

    async def _show(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        entry = self._brokers.find(*path_name(request))
        broker = BrokerName(entry.dataverse, entry.name)
        registration = await self._store.registration(broker)
        # A generation without a known holder belongs to nobody, so do not report it: its broker must claim it again.
        generation = None if registration is None or registration.holder is None else registration.generation
        position = None if registration is None else registration.position
        info = BrokerInfo(full_name(broker), entry.url, position, await self._store.dropped(), generation)
        return answer(info.to_json())

    async def _remove(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.remove(broker, request[PRINCIPAL])
        self._retention.wake()
        return answer({"removed": full_name(broker)})

    async def _renew_secret(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        secret = await self._brokers.renew_secret(BrokerName(*path_name(request)), request[PRINCIPAL])
        return answer({"secret": secret})

    async def _announcements(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        registration = await self._brokers.find_registration(broker, request[PRINCIPAL])
        after = request.query.get("after")
        position = registration.position if after is None else parse_position(after)
        announcement = await self._announcer.announcement(
            broker, position, seconds(request, "wait", most=self._wait_limit_s)
        )
        return web.Response(body=announcement.to_bytes(), content_type=FRAMES)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.find_registration(broker, request[PRINCIPAL])
        acks = await read_message(request, BrokerAcks, unpack=True)
        channels = await self._store.acknowledge(broker, acks.cursors) if acks.cursors else set()
        if acks.position is not None:
            await self._store.record_position(broker, acks.position)
            await self._announcer.notify_now(broker)
        if acks.trim:
            self._retention.request_trim(channels)
        return answer({"acknowledged": len(acks.cursors)})
