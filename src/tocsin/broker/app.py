"""A broker's shell, put together: started in the order in which the parts need each other, and stopped in reverse."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from tocsin.broker.accounts.accounts import Accounts
from tocsin.broker.cluster_link.backend_subscriptions import BackendSubscriptions
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.cluster_link.fetcher import ResultFetcher
from tocsin.broker.cluster_link.link import ClusterLink
from tocsin.broker.cluster_link.subscription_sync import SubscriptionSync
from tocsin.broker.core import actions as ac
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.delivery.event_encoder import EventEncoder
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.pulls import Pulls
from tocsin.broker.http.routes import broker_application
from tocsin.broker.service import BrokerService
from tocsin.broker.subscriptions import SubscriptionService
from tocsin.broker.trace import BrokerTrace
from tocsin.broker.transports.webhooks import Webhooks
from tocsin.serving.address_guard import AddressGuard
from tocsin.settings.broker import BrokerSettings
from tocsin.store.broker.interface import BrokerStore

_log = structlog.get_logger("tocsin.broker")


@dataclass(frozen=True, slots=True)
class RunningBroker:
    app: web.Application
    service: BrokerService


def core_settings(settings: BrokerSettings) -> CoreSettings:
    chosen = settings.delivery
    return CoreSettings(
        caching=settings.cache.caching(),
        grace_s=chosen.grace_s,
        page_results=chosen.page_results,
        page_bytes=chosen.page_bytes,
        fetch_retry_s=chosen.fetch_retry_s,
        report_every_s=chosen.report_every_s,
    )


@asynccontextmanager
async def running(
    settings: BrokerSettings, store: BrokerStore, accounts: Accounts, *, address: str, trace: Path | None = None
) -> AsyncIterator[RunningBroker]:
    """A broker over this store, which is open. `address`: where it listens."""
    figures = BrokerCounters()
    machine = CoreRuntime(Broker(core_settings(settings), time.monotonic()))
    if trace is not None:
        machine.trace = BrokerTrace(trace, machine.core, machine.now_s)
    instance = await BrokerGeneration.read(store)
    holdings = BackendSubscriptions(settings.name, instance.store_id)
    delivery, cluster = settings.delivery, settings.cluster
    letters = EventEncoder(
        settings.name, holdings.channel_of, page_results=delivery.page_results, page_bytes=delivery.page_bytes
    )
    client = ClusterClient(cluster.url, cluster.token.get_secret_value(), settings.name, cluster.timeout_s)
    presence = FanOut(machine, letters, figures, patience_s=delivery.patience_s)
    pulls = Pulls(machine, letters)
    holder = SubscriptionSync(
        client, holdings, store, machine.core.holds,
        former_until_us=instance.since_us + int(cluster.former_subscriptions_s * 1e6),
    )  # fmt: skip
    desk = SubscriptionService(machine, presence, holdings=holdings, holder=holder, store=store, client=client)
    link = ClusterLink(
        client, machine, holdings=holdings, holder=holder, store=store, instance=instance, figures=figures,
        on_changed=desk.changed,
        callback=f"{(cluster.callback or address).rstrip('/')}/v1/announcements",
        first_retry_s=cluster.first_retry_s, last_retry_s=cluster.last_retry_s, check_every_s=cluster.check_every_s,
    )  # fmt: skip
    fetcher = ResultFetcher(client, machine, figures, link.gone, cluster.fetches)
    acks = AckBatcher(machine, store, figures, delivery.ack_every_s)
    service = BrokerService(settings, store, machine, presence, desk, acks, pulls, link, client, figures, accounts)
    guard = AddressGuard.of(settings.webhooks.private, "broker.webhooks.private", loopback=settings.http.loopback)
    webhooks = Webhooks(service, guard)

    def deliver(action: ac.Deliver) -> None:
        (pulls if action.why is ac.DeliveryReason.PULLED else presence).deliver(action)

    machine.on(ac.Deliver, deliver)
    machine.on(ac.Subscribed, lambda _action: None)
    async with AsyncExitStack() as stack:
        stack.callback(machine.close)
        await client.open()
        stack.push_async_callback(client.close)
        stack.push_async_callback(presence.close)
        stack.push_async_callback(fetcher.close)
        count = await desk.recover()
        _log.info("recovered", subscriptions=count, interests=len(holdings))
        stack.push_async_callback(acks.close)
        stack.push_async_callback(desk.close)
        holder.start()
        stack.push_async_callback(holder.close)
        await webhooks.start()
        stack.push_async_callback(webhooks.close)
        await link.start()
        stack.push_async_callback(link.close)
        yield RunningBroker(broker_application(service, webhooks), service)
