"""Webhooks: posts events to subscribers, signed as Standard Webhooks, one message at a time, with retries until
success.

An answer of 2xx acknowledges the message; 410 ends the webhook. A bad receiver costs the broker one waiting message and
costs other receivers nothing: connections are limited (WebhookConnections), and a receiver that fails is retried with
exponential back-off, even if its subscriber changes the address.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from tocsin.broker.delivery.event_encoder import EncodedEvent
from tocsin.broker.delivery.outlets import PlainOutlet
from tocsin.broker.http.requests import subscriber_of
from tocsin.broker.service import BrokerService, SubscriberWebhook
from tocsin.broker.transports.transport import Transport
from tocsin.rules.backoff import BackOff
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.answers import answer
from tocsin.serving.name_resolver import NameResolver
from tocsin.serving.requests import read_message
from tocsin.settings.broker import WebhookSettings
from tocsin.wire.accounts import Webhook, WebhookRequest
from tocsin.wire.envelopes import RESULTS
from tocsin.wire.errors import InputError, NotFoundError, TocsinError
from tocsin.wire.signatures import secret_text, sign

_SECRET_BYTES: Final = 32
_WAITING: Final = 4
"""Messages of one receiver that wait in memory; further ones come from the cache when there is room."""
_BACK_OFFS_KEPT: Final = 10_000
"""Back-offs that are remembered for subscribers without a webhook at the moment."""

_log = structlog.get_logger("tocsin.broker.webhooks")


class Webhooks(Transport):
    """The webhooks of all subscribers, each with a sender and a back-off."""

    def __init__(self, service: BrokerService, guard: AddressGuard, resolver: NameResolver | None = None) -> None:
        super().__init__(service)
        self._resolver = resolver or NameResolver()
        self._settings = service.settings.webhooks
        self._guard = guard
        self._senders: dict[int, _WebhookSender] = {}
        self._back_offs: dict[int, _WebhookBackOff] = {}
        self._connections = WebhookConnections(self._settings, service.count_waiting_webhooks)
        self._session: aiohttp.ClientSession | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/v1/webhook", self._put),
            web.get("/v1/webhook", self._get, allow_head=False),
            web.delete("/v1/webhook", self._remove),
        ]

    async def start(self) -> None:
        # No limit here, since slots are limited before: waiting for a slot must not count against the receiver.
        connector = self._guard.connector(resolver=self._resolver, limit=0)
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "tocsin-broker", "Content-Type": "application/cloudevents+json"},
        )  # fmt: skip
        for webhook in await self._service.webhooks():
            try:
                # The address may have been registered while private networks were allowed.
                self._guard.check(webhook.url, "the webhook's address")
            except InputError as error:
                _log.warning(
                    "a webhook is refused", subscriber=webhook.subscriber, reason=error.message, hint=error.hint
                )
            else:
                self._begin(webhook)

    async def stop(self) -> None:
        for sender in list(self._senders.values()):
            await sender.stop()
        if self._session is not None:
            await self._session.close()

    async def _put(self, request: web.Request) -> web.Response:
        """Replaces the subscriber's webhook. Everything that is not acknowledged is posted to the new address."""
        subscriber = (await subscriber_of(self._service, request)).subscriber
        url = (await read_message(request, WebhookRequest)).url
        self._check(url)
        secret = secret_text(secrets.token_bytes(_SECRET_BYTES))
        webhook = await self._service.put_webhook(subscriber, url, secret)
        # No await between these lines: a concurrent put finds this sender and ends it.
        previous = self._senders.pop(subscriber, None)
        if previous is not None:
            previous.detach()
        self._begin(webhook)
        if previous is not None:
            await previous.stop()
        return answer(Webhook(webhook.url, webhook.secret).to_json())

    async def _get(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        webhook = await self._service.webhook(who.subscriber)
        if webhook is None:
            raise NotFoundError("you have no webhook", hint="PUT /v1/webhook makes one")
        return answer(Webhook(webhook.url).to_json())

    async def _remove(self, request: web.Request) -> web.Response:
        who = await subscriber_of(self._service, request)
        existed = await self._service.remove_webhook(who.subscriber)
        await self._end(who.subscriber)
        if not existed:
            raise NotFoundError("you have no webhook")
        return answer({})

    async def forget(self, subscribers: Sequence[int]) -> None:
        for subscriber in subscribers:
            await self._end(subscriber)
            self._back_offs.pop(subscriber, None)

    def _begin(self, webhook: SubscriberWebhook) -> None:
        """Starts the sender of a webhook."""
        assert self._session is not None
        back_off = self._back_offs.setdefault(webhook.subscriber, _WebhookBackOff(self._settings))
        self._senders[webhook.subscriber] = _WebhookSender(
            webhook,
            self._service,
            connections=self._connections,
            back_off=back_off,
            session=self._session,
            resolver=self._resolver,
            on_gone=self._end_gone,
        )
        if len(self._back_offs) > len(self._senders) + _BACK_OFFS_KEPT:
            self._back_offs = {
                subscriber: known_back_off
                for subscriber, known_back_off in self._back_offs.items()
                if subscriber in self._senders
            }

    async def _end(self, subscriber: int) -> None:
        sender = self._senders.pop(subscriber, None)
        if sender is not None:
            await sender.stop()

    async def _end_gone(self, webhook: SubscriberWebhook) -> None:
        """The receiver answered 410. A webhook that replaced it in the meantime stays."""
        sender = self._senders.get(webhook.subscriber)
        if sender is not None and sender.webhook == webhook:
            del self._senders[webhook.subscriber]
        try:
            await self._service.remove_webhook(webhook.subscriber, webhook.secret)
        except TocsinError as error:
            _log.warning("a webhook could not be ended", subscriber=webhook.subscriber, error=str(error))

    def _check(self, url: str) -> None:
        """Raises InputError for a URL that cannot be posted to or is not allowed."""
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if (
            not usable
            or len(url) > BrokerService.WEBHOOK_URL_LIMIT
            or any(character.isspace() or not character.isprintable() for character in url)
        ):
            raise InputError("url: must be an address such as https://example.org/hook")
        if parts.username is not None or parts.password is not None:
            raise InputError("url: must not carry a password")
        self._guard.check(url, "the webhook's address")


class _WebhookBackOff:
    """The back-off of one subscriber across addresses: the number of failures in a row, and when to retry."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._pauses = BackOff(settings.first_retry_s, settings.last_retry_s)
        self._until_s = 0.0

    @property
    def is_failing(self) -> bool:
        return self._pauses.failures > 0

    def note_failure(self) -> None:
        self._until_s = time.monotonic() + self._pauses.next_s()

    def note_success(self) -> None:
        self._pauses.reset()
        self._until_s = 0.0

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self._until_s - time.monotonic()))


class _WebhookSender:
    """Posts one subscriber's events, one after the other."""

    def __init__(
        self,
        webhook: SubscriberWebhook,
        service: BrokerService,
        *,
        connections: WebhookConnections,
        back_off: _WebhookBackOff,
        session: aiohttp.ClientSession,
        resolver: NameResolver,
        on_gone: Callable[[SubscriberWebhook], Awaitable[None]],
    ) -> None:
        self.webhook = webhook
        self._service = service
        self._connections = connections
        self._back_off = back_off
        self._host = urlsplit(webhook.url).netloc.lower()
        self._session = session
        self._resolver = resolver
        self._on_gone = on_gone
        self._waiting: deque[EncodedEvent] = deque()
        self._some = asyncio.Event()
        self._attached = False
        self._outlet = PlainOutlet(self._take, lambda: len(self._waiting) >= _WAITING, self._shed)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_log_failure)
        self._attach()

    def _attach(self) -> None:
        self._attached = True
        self._service.attach(self.webhook.subscriber, self._outlet)

    def _take(self, event: EncodedEvent) -> None:
        self._waiting.append(event)
        self._some.set()

    def _shed(self) -> None:
        """It was too slow beside a connection of the same subscriber; it attaches again when it has caught up."""
        self._attached = False

    def detach(self) -> None:
        """Takes no more events. It may be called twice."""
        self._service.detach(self._outlet)

    async def stop(self) -> None:
        self.detach()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Posts the oldest event until it succeeds, then the next one; ends after 410."""
        while True:
            if not self._waiting:
                if not self._attached:
                    self._attach()
                self._some.clear()
                await self._some.wait()
                continue
            await self._back_off.wait()
            event = self._waiting[0]
            async with self._connections.slot(self.webhook.application, self._host, failing=self._back_off.is_failing):
                status = await self._post(event)
            outcome = "taken" if 200 <= status < 300 else "gone" if status == 410 else "failed"
            self._service.count_webhook(outcome)
            if outcome == "gone":
                self.detach()
                await self._on_gone(self.webhook)
                return
            if outcome == "failed":
                self._back_off.note_failure()
                continue
            self._back_off.note_success()
            self._waiting.popleft()
            self._acknowledge(event)
            if len(self._waiting) < _WAITING:
                self._service.resume_outlet(self._outlet)

    def _acknowledge(self, event: EncodedEvent) -> None:
        """A message that was taken acknowledges its results."""
        if event.kind == RESULTS and event.to is not None:
            self._service.acknowledge(self.webhook.subscriber, {event.interest: event.to})

    async def _post(self, event: EncodedEvent) -> int:
        """The HTTP status; 0 if there was no answer."""
        message_id = f"msg_{self.webhook.subscriber}_{event.interest}_{event.mark}"
        headers = sign(self.webhook.secret, message_id, int(time.time()), event.envelope)
        try:
            await self._look_up()
            async with self._session.post(
                self.webhook.url, data=event.envelope, headers=headers, allow_redirects=False
            ) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            _log.debug("a webhook did not answer", subscriber=self.webhook.subscriber, error=type(error).__name__)
            return 0

    async def _look_up(self) -> None:
        """Resolves the host first, with a timeout of its own: slow name servers do not count against the receiver."""
        url = URL(self.webhook.url)
        async with asyncio.timeout(self._service.settings.webhooks.timeout_s):
            await self._resolver.resolve(url.raw_host or "", url.port or 0)


class WebhookConnections:
    """Limits messages in flight: in total, per application, and per application and host.

    A message that waits for a slot occupies none that others wait for, and its timeout has not started. Receivers that
    failed their last message share a quarter of their application's slots, so that silent receivers cannot use up the
    rest.
    """

    def __init__(self, settings: WebhookSettings, count_waiting: Callable[[int], None]) -> None:
        self._count_waiting = count_waiting
        self._all = _KeyedSlots(settings.connections)
        self._of_application = _KeyedSlots(settings.application_connections)
        self._to_host = _KeyedSlots(settings.host_connections)
        self._failing = _KeyedSlots(max(1, settings.application_connections // 4))

    @property
    def applications(self) -> int:
        """The number of applications with messages in flight or waiting."""
        return len(self._of_application.by_key)

    @asynccontextmanager
    async def slot(self, application: int, host: str, *, failing: bool) -> AsyncIterator[None]:
        """Holds the slots for one message while it is posted. The narrowest limit comes first: a message never holds a
        shared slot while it waits for one of its own."""
        async with AsyncExitStack() as slots:
            self._count_waiting(1)
            try:
                if failing:
                    await slots.enter_async_context(self._failing.slot(application))
                await slots.enter_async_context(self._to_host.slot((application, host)))
                await slots.enter_async_context(self._of_application.slot(application))
                await slots.enter_async_context(self._all.slot(None))
            finally:
                self._count_waiting(-1)
            yield


class _KeyedSlots:
    """At most `most` holders at a time per key, first come, first served."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_key: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def slot(self, key: Hashable) -> AsyncIterator[None]:
        semaphore, users = self.by_key.get(key) or (asyncio.Semaphore(self._most), 0)
        self.by_key[key] = semaphore, users + 1
        try:
            async with semaphore:
                yield
        finally:
            users = self.by_key[key][1] - 1
            if users:
                self.by_key[key] = semaphore, users
            else:
                del self.by_key[key]


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a webhook's sender failed", exc_info=error)
