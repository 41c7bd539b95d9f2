"""Announces new results to all brokers, each by a notifier of its own, so that a slow broker never delays another.

The announcer does not poll the store: the code that commits an execution calls `committed`. A broker can also ask for
its announcements by long poll (`announcement`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import structlog

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import BrokerEntry
from tocsin.cluster.catalog.refs import broker_ref, full_name
from tocsin.cluster.channels.announcements.announcement_builder import AnnouncementBuilder
from tocsin.cluster.channels.announcements.broker_notifier import (
    AnnouncerTiming,
    BrokerNotifier,
    NotifierCounts,
    NotifierState,
)
from tocsin.cluster.channels.announcements.notification_builder import NotificationBuilder
from tocsin.cluster.data_folder.removals import BROKER
from tocsin.rules.model.cursors import BEGINNING, Position
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, CommittedExecution
from tocsin.wire.announcements import Announcement
from tocsin.wire.signatures import secret_text

_SECRET_BYTES: Final = 32

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BrokerCounts:
    """`lag` is the number of results committed since the broker's position. `behind_s` is how long an announcement to
    the broker has been pending."""

    broker: str
    counts: NotifierCounts
    lag: int | None
    behind_s: float | None


@dataclass(slots=True)
class _Started:
    session: aiohttp.ClientSession
    notifiers: dict[BrokerName, BrokerNotifier] = field(default_factory=dict)


class Announcer:
    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        *,
        builder: AnnouncementBuilder | None = None,
        notifications: NotificationBuilder | None = None,
        timing: AnnouncerTiming | None = None,
        guard: AddressGuard = UNGUARDED,
    ) -> None:
        self.guard = guard
        self._catalog = catalog
        self._store = store
        self._builder = builder or AnnouncementBuilder(catalog, store)
        self._notifications = notifications or NotificationBuilder(catalog, store)
        self._timing = timing or AnnouncerTiming()
        self._started: _Started | None = None
        self._settling = asyncio.Lock()
        self._moved = asyncio.Event()
        self._expected: Counter[BrokerName] = Counter()
        self._kept: set[BrokerName] = set()  # reported once
        self._last = BEGINNING

    # ------------------------------------------------------------ lifecycle

    async def start(self) -> None:
        """Starts a notifier for every broker, which announces what the broker has missed."""
        timeout = aiohttp.ClientTimeout(total=self._timing.timeout_s)
        # No connection limit: each notifier has one request under way, so there are at most as many as brokers.
        connector = self.guard.connector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self._started = _Started(session)
        self._last = await self._store.position()
        stored = [(full_name(entry), entry.url) for entry in self._catalog.catalog.brokers]
        self.guard.warn_of_stored(((name, url) for name, url in stored if url is not None), "the broker's address")
        await self.settle()

    async def close(self) -> None:
        """Stops all notifiers. Long polls return at once with what there is."""
        async with self._settling:
            started, self._started = self._started, None
            self._wake_pollers()
            if started is not None:
                await asyncio.gather(*(notifier.stop() for notifier in started.notifiers.values()))
                await started.session.close()

    def announce_commit(self, committed: CommittedExecution) -> None:
        """Must be called on the event loop after each commit: any broker may have new results."""
        if committed.results:
            self._last = committed.position
            self._wake_pollers()
            self._wake_notifiers()

    def announce_drop(self) -> None:
        """Must be called on the event loop after a channel was dropped, so that the brokers with subscriptions to it
        learn of it."""
        self._wake_notifiers()

    def _wake_notifiers(self) -> None:
        if self._started is not None:
            for notifier in self._started.notifiers.values():
                notifier.wake()

    async def settle(self) -> None:
        """Makes the notifiers and registrations equal to the catalog after brokers were created, changed or dropped."""
        async with self._settling:
            if self._started is None:
                return
            notifiers = self._started.notifiers
            registered = {registration.broker: registration for registration in await self._store.registrations()}
            brokers = {BrokerName(entry.dataverse, entry.name) for entry in self._catalog.catalog.brokers}
            for broker in [broker for broker in notifiers if broker not in brokers]:
                await notifiers.pop(broker).stop()
            await self._unregister_dropped(registered.keys() - brokers)
            for broker in brokers - registered.keys():
                registered[broker] = await self._store.register(broker, new_secret(), owner=None)
            notifier_state = NotifierState(
                self._store, self._builder, self._notifications, self._started.session, self._broker, self._timing
            )
            for broker in brokers:
                if broker not in notifiers:
                    notifiers[broker] = BrokerNotifier(registered[broker], notifier_state)
                    notifiers[broker].wake()

    async def _unregister_dropped(self, unknown: Set[BrokerName]) -> None:
        """Removes the registrations of dropped brokers. A broker with subscriptions that no statement dropped is kept:
        the catalog is an older copy, and the broker gets its subscriptions back when it registers again."""
        removals = self._catalog.removals
        intended = {removal.name for removal in await removals.list_for(BROKER)}
        for broker in sorted(unknown):
            if self._expected[broker] or self._catalog.catalog.find(broker_ref(*broker)) is not None:
                intended.discard(full_name(broker))
            elif full_name(broker) in intended or not await self._store.subscriptions_of(broker, limit=1):
                await self._store.unregister(broker)
            elif broker not in self._kept:
                self._kept.add(broker)
                _log.warning(
                    "a broker that the catalog does not know keeps its subscriptions",
                    broker=full_name(broker),
                    hint="it continues when it registers again; to end its subscriptions, register it (PUT "
                    f"/v1/brokers/{full_name(broker)}), then DELETE it there",
                )  # fmt: skip
        await removals.forget(BROKER, intended)

    @contextmanager
    def expect(self, broker: BrokerName) -> Iterator[None]:
        """Protects a broker while it is created: `settle` keeps its registration although the catalog does not have the
        broker yet."""
        self._expected[broker] += 1
        try:
            yield
        finally:
            self._expected[broker] -= 1
            if not self._expected[broker]:
                del self._expected[broker]

    async def notify_now(self, broker: BrokerName) -> None:
        """Notifies the broker at once, without back-off, because it has registered or has a new address or secret."""
        await self.settle()
        registration = await self._store.registration(broker)
        if (
            registration is not None
            and self._started is not None
            and (notifier := self._started.notifiers.get(broker)) is not None
        ):
            notifier.at_once(registration)

    # ------------------------------------------------------------ long polls

    async def announcement(self, broker: BrokerName, after: Position, wait_s: float = 0.0) -> Announcement:
        """Returns the announcement after this position, as a long poll: waits up to `wait_s` for new results."""
        until_s = asyncio.get_running_loop().time() + wait_s
        begin = after
        while True:
            # Take the event before the query: a commit during the query then sets it.
            committed_event = self._moved
            announcement = await self._builder.since(broker, begin, acknowledged=after)
            if not announcement.is_empty:
                return announcement
            begin = announcement.position
            if announcement.more:
                continue
            if self._started is None:
                return announcement
            try:
                async with asyncio.timeout_at(until_s):
                    await committed_event.wait()
            except TimeoutError:
                return announcement

    def _wake_pollers(self) -> None:
        committed_event, self._moved = self._moved, asyncio.Event()
        committed_event.set()

    # ------------------------------------------------------------ metrics

    def figures(self) -> Sequence[BrokerCounts]:
        """May be called from any thread."""
        started, last, now_s = self._started, self._last, time.monotonic()
        if started is None:
            return []
        return [
            BrokerCounts(
                full_name(notifier.broker),
                notifier.counts,
                max(0, last.number - notifier.position.number) if self._has_url(notifier.broker) else None,
                None if notifier.behind_since_s is None else now_s - notifier.behind_since_s,
            )
            for notifier in list(started.notifiers.values())
        ]

    def _broker(self, broker: BrokerName) -> BrokerEntry | None:
        entry = self._catalog.catalog.find(broker_ref(*broker))
        return entry if isinstance(entry, BrokerEntry) else None

    def _has_url(self, broker: BrokerName) -> bool:
        entry = self._broker(broker)
        return entry is not None and entry.url is not None


def new_secret() -> str:
    return secret_text(secrets.token_bytes(_SECRET_BYTES))
