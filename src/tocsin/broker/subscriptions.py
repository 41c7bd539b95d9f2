"""Subscriptions of subscribers: durable first, then in the core.

An interest is held at the cluster before anybody here subscribes to it, and durable here before the subscriber is
answered. What has been made durable becomes known to the core whoever stops waiting for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
import structlog

from tocsin import faults
from tocsin.broker.cluster_link.backend_subscriptions import (
    BackendSubscription,
    BackendSubscriptions,
    values_text,
)
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.cluster_link.subscription_sync import InterestChange, SubscriptionSync
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.fanout import FanOut
from tocsin.rules.model.cursors import Cursor, Range
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRequest, FrontendRow, GroupRow, GroupSubscriptionOutcome
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError, TocsinError
from tocsin.wire.results import FetchedPart
from tocsin.wire.subscriber import SubscribeRequest

T = TypeVar("T")

_log = structlog.get_logger("tocsin.broker.desk")


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """`new`: it was not there before."""

    subscription: Subscription
    new: bool


class SubscriptionService:
    def __init__(
        self,
        machine: CoreRuntime,
        presence: FanOut,
        *,
        holdings: BackendSubscriptions,
        holder: SubscriptionSync,
        store: BrokerStore,
        client: ClusterClient,
    ) -> None:
        self._machine = machine
        self._presence = presence
        self._holdings = holdings
        self._holder = holder
        self._store = store
        self._client = client
        self._ids: dict[tuple[int, int], int] = {}
        # Those who have some by a group, too: what their own are only the store can tell.
        self._in_groups: set[int] = set()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def recover(self) -> int:
        """After a start: everything that the store knows is known to the core again. How many subscriptions."""
        count = 0
        async for backends in self._store.backends():
            for one in backends:
                self._holdings.remember(one)
        async for frontends in self._store.frontends():
            for each in frontends:
                holding = self._holdings.get(each.interest)
                assert holding is not None, "the store keeps no frontend without its backend"
                # It was told of what somebody has acknowledged.
                holding.head = max(holding.head, each.marker)
            for each in frontends:
                self._activate(each)
            count += len(frontends)
            await asyncio.sleep(0)
        # What a crash left with nobody to hold it is ended at the cluster, too, when the broker looks there.
        idle = [one for one in self._holdings if not self._machine.core.holds(one.interest)]
        ended = set(await self._store.release_backends([one.interest for one in idle]))
        for holding in idle:
            if holding.interest in ended:
                self._holdings.remove(holding)
        return count

    async def close(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)

    # --- looking

    def subscription_of(self, subscriber: int, interest: int) -> int | None:
        return self._ids.get((subscriber, interest))

    async def find(self, subscriber: int, public_id: str) -> FrontendRow:
        found = await self._store.frontend(subscriber, public_id)
        if found is None:
            raise NotFoundError(f"you have no subscription {public_id[:60]}", hint="GET /v1/subscriptions lists them")
        return found

    async def page(self, subscriber: int, after: int, limit: int) -> tuple[list[Subscription], int | None]:
        found = await self._store.frontends_of(subscriber, after=after, limit=limit)
        groups = {one.id: one.name for one in await self._store.groups_of(subscriber)}
        return [self.told(one, groups) for one in found], found[-1].id if len(found) == limit else None

    def told(
        self, one: FrontendRow, groups: dict[int, str] | None = None, recovered: bool | None = None
    ) -> Subscription:
        holding = self._holdings.get(one.interest)
        marker = one.marker
        if self._ids.get((one.subscriber, one.interest)) == one.id:
            marker = max(marker, self._machine.core.marker(one.id))
        group = next((groups[each] for each in one.groups if each in groups), None) if groups else None
        return Subscription(
            one.public_id,
            holding.channel if holding is not None else "",
            tuple(orjson.loads(holding.parameters)) if holding is not None else (),
            one.interest, one.since, one.mode, group, marker, recovered,
        )  # fmt: skip

    # --- subscribing

    async def subscribe(
        self,
        subscriber: int,
        asked: SubscribeRequest,
        *,
        application: str,
        at_most: int,
        first: Callable[[NewSubscription], None] | None = None,
    ) -> NewSubscription:
        """Durable when this returns. `first` hears of it before anything of it is delivered."""
        self._check_room(subscriber, asked, at_most)
        holding = await self._hold(asked, application)
        return await self.to_the_end(self._subscribe(subscriber, asked, holding, at_most, first))

    async def _subscribe(
        self,
        subscriber: int,
        asked: SubscribeRequest,
        holding: BackendSubscription,
        at_most: int,
        first: Callable[[NewSubscription], None] | None,
    ) -> NewSubscription:
        try:
            # From beyond what was told nobody can have anything: what comes next is new to everybody.
            since = None if asked.since is None else min(asked.since, holding.head)
            wanted = FrontendRequest(subscriber, holding.interest, asked.mode, since)
            (done,) = await self._store.subscribe(
                [wanted], backends=[holding.new_backend()], created_us=_now_us(), at_most=at_most
            )
            faults.reach("delivery.subscription.kept")
            recovered = await self._recovered(holding, asked.since) if done.made else None
            told = self.told(done.frontend, recovered=recovered)
            if asked.since is not None:
                # Who has it already goes on after what it has acknowledged, and must not think otherwise.
                told = replace(told, since_applied=done.made)
            made = NewSubscription(told, done.made)
            if first is not None:
                first(made)
            self._activate(done.frontend)
            return made
        finally:
            self._holder.unpin(holding)

    async def subscribe_group(
        self, group: GroupRow, asked: SubscribeRequest, *, application: str, at_most: int
    ) -> GroupSubscriptionOutcome:
        """For all who are in the group, from now on."""
        holding = await self._hold(asked, application)

        async def work() -> GroupSubscriptionOutcome:
            try:
                done = await self._store.subscribe_group(
                    group.id, holding.interest, mode=asked.mode, backends=[holding.new_backend()],
                    created_us=_now_us(), at_most=at_most,
                )  # fmt: skip
                self.came(done.frontends)
                return done
            finally:
                self._holder.unpin(holding)

        return await self.to_the_end(work())

    async def changing(
        self, work: Awaitable[list[FrontendRow]], *, came: bool, reason: str | None = None
    ) -> list[FrontendRow]:
        """Whatever in the store makes frontends come or go: the core hears of it in any case."""

        async def whole() -> list[FrontendRow]:
            frontends = await work
            if came:
                self.came(frontends)
            else:
                self.went(frontends, reason)
            return frontends

        return await self.to_the_end(whole())

    async def unsubscribe(self, subscriber: int, public_id: str) -> None:
        one = await self.find(subscriber, public_id)
        if not one.own:
            raise ConflictError(
                "a group holds this for you",
                hint="leave the group, or end the group's subscription for all its members",
            )
        await self.changing(self._store.unsubscribe([one.id]), came=False)

    def came(self, frontends: Iterable[FrontendRow]) -> None:
        for one in frontends:
            self._activate(one)

    def went(self, frontends: Iterable[FrontendRow], reason: str | None = None) -> None:
        """`reason`: what their subscribers, who did not ask for it, are told."""
        gone: dict[int, list[int]] = {}
        for one in frontends:
            if self._ids.get((one.subscriber, one.interest)) == one.id:
                del self._ids[one.subscriber, one.interest]
                gone.setdefault(one.interest, []).append(one.id)
        for interest, ids in gone.items():
            if reason is not None:
                self._presence.ended(ac.EndSubscriptions(interest, ids, reason))
            for each in ids:
                self._presence.unsubscribed(each)
                self._machine.handle(ev.UnsubscribeRequested(each))

    def _check_room(self, subscriber: int, asked: SubscribeRequest, at_most: int) -> None:
        """Who has too many already is refused before the cluster is bothered; the store has the last word."""
        if len(self._machine.core.subscriptions_of(subscriber)) < at_most or subscriber in self._in_groups:
            return
        known = self._holdings.find(full_name(asked.channel), values_text(asked.parameters))
        if known is None or (subscriber, known.interest) not in self._ids:
            raise LimitError(f"you have {at_most} subscriptions already", status=429, hint="end some of them")

    async def _hold(self, asked: SubscribeRequest, application: str) -> BackendSubscription:
        return await self._holder.hold(full_name(asked.channel), values_text(asked.parameters), application)

    def _activate(self, one: FrontendRow) -> None:
        key = (one.subscriber, one.interest)
        if self._ids.get(key) == one.id:
            return
        self._ids[key] = one.id
        if one.groups:
            self._in_groups.add(one.subscriber)
        self._presence.subscribed(one.subscriber, one.id)
        self._machine.handle(ev.SubscribeRequested(one.id, one.subscriber, one.interest, one.marker, ev.Mode(one.mode)))

    async def _recovered(self, holding: BackendSubscription, since: Cursor | None) -> bool | None:
        """Whether everything after `since` is still there; None when nobody asked, or the cluster does not answer."""
        if since is None:
            return None
        try:
            async for part in self._client.fetch([Range(holding.interest, since, None, 1)]):
                if isinstance(part, FetchedPart) and part.gap is not None and part.gap > since:
                    return False
        except TocsinError:
            return None
        return True

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """The work, which goes on to its end although nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Whoever asked may have gone: what was refused then is nobody's business.
            task.exception()

    # --- the cluster has changed

    async def changed(self, changed: InterestChange) -> None:
        gone = {one.interest for one in changed.gone}
        for one in changed.gone:
            self._machine.handle(
                ev.BackendSubscriptionLost(one.interest, f"the channel {one.channel} does not have it any more")
            )
            self._holdings.remove(one)
        if gone:
            self._ids = {key: each for key, each in self._ids.items() if key[1] not in gone}
        if changed.rebound:
            await self._rebind({one.interest: old for old, one in changed.rebound})

    async def _rebind(self, old_of: dict[int, int]) -> None:
        """The cluster was restored, and calls interests otherwise: their subscriptions go on under the new numbers.
        Who is connected connects again, and learns them."""
        _log.warning("interests have other numbers at the cluster", count=len(old_of))
        moved: list[FrontendRow] = []
        async for frontends in self._store.frontends():
            moved += [one for one in frontends if one.interest in old_of]
        for one in moved:
            self._ids.pop((one.subscriber, old_of[one.interest]), None)
            self._presence.unsubscribed(one.id)
            self._machine.handle(ev.UnsubscribeRequested(one.id))
        for one in moved:
            self._activate(one)
        for subscriber in {one.subscriber for one in moved}:
            self._presence.shed(subscriber)

    @property
    def subscriptions(self) -> int:
        return len(self._ids)


def full_name(text: str) -> str:
    """`dataverse.name`; a name alone is in the dataverse Default."""
    return text if "." in text else f"Default.{text}"


def _now_us() -> int:
    return time.time_ns() // 1_000
