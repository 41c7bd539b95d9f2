"""HTTP routes of subscribers: subscriptions, results, acknowledgements and publishing.

The routes of events are in `broker/transports`, one module for each way of delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import BytesIO
from typing import Final
from urllib.parse import quote

import orjson
from aiohttp import web

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.cluster_link.client import ForwardedAnswer
from tocsin.broker.http.requests import RequestBodies, json_answer, subscriber_of
from tocsin.broker.service import BrokerService
from tocsin.rules.model.json_spans import BrokenArrayError, TooManyItemsError, array_items
from tocsin.serving.answers import answer
from tocsin.serving.requests import check_query, positive_int, read_message, seconds
from tocsin.wire.answers import events_page
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.errors import ForbiddenError, InputError, LimitError
from tocsin.wire.messages import qualify
from tocsin.wire.subscriber import AckRequest, PullRequest, SubscribeRequest

_RESULTS_LIMIT = 100_000


class SubscriberRoutes:
    """Routes for subscribers; all need a session token."""

    def __init__(self, service: BrokerService, bodies: RequestBodies) -> None:
        self._service = service
        self._bodies = bodies
        self._publisher = _FeedForwarder(service)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/subscriptions", self._subscribe),
            web.get("/v1/subscriptions", self._subscriptions, allow_head=False),
            web.get("/v1/subscriptions/{id}", self._subscription, allow_head=False),
            web.delete("/v1/subscriptions/{id}", self._unsubscribe),
            web.get("/v1/subscriptions/{id}/results", self._results, allow_head=False),
            web.post("/v1/acks", self._acknowledge),
            web.get("/v1/channels", self._channels, allow_head=False),
            web.post("/v1/feeds/{name}", self._publish),
        ]

    # --- subscriptions

    async def _subscribe(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        new_subscription = await self._service.subscribe(who, await read_message(request, SubscribeRequest))
        return answer(new_subscription.subscription.to_json(), status=201 if new_subscription.new else 200)

    async def _subscriptions(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request, whole=True)
        check_query(request, "after", "limit")
        limit = positive_int(request, "limit", BrokerService.PAGE, most=BrokerService.PAGE)
        page = await self._service.list_subscriptions(who.subscriber, request.query.get("after"), limit)
        return answer(page.to_json())

    async def _subscription(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        return answer((await self._service.subscription(who, request.match_info["id"])).to_json())

    async def _unsubscribe(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        await self._service.unsubscribe(who, request.match_info["id"])
        return answer({})

    # --- results

    async def _results(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        check_query(request, "after", "limit", "wait")
        wait_s = seconds(request, "wait", most=self._service.settings.delivery.wait_limit_s)
        limit = positive_int(request, "limit", _RESULTS_LIMIT, most=_RESULTS_LIMIT)
        after = request.query.get("after")
        interest = await self._service.interest_of(who, request.match_info["id"])
        pull_request = PullRequest(interest, None if after is None else parse_cursor(after), limit)
        events, more = await self._service.pull(who, pull_request, wait_s)
        return json_answer(events_page([event.envelope for event in events], more=more))

    async def _acknowledge(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        count = self._service.acknowledge(who.subscriber, (await read_message(request, AckRequest)).acks)
        await self._service.acks_durable()
        return answer({"acknowledged": count})

    async def _channels(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        return answer({"channels": await self._service.channels(who)})

    async def _publish(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        check_query(request, "wait")
        self._publisher.check(who, request.match_info["name"])
        callers = (f"the subscriber {who.user}", f"the application {who.application_name}")
        async with self._bodies.read(request, *callers) as body:
            forwarded = await self._publisher.publish(
                who, request.match_info["name"], body, wait=request.query.get("wait"),
                key=request.headers.get("Idempotency-Key"),
            )  # fmt: skip
        return web.Response(status=forwarded.status, body=forwarded.body, headers=forwarded.headers)


_RECORDS_LIMIT: Final = 100_000
_RECORD_LIMIT_BYTES: Final = 4 << 20
"""The cluster accepts no more records in one body, and only much shorter records."""


class _FeedForwarder:
    """Checks the application's right to publish, and forwards the records."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._user_field = service.settings.publish.user_field
        self._broker = quote(service.settings.name, safe="")

    def check(self, who: Session, feed: str) -> str:
        """The feed's full name; raises ForbiddenError if the application may not publish to it."""
        name = qualify(feed)
        if not self._service.may_publish(who, name):
            raise ForbiddenError(f"the application {who.application_name} may not publish to the feed {name[:200]}")
        return name

    async def publish(
        self, who: Session, feed: str, body: bytes, *, wait: str | None = None, key: str | None = None
    ) -> ForwardedAnswer:
        """Forwards the records; with `user_field` set, the user's name is written into each."""
        name = self.check(who, feed)
        if wait not in (None, "", "visible"):
            raise InputError('wait: must be "visible"')
        if self._user_field:
            # In a thread, because the body may be large.
            body = await asyncio.to_thread(with_user, body, self._user_field, who.user)
        # Idempotency keys are scoped by broker and subscriber: the same key of another user must not match.
        headers = {} if key is None else {"Idempotency-Key": f"{self._broker}:{who.subscriber}:{key}"}
        query = "wait=visible" if wait else ""
        return await self._service.publish(name, query, body, headers)


def with_user(body: bytes, field: str, user: str) -> bytes:
    """Writes the user's name into the field of every record; the records may be one after the other or in an array.

    The records are counted first and parsed one at a time: a parsed record takes many times the memory of its text.
    """
    output = BytesIO()
    for number, text in enumerate(_records(body), 1):
        if number > _RECORDS_LIMIT:
            raise _too_many()
        if len(text) > _RECORD_LIMIT_BYTES:
            raise LimitError(f"record {number}: is longer than {_RECORD_LIMIT_BYTES} bytes")
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InputError(f"record {number}: {error.msg}", hint="records are published here as JSON") from None
        if not isinstance(record, dict):
            raise InputError(f"record {number}: expected a JSON object")
        record[field] = user
        try:
            output.write(orjson.dumps(record))
        except TypeError as error:  # more levels than orjson writes, though it reads them
            raise InputError(f"record {number}: {error}") from None
        output.write(b"\n")
    return output.getvalue()


def _records(body: bytes) -> Iterator[bytes]:
    """The texts of an array's items; otherwise the whole text if it is a single record, or else a record per line."""
    text = body.strip()
    if text.startswith(b"["):
        try:
            spans = array_items(text, 0, most=_RECORDS_LIMIT)
        except TooManyItemsError:
            raise _too_many() from None
        except BrokenArrayError as error:
            raise InputError(
                f"record {len(error.spans) + 1}: {error}", hint="records are published here as JSON"
            ) from None
        if spans.end < len(text):
            raise InputError("there is more behind the array", hint="send an array, or one record per line")
        yield from (text[begin:end] for begin, end in spans)
    elif len(text) <= _RECORD_LIMIT_BYTES and _is_one(text):
        yield text
    else:
        yield from (line for line in BytesIO(text) if line.strip())


def _is_one(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _too_many() -> LimitError:
    return LimitError(f"the body holds more than {_RECORDS_LIMIT} records", hint="send it in parts")
