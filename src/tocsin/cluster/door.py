"""The cluster's door for brokers: all that they ask for over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tocsin.cluster.brokers_http import WAIT_LIMIT_S, BrokerRoutes
from tocsin.cluster.channels.announcer import Announcer
from tocsin.cluster.channels.broker_figures import BrokerCollector
from tocsin.cluster.channels.brokers import Brokers
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.results_http import FetchLimits, ResultRoutes
from tocsin.cluster.subscriptions_http import SubscriptionRoutes
from tocsin.serving.metrics import ServerMetrics
from tocsin.store.channel_store import ChannelStore


@dataclass(frozen=True, slots=True)
class BrokerDoor:
    store: ChannelStore
    subscriptions: Subscriptions
    brokers: Brokers
    announcer: Announcer
    retention: Retention
    limits: FetchLimits | None = None
    wait_limit_s: float = WAIT_LIMIT_S

    def routes(self, metrics: ServerMetrics) -> list[web.RouteDef]:
        metrics.registry.register(BrokerCollector(self.announcer.figures))
        return [
            *ResultRoutes(self.store, metrics, self.limits).routes(),
            *SubscriptionRoutes(self.subscriptions, self.brokers, self.retention).routes(),
            *BrokerRoutes(self.brokers, self.announcer, self.store, self.retention, self.wait_limit_s).routes(),
        ]
