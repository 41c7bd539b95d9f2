"""The client of a subscriber: subscriptions, a stream of events that reconnects by itself, and publishing.

async with Client("http://127.0.0.1:8480", "ann", "secret", register=True) as client:
    await client.subscribe("emergency.Alerts", [-41.29, 174.78])
    async for result in client.results():
        print(result)
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final, Literal, Self

import orjson

from tocsin.rules.backoff import BackOff
from tocsin.sdk.events import Available, Ended, Event, Gap, Result
from tocsin.sdk.inbox import AckTracker, Inbox, InboxEntry, new_entries
from tocsin.sdk.session import BrokerSession, quote_path, whole_group
from tocsin.sdk.stream import ACK_EVERY_S, ACKS_AT_ONCE, HEARTBEAT_S, EventStream
from tocsin.wire.accounts import Group, PublishAnswer, Webhook
from tocsin.wire.answers import LoginAnswer, Subscription, SubscriptionsPage, parse_events_page
from tocsin.wire.cursors import Cursor, cursor_text, parse_cursor
from tocsin.wire.envelopes import ResultsEvent
from tocsin.wire.errors import ConflictError, InputError, TocsinError
from tocsin.wire.subscriber import (
    DEFAULT_APPLICATION,
    DEFAULT_MODE,
    AckRequest,
    Credentials,
    DeliveryMode,
    SubscribeRequest,
)

DEFAULT_URL: Final = "http://127.0.0.1:8480"

_CLOSE_S: Final = 5.0


class Client:
    """A subscriber's connection to one broker, open within `async with`.

    `register`: registers the subscriber if it does not exist. `token`: replaces user and password, and is renewed while
    the client is open. `ack`: "auto" acknowledges an event when the consumer asks for the next one, "manual" leaves it
    to `ack()`. `buffer`: the largest number of events that wait for the consumer. `patience_s`: how long a request is
    retried while the broker is away; the event stream is retried forever. `clock`: the seconds by which the token is
    renewed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        user: str | None = None,
        password: str | None = None,
        *,
        token: str | None = None,
        application: str = DEFAULT_APPLICATION,
        register: bool = False,
        application_token: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        buffer: int = 1_000,
        patience_s: float = 15.0,
        heartbeat_s: float = HEARTBEAT_S,
        ack_every_s: float = ACK_EVERY_S,
        pauses: BackOff | None = None,
        ssl: SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (user is None) != (password is None) or (user is None and token is None):
            raise InputError("who is it?", hint="give user and password, or a token")
        if ack not in ("auto", "manual"):
            raise InputError('ack: must be "auto" or "manual"')
        if buffer < 1:
            raise InputError(f"buffer: must be above 0, got {buffer}")
        credentials = None if user is None or password is None else Credentials(user, password, application)
        self._credentials = credentials if register else None
        self._application_token = application_token
        self._automatic = ack == "auto"
        self._session = BrokerSession(url, credentials, token=token, patience_s=patience_s, ssl=ssl, clock=clock)
        self._acks = AckTracker()
        self._inbox = Inbox(buffer, self._acks)
        self._stream = EventStream(
            self._session, self._inbox, self._acks, heartbeat_s=heartbeat_s, ack_every_s=ack_every_s, pauses=pauses
        )
        self._renewing: asyncio.Task[None] | None = None
        self.known: dict[int, Subscription] = {}
        """The subscriptions that this client has made or listed, by interest."""
        self._consumer = _Consumer(self._stream, self._inbox, self._acks, self.known, automatic=self._automatic)

    async def __aenter__(self) -> Self:
        self._session.open()
        try:
            if self._credentials is not None:
                # An existing subscriber only needs the right password, which the login checks.
                with suppress(ConflictError):
                    await self._session.call(
                        "POST", "/v1/register", self._credentials.to_json(), token=self._application_token
                    )
            await self._session.token()
        except BaseException:
            await self._session.close()
            raise
        self._renewing = asyncio.create_task(self._session.keep_renewed(), name="tocsin token")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Acknowledges the events that were taken, and closes. Other events come again at the next login."""
        await self._stream.stop()
        self._inbox.close()
        if self._renewing is not None:
            self._renewing.cancel()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()
        except (TocsinError, TimeoutError):
            # Unflushed acknowledgements are lost, so some events come again.
            pass
        finally:
            await self._session.close()

    @property
    def url(self) -> str:
        return self._session.url

    @property
    def who(self) -> LoginAnswer | None:
        """The login in use; None if the client was given a token that has not been renewed yet."""
        return self._session.who

    async def logout(self) -> None:
        """Ends the session and closes every connection that uses its tokens."""
        await self._stream.stop()
        await self.flush()
        await self._session.ask("POST", "/v1/logout")

    # --- subscriptions

    async def subscribe(
        self,
        channel: str,
        parameters: Sequence[Any] = (),
        *,
        since: Cursor | str | None = None,
        mode: DeliveryMode = DEFAULT_MODE,
        group: str | None = None,
    ) -> Subscription:
        """Subscribes to a channel with these parameter values: to results after `since`, or made from now on.

        Subscribing again with the same values returns the existing subscription. In mode "notify" the client only
        receives `Available` and gets the results with `pull`. `recovered` of the answer is False if results after
        `since` no longer exist.
        """
        if isinstance(parameters, str | bytes):
            raise InputError("parameters: must be a sequence of values", hint=f"[{parameters!r}]")
        after = parse_cursor(since) if isinstance(since, str) else since
        request = SubscribeRequest(channel, tuple(parameters), after, mode, group)
        subscription = Subscription.parse(await self._session.ask("POST", "/v1/subscriptions", request.to_json()))
        self.known[subscription.interest] = subscription
        return subscription

    async def unsubscribe(self, subscription: Subscription | str) -> None:
        """Ends the subscription and drops its waiting events. A group's subscription ends for all its members."""
        identity = subscription if isinstance(subscription, str) else subscription.id
        if isinstance(subscription, Subscription) and subscription.group is not None and identity.startswith("grp_"):
            await self.unsubscribe_group(subscription.group, identity)
        else:
            await self._session.ask("DELETE", f"/v1/subscriptions/{quote_path(identity)}")
        for ended in [ended for ended in self.known.values() if ended.id == identity]:
            del self.known[ended.interest]
            self._acks.forget(ended.interest)
            self._inbox.drop(ended.interest)

    async def subscriptions(self) -> list[Subscription]:
        """All subscriptions of the subscriber, with the cursors up to which they are acknowledged."""
        all_subscriptions: list[Subscription] = []
        params: dict[str, str] = {}
        while True:
            page = SubscriptionsPage.parse(await self._session.ask("GET", "/v1/subscriptions", params=params))
            all_subscriptions += page.subscriptions
            if page.next is None:
                self.known.clear()
                self.known.update((entry.interest, entry) for entry in all_subscriptions)
                return all_subscriptions
            params = {"after": page.next}

    async def subscription(self, identity: str) -> Subscription:
        """The current state of one subscription."""
        return Subscription.parse(await self._session.ask("GET", f"/v1/subscriptions/{quote_path(identity)}"))

    async def channels(self) -> list[dict[str, Any]]:
        """The channels that the subscriber may use: names and parameters."""
        channels: list[dict[str, Any]] = (await self._session.ask("GET", "/v1/channels"))["channels"]
        return channels

    # --- results

    def results(self) -> AsyncIterator[Event]:
        """All events, in order within each subscription: first those that were missed, then new ones.

        Yields `Result` and, where it applies, `Gap` (results no longer exist), `Available` (there are results to pull)
        and `Ended` (a subscription has ended). It ends when the client is closed, and raises only errors that a retry
        cannot fix. Asking for the next event acknowledges the one before; the event that the consumer holds when it
        leaves comes again, unless `ack` was called for it.
        """
        return self._consumer

    async def pull(
        self,
        subscription: Subscription | Available | Result,
        *,
        after: Cursor | None = None,
        limit: int = 1_000,
        wait_s: float = 0.0,
    ) -> AsyncIterator[Result | Gap]:
        """The results that are not acknowledged, or all after `after`; waits up to `wait_s` for the first.

        Acknowledges as `results` does. It requests `limit` results at a time.
        """
        identity = await self._id_of(subscription)
        marks, more = AckTracker(), True
        while more:
            params = {"limit": str(limit)}
            if after is not None:
                params["after"] = cursor_text(after)
            if wait_s > 0:
                params["wait"] = str(wait_s)
            path = f"/v1/subscriptions/{quote_path(identity)}/results"
            answer = await self._session.ask("GET", path, params=params, answer_s=60.0 + wait_s)
            page, more = parse_events_page(answer)
            wait_s = 0.0
            for event in page:
                if not isinstance(event, ResultsEvent):
                    continue
                for entry in new_entries(event, marks):
                    if isinstance(entry.event, Result | Gap):
                        yield entry.event
                    if self._automatic and entry.reached is not None:
                        self._acks.see(entry.interest, entry.reached)
                        self._acks.take(entry.interest, entry.reached)
                after = event.to
            more = more and bool(page)
        await self.flush()

    async def _id_of(self, subscription: Subscription | Available | Result) -> str:
        if isinstance(subscription, Subscription):
            return subscription.id
        if subscription.interest not in self.known:
            await self.subscriptions()
        if (found_subscription := self.known.get(subscription.interest)) is None:
            raise InputError(f"there is no subscription with the interest {subscription.interest}")
        return found_subscription.id

    async def ack(self, *taken: Result | Gap) -> None:
        """Acknowledges these results, and everything before them of their interests.

        The broker receives it soon; `flush` waits until it has.
        """
        for event in taken:
            self._acks.take(event.interest, event.cursor)

    async def flush(self) -> None:
        """Returns when all acknowledgements so far are durable at the broker."""
        while acks := self._acks.list_unconfirmed(ACKS_AT_ONCE):
            await self._session.ask("POST", "/v1/acks", AckRequest(acks).to_json())
            self._acks.confirm(acks)

    @property
    def connected(self) -> bool:
        """Whether the event stream is connected at this moment."""
        return self._stream.connected.is_set()

    @property
    def connections(self) -> int:
        """How often the event stream has connected."""
        return self._stream.connections

    @property
    def buffered(self) -> int:
        """The number of events that wait for the consumer."""
        return len(self._inbox)

    # --- publishing

    async def publish(
        self,
        feed: str,
        records: Iterable[Mapping[str, Any]] | Mapping[str, Any] | bytes,
        *,
        key: str | None = None,
        visible: bool = False,
    ) -> PublishAnswer:
        """Publishes records to a feed. Accepted records are durable; `visible` waits until queries see them.

        Bytes are sent unchanged, in the feed's own format. `key` is the idempotency key, which makes repeated requests
        harmless; a random one is used if none is given, so that a retry after a broken connection is safe.
        """
        if isinstance(records, bytes):
            body = records
        else:
            items = [records] if isinstance(records, Mapping) else records
            body = b"\n".join(_record(record) for record in items)
        answer = await self._session.ask(
            "POST",
            f"/v1/feeds/{quote_path(feed)}",
            body,
            params={"wait": "visible"} if visible else None,
            headers={"Idempotency-Key": key or secrets.token_hex(16)},
        )
        return PublishAnswer.parse(answer)

    # --- groups, and the subscriber's own account

    async def groups(self) -> list[Group]:
        """The groups that the subscriber is in, without their members."""
        groups: list[Group] = []
        params: dict[str, str] = {}
        while True:
            answer = await self._session.ask("GET", "/v1/groups", params=params)
            groups += [Group.parse(group) for group in answer["groups"]]
            if answer["next"] is None:
                return groups
            params = {"after": answer["next"]}

    async def group(self, name: str) -> Group:
        """A group that the subscriber is in, with its members and subscriptions."""
        return await whole_group(self._session.ask, name)

    async def leave_group(self, name: str) -> None:
        """Leaves the group; subscriptions that the subscriber had only through it end."""
        await self._session.ask("DELETE", f"/v1/groups/{quote_path(name)}/members/{quote_path(await self._user())}")

    async def unsubscribe_group(self, name: str, subscription: str) -> None:
        """Ends a group's subscription for all members, by the id that `group` or `subscribe` returned."""
        await self._session.ask("DELETE", f"/v1/groups/{quote_path(name)}/subscriptions/{quote_path(subscription)}")

    async def change_password(self, old: str, new: str) -> None:
        """Changes the password. Earlier tokens and other connections end; this client continues with a new token."""
        user = await self._user()
        body = {"old": old, "password": new}
        await self._session.ask("PUT", f"/v1/subscribers/{quote_path(user)}/password", body)
        assert self.who is not None
        self._session.become(Credentials(user, new, self.who.application))

    async def remove_account(self) -> None:
        """Removes the subscriber with everything that it has; the client is of no use afterwards."""
        await self._stream.stop()
        await self._session.ask("DELETE", f"/v1/subscribers/{quote_path(await self._user())}")
        self._acks.clear()

    async def _user(self) -> str:
        await self._session.token()
        assert self.who is not None, "a token was made or renewed"
        return self.who.user

    # --- webhooks

    async def set_webhook(self, url: str) -> Webhook:
        """Has events posted to this URL from now on."""
        return Webhook.parse(await self._session.ask("PUT", "/v1/webhook", {"url": url}))

    async def webhook(self) -> Webhook:
        """Raises NotFoundError if there is none."""
        return Webhook.parse(await self._session.ask("GET", "/v1/webhook"))

    async def remove_webhook(self) -> None:
        await self._session.ask("DELETE", "/v1/webhook")


class _Consumer:
    """Yields the entries of the inbox; asking for the next one acknowledges the one before."""

    def __init__(
        self, stream: EventStream, inbox: Inbox, marks: AckTracker, known: dict[int, Subscription], *, automatic: bool
    ) -> None:
        self._stream = stream
        self._inbox = inbox
        self._acks = marks
        self._known = known
        self._automatic = automatic
        self._held: InboxEntry | None = None
        self._asked = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; acknowledges the one before, if `automatic`."""
        if self._asked:
            raise InputError("somebody waits for the next result already", hint="one consumer per client")
        self._asked = True
        try:
            self._stream.start()
            while True:
                if (previous := self._held) is not None and previous.reached is not None and self._automatic:
                    self._acks.take(previous.interest, previous.reached)
                self._held = None
                self._held = await self._inbox.get()
                if self._held is None:
                    raise StopAsyncIteration
                if isinstance(self._held.event, Ended):
                    self._known.pop(self._held.interest, None)
                if self._held.event is not None:
                    return self._held.event
        finally:
            self._asked = False


def _record(record: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, default=dict)
    except TypeError as error:
        raise InputError(f"this record cannot be written as JSON: {error}") from None
