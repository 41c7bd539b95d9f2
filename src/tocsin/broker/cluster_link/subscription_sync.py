"""Makes and ends the broker's subscriptions at the cluster: many at once, one request after the other.

One after the other, so that ending an interest and wanting it again cannot overtake each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import structlog

from tocsin.broker.cluster_link.backend_subscriptions import (
    OURS,
    BackendSubscription,
    BackendSubscriptions,
)
from tocsin.broker.cluster_link.client import ClusterClient, GrantedSubscription
from tocsin.rules.model.cursors import Cursor
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import ReboundBackend
from tocsin.wire.errors import InputError, LimitError, NotFoundError, TocsinError, UnavailableError

TOGETHER = 10_000

_log = structlog.get_logger("tocsin.broker.holder")


@dataclass(slots=True, eq=False)
class _Want:
    channel: str
    parameters: str
    application: str
    answer: asyncio.Future[BackendSubscription]


@dataclass(slots=True, eq=False)
class _Release:
    holding: BackendSubscription


@dataclass(slots=True, eq=False)
class _Share:
    """A further application holds what we hold already."""

    holding: BackendSubscription
    application: str


@dataclass(frozen=True, slots=True)
class InterestChange:
    """What a look at the cluster found. `gone`: holdings whose channel is not there any more. `rebound`: those that
    have another number now, with the old one."""

    gone: list[BackendSubscription]
    rebound: list[tuple[int, BackendSubscription]]


class SubscriptionSync:
    """`needed` says whether anybody here holds an interest. What an earlier broker of our name has subscribed to stays
    until `former_until_us`: it may come back, and take the name over."""

    def __init__(
        self,
        client: ClusterClient,
        holdings: BackendSubscriptions,
        store: BrokerStore,
        needed: Callable[[int], bool],
        *,
        former_until_us: int,
    ) -> None:
        self._needed = needed
        self._former_until_us = former_until_us
        self._client = client
        self._holdings = holdings
        self._store = store
        self._queue: list[_Want | _Release | _Share] = []
        self._wake = asyncio.Event()
        self._cluster = asyncio.Lock()
        # News of interests that are not known yet: the cluster may tell of one before it has answered.
        self._early: dict[int, Cursor] = {}
        self._asking = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for one in self._queue:
            if isinstance(one, _Want) and not one.answer.done():
                one.answer.set_exception(UnavailableError("the broker is stopping"))

    async def hold(self, channel: str, parameters: str, application: str) -> BackendSubscription:
        """The holding of these values, pinned: the caller unpins it. InputError when the channel does not take them,
        UnavailableError while the cluster is away."""
        known = self._holdings.find(channel, parameters)
        if known is None:
            want = _Want(channel, parameters, application, asyncio.get_running_loop().create_future())
            self._queue.append(want)
            self._wake.set()
            try:
                return await want.answer
            except asyncio.CancelledError:
                if want.answer.done() and not want.answer.cancelled() and want.answer.exception() is None:
                    self.unpin(want.answer.result())
                raise
        known.pins += 1
        if application not in known.shares:
            # Nobody waits for this: who shares what the cluster keeps matters when it keeps too much.
            known.shares[application] = self._holdings.subscription_id(channel, parameters, application)
            self._queue.append(_Share(known, application))
            self._wake.set()
        return known

    def unpin(self, holding: BackendSubscription) -> None:
        """What was going to need it does, or will not. Ended if nobody does."""
        holding.pins -= 1
        if not self._needed(holding.interest):
            self.release(holding)

    def release(self, holding: BackendSubscription) -> None:
        """Nobody here needs the interest any more."""
        if holding.pins or self._holdings.get(holding.interest) is not holding:
            return
        self._holdings.hide(holding)
        self._queue.append(_Release(holding))
        self._wake.set()

    def told_early(self, interest: int, head: Cursor) -> None:
        """News of an interest that is not held here: maybe it is just being asked for."""
        if self._asking:
            self._early[interest] = max(head, self._early.get(interest, head))

    # --- one after the other

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            now, self._queue = self._queue, []
            try:
                async with self._alone():
                    await self._work(now)
            except Exception as error:
                _log.error("the cluster was not asked", exc_info=error)
                for one in now:
                    if isinstance(one, _Want) and not one.answer.done():
                        one.answer.set_exception(UnavailableError("something went wrong inside"))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        async with self._cluster:
            self._asking = True
            try:
                yield
            finally:
                self._asking = False
                self._early.clear()

    async def _work(self, now: Sequence[_Want | _Release | _Share]) -> None:
        await self._end([one.holding for one in now if isinstance(one, _Release)])
        wants: dict[tuple[str, str], dict[str, list[_Want]]] = {}
        for one in now:
            if isinstance(one, _Want):
                wants.setdefault((one.channel, one.application), {}).setdefault(one.parameters, []).append(one)
        for (channel, application), of_channel in wants.items():
            values = list(of_channel.items())
            for begin in range(0, len(values), TOGETHER):
                await self._ask(channel, application, values[begin : begin + TOGETHER])
        await self._tell_shares([(one.holding, one.application) for one in now if isinstance(one, _Share)])

    async def _end(self, holdings: Sequence[BackendSubscription]) -> None:
        """Here first: what only the cluster still has is ended when the broker looks there the next time."""
        idle = [one for one in dict.fromkeys(holdings) if not one.pins and not self._needed(one.interest)]
        if not idle:
            return
        try:
            released = set(await self._store.release_backends([one.interest for one in idle]))
        except TocsinError as error:
            _log.warning("interests that nobody needs could not be ended", count=len(idle), error=str(error))
            released = set()
        for one in idle:
            if one.interest in released:
                self._holdings.remove(one)
            else:
                self._holdings.add(one)  # A group without members holds it.
        try:
            await self._remove_there(one for one in idle if one.interest in released)
        except TocsinError as error:
            _log.info("interests will be ended at the cluster later", count=len(released), error=str(error))

    async def _remove_there(self, holdings: Iterable[BackendSubscription]) -> None:
        by_channel: dict[str, list[str]] = {}
        for one in holdings:
            by_channel.setdefault(one.channel, []).extend({one.subscription, *one.shares.values()})
        for channel, subscriptions in by_channel.items():
            try:
                await self._client.unsubscribe(channel, subscriptions)
            except NotFoundError:
                continue  # The channel is gone, and they with it.

    async def _ask(self, channel: str, application: str, values: Sequence[tuple[str, list[_Want]]]) -> None:
        """Where one of many does not fit, it is found by halves: the others are not its business."""
        identify = self._holdings.subscription_id
        wanted = [(identify(channel, parameters, application), parameters) for parameters, _ in values]
        try:
            granted = await self._subscribe(channel, wanted, application)
        except LimitError as error:
            _refuse(values, error)  # The application has too many.
        except InputError as error:
            if len(values) > 1:
                half = len(values) // 2
                await self._ask(channel, application, values[:half])
                await self._ask(channel, application, values[half:])
            else:
                _refuse(values, error)
        except TocsinError as error:
            _refuse(values, error)
        else:
            for (parameters, wants), one in zip(values, granted, strict=True):
                self._granted(channel, parameters, wants, one).shares[application] = one.subscription

    def _granted(
        self, channel: str, parameters: str, wants: Sequence[_Want], one: GrantedSubscription
    ) -> BackendSubscription:
        head = max(one.since, self._early.get(one.interest, one.since))
        holding = self._holdings.add(
            BackendSubscription(one.interest, channel, parameters, one.subscription, one.since, head)
        )
        for want in wants:
            # Who does not wait any more needs no pin.
            if not want.answer.done():
                holding.pins += 1
                want.answer.set_result(holding)
        return holding

    async def _subscribe(
        self, channel: str, wanted: Sequence[tuple[str, str]], application: str
    ) -> list[GrantedSubscription]:
        """Under these ids, with these parameters."""
        values = [(identity, orjson.Fragment(parameters)) for identity, parameters in wanted]
        return await self._client.subscribe(channel, values, application)

    async def _tell_shares(self, shares: Iterable[tuple[BackendSubscription, str]]) -> None:
        """Further applications hold what is held. What fails is told when the next subscriber of theirs comes."""
        by_channel: dict[tuple[str, str], list[BackendSubscription]] = {}
        for holding, application in shares:
            if self._holdings.get(holding.interest) is holding and application in holding.shares:
                by_channel.setdefault((holding.channel, application), []).append(holding)
        for (channel, application), holdings in by_channel.items():
            for begin in range(0, len(holdings), TOGETHER):
                some = holdings[begin : begin + TOGETHER]
                try:
                    await self._subscribe(
                        channel, [(one.shares[application], one.parameters) for one in some], application
                    )
                except TocsinError as error:
                    _log.info("the cluster was not told who shares", application=application, error=str(error))
                    for one in some:
                        if one.shares.get(application) != one.subscription:
                            one.shares.pop(application, None)

    # --- what the cluster has

    async def compare(self) -> InterestChange:
        """What the cluster lost is made again; what is there and needed by nobody is ended."""
        ending = OURS if time.time_ns() // 1_000 >= self._former_until_us else self._holdings.ours
        async with self._alone():
            there: dict[str, int] = {}
            strange: list[BackendSubscription] = []
            ours = {one.subscription: one for one in self._holdings}
            async for page in self._client.held():
                for one in page:
                    there[one.subscription] = one.interest
                    holding = ours.get(one.subscription) or self._holdings.get(one.interest)
                    if holding is not None and one.subscription.startswith(OURS):
                        holding.shares.setdefault(one.application, one.subscription)
                    elif one.channel is not None and one.subscription.startswith(ending):
                        begin = Cursor(0, 0, 0)
                        strange.append(
                            BackendSubscription(one.interest, one.channel, "", one.subscription, begin, begin)
                        )
            await self._remove_there(strange)
            lost = [one for one in ours.values() if there.get(one.subscription) != one.interest]
            changed = await self._again(lost)
            await self._tell_shares(
                (one, application)
                for one in self._holdings
                for application, identity in one.shares.items()
                if identity != one.subscription and identity not in there
            )
            return changed

    async def _again(self, lost: Sequence[BackendSubscription]) -> InterestChange:
        changed = InterestChange([], [])
        by_channel: dict[tuple[str, str], list[BackendSubscription]] = {}
        for one in lost:
            by_channel.setdefault((one.channel, one.application), []).append(one)
        for (channel, application), holdings in by_channel.items():
            for begin in range(0, len(holdings), TOGETHER):
                await self._again_in(channel, application, holdings[begin : begin + TOGETHER], changed)
        return changed

    async def _again_in(
        self, channel: str, application: str, holdings: Sequence[BackendSubscription], changed: InterestChange
    ) -> None:
        wanted = [(one.subscription, one.parameters) for one in holdings]
        try:
            granted = await self._subscribe(channel, wanted, application)
        except LimitError:
            raise  # What is held stays so here; it is tried again.
        except InputError as error:
            if isinstance(error, NotFoundError) or len(holdings) == 1:
                # No such channel, or one that takes other values now.
                await self._store.drop_backends([one.interest for one in holdings])
                changed.gone.extend(holdings)
                return
            half = len(holdings) // 2
            await self._again_in(channel, application, holdings[:half], changed)
            await self._again_in(channel, application, holdings[half:], changed)
            return
        other = [(one, given) for one, given in zip(holdings, granted, strict=True) if given.interest != one.interest]
        await self._store.rebind(
            [
                ReboundBackend(
                    one.interest, given.interest, given.subscription, given.since, self._early.get(given.interest)
                )
                for one, given in other
            ]
        )
        for one, given in other:
            self._holdings.remove(one)
            old, one.interest, one.subscription = one.interest, given.interest, given.subscription
            one.head = max(one.head, given.since, self._early.get(given.interest, given.since))
            changed.rebound.append((old, one))
        for _, one in changed.rebound:
            self._holdings.add(one)


def _refuse(values: Sequence[tuple[str, list[_Want]]], error: TocsinError) -> None:
    for _, wants in values:
        for want in wants:
            if not want.answer.done():
                want.answer.set_exception(error)
