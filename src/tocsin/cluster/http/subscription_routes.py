"""The backend subscriptions of brokers over HTTP: create, list, change and remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from tocsin.clock import from_us
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.entry_json import type_to_json
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import PAGE_LIMIT, SubscriptionRequest, Subscriptions
from tocsin.cluster.http.path_names import path_name, split_full_name
from tocsin.rules.model.json_form import plain
from tocsin.rules.model.values import datetime_text
from tocsin.serving.answers import answer
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.requests import positive_int, read_object
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import PAGE
from tocsin.store.channels.rows import BrokerName, SubscriptionRow
from tocsin.wire.cursors import cursor_text
from tocsin.wire.errors import InputError, NotFoundError

_SHAPE: Final = '{"broker": "v.b", "subscriptions": [{"parameters": […], "id": "…", "application": "…"}, …]}'
_IDS: Final = '{"ids": ["…", …]}'


class SubscriptionRoutes:
    def __init__(self, subscriptions: Subscriptions, brokers: Brokers, retention: Retention) -> None:
        self._subscriptions = subscriptions
        self._brokers = brokers
        self._retention = retention

    def routes(self) -> list[web.RouteDef]:
        all_, single = "/v1/channels/{name}/subscriptions", "/v1/channels/{name}/subscriptions/{id}"
        return [
            web.get("/v1/channels", self.channels, allow_head=False),
            web.post(all_, self.subscribe),
            web.get(all_, self.list),
            web.post(f"{all_}:remove", self.remove),
            web.get(single, self.one),
            web.patch(single, self.change),
            web.delete(single, self.delete),
            web.get("/v1/brokers/{name}/subscriptions", self.of_broker),
        ]

    def _channel(self, request: web.Request) -> ChannelEntry:
        return self._subscriptions.channel(*path_name(request))

    async def _broker(self, request: web.Request, name: object) -> BrokerName:
        """Returns the broker of that name, after a check that the caller may act for it."""
        if not isinstance(name, str):
            raise InputError('a broker is named as "dataverse.broker"')
        broker = BrokerName(*split_full_name(name))
        await self._brokers.registered(broker, request[PRINCIPAL])
        return broker

    async def channels(self, request: web.Request) -> web.Response:
        """Lists the channels with their parameters."""
        require(request[PRINCIPAL], "reader")
        return answer({"channels": [_described(channel) for channel in self._subscriptions.channels()]})

    async def subscribe(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel = self._channel(request)
        body = await read_object(request, _SHAPE, {"broker", "subscriptions"}, unpack=True)
        requests = _requests(body["subscriptions"])
        broker = await self._broker(request, body["broker"])
        rows = await self._subscriptions.subscribe(channel, broker, requests)
        return answer(
            {
                "subscriptions": [
                    {"id": row.id, "interest": row.interest, "since": cursor_text(row.since)} for row in rows
                ],
                "made": sum(row.made for row in rows),
            }
        )

    async def remove(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel = self._channel(request)
        body = await read_object(request, _IDS, {"ids"}, unpack=True)
        ids = body["ids"]
        if not isinstance(ids, list) or not all(isinstance(identity, str) for identity in ids):
            raise InputError(f"expected {_IDS}")
        await self._check_owned(request, channel, ids)
        removal = await self._subscriptions.unsubscribe(channel, ids)
        self._retention.wake()
        return answer({"removed": removal.removed})

    async def delete(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel, identity = self._channel(request), request.match_info["id"]
        await self._check_owned(request, channel, [identity])
        removal = await self._subscriptions.unsubscribe(channel, [identity])
        if not removal.removed:
            raise NotFoundError(f'the channel {channel.name} has no subscription "{identity[:200]}"')
        self._retention.wake()
        return answer({"removed": removal.removed})

    async def change(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel, identity = self._channel(request), request.match_info["id"]
        body = await read_object(request, '{"broker": "v.b"}', {"broker"}, unpack=True)
        await self._check_owned(request, channel, [identity])
        broker = await self._broker(request, body["broker"])
        return answer(_told(await self._subscriptions.change_broker(channel, identity, broker)))

    async def one(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        return answer(_told(await self._subscriptions.one(self._channel(request), request.match_info["id"])))

    async def list(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        limit = positive_int(request, "limit", PAGE, most=PAGE_LIMIT)
        page = await self._subscriptions.page(self._channel(request), request.query.get("after", ""), limit)
        following = page[-1].id if len(page) == limit else None
        return answer({"subscriptions": [_told(row) for row in page], "next": following})

    async def of_broker(self, request: web.Request) -> web.Response:
        """Lists a broker's subscriptions in all channels, so that a returning broker can compare them with its own."""
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.registered(broker, request[PRINCIPAL])
        limit = positive_int(request, "limit", PAGE, most=PAGE_LIMIT)
        channel, _, identity = request.query.get("after", "0 ").partition(" ")
        if not (channel.isascii() and channel.isdecimal() and len(channel) <= 18):
            raise InputError("after: must be what the page before gave as next")
        page = await self._subscriptions.page_of(broker, (int(channel), identity), limit)
        names = self._subscriptions.names()
        following = f"{page[-1].channel_id} {page[-1].id}" if len(page) == limit else None
        rows = [{"channel": names.get(row.channel_id), **_told(row)} for row in page]
        return answer({"subscriptions": rows, "next": following})

    async def _check_owned(self, request: web.Request, channel: ChannelEntry, ids: Sequence[str]) -> None:
        """A token with the role `broker` may only end and change the subscriptions of its own broker."""
        if request[PRINCIPAL].role != "broker":
            return
        checked: set[BrokerName] = set()
        for identity in ids:
            try:
                broker = (await self._subscriptions.one(channel, identity)).broker
            except NotFoundError:
                continue
            if broker not in checked:
                await self._brokers.registered(broker, request[PRINCIPAL])
                checked.add(broker)


def _requests(given: object) -> list[SubscriptionRequest]:
    if not isinstance(given, list):
        raise InputError(f"expected {_SHAPE}")
    requests = []
    for index, requested in enumerate(given):
        if not isinstance(requested, dict) or not {"parameters"} <= requested.keys() <= {
            "parameters",
            "id",
            "application",
        }:
            raise InputError(f"subscription {index}: expected parameters, and maybe an id and an application")
        values, identity, application = requested["parameters"], requested.get("id"), requested.get("application", "")
        if not isinstance(values, list) or not (identity is None or isinstance(identity, str)):
            raise InputError(f"subscription {index}: parameters are an array, an id is a text")
        if not isinstance(application, str):
            raise InputError(f"subscription {index}: an application is a text")
        requests.append(SubscriptionRequest(values, identity, application))
    return requests


def _described(one: ChannelEntry) -> dict[str, Any]:
    parameters = zip(one.parameters, one.types, strict=True)
    return {
        "name": full_name(one),
        "parameters": [{"name": name, "type": type_to_json(type_)} for name, type_ in parameters],
        "continuous": one.continuous,
        "push": one.push,
    }


def _told(one: SubscriptionRow) -> dict[str, Any]:
    return {
        "id": one.id,
        "interest": one.interest,
        "parameters": [plain(value) for value in ParameterValues.values(one.parameters)],
        "broker": full_name(one.broker),
        "application": one.application,
        "since": cursor_text(one.since),
        "created_at": datetime_text(from_us(one.created_us)),
    }
