"""HTTP routes of subscribers: subscriptions, results, acknowledgements and publishing.

The routes of events are in `broker/transports`, one module for each way of delivery.
"""

from __future__ import annotations

from aiohttp import web

from tocsin.broker.http.publish_route import FeedForwarder
from tocsin.broker.http.requests import RequestBodies, json_answer, subscriber_of
from tocsin.broker.service import BrokerService
from tocsin.serving.answers import answer
from tocsin.serving.requests import check_query, positive_int, read_message, seconds
from tocsin.wire.answers import events_page
from tocsin.wire.cursors import parse_cursor
from tocsin.wire.subscriber import AckRequest, PullRequest, SubscribeRequest

_RESULTS_LIMIT = 100_000


class SubscriberRoutes:
    """Routes for subscribers; all need a session token."""

    def __init__(self, service: BrokerService, bodies: RequestBodies) -> None:
        self._service = service
        self._bodies = bodies
        self._publisher = FeedForwarder(service)

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
        askers = (f"the subscriber {who.user}", f"the application {who.application_name}")
        async with self._bodies.read(request, *askers) as body:
            forwarded = await self._publisher.publish(
                who, request.match_info["name"], body, wait=request.query.get("wait"),
                key=request.headers.get("Idempotency-Key"),
            )  # fmt: skip
        return web.Response(status=forwarded.status, body=forwarded.body, headers=forwarded.headers)
