"""Tells brokers what is new, each in its own time: one that is away or slow holds up nobody else.

Nothing here looks for news by itself: whoever has committed some calls `committed`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import BrokerEntry, broker_ref
from tocsin.cluster.channels.announcements.announcement_builder import AnnouncementBuilder
from tocsin.cluster.channels.announcements.broker_notifier import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    PASSED_OVER,
    BrokerNotifier,
    NotifierCounts,
    NotifierState,
)
from tocsin.rules.model.cursors import BEGINNING, Position
from tocsin.serving.address_guard import UNGUARDED, AddressGuard
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, CommittedExecution
from tocsin.wire.announcements import Announcement
from tocsin.wire.signatures import secret_text

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class BrokerCounts:
    """`lag` counts results since those that the broker knows of, `behind_s` how long it has not been told of some."""

    broker: str
    counts: NotifierCounts
    lag: int | None
    behind_s: float | None


@dataclass(frozen=True, slots=True)
class AnnouncerTiming:
    timeout_s: float = 10.0
    first_retry_s: float = FIRST_RETRY_S
    last_retry_s: float = LAST_RETRY_S
    passed_over: int = PASSED_OVER


@dataclass(slots=True)
class _Started:
    session: aiohttp.ClientSession
    tellers: dict[BrokerName, BrokerNotifier] = field(default_factory=dict)


class Announcer:
    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        *,
        news: AnnouncementBuilder | None = None,
        pace: AnnouncerTiming | None = None,
        guard: AddressGuard = UNGUARDED,
    ) -> None:
        self.guard = guard
        self._catalog = catalog
        self._store = store
        self._news = news or AnnouncementBuilder(catalog, store)
        self._pace = pace or AnnouncerTiming()
        self._started: _Started | None = None
        self._settling = asyncio.Lock()
        self._moved = asyncio.Event()
        self._expected: Counter[BrokerName] = Counter()
        self._last = BEGINNING

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Every broker is told what it has missed."""
        timeout = aiohttp.ClientTimeout(total=self._pace.timeout_s)
        # One request at a time to each broker; together as many as there are brokers.
        connector = self.guard.connector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self._started = _Started(session)
        self._last = await self._store.position()
        stored = [(f"{entry.dataverse}.{entry.name}", entry.url) for entry in self._catalog.catalog.brokers]
        self.guard.warn_of_stored(((name, url) for name, url in stored if url is not None), "the broker's address")
        await self.settle()

    async def close(self) -> None:
        """Whoever waits for news gets what there is."""
        async with self._settling:
            started, self._started = self._started, None
            self._wake_pollers()
            if started is not None:
                await asyncio.gather(*(one.stop() for one in started.tellers.values()))
                await started.session.close()

    def committed(self, committed: CommittedExecution) -> None:
        """On the event loop: there may be news for anybody."""
        self._last = committed.position
        self._wake_pollers()
        self._wake_tellers()

    def dropped(self) -> None:
        """On the event loop: a channel was dropped, and whoever had subscriptions to it is told."""
        self._wake_tellers()

    def _wake_tellers(self) -> None:
        if self._started is not None:
            for one in self._started.tellers.values():
                one.wake()

    async def settle(self) -> None:
        """After brokers came, went or changed: those in the catalog are told, and the others forgotten."""
        async with self._settling:
            if self._started is None:
                return
            tellers = self._started.tellers
            registered = {one.broker: one for one in await self._store.registrations()}
            wanted = {BrokerName(one.dataverse, one.name) for one in self._catalog.catalog.brokers}
            for broker in [one for one in tellers if one not in wanted]:
                await tellers.pop(broker).stop()
            for broker in registered.keys() - wanted:
                if not self._expected[broker] and self._catalog.catalog.find(broker_ref(*broker)) is None:
                    await self._store.unregister(broker)
            for broker in wanted - registered.keys():
                registered[broker] = await self._store.register(broker, new_secret(), owner=None)
            telling = NotifierState(
                self._store, self._news, self._started.session, self._url,
                first_retry_s=self._pace.first_retry_s, last_retry_s=self._pace.last_retry_s,
                passed_over=self._pace.passed_over,
            )  # fmt: skip
            for broker in wanted:
                if broker not in tellers:
                    tellers[broker] = BrokerNotifier(registered[broker], telling)
                    tellers[broker].wake()

    @contextmanager
    def expecting(self, broker: BrokerName) -> Iterator[None]:
        """Around making a broker: one that is registered and not yet in the catalog is not forgotten."""
        self._expected[broker] += 1
        try:
            yield
        finally:
            self._expected[broker] -= 1
            if not self._expected[broker]:
                del self._expected[broker]

    async def changed(self, broker: BrokerName) -> None:
        """The broker has registered, or has another address or secret: it is told at once."""
        await self.settle()
        kept = await self._store.registration(broker)
        if kept is not None and self._started is not None and (teller := self._started.tellers.get(broker)) is not None:
            teller.at_once(kept)

    # ------------------------------------------------------------ asked for

    async def news(self, broker: BrokerName, after: Position, wait_s: float = 0.0) -> Announcement:
        """What the broker would be told after this position; waits so long for something to come."""
        until_s = asyncio.get_running_loop().time() + wait_s
        begin = after
        while True:
            # Taken before looking: what comes while we look is not missed.
            moved = self._moved
            found = await self._news.since(broker, begin, told=after)
            if not found.is_empty:
                return found
            begin = found.position
            if found.more:
                continue
            if self._started is None:
                return found
            try:
                async with asyncio.timeout_at(until_s):
                    await moved.wait()
            except TimeoutError:
                return found

    def _wake_pollers(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # ------------------------------------------------------------ figures

    def figures(self) -> Sequence[BrokerCounts]:
        """May be asked from any thread."""
        started, last, now_s = self._started, self._last, time.monotonic()
        if started is None:
            return []
        return [
            BrokerCounts(
                f"{one.broker.dataverse}.{one.broker.name}",
                one.counts,
                None if self._url(one.broker) is None else _lag(one.position, last),
                None if one.behind_since_s is None else now_s - one.behind_since_s,
            )
            for one in list(started.tellers.values())
        ]

    def _url(self, broker: BrokerName) -> str | None:
        found = self._catalog.catalog.find(broker_ref(*broker))
        return found.url if isinstance(found, BrokerEntry) else None


def new_secret() -> str:
    return secret_text(secrets.token_bytes(SECRET_BYTES))


def _lag(position: Position, last: Position) -> int:
    return max(0, last.number - position.number)
