"""HTTP routes of subscribers: subscriptions, results, acknowledgements, webhooks and streams."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tocsin.broker.accounts.accounts import Session
from tocsin.broker.http.publish_route import FeedForwarder
from tocsin.broker.http.requests import RequestBodies, token_of
from tocsin.broker.service import BrokerService
from tocsin.broker.transports import sse, websocket
from tocsin.broker.transports.long_poll import poll
from tocsin.broker.transports.webhooks import Webhooks
from tocsin.serving.answers import answer
from tocsin.serving.requests import check_query, positive_int, read_message, seconds
from tocsin.wire.accounts import Webhook, WebhookRequest
from tocsin.wire.answers import SubscriptionsPage, events_page
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.subscriber import AckRequest, PullRequest, SubscribeRequest

RESULTS_LIMIT = 100_000


class SubscriberRoutes:
    """Routes for subscribers; all need a session token."""

    def __init__(
        self, service: BrokerService, webhooks: Webhooks, publisher: FeedForwarder, bodies: RequestBodies
    ) -> None:
        self._bodies = bodies
        self._service = service
        self._webhooks = webhooks
        self._publisher = publisher
        self._stopping = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/subscriptions", self.subscribe),
            web.get("/v1/subscriptions", self.list, allow_head=False),
            web.get("/v1/subscriptions/{id}", self.one, allow_head=False),
            web.delete("/v1/subscriptions/{id}", self.unsubscribe),
            web.get("/v1/subscriptions/{id}/results", self.results, allow_head=False),
            web.get("/v1/poll", self.poll, allow_head=False),
            web.post("/v1/acks", self.acknowledge),
            web.get("/v1/channels", self.channels, allow_head=False),
            web.put("/v1/webhook", self.put_webhook),
            web.get("/v1/webhook", self.get_webhook, allow_head=False),
            web.delete("/v1/webhook", self.remove_webhook),
            web.post("/v1/feeds/{name}", self.publish),
            web.get("/v1/stream", self.stream, allow_head=False),
            web.get("/v1/events", self.events, allow_head=False),
        ]

    async def stop(self, _app: web.Application) -> None:
        """Answers the long polls that wait, with what there is, and closes the streams."""
        self._stopping.set()
        self._service.sessions.close()

    async def _who(self, request: web.Request, *, whole: bool = False) -> Session:
        who = await self._service.identify(token_of(request))
        self._service.check_rate(who, whole=whole)
        return who

    # --- subscriptions

    async def subscribe(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        new_subscription = await self._service.subscribe(who, await read_message(request, SubscribeRequest))
        return answer(new_subscription.subscription.to_json(), status=201 if new_subscription.new else 200)

    async def list(self, request: web.Request) -> web.Response:
        who = await self._who(request, whole=True)
        check_query(request, "after", "limit")
        limit = positive_int(request, "limit", BrokerService.PAGE, most=BrokerService.PAGE)
        after = self._service.page_after(request.query.get("after"))
        page, next_page = await self._service.subscription_service.page(who.subscriber, after, limit)
        return answer(SubscriptionsPage(tuple(page), None if next_page is None else str(next_page)).to_json())

    async def one(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        frontend = await self._service.subscription_service.find(who.subscriber, request.match_info["id"])
        groups = {group.id: group.name for group in await self._service.store.groups_of(who.subscriber)}
        return answer(self._service.subscription_service.told(frontend, groups).to_json())

    async def unsubscribe(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        await self._service.subscription_service.unsubscribe(who.subscriber, request.match_info["id"])
        return answer({})

    # --- results

    async def results(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        check_query(request, "after", "limit", "wait")
        wait_s = seconds(request, "wait", most=self._service.settings.delivery.wait_limit_s)
        limit = positive_int(request, "limit", RESULTS_LIMIT, most=RESULTS_LIMIT)
        after = request.query.get("after")
        frontend = await self._service.subscription_service.find(who.subscriber, request.match_info["id"])
        pull_request = PullRequest(frontend.interest, None if after is None else parse_cursor(after), limit)
        events, more = await self._service.pull(who, pull_request, wait_s)
        return _json(events_page([event.envelope for event in events], more=more))

    async def poll(self, request: web.Request) -> web.Response:
        who = await self._who(request, whole=True)
        check_query(request, "wait")
        wait_s = seconds(request, "wait", most=self._service.settings.delivery.wait_limit_s)
        return _json(events_page(await poll(self._service, who, wait_s, self._stopping)))

    async def acknowledge(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        count = self._service.acknowledge(who, await read_message(request, AckRequest))
        await self._service.acks.durable()
        return answer({"acknowledged": count})

    async def channels(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        rights = self._service.accounts.rights(who.application)
        channels = await self._service.client.channels()
        return answer({"channels": [channel for channel in channels if rights.may_subscribe(channel["name"])]})

    # --- streams

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        return await websocket.stream(self._service, request)

    async def events(self, request: web.Request) -> web.StreamResponse:
        # Browsers cannot send headers with an EventSource, so the token may be a query parameter.
        token = token_of(request) or request.query.get("access_token")
        who = await self._service.identify(token)
        self._service.check_rate(who, whole=True)
        return await sse.events(self._service, request, who)

    # --- webhooks and publishing

    async def put_webhook(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        webhook = await self._webhooks.put(who.subscriber, (await read_message(request, WebhookRequest)).url)
        return answer(Webhook(webhook.url, webhook.secret).to_json())

    async def get_webhook(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        return answer(Webhook((await self._webhooks.get(who.subscriber)).url).to_json())

    async def remove_webhook(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        await self._webhooks.remove(who.subscriber)
        return answer({})

    async def publish(self, request: web.Request) -> web.Response:
        who = await self._who(request)
        check_query(request, "wait")
        self._publisher.check(who, request.match_info["name"])
        askers = (f"the subscriber {who.user}", f"the application {who.application_name}")
        async with self._bodies.read(request, *askers) as body:
            forwarded = await self._publisher.publish(
                who, request.match_info["name"], body, wait=request.query.get("wait"),
                key=request.headers.get("Idempotency-Key"),
            )  # fmt: skip
        return web.Response(status=forwarded.status, body=forwarded.body, headers=forwarded.headers)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
