"""The backend subscriptions of brokers over HTTP: create, list, change and remove.

Many subscriptions go into one request, because a broker that starts may have to make all of its subscriptions again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tocsin.clock import from_us
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.entry_json import type_to_json
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import PAGE_LIMIT, Subscriptions
from tocsin.cluster.http.requests import path_name, split_full_name
from tocsin.rules.model.json_form import plain
from tocsin.serving.answers import answer
from tocsin.serving.authentication import PRINCIPAL
from tocsin.serving.requests import positive_int, read_message
from tocsin.serving.tokens import require
from tocsin.store.channels.interface import PAGE
from tocsin.store.channels.rows import BrokerName, SubscriptionRow
from tocsin.wire.cluster import (
    BrokerChange,
    ChannelInfo,
    GrantedSubscription,
    ParameterInfo,
    SubscriptionIds,
    SubscriptionInfo,
    SubscriptionRequests,
)
from tocsin.wire.errors import InputError, NotFoundError


class SubscriptionRoutes:
    def __init__(self, subscriptions: Subscriptions, brokers: Brokers, retention: Retention) -> None:
        self._subscriptions = subscriptions
        self._brokers = brokers
        self._retention = retention

    def routes(self) -> list[web.RouteDef]:
        all_, single = "/v1/channels/{name}/subscriptions", "/v1/channels/{name}/subscriptions/{id}"
        return [
            web.get("/v1/channels", self._channels, allow_head=False),
            web.post(all_, self._subscribe),
            web.get(all_, self._list),
            web.post(f"{all_}:remove", self._remove),
            web.get(single, self._show),
            web.patch(single, self._change),
            web.delete(single, self._delete),
            web.get("/v1/brokers/{name}/subscriptions", self._of_broker),
        ]

    def _channel(self, request: web.Request) -> ChannelEntry:
        return self._subscriptions.channel(*path_name(request))

    async def _broker(self, request: web.Request, name: str) -> BrokerName:
        """Returns the broker of that name, after a check that the caller may act for it."""
        broker = BrokerName(*split_full_name(name))
        await self._brokers.find_registration(broker, request[PRINCIPAL])
        return broker

    async def _channels(self, request: web.Request) -> web.Response:
        """Lists the channels with their parameters."""
        require(request[PRINCIPAL], "reader")
        return answer({"channels": [_channel_info(channel).to_json() for channel in self._subscriptions.channels()]})

    async def _subscribe(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel = self._channel(request)
        wanted = await read_message(request, SubscriptionRequests, unpack=True)
        broker = await self._broker(request, wanted.broker)
        rows = await self._subscriptions.subscribe(channel, broker, wanted.subscriptions)
        granted = [GrantedSubscription(row.id, row.interest, row.since).to_json() for row in rows]
        return answer({"subscriptions": granted, "made": sum(row.made for row in rows)})

    async def _remove(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel = self._channel(request)
        ids = (await read_message(request, SubscriptionIds, unpack=True)).ids
        await self._check_owned(request, channel, ids)
        removal = await self._subscriptions.unsubscribe(channel, ids)
        self._retention.wake()
        return answer({"removed": removal.removed})

    async def _delete(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel, identity = self._channel(request), request.match_info["id"]
        await self._check_owned(request, channel, [identity])
        removal = await self._subscriptions.unsubscribe(channel, [identity])
        if not removal.removed:
            raise NotFoundError(f'the channel {channel.name} has no subscription "{identity[:200]}"')
        self._retention.wake()
        return answer({"removed": removal.removed})

    async def _change(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "broker")
        channel, identity = self._channel(request), request.match_info["id"]
        change = await read_message(request, BrokerChange, unpack=True)
        await self._check_owned(request, channel, [identity])
        broker = await self._broker(request, change.broker)
        return answer(_json(await self._subscriptions.change(channel, identity, broker)))

    async def _show(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        return answer(_json(await self._subscriptions.one(self._channel(request), request.match_info["id"])))

    async def _list(self, request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "reader")
        limit = positive_int(request, "limit", PAGE, most=PAGE_LIMIT)
        page = await self._subscriptions.page(self._channel(request), request.query.get("after", ""), limit)
        following = page[-1].id if len(page) == limit else None
        return answer({"subscriptions": [_json(row) for row in page], "next": following})

    async def _of_broker(self, request: web.Request) -> web.Response:
        """Lists a broker's subscriptions in all channels, so that a returning broker can compare them with its own."""
        require(request[PRINCIPAL], "broker")
        broker = BrokerName(*path_name(request))
        await self._brokers.find_registration(broker, request[PRINCIPAL])
        limit = positive_int(request, "limit", PAGE, most=PAGE_LIMIT)
        channel, _, identity = request.query.get("after", "0 ").partition(" ")
        if not (channel.isascii() and channel.isdecimal() and len(channel) <= 18):
            raise InputError("after: must be what the page before gave as next")
        page = await self._subscriptions.page_of(broker, (int(channel), identity), limit)
        names = self._subscriptions.names()
        following = f"{page[-1].channel_id} {page[-1].id}" if len(page) == limit else None
        rows = [{"channel": names.get(row.channel_id), **_json(row)} for row in page]
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
                await self._brokers.find_registration(broker, request[PRINCIPAL])
                checked.add(broker)


def _channel_info(channel: ChannelEntry) -> ChannelInfo:
    parameters = zip(channel.parameters, channel.types, strict=True)
    return ChannelInfo(
        full_name(channel),
        tuple(ParameterInfo(name, type_to_json(type_)) for name, type_ in parameters),
        channel.continuous,
        channel.push,
    )


def _json(row: SubscriptionRow) -> dict[str, Any]:
    values = tuple(plain(value) for value in ParameterValues.values(row.parameters))
    info = SubscriptionInfo(
        row.id, row.interest, values, full_name(row.broker), row.application, row.since, from_us(row.created_us)
    )
    return info.to_json()
