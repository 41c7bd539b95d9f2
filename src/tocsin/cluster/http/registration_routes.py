"""The brokers' registration, announcements and acknowledgements over HTTP.

A broker may fetch announcements here, too: it does so after a pause in which the cluster could not reach it.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.brokers import Brokers, checked_url
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.http.requests import path_name
from tocsin.serving.answers import answer
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.requests import read_message, seconds
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName
from tocsin.wire.cluster import BrokerAcks, BrokerInfo, RegistrationRequest
from tocsin.wire.cursors import parse_position
from tocsin.wire.results import FRAMES

WAIT_LIMIT_S: Final = 60.0


class RegistrationRoutes:
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
            self._announcer.guard.check(checked_url(wanted.url), "the broker's address")
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
        entry = self._brokers.known(*path_name(request))
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
        registration = await self._brokers.registered(broker, request[PRINCIPAL])
        after = request.query.get("after")
        position = registration.position if after is None else parse_position(after)
        announcement = await self._announcer.announcement(
            broker, position, seconds(request, "wait", most=self._wait_limit_s)
        )
        return web.Response(body=announcement.to_bytes(), content_type=FRAMES)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.registered(broker, request[PRINCIPAL])
        acks = await read_message(request, BrokerAcks, unpack=True)
        channels = await self._store.acknowledge(broker, acks.cursors) if acks.cursors else set()
        if acks.position is not None:
            await self._store.record_position(broker, acks.position)
            await self._announcer.changed(broker)
        if acks.trim:
            self._retention.request_trim(channels)
        return answer({"acknowledged": len(acks.cursors)})
