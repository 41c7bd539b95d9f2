"""Composes a running broker: starts its parts in the order of their dependencies and stops them in reverse.

The subscriptions are restored before a transport takes connections, and the link to the cluster starts last: neither a
client nor an announcement meets a core without its subscriptions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from tocsin.broker.accounts.accounts import Accounts
from tocsin.broker.cluster_link.backend_index import BackendIndex
from tocsin.broker.cluster_link.backend_subscriptions import BackendSubscriptions
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.cluster_link.fetcher import ResultFetcher
from tocsin.broker.cluster_link.link import ClusterLink
from tocsin.broker.core import actions as ac
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.delivery.event_encoder import EventEncoder
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.pulls import Pulls
from tocsin.broker.http.routes import broker_application
from tocsin.broker.metrics import BrokerCollector, BrokerCounters
from tocsin.broker.service import BrokerParts, BrokerService
from tocsin.broker.subscriptions import SubscriptionService
from tocsin.broker.trace import BrokerTrace
from tocsin.broker.transports.long_poll import LongPoll
from tocsin.broker.transports.sse import ServerSentEvents
from tocsin.broker.transports.webhooks import Webhooks
from tocsin.broker.transports.websocket import WebSockets
from tocsin.clock import AgeClock, now_us, span_us
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.name_resolver import NameResolver
from tocsin.settings.broker import BrokerSettings
from tocsin.store.broker.interface import BrokerStore

_log = structlog.get_logger("tocsin.broker")


@dataclass(frozen=True, slots=True)
class RunningBroker:
    app: web.Application
    parts: BrokerParts


def _core_settings(settings: BrokerSettings) -> CoreSettings:
    """The part of the broker's settings that the core needs."""
    delivery = settings.delivery
    return CoreSettings(
        caching=settings.cache.caching(),
        grace_s=delivery.grace_s,
        page_results=delivery.page_results,
        page_bytes=delivery.page_bytes,
        fetch_retry_s=delivery.fetch_retry_s,
        report_every_s=delivery.report_every_s,
    )


@asynccontextmanager
async def run_broker(
    settings: BrokerSettings, store: BrokerStore, accounts: Accounts, *, address: str, trace: Path | None = None,
    resolver: NameResolver | None = None, age_us: Callable[[], int] = now_us,
) -> AsyncIterator[RunningBroker]:  # fmt: skip
    """Runs a broker on an open store. `address` is the URL at which it listens. `age_us` is the time of deletions."""
    counters = BrokerCounters()
    runtime = CoreRuntime(Broker(_core_settings(settings), time.monotonic()))
    if trace is not None:
        runtime.trace = BrokerTrace(trace, runtime.core, runtime.now_s)
    generation = await BrokerGeneration.read(store)
    index = BackendIndex(settings.name, generation.store_id)
    delivery, cluster = settings.delivery, settings.cluster
    encoder = EventEncoder(
        settings.name, index.channel_of, page_results=delivery.page_results, page_bytes=delivery.page_bytes
    )
    client = ClusterClient(cluster.url, cluster.token.get_secret_value(), settings.name, cluster.timeout_s)
    fan_out = FanOut(runtime, encoder, counters, patience_s=delivery.patience_s)
    pulls = Pulls(runtime, encoder)
    backends = BackendSubscriptions(
        client, index, store, runtime.core.holds,
        former_until_us=generation.since_us + span_us(cluster.former_subscriptions_s), age_us=age_us,
    )  # fmt: skip
    subscriptions = SubscriptionService(runtime, fan_out, index=index, backends=backends, store=store, client=client)
    link = ClusterLink(
        client, runtime, index=index, backends=backends, store=store, generation=generation, counters=counters,
        on_changed=subscriptions.apply_change,
        callback=f"{(cluster.callback or address).rstrip('/')}/v1/announcements",
        first_retry_s=cluster.first_retry_s, last_retry_s=cluster.last_retry_s, check_every_s=cluster.check_every_s,
    )  # fmt: skip
    fetcher = ResultFetcher(client, runtime, counters, link.note_unknown_interest, cluster.fetches)
    acks = AckBatcher(runtime, store, counters, delivery.ack_every_s)
    parts = BrokerParts(settings, store, accounts, runtime, fan_out, subscriptions, acks, pulls, link, client, counters)
    service = BrokerService(parts)
    guard = AddressGuard.of(settings.webhooks.private, "broker.webhooks.private", loopback=settings.http.local)
    transports = (WebSockets(service), ServerSentEvents(service), LongPoll(service), Webhooks(service, guard, resolver))
    metrics = ServerMetrics()
    metrics.registry.register(BrokerCollector(parts))

    def deliver(action: ac.Deliver) -> None:
        (pulls if action.why is ac.DeliveryReason.PULLED else fan_out).deliver(action)

    runtime.performers = {
        ac.Deliver: deliver,
        ac.NotifyAvailable: fan_out.notify,
        ac.EndSubscriptions: fan_out.end,
        ac.RefuseEvent: pulls.refuse,
        ac.SubscribeBackend: link.open_interest,
        ac.UnsubscribeBackend: link.release_interest,
        ac.Fetch: fetcher.add,
        ac.ReportConsumed: link.report_consumed,
    }
    async with AsyncExitStack() as stack:
        stack.callback(runtime.close)
        await client.open()
        stack.push_async_callback(client.close)
        stack.push_async_callback(fan_out.close)
        stack.push_async_callback(fetcher.close)
        count = await subscriptions.recover()
        _log.info("subscriptions restored from the store", subscriptions=count, interests=len(index))
        stack.push_async_callback(acks.close)
        stack.push_async_callback(subscriptions.close)
        backends.start()
        stack.push_async_callback(backends.close)
        for transport in transports:
            await transport.start()
            stack.push_async_callback(transport.stop)
        await link.start()
        stack.push_async_callback(link.close)
        yield RunningBroker(broker_application(service, transports, metrics), parts)


def make_age_clock() -> AgeClock:
    """Makes the clock that a broker deletes by, and logs when it stands still: a clock set ahead by mistake must
    not end sessions and subscriptions."""
    return AgeClock(on_change=_log_change)


def _log_change(is_suspect: bool) -> None:
    if is_suspect:
        hint = "set the clock right; or, if it is right, restart the broker"
        _log.error("the wall clock was set by more than an hour: nothing is deleted by age", hint=hint)
    else:
        _log.warning("the wall clock is right again; what is too old is deleted again")
