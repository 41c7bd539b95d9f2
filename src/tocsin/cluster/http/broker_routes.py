"""The brokers' registration, announcements and acknowledgements over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.brokers import Brokers, checked_url
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.http.path_names import path_name
from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.serving.answers import answer
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.requests import read_object, seconds
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import STORE_ID_LIMIT, BrokerClaim, BrokerName
from tocsin.wire.cursors import parse_cursor, parse_position, position_text
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.results import FRAMES

WAIT_LIMIT_S: Final = 60.0
CURSORS_LIMIT: Final = 100_000

_BROKER: Final = '{"url": "http://…"}, or null where there is no callback'
_ACKS: Final = '{"cursors": {"17": "…", …}, "position": "…", "trim": true}'


class BrokerRoutes:
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
            web.put("/v1/brokers/{name}", self.register),
            web.get("/v1/brokers/{name}", self.one),
            web.delete("/v1/brokers/{name}", self.remove),
            web.post("/v1/brokers/{name}/secret", self.renew_secret),
            web.get("/v1/brokers/{name}/announcements", self.announcements),
            web.post("/v1/brokers/{name}/acks", self.acknowledge),
        ]

    async def register(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        dataverse, name = path_name(request)
        body = await read_object(request, _BROKER, {"url"}, {"store", "generation", "starts"}, unpack=True)
        url = body["url"]
        if not (url is None or isinstance(url, str)):
            raise InputError("url: must be an address, or null")
        if url is not None:
            self._announcer.guard.check(checked_url(url), "the broker's address")
        registration = await self._brokers.register(dataverse, name, url, request[PRINCIPAL], _claimant(body))
        description = _told(
            registration.broker,
            registration.url,
            registration.position,
            await self._store.dropped(),
            registration.generation,
        )
        return answer(
            description if registration.secret is None else {**description, "secret": registration.secret},
            status=201 if registration.made else 200,
        )

    async def one(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        entry = self._brokers.known(*path_name(request))
        broker = BrokerName(entry.dataverse, entry.name)
        registration = await self._store.registration(broker)
        # A generation without a known holder belongs to nobody, so do not report it: its broker must claim it again.
        generation = None if registration is None or registration.holder is None else registration.generation
        position = None if registration is None else registration.position
        return answer(_told(broker, entry.url, position, await self._store.dropped(), generation))

    async def remove(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.remove(broker, request[PRINCIPAL])
        self._retention.wake()
        return answer({"removed": full_name(broker)})

    async def renew_secret(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        secret = await self._brokers.renew_secret(BrokerName(*path_name(request)), request[PRINCIPAL])
        return answer({"secret": secret})

    async def announcements(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        registration = await self._brokers.registered(broker, request[PRINCIPAL])
        after = request.query.get("after")
        position = registration.position if after is None else parse_position(after)
        announcement = await self._announcer.announcement(
            broker, position, seconds(request, "wait", most=self._wait_limit_s)
        )
        return web.Response(body=announcement.to_bytes(), content_type=FRAMES)

    async def acknowledge(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.registered(broker, request[PRINCIPAL])
        body = await read_object(request, _ACKS, (), {"cursors", "position", "trim"}, unpack=True)
        cursors = _cursors(body.get("cursors", {}))
        trim = body.get("trim", False)
        if not isinstance(trim, bool):
            raise InputError("trim: must be true or false")
        position = parse_position(body["position"]) if "position" in body else None
        channels = await self._store.acknowledge(broker, cursors) if cursors else set()
        if position is not None:
            await self._store.record_position(broker, position)
            await self._announcer.changed(broker)
        if trim:
            self._retention.trim(channels)
        return answer({"acknowledged": len(cursors)})


def _told(
    broker: BrokerName, url: str | None, position: Position | None, dropped: int, generation: Position | None
) -> dict[str, Any]:
    return {
        "broker": full_name(broker),
        "url": url,
        "position": None if position is None else position_text(position),
        "dropped": dropped,
        "generation": None if generation is None else position_text(generation),
    }


def _claimant(said: Mapping[str, Any]) -> BrokerClaim | None:
    """Returns the claim of a broker that names its store; None for others, which have no generation."""
    store, generation, starts = said.get("store"), said.get("generation"), said.get("starts", True)
    if store is None:
        return None
    if not isinstance(store, str) or not store or len(store) > STORE_ID_LIMIT:
        raise InputError(f"store: must be a text of 1 to {STORE_ID_LIMIT} characters")
    if not isinstance(starts, bool):
        raise InputError("starts: must be true or false")
    return BrokerClaim(store, None if generation is None else parse_position(generation), starts)


def _cursors(given: object) -> dict[InterestId, Cursor]:
    if not isinstance(given, dict):
        raise InputError(f"expected {_ACKS}")
    if len(given) > CURSORS_LIMIT:
        raise LimitError(f"{len(given)} cursors, at most {CURSORS_LIMIT} in one call", hint="send them in parts")
    cursors = {}
    for interest, cursor in given.items():
        if not (interest.isascii() and interest.isdecimal() and len(interest) <= 18):
            raise InputError("cursors: an interest is a whole number")
        cursors[InterestId(int(interest))] = parse_cursor(cursor)
    return cursors
