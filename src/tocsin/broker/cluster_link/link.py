"""The broker's link to its cluster: registered there, told of news, and asking for what it missed.

    announcement ─▶ signature ─▶ does it follow our position? ─▶ core ─▶ store (position and heads together) ─▶ 200
                                         └─ no ─▶ ask for everything since our position

While the cluster is away the broker delivers what it has, and asks again and again, more and more slowly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Final

import structlog

from tocsin import faults
from tocsin.broker.cluster_link.backend_subscriptions import BackendSubscription, BackendSubscriptions
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.broker.cluster_link.subscription_sync import InterestChange, SubscriptionSync
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.delivery.cached_payload import kept
from tocsin.rules.model.cursors import Cursor, Position, Range
from tocsin.store.broker.interface import BrokerStore
from tocsin.wire.announcements import Announcement, parse_announcement
from tocsin.wire.errors import FencedError, NotFoundError, TocsinError, UnauthorizedError, UnavailableError
from tocsin.wire.results import FetchedPart
from tocsin.wire.signatures import verify

_log = structlog.get_logger("tocsin.broker.link")

SECRET_EVERY_S: Final = 60.0
"""A message with a bad signature makes us ask for a new secret at most so often."""
DOUBT_EVERY_S: Final = 10.0
"""And look at the cluster at most so often: anybody can send such a message."""
TURN_EVENTS: Final = 100
"""So much of an announcement is taken before whatever else waits for the event loop has its turn."""
LARGE_BYTES: Final = 64 << 10
"""A larger announcement is parsed on a thread."""


class ClusterLink:
    """`on_changed` is told of interests that are gone or have other numbers. `refusal`: why the cluster will not have
    us, where it answers and says so. `fenced` is set when a newer broker has our name: the cluster is asked for nothing
    any more, and the process is to end."""

    def __init__(
        self,
        client: ClusterClient,
        machine: CoreRuntime,
        *,
        holdings: BackendSubscriptions,
        holder: SubscriptionSync,
        store: BrokerStore,
        instance: BrokerGeneration,
        figures: BrokerCounters,
        on_changed: Callable[[InterestChange], Awaitable[None]],
        callback: str,
        first_retry_s: float,
        last_retry_s: float,
        check_every_s: float,
        doubt_every_s: float = DOUBT_EVERY_S,
    ) -> None:
        self._client = client
        self._machine = machine
        self._holdings = holdings
        self._holder = holder
        self._store = store
        self._instance = instance
        self._figures = figures
        self._on_changed = on_changed
        self._callback = callback
        self._first_retry_s, self._last_retry_s, self._check_every_s = first_retry_s, last_retry_s, check_every_s
        self._doubt_every_s = doubt_every_s
        self._doubted_s = -doubt_every_s
        self._position = Position(0, 0)
        self._epoch = 0
        self._secret: str | None = None
        self._secret_asked_s = -SECRET_EVERY_S
        self._doubtful = False
        self._compared = False
        self._dropped = 0
        self._registered = False
        self._news = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reports: dict[int, Cursor] = {}
        self._task: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._fencing: asyncio.Task[None] | None = None
        self.connected = False
        self.refusal: TocsinError | None = None
        self.has_met = False
        """Whether the cluster has accepted the broker since it was started."""
        self.fenced: asyncio.Future[FencedError] = asyncio.get_running_loop().create_future()
        client.on_away = self._away
        client.on_fenced = self._lost_name
        machine.on(ac.SubscribeBackend, self._open)
        machine.on(ac.UnsubscribeBackend, self._let_go)
        machine.on(ac.ReportConsumed, self._report)

    # --- life

    async def start(self) -> None:
        known = await self._store.link()
        self._epoch, self._position, self._secret = known.epoch, known.position, known.secret
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        tasks = [one for one in (self._task, self._reporting) if one is not None]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._fencing is not None:
            await self._fencing

    @property
    def position(self) -> Position:
        return self._position

    async def _run(self) -> None:
        wait_s = self._first_retry_s
        while True:
            try:
                await self._meet()
                self.connected, self.refusal, self.has_met = True, None, True
                wait_s = self._first_retry_s
                within_s = self._check_every_s
            except FencedError as error:
                self.connected, self.refusal = False, error
                return
            except TocsinError as error:
                # What it refuses it will refuse again, until somebody changes something there or here.
                refused = None if error.retry else error
                if self.connected or wait_s == self._first_retry_s or bool(refused) != bool(self.refusal):
                    what = "the cluster is away" if refused is None else "the cluster refuses the broker"
                    _log.warning(what, error=str(error), hint=error.hint, retry=error.retry)
                self.connected, self.refusal = False, refused
                self._registered = False
                self._wake.clear()
                within_s, wait_s = wait_s, min(2 * wait_s, self._last_retry_s)
            except Exception as error:
                _log.error("the link to the cluster broke", exc_info=error)
                within_s = self._last_retry_s
            try:
                async with asyncio.timeout(within_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _away(self) -> None:
        """Somebody has asked the cluster and was not answered: look at once."""
        if self.connected:
            self._wake.set()

    def _lost_name(self, error: FencedError) -> None:
        if self._fencing is None:
            _log.error("another broker has our name, and this one stops", error=error.message, hint=error.hint)
            self._fencing = asyncio.get_running_loop().create_task(self._remember_fenced(error))

    async def _remember_fenced(self, error: FencedError) -> None:
        """Durably first: started again, this broker must not take the name from the newer one."""
        try:
            await self._instance.was_fenced(error.message)
        except TocsinError as unkept:
            _log.error("that could not be kept", error=str(unkept))
        if not self.fenced.done():
            self.fenced.set_result(error)

    async def _meet(self) -> None:
        """Everything that can be put right between us is right afterwards."""
        if not self._registered:
            await self._register()
        else:
            await self._check()
        some = await self._compare_and_catch_up()
        if not self._compared:
            # The news told of another life of the cluster: what it holds for us may be another life's, too.
            some = await self._compare_and_catch_up() or some
        if self._doubtful:
            self._doubtful = False
            if some and time.monotonic() - self._secret_asked_s >= SECRET_EVERY_S:
                # There was something to be told of, and what came was not signed with our secret.
                await self._new_secret()

    async def _compare_and_catch_up(self) -> bool:
        if not self._compared:
            self._compared = True
            try:
                await self._on_changed(await self._holder.compare())
            except BaseException:
                self._compared = False
                raise
        return await self.catch_up()

    async def _register(self) -> None:
        mine = self._instance
        told = await self._client.register(
            self._callback, store=mine.store_id, generation=mine.generation, starts=mine.starts
        )
        await mine.was_given(told.generation)
        self._client.generation = told.generation
        secret = told.secret or self._secret or await self._client.new_secret()
        async with self._news:
            self._secret = secret
            if self._epoch == 0:
                self._position = told.position
            # How far the cluster has told us may be of an earlier life than the present one.
            self._epoch = max(self._epoch, told.position.epoch)
            await self._store.registered(epoch=self._epoch, position=self._position, secret=secret)
        self._registered = True
        self._heard_of(told.dropped)
        _log.info("registered at the cluster", epoch=self._epoch, generation=told.generation)

    async def _check(self) -> None:
        """The cluster may have been restored from a backup that does not know us, or that knows us otherwise."""
        try:
            known = await self._client.known()
        except NotFoundError:
            known = None
        if (
            known is None
            or known.url != self._callback
            or known.position is None
            or known.generation != self._instance.generation
        ):
            self._compared = False
            await self._register()
        else:
            self._heard_of(known.dropped)

    def _heard_of(self, dropped: int) -> None:
        """So many channels were ever dropped at the cluster: if that is news to us, some may have been ours."""
        if dropped != self._dropped:
            self._dropped = dropped
            self._compared = False

    async def _new_secret(self) -> None:
        self._secret_asked_s = time.monotonic()
        secret = await self._client.new_secret()
        async with self._news:
            self._secret = secret
            await self._store.registered(epoch=self._epoch, position=self._position, secret=secret)

    # --- news

    async def announced(self, headers: Mapping[str, str], body: bytes) -> None:
        """A message of the cluster; when this returns, all that it tells is durable here. UnauthorizedError when it is
        not the cluster's, UnavailableError when it could not be dealt with."""
        if self._secret is None:
            self._doubt()
            raise UnavailableError("the broker is not registered yet")
        try:
            verify(self._secret, headers, body, now_s=time.time())
        except UnauthorizedError:
            self._figures.announced("refused")
            self._doubtful = True
            self._doubt()
            raise
        large = len(body) > LARGE_BYTES
        told = await asyncio.to_thread(parse_announcement, body) if large else parse_announcement(body)
        if told.dropped > self._dropped:
            self._wake.set()
        async with self._news:
            if told.position <= self._position:
                self._figures.announced("again")
            elif told.after <= self._position:
                # What begins earlier tells some of it again, and nothing is passed over.
                await self._take(told)
                self._figures.announced("taken")
            else:
                self._figures.announced("missed")
                await self._ask()

    def _doubt(self) -> None:
        """Somebody may know more than we do: look at once, unless we have just looked for such a reason. Then the next
        regular look will do."""
        now_s = time.monotonic()
        if now_s - self._doubted_s >= self._doubt_every_s:
            self._doubted_s = now_s
            self._wake.set()

    async def catch_up(self) -> bool:
        """Everything since our position, asked for. Whether there was something."""
        async with self._news:
            return await self._ask()

    async def _ask(self) -> bool:
        some = False
        while True:
            told = await self._client.news(self._position)
            some = some or not told.is_empty
            await self._take(told)
            if not told.more:
                return some

    async def _take(self, told: Announcement) -> None:
        heads: dict[int, Cursor] = {}
        events = _events_of(told)
        while some := list(islice(events, TURN_EVENTS)):
            for interest, event in some:
                heads[interest] = event.cursor
                holding = self._holdings.get(interest)
                if holding is None:
                    self._holder.told_early(interest, event.cursor)
                else:
                    holding.head = max(holding.head, event.cursor)
                self._machine.handle(event)
            for interest in {interest for interest, event in some if isinstance(event, ev.ResultArrived)}:
                self._machine.arrived(interest)
            # Whoever waits for what has come gets it now, however much there is of somebody else.
            await asyncio.sleep(0)
        faults.reach("delivery.news.taken")
        if told.position > self._position or heads:
            await self._store.record_news(max(told.position, self._position), heads)
            self._position = max(told.position, self._position)
        faults.reach("delivery.news.recorded")
        if told.position.epoch > self._epoch:
            # The cluster has gone back to a backup, and lives on from there.
            self._epoch = told.position.epoch
            self._compared = False
            self._wake.set()
        if told.gaps:
            await self._look_for_gaps(set(told.gaps))

    async def _look_for_gaps(self, channels: set[str]) -> None:
        """Results of these channels went before they were told. Which interests lack something the cluster knows."""
        holdings = [one for one in self._holdings if one.channel in channels]
        for begin in range(0, len(holdings), 2_000):
            some = holdings[begin : begin + 2_000]
            ranges = [Range(one.interest, one.head, None, 1) for one in some]
            async for part in self._client.fetch(ranges):
                if isinstance(part, FetchedPart) and part.gap is not None:
                    self._tell_gap(some[part.range], part.gap)

    def _tell_gap(self, holding: BackendSubscription, gap: Cursor) -> None:
        if gap > holding.head:
            holding.head = gap
            self._machine.handle(ev.ResultsAnnounced(holding.interest, gap))

    # --- what the core wants

    def _open(self, action: ac.SubscribeBackend) -> None:
        """The cluster holds it already: nothing is subscribed here before it is held there."""
        assert isinstance(action.interest, int)
        holding = self._holdings.get(action.interest)
        assert holding is not None, "a subscription is made for what is held"
        since, holding.opened = holding.head if holding.opened else holding.since, True
        self._machine.handle(ev.BackendSubscribed(holding.interest, since))
        self._machine.handle(ev.ResultsAnnounced(holding.interest, holding.head))

    def _let_go(self, action: ac.UnsubscribeBackend) -> None:
        assert isinstance(action.interest, int)
        if (holding := self._holdings.get(action.interest)) is not None:
            self._holder.release(holding)

    def gone(self, interest: int) -> None:
        """The cluster does not know an interest that we hold: look at all of them."""
        if self._holdings.get(interest) is not None:
            self._compared = False
            self._wake.set()

    def _report(self, action: ac.ReportConsumed) -> None:
        for interest, cursor in action.lowest.items():
            assert isinstance(interest, int)
            self._reports[interest] = cursor
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._send_reports())

    async def _send_reports(self) -> None:
        while self._reports:
            now, self._reports = self._reports, {}
            try:
                items = list(now.items())
                for begin in range(0, len(items), 50_000):
                    await self._client.acknowledge(dict(items[begin : begin + 50_000]))
            except TocsinError as error:
                # They are told with the next report: nothing is lost but room at the cluster.
                _log.debug("the cluster was not told what is acknowledged", error=str(error))
                self._reports = {**now, **self._reports}
                return


def _events_of(told: Announcement) -> Iterator[tuple[int, ev.ResultsAnnounced | ev.ResultArrived]]:
    """What it tells, with the interest that it is about."""
    for interests in told.news.values():
        for interest, cursor in interests:
            yield interest, ev.ResultsAnnounced(interest, cursor)
    for one in told.pushed:
        for result in one.results:
            here = kept(result)
            yield one.interest, ev.ResultArrived(one.interest, here.cursor, here.size_bytes, here.payload)
