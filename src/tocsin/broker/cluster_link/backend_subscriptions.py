"""Makes one backend subscription at the cluster for equal parameter values, and ends it when nobody needs it.

It asks the cluster in batches. Requests are sequential, so that ending an interest
and subscribing to it again cannot overtake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import structlog

from tocsin.broker.cluster_link.backend_index import OURS, BackendIndex, BackendSubscription
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.clock import now_us
from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import ReboundBackend
from tocsin.wire.cluster import GrantedSubscription
from tocsin.wire.errors import InputError, LimitError, NotFoundError, TocsinError, UnavailableError

_TOGETHER = 10_000

_log = structlog.get_logger("tocsin.broker.backend_subscriptions")


@dataclass(slots=True, eq=False)
class _Want:
    """A request for a backend subscription, with the future that gets it."""

    channel: str
    parameters: str
    application: str
    answer: asyncio.Future[BackendSubscription]


@dataclass(slots=True, eq=False)
class _Release:
    """A request to end a backend subscription."""

    backend: BackendSubscription


@dataclass(slots=True, eq=False)
class _Share:
    """Another application holds an interest that we already hold."""

    backend: BackendSubscription
    application: str


@dataclass(frozen=True, slots=True)
class InterestChange:
    """The outcome of a comparison with the cluster. `lost`: backend subscriptions whose channel no longer exists.
    `rebound`: those that have another number now, each with its old number."""

    lost: list[BackendSubscription]
    rebound: list[tuple[InterestId, BackendSubscription]]


class BackendSubscriptions:
    """Makes, shares and ends backend subscriptions, one request at a time.

    `needed` says whether an interest has frontend subscriptions here. Subscriptions of an earlier broker of our name
    stay until `former_until_us`, because that broker may come back and take the name over.
    """

    def __init__(
        self,
        client: ClusterClient,
        index: BackendIndex,
        store: BrokerStore,
        needed: Callable[[InterestId], bool],
        *,
        former_until_us: int,
        age_us: Callable[[], int] = now_us,
    ) -> None:
        self._needed = needed
        self._former_until_us = former_until_us
        self._age_us = age_us
        self._client = client
        self._index = index
        self._store = store
        self._queue: list[_Want | _Release | _Share] = []
        self._wake = asyncio.Event()
        self._cluster = asyncio.Lock()
        # Heads of unknown interests: the cluster may announce results before it has answered our request.
        self._early: dict[InterestId, Cursor] = {}
        self._asking = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for request in self._queue:
            if isinstance(request, _Want) and not request.answer.done():
                request.answer.set_exception(UnavailableError("the broker is stopping"))

    async def hold(self, channel: str, parameters: str, application: str) -> BackendSubscription:
        """Returns the backend subscription of these values, pinned; the caller unpins it. Raises InputError if the
        channel does not take the values, UnavailableError while the cluster is away."""
        backend = self._index.find(channel, parameters)
        if backend is None:
            request = _Want(channel, parameters, application, asyncio.get_running_loop().create_future())
            self._queue.append(request)
            self._wake.set()
            try:
                return await request.answer
            except asyncio.CancelledError:
                if request.answer.done() and not request.answer.cancelled() and request.answer.exception() is None:
                    self.unpin(request.answer.result())
                raise
        backend.pins += 1
        if application not in backend.shares:
            # The caller need not wait for this: the cluster uses shares only when it keeps too many results.
            backend.shares[application] = self._index.subscription_id(channel, parameters, application)
            self._queue.append(_Share(backend, application))
            self._wake.set()
        return backend

    def unpin(self, backend: BackendSubscription) -> None:
        """Call this when the frontend subscription exists or has failed; ends an unneeded backend subscription."""
        backend.pins -= 1
        if not self._needed(backend.interest):
            self.release(backend)

    def release(self, backend: BackendSubscription) -> None:
        """Ends a backend subscription that no subscriber here needs."""
        if backend.pins or self._index.get(backend.interest) is not backend:
            return
        self._index.hide(backend)
        self._queue.append(_Release(backend))
        self._wake.set()

    def note_early_announcement(self, interest: InterestId, head: Cursor) -> None:
        """Remembers an announcement of an unknown interest, which may belong to a request that is under way."""
        if self._asking:
            self._early[interest] = max(head, self._early.get(interest, head))

    # --- sequential requests

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            requests, self._queue = self._queue, []
            try:
                async with self._lock_requests():
                    await self._work(requests)
            except Exception as error:
                _log.error("the cluster did not answer a subscribe request", exc_info=error)
                for request in requests:
                    if isinstance(request, _Want) and not request.answer.done():
                        request.answer.set_exception(UnavailableError("something went wrong inside"))

    @asynccontextmanager
    async def _lock_requests(self) -> AsyncIterator[None]:
        """Holds the lock of requests to the cluster. Announcements of unknown interests are remembered meanwhile."""
        async with self._cluster:
            self._asking = True
            try:
                yield
            finally:
                self._asking = False
                self._early.clear()

    async def _work(self, now: Sequence[_Want | _Release | _Share]) -> None:
        """Performs the queue: ends subscriptions, makes new ones per channel and application, registers shares."""
        await self._end([item.backend for item in now if isinstance(item, _Release)])
        wants: dict[tuple[str, str], dict[str, list[_Want]]] = {}
        for item in now:
            if isinstance(item, _Want):
                wants.setdefault((item.channel, item.application), {}).setdefault(item.parameters, []).append(item)
        for (channel, application), of_channel in wants.items():
            values = list(of_channel.items())
            for begin in range(0, len(values), _TOGETHER):
                await self._ask(channel, application, values[begin : begin + _TOGETHER])
        await self._register_shares([(item.backend, item.application) for item in now if isinstance(item, _Share)])

    async def _end(self, backends: Sequence[BackendSubscription]) -> None:
        """Ends them in the store first; the next comparison ends those that only the cluster still has."""
        idle = [
            backend for backend in dict.fromkeys(backends) if not backend.pins and not self._needed(backend.interest)
        ]
        if not idle:
            return
        try:
            released = set(await self._store.release_backends([backend.interest for backend in idle]))
        except TocsinError as error:
            _log.warning("unused backend subscriptions could not be ended", count=len(idle), error=str(error))
            released = set()
        for backend in idle:
            if backend.interest in released:
                self._index.remove(backend)
            else:
                self._index.add(backend)  # A group without members still holds it.
        try:
            await self._unsubscribe_at_cluster(backend for backend in idle if backend.interest in released)
        except TocsinError as error:
            _log.info("interests will be ended at the cluster later", count=len(released), error=str(error))

    async def _unsubscribe_at_cluster(self, backends: Iterable[BackendSubscription]) -> None:
        """Ends the subscriptions at the cluster."""
        by_channel: dict[str, list[str]] = {}
        for backend in backends:
            by_channel.setdefault(backend.channel, []).extend({backend.subscription, *backend.shares.values()})
        for channel, subscriptions in by_channel.items():
            try:
                await self._client.unsubscribe(channel, subscriptions)
            except NotFoundError:
                continue  # The channel was dropped, and its subscriptions with it.

    async def _ask(self, channel: str, application: str, values: Sequence[tuple[str, list[_Want]]]) -> None:
        """Subscribes to a batch. If the cluster refuses a value, bisection isolates it from the other requests."""
        identify = self._index.subscription_id
        requests = [(identify(channel, parameters, application), parameters) for parameters, _ in values]
        try:
            granted = await self._subscribe(channel, requests, application)
        except LimitError as error:
            _refuse(values, error)  # The application is over its limit.
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
            for (parameters, wants), grant in zip(values, granted, strict=True):
                self._add_granted(channel, parameters, wants, grant).shares[application] = grant.id

    def _add_granted(
        self, channel: str, parameters: str, wants: Sequence[_Want], grant: GrantedSubscription
    ) -> BackendSubscription:
        """Adds a new backend subscription, and hands it to the requests that wait for it, pinned."""
        head = max(grant.since, self._early.get(grant.interest, grant.since))
        backend = self._index.add(BackendSubscription(grant.interest, channel, parameters, grant.id, grant.since, head))
        for request in wants:
            # A cancelled request needs no pin.
            if not request.answer.done():
                backend.pins += 1
                request.answer.set_result(backend)
        return backend

    async def _subscribe(
        self, channel: str, requests: Sequence[tuple[str, str]], application: str
    ) -> list[GrantedSubscription]:
        """Subscribes with these pairs of id and parameters."""
        values = [(identity, orjson.Fragment(parameters)) for identity, parameters in requests]
        return await self._client.subscribe(channel, values, application)

    async def _register_shares(self, shares: Iterable[tuple[BackendSubscription, str]]) -> None:
        """Registers further applications of existing subscriptions. Their next subscriber retries a failure."""
        by_channel: dict[tuple[str, str], list[BackendSubscription]] = {}
        for shared, application in shares:
            if self._index.get(shared.interest) is shared and application in shared.shares:
                by_channel.setdefault((shared.channel, application), []).append(shared)
        for (channel, application), backends in by_channel.items():
            for begin in range(0, len(backends), _TOGETHER):
                batch = backends[begin : begin + _TOGETHER]
                try:
                    await self._subscribe(
                        channel, [(backend.shares[application], backend.parameters) for backend in batch], application
                    )
                except TocsinError as error:
                    _log.info(
                        "applications of a subscription were not reported to the cluster",
                        application=application,
                        error=str(error),
                    )
                    for backend in batch:
                        if backend.shares.get(application) != backend.subscription:
                            backend.shares.pop(application, None)

    # --- comparison with the cluster

    async def compare(self) -> InterestChange:
        """Makes subscriptions again that the cluster lost, and ends those that it has and no subscriber needs."""
        prefix = OURS if self._age_us() >= self._former_until_us else self._index.ours
        async with self._lock_requests():
            held_interests: dict[str, int] = {}
            orphaned: list[BackendSubscription] = []
            ours = {backend.subscription: backend for backend in self._index}
            async for page in self._client.subscription_pages():
                for held in page:
                    held_interests[held.id] = held.interest
                    own = ours.get(held.id) or self._index.get(held.interest)
                    if own is not None and held.id.startswith(OURS):
                        own.shares.setdefault(held.application, held.id)
                    elif held.channel is not None and held.id.startswith(prefix):
                        begin = Cursor(0, 0, 0)
                        orphaned.append(BackendSubscription(held.interest, held.channel, "", held.id, begin, begin))
            await self._unsubscribe_at_cluster(orphaned)
            lost = [
                backend for backend in ours.values() if held_interests.get(backend.subscription) != backend.interest
            ]
            changed = await self._subscribe_again(lost)
            await self._register_shares(
                (backend, application)
                for backend in self._index
                for application, identity in backend.shares.items()
                if identity != backend.subscription and identity not in held_interests
            )
            return changed

    async def _subscribe_again(self, lost: Sequence[BackendSubscription]) -> InterestChange:
        """Makes lost subscriptions again, per channel and application."""
        changed = InterestChange([], [])
        by_channel: dict[tuple[str, str], list[BackendSubscription]] = {}
        for backend in lost:
            by_channel.setdefault((backend.channel, backend.application), []).append(backend)
        for (channel, application), backends in by_channel.items():
            for begin in range(0, len(backends), _TOGETHER):
                await self._subscribe_batch_again(channel, application, backends[begin : begin + _TOGETHER], changed)
        return changed

    async def _subscribe_batch_again(
        self, channel: str, application: str, backends: Sequence[BackendSubscription], changed: InterestChange
    ) -> None:
        """Makes a batch again, by bisection if the cluster refuses a value. Ends what the channel no longer takes, and
        rebinds interests that have another number now."""
        requests = [(backend.subscription, backend.parameters) for backend in backends]
        try:
            granted = await self._subscribe(channel, requests, application)
        except LimitError:
            raise  # The subscriptions stay here, and the next comparison tries again.
        except InputError as error:
            if isinstance(error, NotFoundError) or len(backends) == 1:
                # The channel was dropped, or takes other values now.
                await self._store.drop_backends([backend.interest for backend in backends])
                changed.lost.extend(backends)
                return
            half = len(backends) // 2
            await self._subscribe_batch_again(channel, application, backends[:half], changed)
            await self._subscribe_batch_again(channel, application, backends[half:], changed)
            return
        renumbered = [
            (backend, grant)
            for backend, grant in zip(backends, granted, strict=True)
            if grant.interest != backend.interest
        ]
        await self._store.rebind(
            [
                ReboundBackend(backend.interest, grant.interest, grant.id, grant.since, self._early.get(grant.interest))
                for backend, grant in renumbered
            ]
        )
        for backend, grant in renumbered:
            self._index.remove(backend)
            old, backend.interest, backend.subscription = backend.interest, grant.interest, grant.id
            backend.head = max(backend.head, grant.since, self._early.get(grant.interest, grant.since))
            changed.rebound.append((old, backend))
        for _, backend in changed.rebound:
            self._index.add(backend)


def _refuse(values: Sequence[tuple[str, list[_Want]]], error: TocsinError) -> None:
    for _, wants in values:
        for request in wants:
            if not request.answer.done():
                request.answer.set_exception(error)
