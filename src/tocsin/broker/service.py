"""The operations of subscribers, the same for every transport: identify, subscribe, pull, acknowledge."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import structlog

from tocsin.broker.accounts.accounts import Accounts, ManagerIdentity, Session
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.cluster_link.link import ClusterLink
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.pulls import Pulled, Pulls
from tocsin.broker.metrics import BrokerCounters
from tocsin.broker.subscriptions import NewSubscription, SubscriptionService, full_name
from tocsin.broker.transports.open_connections import OpenConnections
from tocsin.serving.rate_limit import RateLimiter
from tocsin.settings.broker import BrokerSettings
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRow, GroupRow
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import ForbiddenError, InputError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import AckRequest, PullRequest, SubscribeRequest

HELD_PER_REQUEST: Final = 50
"""A request over all subscriptions of a subscriber costs its rate limit one token more for each 50 subscriptions."""

_log = structlog.get_logger("tocsin.broker")


@dataclass(slots=True)
class BrokerService:
    """The parts of a running broker, and the operations that transports and routes share."""

    PAGE: ClassVar[int] = 500

    settings: BrokerSettings
    store: BrokerStore
    runtime: CoreRuntime
    fan_out: FanOut
    subscription_service: SubscriptionService
    acks: AckBatcher
    pulls: Pulls
    link: ClusterLink
    client: ClusterClient
    counters: BrokerCounters
    accounts: Accounts
    sessions: OpenConnections = field(default_factory=OpenConnections)
    rate_limiter: RateLimiter | None = None

    # --- identity and limits

    async def identify(self, token: str | None) -> Session:
        """The session of the subscriber whose token this is."""
        who = await self.accounts.who(token)
        if isinstance(who, ManagerIdentity):
            if token is None:
                raise UnauthorizedError("this needs a token", hint="POST /v1/login gives one")
            raise ForbiddenError("this is for subscribers", hint="use the token of a login")
        return who

    def limit(self, who: Session, name: str) -> int:
        """The application's own limit if it has one, otherwise the broker's."""
        default: int = getattr(self.settings.limits, name)
        return self.accounts.rights(who.application).limits.get(name, default)

    def check_rate(self, who: Session, *, whole: bool = False) -> None:
        """Applies the rate limit. `whole`: the request covers all subscriptions, and costs more the more there are."""
        if self.rate_limiter is None:
            limits = self.settings.limits
            self.rate_limiter = RateLimiter(limits.requests_per_s, limits.requests_burst, "requests of one subscriber")
        subscription_count = len(self.runtime.core.subscriptions_of(who.subscriber)) if whole else 0
        self.rate_limiter.check(who.subscriber, time.monotonic(), 1.0 + subscription_count / HELD_PER_REQUEST)

    def page_after(self, text: str | None) -> int:
        if text is None:
            return 0
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise InputError("after: must be what the page before gave as next")
        return int(text)

    # --- subscriptions and results

    async def subscribe(
        self, who: Session, asked: SubscribeRequest, *, first: Callable[[NewSubscription], None] | None = None
    ) -> NewSubscription:
        """Subscribes the subscriber or, if the request names a group, all members of the group."""
        channel = full_name(asked.channel)
        self._check_channel(who, channel)
        if asked.group is None:
            at_most = self.limit(who, "subscriptions")
            new_subscription = await self.subscription_service.subscribe(
                who.subscriber, asked, application=who.application_name, at_most=at_most, first=first
            )
            await self._still_may(who, channel, told=first is not None)
            return new_subscription
        group = await self.accounts.group(who, asked.group)
        if asked.since is not None:
            raise InputError("since: a group's members get what is made from now on")
        at_most = self.limit(who, "group_subscriptions")
        outcome = await self.subscription_service.subscribe_group(
            group, asked, application=who.application_name, at_most=at_most
        )
        await self._still_may(who, channel, told=False)
        page, _ = await self.subscription_service.page(who.subscriber, 0, 1 << 31)
        own = next(candidate for candidate in page if candidate.interest == outcome.subscription.interest)
        subscription = Subscription(
            outcome.subscription.public_id, own.channel, own.parameters, own.interest, own.since, own.mode,
            group.name, own.marker,
        )  # fmt: skip
        return NewSubscription(subscription, outcome.made)

    def _check_channel(self, who: Session, channel: str) -> None:
        if not self.accounts.rights(who.application).may_subscribe(channel):
            raise ForbiddenError(f"the application {who.application_name} may not use the channel {channel}")

    async def _still_may(self, who: Session, channel: str, *, told: bool) -> None:
        """Ends a subscription to a channel that the application lost while the subscription was made."""
        if not self.accounts.rights(who.application).may_subscribe(channel):
            await self.subscription_service.to_the_end(self.end_outside(who.application, who.application_name))
            if not told:
                self._check_channel(who, channel)

    async def end_outside(self, application: int, name: str) -> None:
        """Ends subscriptions to channels that the application may not use, and notifies their subscribers."""
        async for frontends in self.accounts.end_outside(application):
            self.subscription_service.went(frontends, f"the application {name} may not use this channel any more")

    async def unsubscribe_group(self, group: GroupRow, public_id: str) -> None:
        async def work() -> list[FrontendRow]:
            frontends = await self.store.unsubscribe_group(group.id, public_id)
            if frontends is None:
                raise NotFoundError(f"the group {group.name} has no subscription {public_id[:60]}")
            return frontends

        await self.subscription_service.changing(
            work(), came=False, reason=f"the group {group.name} does not hold it any more"
        )

    async def pull(self, who: Session, asked: PullRequest, wait_s: float = 0.0) -> Pulled:
        subscription = self.subscription_service.subscription_of(who.subscriber, asked.interest)
        if subscription is None:
            raise NotFoundError(f"you have no subscription to the interest {asked.interest}")
        return await self.pulls.pull(subscription, asked.interest, asked.after, asked.limit, wait_s)

    def acknowledge(self, who: Session, acks: AckRequest) -> int:
        """Acknowledges the interests that the subscriber holds, ignores the others, and returns how many it holds."""
        count = 0
        for interest, cursor in acks.acks.items():
            subscription = self.subscription_service.subscription_of(who.subscriber, interest)
            if subscription is not None:
                self.acks.acknowledge(subscription, interest, cursor)
                count += 1
        return count

    def broke(self, error: BaseException) -> None:
        _log.error("a request failed", exc_info=error)
