"""Creates and ends frontend subscriptions: durable first, then in the core.

The cluster holds an interest before a subscriber here subscribes to it, and the subscription is durable here before the
subscriber is answered. Once the store has a change, the core learns of it even if the request is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
import structlog

from tocsin import faults
from tocsin.broker.cluster_link.backend_index import BackendIndex, BackendSubscription, values_text
from tocsin.broker.cluster_link.backend_subscriptions import BackendSubscriptions, InterestChange
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.fanout import FanOut
from tocsin.clock import now_us
from tocsin.rules.model.cursors import Cursor, InterestId, Range, SubscriptionId
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FrontendRequest, FrontendRow, GroupRow, GroupSubscriptionOutcome
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError, TocsinError
from tocsin.wire.messages import qualify
from tocsin.wire.results import FetchedPart
from tocsin.wire.subscriber import SubscribeRequest

_T = TypeVar("_T")

_log = structlog.get_logger("tocsin.broker.subscriptions")


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A subscription and whether it is new: False if it existed before."""

    subscription: Subscription
    new: bool


class SubscriptionService:
    """Keeps store, core and cluster in agreement about frontend subscriptions."""

    def __init__(
        self,
        runtime: CoreRuntime,
        fan_out: FanOut,
        *,
        index: BackendIndex,
        backends: BackendSubscriptions,
        store: BrokerStore,
        client: ClusterClient,
    ) -> None:
        self._runtime = runtime
        self._fan_out = fan_out
        self.index = index
        self._backends = backends
        self._store = store
        self._client = client
        # The frontend subscription of each pair of subscriber and interest.
        self._ids: dict[tuple[int, InterestId], SubscriptionId] = {}
        # Subscribers with group subscriptions; for them only the store knows how many are their own.
        self._in_groups: set[int] = set()
        # Shielded changes that have not ended; `close` waits for them.
        self._under_way: set[asyncio.Task[Any]] = set()

    async def recover(self) -> int:
        """After a start: gives the core everything that the store has, and returns the number of subscriptions."""
        count = 0
        async for backends in self._store.backends():
            for backend_row in backends:
                self.index.remember(backend_row)
        async for frontends in self._store.frontends():
            for frontend in frontends:
                backend = self.index.get(frontend.interest)
                assert backend is not None, "the store keeps no frontend without its backend"
                # The cluster has announced everything that a subscriber has acknowledged.
                backend.head = max(backend.head, frontend.marker)
            self.activate(frontends)
            count += len(frontends)
            await asyncio.sleep(0)
        # After a crash, backend subscriptions can be left without a frontend subscription. The broker ends them at the
        # cluster when it compares its subscriptions with the cluster's.
        idle = [backend for backend in self.index if not self._runtime.core.holds(backend.interest)]
        ended = set(await self._store.release_backends([backend.interest for backend in idle]))
        for backend in idle:
            if backend.interest in ended:
                self.index.remove(backend)
        return count

    async def close(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)

    # --- queries

    def subscription_of(self, subscriber: int, interest: InterestId) -> SubscriptionId | None:
        return self._ids.get((subscriber, interest))

    async def find(self, subscriber: int, public_id: str) -> FrontendRow:
        frontend = await self._store.frontend(subscriber, public_id)
        if frontend is None:
            raise NotFoundError(f"you have no subscription {public_id[:60]}", hint="GET /v1/subscriptions lists them")
        return frontend

    async def page(self, subscriber: int, after: int, limit: int) -> tuple[list[Subscription], int | None]:
        rows = await self._store.frontends_of(subscriber, after=after, limit=limit)
        groups = {group.id: group.name for group in await self._store.groups_of(subscriber)}
        return [self.describe(row, groups) for row in rows], rows[-1].id if len(rows) == limit else None

    def describe(
        self, frontend: FrontendRow, groups: dict[int, str] | None = None, recovered: bool | None = None
    ) -> Subscription:
        """The row as the API shows it, with the newest marker."""
        backend = self.index.get(frontend.interest)
        marker = frontend.marker
        if self._ids.get((frontend.subscriber, frontend.interest)) == frontend.id:
            marker = max(marker, self._runtime.core.marker(frontend.id))
        return Subscription(
            frontend.public_id,
            backend.channel if backend is not None else "",
            tuple(orjson.loads(backend.parameters)) if backend is not None else (),
            frontend.interest,
            frontend.since,
            frontend.mode,
            next((groups[group] for group in frontend.groups if group in groups), None) if groups else None,
            marker,
            recovered,
        )

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
        """Subscribes durably. `first` receives the subscription before any of its results are delivered."""
        self._check_room(subscriber, asked, at_most)
        backend = await self._hold(asked, application)
        return await self.finish(self._subscribe(subscriber, asked, backend, at_most, first))

    async def _subscribe(
        self,
        subscriber: int,
        asked: SubscribeRequest,
        backend: BackendSubscription,
        at_most: int,
        first: Callable[[NewSubscription], None] | None,
    ) -> NewSubscription:
        """Stores the subscription, calls `first`, and activates it in the core, in this order."""
        try:
            # A `since` beyond the head cannot be real; clamp it to the head.
            since = None if asked.since is None else min(asked.since, backend.head)
            request = FrontendRequest(subscriber, backend.interest, asked.mode, since)
            (outcome,) = await self._store.subscribe(
                [request], backends=[backend.new_backend()], created_us=now_us(), at_most=at_most
            )
            faults.reach("delivery.subscription.stored")
            recovered = await self._has_recovered(backend, asked.since) if outcome.made else None
            subscription = self.describe(outcome.frontend, recovered=recovered)
            if asked.since is not None:
                # An existing subscription continues at its marker, so the client must learn that `since` has no effect.
                subscription = replace(subscription, since_applied=outcome.made)
            new_subscription = NewSubscription(subscription, outcome.made)
            if first is not None:
                first(new_subscription)
            self.activate([outcome.frontend])
            return new_subscription
        finally:
            self._backends.unpin(backend)

    async def subscribe_group(
        self, group: GroupRow, asked: SubscribeRequest, *, application: str, at_most: int
    ) -> GroupSubscriptionOutcome:
        """Subscribes all members of the group, from now on."""
        backend = await self._hold(asked, application)

        async def work() -> GroupSubscriptionOutcome:
            try:
                outcome = await self._store.subscribe_group(
                    group.id, backend.interest, mode=asked.mode, backends=[backend.new_backend()],
                    created_us=now_us(), at_most=at_most,
                )  # fmt: skip
                self.activate(outcome.frontends)
                return outcome
            finally:
                self._backends.unpin(backend)

        return await self.finish(work())

    async def end_after(self, work: Awaitable[list[FrontendRow]], reason: str | None = None) -> None:
        """Ends in the core what the work removes from the store, even if the caller is cancelled."""

        async def whole() -> None:
            self.end(await work, reason)

        await self.finish(whole())

    async def unsubscribe(self, subscriber: int, public_id: str) -> None:
        frontend = await self.find(subscriber, public_id)
        if not frontend.own:
            raise ConflictError(
                "a group holds this for you",
                hint="leave the group, or end the group's subscription for all its members",
            )
        await self.end_after(self._store.unsubscribe([frontend.id]))

    def activate(self, frontends: Iterable[FrontendRow]) -> None:
        """Gives stored frontends to the core, each once."""
        for frontend in frontends:
            subscriber, interest = key = (frontend.subscriber, frontend.interest)
            if self._ids.get(key) == frontend.id:
                continue
            self._ids[key] = frontend.id
            if frontend.groups:
                self._in_groups.add(subscriber)
            self._fan_out.add_subscription(subscriber, frontend.id)
            mode = ev.Mode(frontend.mode)
            self._runtime.handle(ev.SubscribeRequested(frontend.id, subscriber, interest, frontend.marker, mode))

    def end(self, frontends: Iterable[FrontendRow], reason: str | None = None) -> None:
        """Ends frontends in the core. `reason` is sent to subscribers that did not ask for the end themselves."""
        ended_ids: dict[InterestId, list[SubscriptionId]] = {}
        for frontend in frontends:
            if self._ids.get((frontend.subscriber, frontend.interest)) == frontend.id:
                del self._ids[frontend.subscriber, frontend.interest]
                ended_ids.setdefault(frontend.interest, []).append(frontend.id)
        for interest, ids in ended_ids.items():
            if reason is not None:
                self._fan_out.end(ac.EndSubscriptions(interest, ids, reason))
            for subscription in ids:
                self._fan_out.remove_subscription(subscription)
                self._runtime.handle(ev.UnsubscribeRequested(subscription))

    def _check_room(self, subscriber: int, asked: SubscribeRequest, at_most: int) -> None:
        """Refuses a subscriber that is over its limit before the cluster is asked; the store makes the final check."""
        if len(self._runtime.core.subscriptions_of(subscriber)) < at_most or subscriber in self._in_groups:
            return
        backend = self.index.find(qualify(asked.channel), values_text(asked.parameters))
        if backend is None or (subscriber, backend.interest) not in self._ids:
            raise LimitError(f"you have {at_most} subscriptions already", status=429, hint="end some of them")

    async def _hold(self, asked: SubscribeRequest, application: str) -> BackendSubscription:
        return await self._backends.hold(qualify(asked.channel), values_text(asked.parameters), application)

    async def _has_recovered(self, backend: BackendSubscription, since: Cursor | None) -> bool | None:
        """Whether all results after `since` still exist; None without `since`, or while the cluster does not answer."""
        if since is None:
            return None
        try:
            async for part in self._client.fetch([Range(backend.interest, since, None, 1)]):
                if isinstance(part, FetchedPart) and part.gap is not None and part.gap > since:
                    return False
        except TocsinError:
            return None
        return True

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Shields the work: it runs to its end even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Retrieve the exception: the caller may be gone, and asyncio would log it as never retrieved.
            task.exception()

    # --- changes at the cluster

    async def apply_change(self, change: InterestChange) -> None:
        """Ends or renumbers subscriptions after a comparison with the cluster."""
        ended_interests = {backend.interest for backend in change.lost}
        for backend in change.lost:
            self._runtime.handle(
                ev.BackendSubscriptionLost(backend.interest, f"the channel {backend.channel} does not have it any more")
            )
            self.index.remove(backend)
        if ended_interests:
            self._ids = {key: subscription for key, subscription in self._ids.items() if key[1] not in ended_interests}
        if change.rebound:
            await self._rebind({backend.interest: old for old, backend in change.rebound})

    async def _rebind(self, old_of: dict[InterestId, InterestId]) -> None:
        """After a restore the cluster can give interests other numbers: moves their subscriptions to the new numbers.
        Connected subscribers are disconnected; they reconnect and learn the new numbers."""
        _log.warning("interests have other numbers at the cluster", count=len(old_of))
        rebound: list[FrontendRow] = []
        async for frontends in self._store.frontends():
            rebound += [frontend for frontend in frontends if frontend.interest in old_of]
        for frontend in rebound:
            self._ids.pop((frontend.subscriber, old_of[frontend.interest]), None)
            self._fan_out.remove_subscription(frontend.id)
            self._runtime.handle(ev.UnsubscribeRequested(frontend.id))
        self.activate(rebound)
        for subscriber in {frontend.subscriber for frontend in rebound}:
            self._fan_out.shed(subscriber)

    @property
    def count(self) -> int:
        return len(self._ids)
