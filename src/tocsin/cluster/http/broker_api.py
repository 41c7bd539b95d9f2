"""Assembles the cluster's HTTP API for brokers: results, subscriptions, registration and announcements.

Every route is fenced: a broker that another process of the same name has replaced gets an error instead of an effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.announcements.fence import BrokerFence
from tocsin.cluster.channels.metrics import AnnouncementCollector
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.http.registration_routes import WAIT_LIMIT_S, RegistrationRoutes
from tocsin.cluster.http.requests import split_full_name
from tocsin.cluster.http.result_routes import FetchLimits, ResultRoutes
from tocsin.cluster.http.subscription_routes import SubscriptionRoutes
from tocsin.serving.metrics import ServerMetrics
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName
from tocsin.wire.cluster import BROKER_HEADER, parse_generation_header


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
        brokers = RegistrationRoutes(self.brokers, self.announcer, self.store, self.retention, self.wait_limit_s)
        return [
            *(_fenced(route, self.brokers.fence, changes=False) for route in results.routes()),
            *(
                # Do not fence the registration: there a broker gets its generation.
                route if route.method == "PUT" else _fenced(route, self.brokers.fence, changes=route.method != "GET")
                for route in (*subscriptions.routes(), *brokers.routes())
            ),
        ]


def _fenced(route: web.RouteDef, fence: BrokerFence, *, changes: bool) -> web.RouteDef:
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
