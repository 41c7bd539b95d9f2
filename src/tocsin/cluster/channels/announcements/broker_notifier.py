"""Sends announcements to one broker: one at a time, in order, with retries until the broker takes each.

The notifier keeps no queue: it asks the store for everything after the position that the broker acknowledged. A broker
that was away for long therefore costs no memory, and a restart loses no announcement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import aiohttp
import structlog

from tocsin import faults
from tocsin.cluster.catalog.entries import BrokerEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.announcements.announcement_builder import AnnouncementBuilder
from tocsin.cluster.channels.announcements.notification_builder import NotificationBuilder
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.cursors import Position
from tocsin.serving.trouble import reason_of
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, Registration
from tocsin.wire.announcements import Announcement
from tocsin.wire.errors import NotFoundError, UnavailableError
from tocsin.wire.results import FRAMES
from tocsin.wire.signatures import sign

_log = structlog.get_logger()

_MANY_PUSHED: Final = 200
"""An announcement that pushes results of more interests than this is encoded on a thread."""


@dataclass(frozen=True, slots=True)
class AnnouncerTiming:
    """`passed_over`: after this many results of other brokers' interests, the notifier sends an empty announcement. It
    advances the stored position, so that a restart does not scan far back."""

    timeout_s: float = 10.0
    first_retry_s: float = 0.25
    last_retry_s: float = 60.0
    passed_over: int = 100_000


@dataclass(slots=True)
class NotifierCounts:
    """Announcements since the cluster started."""

    sent: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class NotifierState:
    """What all notifiers share. `entry` returns the broker's entry in the catalog, or None if it has none now."""

    store: ChannelStore
    builder: AnnouncementBuilder
    notifications: NotificationBuilder
    session: aiohttp.ClientSession
    entry: Callable[[BrokerName], BrokerEntry | None]
    timing: AnnouncerTiming
    clock_s: Callable[[], float] = time.time


class BrokerNotifier:
    """Announces everything after the broker's registered position; continues whenever it is woken."""

    def __init__(self, registration: Registration, context: NotifierState) -> None:
        self.broker = registration.broker
        self.position = registration.position
        self.counts = NotifierCounts()
        self.trouble: str | None = None
        self.behind_since_s: float | None = None
        # The position that the broker has acknowledged; the next announcement starts there. `position` may be further,
        # past results that are only of interest to other brokers.
        self._acknowledged = registration.position
        self._secret = registration.secret
        self._back_off = BackOff(context.timing.first_retry_s, context.timing.last_retry_s)
        # The number of dropped channels at the last announcement, or when this notifier started.
        self._dropped: int | None = None
        self._context = context
        self._due = asyncio.Event()
        self._at_once = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"notify {full_name(self.broker)}")

    def wake(self) -> None:
        """Looks for new results. This does not shorten a back-off that is under way."""
        self._due.set()

    def at_once(self, registration: Registration) -> None:
        """Ends a back-off: the broker has registered again, or has another secret or address."""
        self._secret = registration.secret
        self._acknowledged = max(self._acknowledged, registration.position)
        self.position = max(self.position, self._acknowledged)
        self._at_once.set()
        self._due.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            while not await self._send_or_back_off():
                pass

    async def _send_or_back_off(self) -> bool:
        """Sends all pending announcements and returns True; after a failure waits for the back-off and returns
        False."""
        try:
            while (entry := self._context.entry(self.broker)) is not None and entry.url is not None:
                more = await (self._announce(entry.url) if entry.kind == "tocsin" else self._notify(entry))
                if not more:
                    break
            self.behind_since_s = self.trouble = None
            return True
        except NotFoundError:
            return True  # The broker is unregistered; `settle` stops this notifier.
        except Exception as error:
            self._note_failure(error)
        self._at_once.clear()
        try:
            async with asyncio.timeout(self._back_off.next_s()):
                await self._at_once.wait()
        except TimeoutError:
            pass
        return False

    async def _announce(self, url: str) -> bool:
        """Sends the next announcement, if there is anything to announce. Returns whether more may follow."""
        message = await self._context.builder.since(self.broker, self.position, acknowledged=self._acknowledged)
        if self._dropped is None:
            self._dropped = message.dropped
        passed_over = message.position.number - self._acknowledged.number
        if message.is_empty and message.dropped == self._dropped and passed_over <= self._context.timing.passed_over:
            self.position = message.position
        else:
            self.behind_since_s = self.behind_since_s or time.monotonic()
            await self._send(url, message)
        return message.more

    async def _send(self, url: str, message: Announcement) -> None:
        has_many_results = len(message.pushed) > _MANY_PUSHED
        body = await asyncio.to_thread(message.to_bytes) if has_many_results else message.to_bytes()
        await self._post(url, body, message.id, FRAMES)
        await self._record(message.position)
        self._dropped = message.dropped

    async def _notify(self, entry: BrokerEntry) -> bool:
        """Sends the notifications of the next page, in the form of the original. Returns whether more may follow."""
        assert entry.url is not None
        page = await self._context.notifications.page(self.broker, self.position)
        if page.items:
            self.behind_since_s = self.behind_since_s or time.monotonic()
            async for body in self._context.notifications.bodies(self.broker, entry.kind, page):
                # The same for the same content, so that a receiver recognises a repeated message.
                identity = f"notification_{blake2b(body, digest_size=16).hexdigest()}"
                await self._post(entry.url, body, identity, "application/json")
            await self._record(page.position)
        elif page.position.number - self._acknowledged.number > self._context.timing.passed_over:
            await self._record(page.position)
        else:
            self.position = page.position
        return page.more

    async def _post(self, url: str, body: bytes, identity: str, media_type: str) -> None:
        headers = sign(self._secret, identity, int(self._context.clock_s()), body)
        # Follow no redirects: the broker has registered the address that it wants.
        async with self._context.session.post(
            url, data=body, headers={**headers, "Content-Type": media_type}, allow_redirects=False
        ) as answer:
            if not 200 <= answer.status < 300:
                raise UnavailableError(f"it answered {answer.status}")
        self.counts.sent += 1
        faults.reach("announcer.sent")

    async def _record(self, position: Position) -> None:
        """Records that the broker knows everything up to the position."""
        self._acknowledged = self.position = await self._context.store.record_position(self.broker, position)
        self._back_off.reset()
        self.trouble = self.behind_since_s = None

    def _note_failure(self, error: Exception) -> None:
        self.counts.failed += 1
        reason = reason_of(error)
        if self.trouble is None:
            event = "an announcement was not accepted by the broker; retrying"
            _log.warning(event, broker=full_name(self.broker), reason=reason)
        self.trouble = reason
