"""The face of a running broker for transports and routes. They speak to BrokerService and to nothing behind it.

identify, check_rate                     who asks, and how much it may ask
connection, attach, detach               connections and the outlets on which events go out
subscribe, pull, acknowledge, …          the operations of subscribers, the same for every transport
end_…, finish_…                          what account routes have changed in the store goes on to core and connections
receive_announcement, cluster_state, …   the cluster
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

from tocsin.broker.accounts.accounts import Accounts, GroupChanged, ManagerIdentity, Removed, Session
from tocsin.broker.accounts.policy import account_limit
from tocsin.broker.cluster_link.client import ClusterClient, ForwardedAnswer
from tocsin.broker.cluster_link.link import ClusterLink
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.delivery.event_encoder import EncodedEvent
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.open_connections import OpenConnections
from tocsin.broker.delivery.outlets import EventOutlet
from tocsin.broker.delivery.pulls import Pulled, Pulls
from tocsin.broker.metrics import BrokerCounters
from tocsin.broker.subscriptions import NewSubscription, SubscriptionService
from tocsin.clock import now_us
from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.serving.rate_limit import RateLimiter
from tocsin.settings.broker import BrokerSettings
from tocsin.store.broker.checks import URL_LIMIT
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRow, GroupRow, GroupSubscriptionRow, WebhookRow
from tocsin.wire.answers import Subscription, SubscriptionsPage
from tocsin.wire.errors import ForbiddenError, InputError, NotFoundError, UnauthorizedError
from tocsin.wire.messages import qualify
from tocsin.wire.subscriber import PullRequest, SubscribeRequest

_HELD_PER_REQUEST: Final = 50
"""A request over all subscriptions of a subscriber costs its rate limit one token more for each 50 subscriptions."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a running broker, which stand behind its service."""

    settings: BrokerSettings
    store: BrokerStore
    accounts: Accounts
    runtime: CoreRuntime
    fan_out: FanOut
    subscriptions: SubscriptionService
    acks: AckBatcher
    pulls: Pulls
    link: ClusterLink
    client: ClusterClient
    counters: BrokerCounters
    connections: OpenConnections = field(default_factory=OpenConnections)


@dataclass(frozen=True, slots=True)
class SubscriberWebhook:
    """Where the events of a subscriber are posted. `secret` signs them."""

    subscriber: int
    application: int
    url: str
    secret: str = field(repr=False)


class BrokerService:
    """What transports and routes may ask of a broker. They also read its `settings`, and routes of accounts use
    `accounts`, which is an interface of its own."""

    PAGE: ClassVar[int] = 500
    WEBHOOK_URL_LIMIT: ClassVar[int] = URL_LIMIT

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self.settings = parts.settings
        self.accounts = parts.accounts
        limits = parts.settings.limits
        self._rate_limiter = RateLimiter(limits.requests_per_s, limits.requests_burst, "requests of one subscriber")

    # --- identity and limits

    async def identify(self, token: str | None) -> Session:
        """The session of the subscriber whose token this is."""
        who = await self.accounts.who(token)
        if isinstance(who, ManagerIdentity):
            if token is None:
                raise UnauthorizedError("this needs a token", hint="POST /v1/login gives one")
            raise ForbiddenError("this is for subscribers", hint="use the token of a login")
        return who

    def may_publish(self, who: Session, feed: str) -> bool:
        return self.accounts.rights(who.application).may_publish(feed)

    def limit(self, who: Session, name: str) -> int:
        return account_limit(name, self.accounts.rights(who.application).limits, self.settings.limits.model_dump())

    def check_rate(self, who: Session, *, whole: bool = False) -> None:
        """Applies the rate limit. `whole`: the request covers all subscriptions, and costs more the more there are."""
        count = len(self._parts.runtime.core.subscriptions_of(who.subscriber)) if whole else 0
        self._rate_limiter.check(who.subscriber, time.monotonic(), 1.0 + count / _HELD_PER_REQUEST)

    # --- connections

    def connection(self, who: Session, close: Callable[[str], None]) -> AbstractContextManager[None]:
        """Counts a connection while it is open; calls `close` with the reason when its token ends or the broker stops.
        Raises LimitError if the subscriber has too many."""
        return self._parts.connections.session(who, self.limit(who, "connections"), close)

    def attach(self, subscriber: int, outlet: EventOutlet) -> None:
        """Opens an outlet of the subscriber: everything that is not acknowledged goes out on it, then what comes."""
        self._parts.fan_out.attach(subscriber, outlet)

    def detach(self, outlet: EventOutlet) -> None:
        """Takes the outlet away; may be called twice."""
        self._parts.fan_out.detach(outlet)

    def resume_outlet(self, outlet: EventOutlet) -> None:
        """An outlet that was full has room again: what it missed follows."""
        self._parts.fan_out.resume_outlet(outlet)

    def is_online(self, subscriber: int) -> bool:
        return self._parts.fan_out.is_online(subscriber)

    def end_session(self, who: Session) -> None:
        """Closes all connections of the session, because its tokens have ended."""
        self._parts.connections.end(who)

    def end_sessions(self, subscriber: int) -> None:
        """Closes all connections of the subscriber, because all its tokens have ended."""
        self._parts.connections.end_all(subscriber)

    def close_connections(self) -> None:
        """The broker stops: connections that are open or come later are closed."""
        self._parts.connections.close()

    # --- subscriptions

    async def subscribe(
        self, who: Session, asked: SubscribeRequest, *, first: Callable[[NewSubscription], None] | None = None
    ) -> NewSubscription:
        """Subscribes the subscriber or, if the request names a group, all members of the group."""
        channel = qualify(asked.channel)
        self._check_channel(who, channel)
        subscriptions = self._parts.subscriptions
        if asked.group is None:
            at_most = self.limit(who, "subscriptions")
            new_subscription = await subscriptions.subscribe(
                who.subscriber, asked, application=who.application_name, at_most=at_most, first=first
            )
            await self._check_still_allowed(who, channel, answered=first is not None)
            return new_subscription
        group = await self.accounts.group(who, asked.group)
        if asked.since is not None:
            raise InputError("since: a group's members get what is made from now on")
        at_most = self.limit(who, "group_subscriptions")
        outcome = await subscriptions.subscribe_group(group, asked, application=who.application_name, at_most=at_most)
        await self._check_still_allowed(who, channel, answered=False)
        page, _ = await subscriptions.page(who.subscriber, 0, 1 << 31)
        own = next(candidate for candidate in page if candidate.interest == outcome.subscription.interest)
        subscription = dataclasses.replace(own, id=outcome.subscription.public_id, group=group.name)
        return NewSubscription(subscription, outcome.made)

    def _check_channel(self, who: Session, channel: str) -> None:
        if not self.accounts.rights(who.application).may_subscribe(channel):
            raise ForbiddenError(f"the application {who.application_name} may not use the channel {channel}")

    async def _check_still_allowed(self, who: Session, channel: str, *, answered: bool) -> None:
        """Ends a subscription to a channel that the application lost while the subscription was made."""
        if not self.accounts.rights(who.application).may_subscribe(channel):
            await self.finish(self.end_outside(who.application, who.application_name))
            if not answered:
                self._check_channel(who, channel)

    async def subscription(self, who: Session, public_id: str) -> Subscription:
        frontend = await self._parts.subscriptions.find(who.subscriber, public_id)
        groups = {group.id: group.name for group in await self._parts.store.groups_of(who.subscriber)}
        return self._parts.subscriptions.describe(frontend, groups)

    async def interest_of(self, who: Session, public_id: str) -> InterestId:
        return (await self._parts.subscriptions.find(who.subscriber, public_id)).interest

    async def list_subscriptions(
        self, subscriber: int, after: str | None = None, limit: int = PAGE
    ) -> SubscriptionsPage:
        """A page; `after` is the `next` of the page before."""
        if after is not None and not (after.isascii() and after.isdecimal() and len(after) <= 18):
            raise InputError("after: must be what the page before gave as next")
        page, end = await self._parts.subscriptions.page(subscriber, int(after or 0), limit)
        return SubscriptionsPage(tuple(page), None if end is None else str(end))

    async def unsubscribe(self, who: Session, public_id: str) -> None:
        await self._parts.subscriptions.unsubscribe(who.subscriber, public_id)

    async def group_subscriptions(self, group: GroupRow) -> list[GroupSubscriptionRow]:
        return await self._parts.store.group_subscriptions(group.id)

    async def unsubscribe_group(self, group: GroupRow, public_id: str) -> None:
        async def work() -> list[FrontendRow]:
            frontends = await self._parts.store.unsubscribe_group(group.id, public_id)
            if frontends is None:
                raise NotFoundError(f"the group {group.name} has no subscription {public_id[:60]}")
            return frontends

        reason = f"the group {group.name} does not hold it any more"
        await self._parts.subscriptions.end_after(work(), reason)

    # --- results

    async def pull(self, who: Session, asked: PullRequest, wait_s: float = 0.0) -> Pulled:
        """Results after a cursor, or after the marker, and whether there are more."""
        subscription = self._parts.subscriptions.subscription_of(who.subscriber, asked.interest)
        if subscription is None:
            raise NotFoundError(f"you have no subscription to the interest {asked.interest}")
        return await self._parts.pulls.pull(subscription, asked.interest, asked.after, asked.limit, wait_s)

    def list_unacknowledged(self, who: Session) -> tuple[list[EncodedEvent], list[InterestId]]:
        """What the subscriber has not acknowledged: notifications, and the interests whose results it can pull."""
        notifications, inline = [], []
        for interest, mode, head in self._parts.runtime.core.unacknowledged_interests(who.subscriber):
            if mode is ev.Mode.NOTIFY:
                notifications.append(self._parts.pulls.available(interest, head))
            else:
                inline.append(interest)
        return notifications, inline

    def acknowledge(self, subscriber: int, cursors: Mapping[InterestId, Cursor]) -> int:
        """Acknowledges the interests that the subscriber holds, ignores the others, and returns how many it holds."""
        count = 0
        for interest, cursor in cursors.items():
            subscription = self._parts.subscriptions.subscription_of(subscriber, interest)
            if subscription is not None:
                self._parts.acks.acknowledge(subscription, interest, cursor)
                count += 1
        return count

    async def acks_durable(self) -> None:
        """Returns when all acknowledgements so far are durable."""
        await self._parts.acks.durable()

    # --- changes of accounts

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs the work to its end even if the client disconnects: store and core must agree."""
        return await self._parts.subscriptions.finish(work)

    def change_group(self, changed: GroupChanged, reason: str | None) -> None:
        """Ends and begins the subscriptions of members that left and came."""
        self._parts.subscriptions.end(changed.gone, reason)
        self._parts.subscriptions.activate(changed.made)

    def end_removed(self, removed: Removed) -> None:
        """Ends the subscriptions and connections of removed subscribers."""
        self._parts.subscriptions.end(removed.frontends)
        for subscriber in removed.subscribers:
            self.end_sessions(subscriber)

    async def end_outside(self, application: int, name: str) -> None:
        """Ends subscriptions to channels that the application may not use, and notifies their subscribers."""
        async for frontends in self.accounts.end_outside(application):
            self._parts.subscriptions.end(frontends, f"the application {name} may not use this channel any more")

    # --- webhooks

    async def webhooks(self) -> list[SubscriberWebhook]:
        return [_webhook(row) for row in await self._parts.store.webhooks()]

    async def webhook(self, subscriber: int) -> SubscriberWebhook | None:
        row = await self._parts.store.webhook(subscriber)
        return None if row is None else _webhook(row)

    async def put_webhook(self, subscriber: int, url: str, secret: str) -> SubscriberWebhook:
        return _webhook(await self._parts.store.put_webhook(subscriber, url, secret, created_us=now_us()))

    async def remove_webhook(self, subscriber: int, secret: str | None = None) -> bool:
        """Returns whether there was one. With `secret`, removes only the webhook that has this secret."""
        return await self._parts.store.remove_webhook(subscriber, secret=secret)

    def count_webhook(self, outcome: str) -> None:
        self._parts.counters.webhooks[outcome] += 1

    def count_waiting_webhooks(self, change: int) -> None:
        self._parts.counters.webhooks_waiting += change

    # --- the cluster

    async def receive_announcement(self, headers: Mapping[str, str], body: bytes) -> None:
        await self._parts.link.receive_announcement(headers, body)

    async def cluster_state(self, *, must_answer: bool) -> str:
        """`here`, `away` or `refuses`. Raises UnavailableError if the cluster must answer and does not, or has refused
        this broker since the start."""
        return await self._parts.link.state(must_answer=must_answer)

    async def channels(self, who: Session) -> list[dict[str, Any]]:
        """The channels that the subscriber's application may use."""
        rights = self.accounts.rights(who.application)
        return [channel for channel in await self._parts.client.channels() if rights.may_subscribe(channel["name"])]

    async def publish(self, feed: str, query: str, body: bytes, headers: Mapping[str, str]) -> ForwardedAnswer:
        """Forwards records to a feed of the cluster; returns the cluster's answer even if it is an error."""
        answer = await self._parts.client.publish(feed, query, body, headers, self.settings.publish.timeout_s)
        self._parts.counters.published[str(answer.status)] += 1
        return answer

    # --- caching

    def describe_policies(self) -> dict[str, Any]:
        """The caching policy, its settings, and the counters of each policy since the start."""
        caches = self._parts.runtime.core.caches
        return {
            "policy": caches.settings.policy,
            "settings": dataclasses.asdict(caches.settings),
            "resident_bytes": caches.resident_bytes,
            "counters": {
                policy: {**dataclasses.asdict(counters), "hit_ratio": counters.hit_ratio}
                for policy, counters in caches.counters_by_policy.items()
            },
        }

    def change_policies(self, changes: Mapping[str, Any]) -> None:
        """Changes the named caching settings; the others stay. Raises ValueError for a wrong value."""
        runtime = self._parts.runtime
        runtime.handle(ev.CachePoliciesChanged(dataclasses.replace(runtime.core.caches.settings, **changes)))


def _webhook(row: WebhookRow) -> SubscriberWebhook:
    return SubscriberWebhook(row.subscriber, row.application, row.url, row.secret)
