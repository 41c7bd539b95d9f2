"""The broker's link to its cluster: registers, receives announcements, and asks for those that it missed.

    announcement ─▶ signature ─▶ does it follow our position? ─▶ core ─▶ store (position and heads together) ─▶ 200
                                         └─ no ─▶ ask for everything since our position

While the cluster is away, the broker delivers what it has and reconnects with exponential back-off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Final

import structlog

from tocsin import faults
from tocsin.broker.cluster_link.backend_index import BackendIndex, BackendSubscription
from tocsin.broker.cluster_link.backend_subscriptions import BackendSubscriptions, InterestChange
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.broker.cluster_link.client import ClusterClient, ClusterHealth
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import to_broker_result
from tocsin.broker.metrics import BrokerCounters
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.cursors import Cursor, InterestId, Position, Range
from tocsin.store.broker.interface import BrokerStore
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.errors import FencedError, NotFoundError, TocsinError, UnauthorizedError, UnavailableError
from tocsin.wire.results import FetchedPart
from tocsin.wire.signatures import verify

_log = structlog.get_logger("tocsin.broker.link")

_SECRET_EVERY_S: Final = 60.0
"""The shortest time between two requests for a new secret, which a message with a bad signature causes."""
_RECHECK_EVERY_S: Final = 10.0
"""The shortest time between two such checks of the cluster: anybody can send a message with a bad signature."""
TURN_EVENTS: Final = 100
"""The number of events of an announcement that are handled before other tasks run."""
_LARGE_BYTES: Final = 64 << 10
"""A larger announcement is parsed in a thread."""


class ClusterLink:
    """Keeps the broker registered and up to date, with back-off while the cluster is away.

    `on_changed` is called with interests that have ended or have other numbers. `refusal` is the error with which the
    cluster refuses this broker. `fenced` is set when a newer broker has our name: this broker then asks the cluster for
    nothing more, and the process has to end.
    """

    def __init__(
        self,
        client: ClusterClient,
        runtime: CoreRuntime,
        *,
        index: BackendIndex,
        backends: BackendSubscriptions,
        store: BrokerStore,
        generation: BrokerGeneration,
        counters: BrokerCounters,
        on_changed: Callable[[InterestChange], Awaitable[None]],
        callback: str,
        first_retry_s: float,
        last_retry_s: float,
        check_every_s: float,
        recheck_every_s: float = _RECHECK_EVERY_S,
    ) -> None:
        self._client = client
        self._health = ClusterHealth(client)
        self._runtime = runtime
        self._index = index
        self._backends = backends
        self._store = store
        self._generation = generation
        self._counters = counters
        self._on_changed = on_changed
        self._callback = callback
        self._first_retry_s, self._last_retry_s, self._check_every_s = first_retry_s, last_retry_s, check_every_s
        self._recheck_every_s = recheck_every_s
        # When an unexpected message last caused a check of the cluster.
        self._rechecked_s = -recheck_every_s
        self._position = Position(0, 0)
        self._epoch = 0
        self._secret: str | None = None
        self._secret_asked_s = -_SECRET_EVERY_S
        # A message had a bad signature: our secret may be outdated.
        self._secret_is_doubtful = False
        # Our backend subscriptions have been compared with the cluster's since the last change there.
        self.is_compared = False
        # The number of channels that were ever dropped, as last seen.
        self._dropped = 0
        self._registered = False
        # Serializes the handling of announcements, since each moves the position.
        self._announcing = asyncio.Lock()
        # Wakes the loop for an immediate check of the cluster.
        self._wake = asyncio.Event()
        # Acknowledged cursors that the cluster has not received yet.
        self._reports: dict[InterestId, Cursor] = {}
        self._task: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._fencing: asyncio.Task[None] | None = None
        self.connected = False
        self.refusal: TocsinError | None = None
        self.was_accepted = False
        """Whether the cluster has accepted the broker since the start."""
        self.fenced: asyncio.Future[FencedError] = asyncio.get_running_loop().create_future()
        client.on_unreachable = self._on_cluster_unreachable
        client.on_fenced = self._on_fenced

    # --- life cycle

    async def start(self) -> None:
        stored = await self._store.link()
        self._epoch, self._position, self._secret = stored.epoch, stored.position, stored.secret
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._reporting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._fencing is not None:
            await self._fencing

    @property
    def position(self) -> Position:
        return self._position

    async def state(self, *, must_answer: bool) -> str:
        """`here`, `away` or `refuses`. Raises UnavailableError if the cluster must answer and does not, or has refused
        this broker since the start: an operator must correct its settings."""
        if self.refusal is not None and (must_answer or not self.was_accepted):
            hint = self.refusal.hint or "see broker.name and broker.cluster in the settings"
            raise UnavailableError(f"the cluster refuses the broker: {self.refusal.message}", hint=hint)
        # Ask the cluster only on demand: a probe must not wait for a cluster that hangs.
        is_up = self.connected and (not must_answer or await self._health.is_up())
        if must_answer and not is_up:
            raise UnavailableError("the cluster does not answer", hint="what is here is delivered all the same")
        return "here" if is_up else "away" if self.refusal is None else "refuses"

    async def _run(self) -> None:
        """Checks the cluster every `check_every_s` and when woken; retries failures with exponential back-off."""
        back_off = BackOff(self._first_retry_s, self._last_retry_s)
        while True:
            try:
                await self._synchronize()
                self.connected, self.refusal, self.was_accepted = True, None, True
                back_off.reset()
                delay_s = self._check_every_s
            except FencedError as error:
                self.connected, self.refusal = False, error
                return
            except TocsinError as error:
                # The cluster will refuse again until an operator changes something.
                refusal = None if error.retry else error
                if self.connected or not back_off.failures or bool(refusal) != bool(self.refusal):
                    message = "the cluster is away" if refusal is None else "the cluster refuses the broker"
                    _log.warning(message, error=str(error), hint=error.hint, retry=error.retry)
                self.connected, self.refusal = False, refusal
                # Meanwhile the cluster may have lost the broker with its subscriptions: register and compare again.
                self._registered = self.is_compared = False
                self._wake.clear()
                delay_s = back_off.next_s()
            except Exception as error:
                _log.error("the link to the cluster failed", exc_info=error)
                delay_s = back_off.next_s()
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _on_cluster_unreachable(self) -> None:
        """A request got no answer: check the cluster at once."""
        if self.connected:
            self._wake.set()

    def _on_fenced(self, error: FencedError) -> None:
        """Another broker has our name: remember it and end this broker."""
        if self._fencing is None:
            _log.error("another broker has our name, and this one stops", error=error.message, hint=error.hint)
            self._fencing = asyncio.get_running_loop().create_task(self._remember_fenced(error))

    async def _remember_fenced(self, error: FencedError) -> None:
        """Stores the fence first: after a restart this broker must not take the name back from the newer one."""
        try:
            await self._generation.record_fence(error.message)
        except TocsinError as store_error:
            _log.error("the fencing of this broker could not be stored", error=str(store_error))
        if not self.fenced.done():
            self.fenced.set_result(error)

    async def _synchronize(self) -> None:
        """Brings broker and cluster in agreement: registration, subscriptions, announcements and secret."""
        if not self._registered:
            await self._register()
        else:
            await self._check()
        missed = await self._compare_and_catch_up()
        if not self.is_compared:
            # A new epoch began: the cluster was restored, and its subscriptions may have changed, too.
            missed = await self._compare_and_catch_up() or missed
        if self._secret_is_doubtful:
            self._secret_is_doubtful = False
            if missed and time.monotonic() - self._secret_asked_s >= _SECRET_EVERY_S:
                # There were announcements that we did not get, and a message came that was not signed with our secret.
                await self._new_secret()

    async def _compare_and_catch_up(self) -> bool:
        """Compares the subscriptions if that is due, then catches up; returns whether there were announcements."""
        if not self.is_compared:
            self.is_compared = True
            try:
                await self._on_changed(await self._backends.compare())
            except BaseException:
                self.is_compared = False
                raise
        return await self._catch_up()

    async def _register(self) -> None:
        """Registers the broker, and stores the secret, the epoch and the position that the cluster gave it."""
        generation = self._generation
        answer = await self._client.register(
            self._callback, store=generation.store_id, generation=generation.generation, starts=generation.starts
        )
        await generation.record_generation(answer.generation)
        self._client.generation = answer.generation
        secret = answer.secret or self._secret or await self._client.new_secret()
        async with self._announcing:
            self._secret = secret
            if self._epoch == 0:
                self._position = answer.position
            # The position may be of an earlier epoch than the cluster's present one.
            self._epoch = max(self._epoch, answer.position.epoch)
            await self._store.record_registration(epoch=self._epoch, position=self._position, secret=secret)
        self._registered = True
        self._note_dropped_channels(answer.dropped)
        _log.info("registered at the cluster", epoch=self._epoch, generation=answer.generation)

    async def _check(self) -> None:
        """Registers again if the cluster was restored from a backup that does not know us, or knows us differently."""
        try:
            registration = await self._client.broker_info()
        except NotFoundError:
            registration = None
        if (
            registration is None
            or registration.url != self._callback
            or registration.position is None
            or registration.generation != self._generation.generation
        ):
            self.is_compared = False
            await self._register()
        else:
            self._note_dropped_channels(registration.dropped)

    def _note_dropped_channels(self, dropped: int) -> None:
        """Compares the number of channels that were ever dropped: if it changed, some of them may have been ours."""
        if dropped != self._dropped:
            self._dropped = dropped
            self.is_compared = False

    async def _new_secret(self) -> None:
        """Requests a new secret for signatures and stores it."""
        self._secret_asked_s = time.monotonic()
        secret = await self._client.new_secret()
        async with self._announcing:
            self._secret = secret
            await self._store.record_registration(epoch=self._epoch, position=self._position, secret=secret)

    # --- announcements

    async def receive_announcement(self, headers: Mapping[str, str], body: bytes) -> None:
        """Receives an announcement; when this returns, its content is durable here. Raises UnauthorizedError if the
        signature is wrong, UnavailableError if the broker cannot handle it yet."""
        if self._secret is None:
            self._recheck_soon()
            raise UnavailableError("the broker is not registered yet")
        try:
            verify(self._secret, headers, body, now_s=time.time())
        except UnauthorizedError:
            self._counters.announcements["refused"] += 1
            self._secret_is_doubtful = True
            self._recheck_soon()
            raise
        large = len(body) > _LARGE_BYTES
        announcement = await asyncio.to_thread(parse_announcement, body) if large else parse_announcement(body)
        if announcement.dropped > self._dropped:
            self._wake.set()
        async with self._announcing:
            if announcement.position <= self._position:
                self._counters.announcements["again"] += 1
            elif announcement.after <= self._position:
                # An announcement that begins earlier repeats something and skips nothing.
                await self._apply(announcement)
                self._counters.announcements["taken"] += 1
            else:
                self._counters.announcements["missed"] += 1
                await self._ask()

    def _recheck_soon(self) -> None:
        """The sender may know something that we do not: check the cluster at once, unless a message caused a check a
        moment ago. Then the next regular check is enough."""
        now_s = time.monotonic()
        if now_s - self._rechecked_s >= self._recheck_every_s:
            self._rechecked_s = now_s
            self._wake.set()

    async def _catch_up(self) -> bool:
        """Asks for everything since our position; returns whether there was anything."""
        async with self._announcing:
            return await self._ask()

    async def _ask(self) -> bool:
        found_any = False
        while True:
            announcement = await self._client.announcement(self._position)
            found_any = found_any or not announcement.is_empty
            await self._apply(announcement)
            if not announcement.more:
                return found_any

    async def _apply(self, announcement: Announcement) -> None:
        """Hands an announcement to the core and stores its position and heads in one transaction.

        Other tasks run in between. So the heads are set, and submitted to the store, before anybody can subscribe to a
        result of a later batch or acknowledge one of the first: no stored marker is ahead of the stored head.
        """
        heads = _heads_of(announcement)
        for interest, cursor in heads.items():
            backend = self._index.get(interest)
            if backend is None:
                self._backends.note_early_announcement(interest, cursor)
            else:
                backend.head = max(backend.head, cursor)
        events = _events_of(announcement)
        has_more = self._handle_batch(events)
        faults.reach("delivery.announcement.handled")
        recording: asyncio.Task[None] | None = None
        if announcement.position > self._position or heads:
            recording = asyncio.get_running_loop().create_task(
                self._store.record_announcement(max(announcement.position, self._position), heads)
            )
        while has_more:
            # Let other tasks run, so that a large announcement delays no other subscriber.
            await asyncio.sleep(0)
            has_more = self._handle_batch(events)
        if recording is not None:
            await recording
            self._position = max(announcement.position, self._position)
        faults.reach("delivery.announcement.recorded")
        if announcement.position.epoch > self._epoch:
            # A new epoch: the cluster was restored from a backup.
            self._epoch = announcement.position.epoch
            self.is_compared = False
            self._wake.set()
        if announcement.gaps:
            await self._look_for_gaps(set(announcement.gaps))

    def _handle_batch(self, events: Iterator[tuple[InterestId, ev.ResultsAnnounced | ev.ResultArrived]]) -> bool:
        """Hands the next events to the core. Returns False if there were none."""
        batch = list(islice(events, TURN_EVENTS))
        for _, event in batch:
            self._runtime.handle(event)
        for interest in {interest for interest, event in batch if isinstance(event, ev.ResultArrived)}:
            self._runtime.wake_waiters(interest)
        return bool(batch)

    async def _look_for_gaps(self, channels: set[str]) -> None:
        """Results of these channels expired before they were announced. Asks the cluster which interests have a gap."""
        backends = [backend for backend in self._index if backend.channel in channels]
        for begin in range(0, len(backends), 2_000):
            batch = backends[begin : begin + 2_000]
            ranges = [Range(backend.interest, backend.head, None, 1) for backend in batch]
            async for part in self._client.fetch(ranges):
                if isinstance(part, FetchedPart) and part.gap is not None:
                    self._tell_gap(batch[part.range], part.gap)

    def _tell_gap(self, backend: BackendSubscription, gap: Cursor) -> None:
        if gap > backend.head:
            backend.head = gap
            self._runtime.handle(ev.ResultsAnnounced(backend.interest, gap))

    # --- actions of the core

    def open_interest(self, action: ac.SubscribeBackend) -> None:
        """Answers the core at once: the cluster holds the subscription before a subscriber here gets it."""
        backend = self._index.get(action.interest)
        assert backend is not None, "a subscription is made for what is held"
        since, backend.opened = backend.head if backend.opened else backend.since, True
        self._runtime.handle(ev.BackendSubscribed(backend.interest, since))
        self._runtime.handle(ev.ResultsAnnounced(backend.interest, backend.head))

    def release_interest(self, action: ac.UnsubscribeBackend) -> None:
        """Ends the backend subscription of an interest that has no subscriber here."""
        if (backend := self._index.get(action.interest)) is not None:
            self._backends.release(backend)

    def note_unknown_interest(self, interest: InterestId) -> None:
        """The cluster does not know an interest that we hold: compare all of them."""
        if self._index.get(interest) is not None:
            self.is_compared = False
            self._wake.set()

    def report_consumed(self, action: ac.ReportConsumed) -> None:
        """Sends the cluster the lowest markers, without waiting for it."""
        for interest, cursor in action.lowest.items():
            self._reports[interest] = cursor
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._send_reports())

    async def _send_reports(self) -> None:
        """Sends the acknowledged cursors to the cluster, in batches."""
        while self._reports:
            reports, self._reports = self._reports, {}
            try:
                items = list(reports.items())
                for begin in range(0, len(items), 50_000):
                    await self._client.acknowledge(dict(items[begin : begin + 50_000]))
            except TocsinError as error:
                # The next report includes them. Until then the cluster only keeps results longer than it has to.
                _log.debug("acknowledgements were not reported to the cluster; retrying", error=str(error))
                self._reports = {**reports, **self._reports}
                return


def _heads_of(announcement: Announcement) -> dict[InterestId, Cursor]:
    """The newest cursor of each interest in an announcement."""
    heads = {interest: cursor for interests in announcement.heads.values() for interest, cursor in interests}
    for pushed in announcement.pushed:
        last = pushed.results[-1].cursor
        heads[pushed.interest] = max(last, heads.get(pushed.interest, last))
    return heads


def _events_of(announcement: Announcement) -> Iterator[tuple[InterestId, ev.ResultsAnnounced | ev.ResultArrived]]:
    """The events of an announcement, each with its interest."""
    for interests in announcement.heads.values():
        for interest, cursor in interests:
            yield interest, ev.ResultsAnnounced(interest, cursor)
    for pushed in announcement.pushed:
        for result in pushed.results:
            cached = to_broker_result(result)
            yield pushed.interest, ev.ResultArrived(pushed.interest, cached.cursor, cached.size_bytes, cached.payload)
