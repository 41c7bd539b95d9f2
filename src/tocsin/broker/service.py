"""What subscribers can do, whichever way they ask: the transports speak to this and to nothing behind it."""

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
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.pulls import Pulled, Pulls
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
"""What goes over so many subscriptions counts as one request more."""

_log = structlog.get_logger("tocsin.broker")


@dataclass(slots=True)
class BrokerService:
    PAGE: ClassVar[int] = 500

    settings: BrokerSettings
    store: BrokerStore
    machine: CoreRuntime
    presence: FanOut
    desk: SubscriptionService
    acks: AckBatcher
    pulls: Pulls
    link: ClusterLink
    client: ClusterClient
    figures: BrokerCounters
    accounts: Accounts
    sessions: OpenConnections = field(default_factory=OpenConnections)
    paces: RateLimiter | None = None

    # --- who asks, and how much

    async def identify(self, token: str | None) -> Session:
        """The subscriber whose token this is."""
        who = await self.accounts.who(token)
        if isinstance(who, ManagerIdentity):
            if token is None:
                raise UnauthorizedError("this needs a token", hint="POST /v1/login gives one")
            raise ForbiddenError("this is for subscribers", hint="use the token of a login")
        return who

    def limit(self, who: Session, name: str) -> int:
        """The application's own limit, or else the broker's."""
        most: int = getattr(self.settings.limits, name)
        return self.accounts.rights(who.application).limits.get(name, most)

    def check_pace(self, who: Session, *, whole: bool = False) -> None:
        """`whole`: what is asked for goes over all subscriptions of the subscriber, and counts for more the more it
        has."""
        if self.paces is None:
            limits = self.settings.limits
            self.paces = RateLimiter(limits.requests_per_s, limits.requests_burst, "requests of one subscriber")
        held = len(self.machine.core.subscriptions_of(who.subscriber)) if whole else 0
        self.paces.check(who.subscriber, time.monotonic(), 1.0 + held / HELD_PER_REQUEST)

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
        channel = full_name(asked.channel)
        self._check_channel(who, channel)
        if asked.group is None:
            at_most = self.limit(who, "subscriptions")
            made = await self.desk.subscribe(
                who.subscriber, asked, application=who.application_name, at_most=at_most, first=first
            )
            await self._still_may(who, channel, told=first is not None)
            return made
        group = await self.accounts.group(who, asked.group)
        if asked.since is not None:
            raise InputError("since: a group's members get what is made from now on")
        at_most = self.limit(who, "group_subscriptions")
        done = await self.desk.subscribe_group(group, asked, application=who.application_name, at_most=at_most)
        await self._still_may(who, channel, told=False)
        page, _ = await self.desk.page(who.subscriber, 0, 1 << 31)
        mine = next(one for one in page if one.interest == done.subscription.interest)
        told = Subscription(
            done.subscription.public_id, mine.channel, mine.parameters, mine.interest, mine.since, mine.mode,
            group.name, mine.marker,
        )  # fmt: skip
        return NewSubscription(told, done.made)

    def _check_channel(self, who: Session, channel: str) -> None:
        if not self.accounts.rights(who.application).may_subscribe(channel):
            raise ForbiddenError(f"the application {who.application_name} may not use the channel {channel}")

    async def _still_may(self, who: Session, channel: str, *, told: bool) -> None:
        """The channels may have been narrowed while the subscription was made: then it ends as the others did."""
        if not self.accounts.rights(who.application).may_subscribe(channel):
            await self.desk.to_the_end(self.end_outside(who.application, who.application_name))
            if not told:
                self._check_channel(who, channel)

    async def end_outside(self, application: int, name: str) -> None:
        """Subscriptions to channels that the application may not use end, and their subscribers are told."""
        async for gone in self.accounts.end_outside(application):
            self.desk.went(gone, f"the application {name} may not use this channel any more")

    async def unsubscribe_group(self, group: GroupRow, public_id: str) -> None:
        async def work() -> list[FrontendRow]:
            gone = await self.store.unsubscribe_group(group.id, public_id)
            if gone is None:
                raise NotFoundError(f"the group {group.name} has no subscription {public_id[:60]}")
            return gone

        await self.desk.changing(work(), came=False, reason=f"the group {group.name} does not hold it any more")

    async def pull(self, who: Session, asked: PullRequest, wait_s: float = 0.0) -> Pulled:
        subscription = self.desk.subscription_of(who.subscriber, asked.interest)
        if subscription is None:
            raise NotFoundError(f"you have no subscription to the interest {asked.interest}")
        return await self.pulls.pull(subscription, asked.interest, asked.after, asked.limit, wait_s)

    def acknowledge(self, who: Session, acks: AckRequest) -> int:
        """Interests that are not held (any more) are passed over. How many were."""
        held = 0
        for interest, cursor in acks.cursors.items():
            subscription = self.desk.subscription_of(who.subscriber, interest)
            if subscription is not None:
                self.acks.acknowledge(subscription, interest, cursor)
                held += 1
        return held

    def broke(self, error: BaseException) -> None:
        _log.error("a request failed", exc_info=error)
