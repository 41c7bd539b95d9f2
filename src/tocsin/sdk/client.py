"""The client of a subscriber: subscriptions, notifications that survive whatever happens to the connection, publishing.

async with Client("http://127.0.0.1:8480", "ann", "secret", register=True) as client:
    await client.subscribe("emergency.Alerts", [-41.29, 174.78])
    async for notification in client.notifications():
        print(notification)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Final, Literal, Self

import orjson

from tocsin.sdk.backoff import BackOff
from tocsin.sdk.consumer import Consumer
from tocsin.sdk.events import Available, Event, Gap, Result
from tocsin.sdk.inbox import AckTracker, Inbox, entries
from tocsin.sdk.models import Group, parse_group, part, whole_group
from tocsin.sdk.session import BrokerSession
from tocsin.sdk.stream import ACK_EVERY_S, ACKS_AT_ONCE, HEARTBEAT_S, EventStream
from tocsin.wire.answers import (
    LoginAnswer,
    Subscription,
    parse_events_page,
    parse_subscription,
    parse_subscriptions_page,
)
from tocsin.wire.cursors import Cursor, cursor_text, parse_cursor
from tocsin.wire.envelopes import ResultsEvent
from tocsin.wire.errors import ConflictError, InputError, TocsinError
from tocsin.wire.subscriber import (
    DEFAULT_APPLICATION,
    DEFAULT_MODE,
    AckRequest,
    Credentials,
    Mode,
    SubscribeRequest,
)

DEFAULT_URL: Final = "http://127.0.0.1:8480"

_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """`rejected`: which records were not taken (`index`, `field`, `reason`); the others are safe."""

    accepted: int
    rejected: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where notifications are posted; `secret` signs them (`tocsin.sdk.verify`), and is told only when it is made."""

    url: str
    secret: str | None = None


class Client:
    """One subscriber at one broker, in use between `async with` and its end.

    `register`: make the subscriber where it is not there yet. `token` instead of user and password: it is renewed while
    the client is open. `ack`: "auto" acknowledges a notification when the consumer asks for the next one, "manual"
    leaves it to `ack()`. `buffer`: so many notifications wait for the consumer at most. `patience_s`: how long a
    request is tried again while the broker is away; the stream of notifications never gives up.
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
        self._door = BrokerSession(url, credentials, token=token, patience_s=patience_s, ssl=ssl)
        self._marks = AckTracker()
        self._inbox = Inbox(buffer, self._marks)
        self._stream = EventStream(
            self._door, self._inbox, self._marks, heartbeat_s=heartbeat_s, ack_every_s=ack_every_s, pauses=pauses
        )
        self._renewing: asyncio.Task[None] | None = None
        self.known: dict[int, Subscription] = {}
        """The subscriptions that this client has made or listed, by interest."""
        self._consumer = Consumer(self._stream, self._inbox, self._marks, self.known, automatic=self._automatic)

    async def __aenter__(self) -> Self:
        self._door.open()
        try:
            if self._credentials is not None:
                # Who is there already only has to know the password.
                with suppress(ConflictError):
                    await self._door.call(
                        "POST", "/v1/register", self._credentials.to_json(), token=self._application_token
                    )
            await self._door.token()
        except BaseException:
            await self._door.close()
            raise
        self._renewing = asyncio.create_task(self._door.keep_renewed(), name="tocsin token")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Acknowledge what was taken, and leave. What was not taken comes again at the next login."""
        await self._stream.stop()
        self._inbox.close()
        if self._renewing is not None:
            self._renewing.cancel()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()
        except (TocsinError, TimeoutError):
            # Then some of it comes again.
            pass
        finally:
            await self._door.close()

    @property
    def url(self) -> str:
        return self._door.url

    @property
    def who(self) -> LoginAnswer | None:
        """The login that is in use, none where the client was given a token."""
        return self._door.who

    async def logout(self) -> None:
        """End the token, and with it every connection that uses it."""
        await self._stream.stop()
        await self.flush()
        await self._door.ask("POST", "/v1/logout")

    # --- subscriptions

    async def subscribe(
        self,
        channel: str,
        parameters: Sequence[Any] = (),
        *,
        since: Cursor | str | None = None,
        mode: Mode = DEFAULT_MODE,
        group: str | None = None,
    ) -> Subscription:
        """Results for these values of the channel's parameters: those after `since`, else those made from now on.

        Subscribing again with the same values answers with what is there. "notify" only tells that there is something
        (`Available`), to be had with `pull`. `recovered` of the answer is False where something after `since` is gone.
        """
        if isinstance(parameters, str | bytes):
            raise InputError("parameters: must be a sequence of values", hint=f"[{parameters!r}]")
        after = parse_cursor(since) if isinstance(since, str) else since
        asked = SubscribeRequest(channel, tuple(parameters), after, mode, group)
        made = parse_subscription(await self._door.ask("POST", "/v1/subscriptions", asked.to_json()))
        self.known[made.interest] = made
        return made

    async def unsubscribe(self, subscription: Subscription | str) -> None:
        """What waited for the consumer goes with it. What was subscribed to for a group ends for all its members."""
        identity = subscription if isinstance(subscription, str) else subscription.id
        if isinstance(subscription, Subscription) and subscription.group is not None and identity.startswith("grp_"):
            await self.unsubscribe_group(subscription.group, identity)
        else:
            await self._door.ask("DELETE", f"/v1/subscriptions/{part(identity)}")
        for one in [one for one in self.known.values() if one.id == identity]:
            del self.known[one.interest]
            self._marks.forget(one.interest)
            self._inbox.drop(one.interest)

    async def subscriptions(self) -> list[Subscription]:
        """All of one's subscriptions, with the cursors up to which they are acknowledged."""
        found: list[Subscription] = []
        params: dict[str, str] = {}
        while True:
            said = await self._door.ask("GET", "/v1/subscriptions", params=params)
            page, following = parse_subscriptions_page(said)
            found += page
            if following is None:
                self.known.clear()
                self.known.update((one.interest, one) for one in found)
                return found
            params = {"after": following}

    async def subscription(self, identity: str) -> Subscription:
        """One of them, as it is now."""
        return parse_subscription(await self._door.ask("GET", f"/v1/subscriptions/{part(identity)}"))

    async def channels(self) -> list[dict[str, Any]]:
        """What may be subscribed to: names and parameters."""
        said: list[dict[str, Any]] = (await self._door.ask("GET", "/v1/channels"))["channels"]
        return said

    # --- notifications

    def notifications(self) -> AsyncIterator[Event]:
        """Everything that comes, in the order of each subscription: what was missed first, then what is new.

        Yields `Result`, and where it is so `Gap` (something is gone for good), `Available` (there is something to
        pull) and `Ended` (a subscription is gone). Ends when the client is closed; raises only what trying again does
        not mend. Asking for the next one acknowledges the one before; the one that the consumer holds when it leaves
        comes again, unless `ack` was called for it.
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
        """What there is and was not acknowledged, or everything after `after`; waits up to `wait_s` for the first.

        Acknowledges as `notifications` does. The broker is asked for `limit` at a time.
        """
        identity = await self._id_of(subscription)
        marks, more = AckTracker(), True
        while more:
            params = {"limit": str(limit)}
            if after is not None:
                params["after"] = cursor_text(after)
            if wait_s > 0:
                params["wait"] = str(wait_s)
            path = f"/v1/subscriptions/{part(identity)}/results"
            said = await self._door.ask("GET", path, params=params, answer_s=60.0 + wait_s)
            page, more = parse_events_page(said)
            wait_s = 0.0
            for event in page:
                if not isinstance(event, ResultsEvent):
                    continue
                for entry in entries(event, marks):
                    if isinstance(entry.told, Result | Gap):
                        yield entry.told
                    if self._automatic and entry.reached is not None:
                        self._marks.see(entry.interest, entry.reached)
                        self._marks.take(entry.interest, entry.reached)
                after = event.to
            more = more and bool(page)
        await self.flush()

    async def _id_of(self, subscription: Subscription | Available | Result) -> str:
        if isinstance(subscription, Subscription):
            return subscription.id
        if subscription.interest not in self.known:
            await self.subscriptions()
        if (one := self.known.get(subscription.interest)) is None:
            raise InputError(f"there is no subscription with the interest {subscription.interest}")
        return one.id

    async def ack(self, *taken: Result | Gap) -> None:
        """These, and everything before them of their interests, are taken and need not come again.

        Told to the broker soon; `flush` waits until it is.
        """
        for one in taken:
            self._marks.take(one.interest, one.cursor)

    async def flush(self) -> None:
        """Returns when everything acknowledged so far is durable at the broker."""
        while acks := self._marks.unconfirmed(ACKS_AT_ONCE):
            await self._door.ask("POST", "/v1/acks", {"acks": AckRequest(acks).to_json()})
            self._marks.confirm(acks)

    @property
    def connected(self) -> bool:
        """Whether notifications could come at this moment."""
        return self._stream.connected.is_set()

    # --- publishing

    async def publish(
        self,
        feed: str,
        records: Iterable[Mapping[str, Any]] | Mapping[str, Any] | bytes,
        *,
        key: str | None = None,
        visible: bool = False,
    ) -> PublishAnswer:
        """Records into a feed, through the broker. What is accepted is safe; `visible` waits until queries see it.

        Bytes are sent as they are, in the feed's own format. `key` makes it harmless to publish the same twice; one is
        made where none is given, so that trying again after a broken connection is.
        """
        if isinstance(records, bytes):
            body = records
        else:
            each = [records] if isinstance(records, Mapping) else records
            body = b"\n".join(_record(one) for one in each)
        said = await self._door.ask(
            "POST",
            f"/v1/feeds/{part(feed)}",
            body,
            params={"wait": "visible"} if visible else None,
            headers={"Idempotency-Key": key or secrets.token_hex(16)},
        )
        return PublishAnswer(said["accepted"], tuple(said["rejected"]))

    # --- groups, and one's own account

    async def groups(self) -> list[Group]:
        """Those that one is in, without their members."""
        found: list[Group] = []
        params: dict[str, str] = {}
        while True:
            said = await self._door.ask("GET", "/v1/groups", params=params)
            found += [parse_group(one) for one in said["groups"]]
            if said["next"] is None:
                return found
            params = {"after": said["next"]}

    async def group(self, name: str) -> Group:
        """One that one is in, with its members and what it holds."""
        return await whole_group(self._door.ask, name)

    async def leave_group(self, name: str) -> None:
        """What was held through it alone ends."""
        await self._door.ask("DELETE", f"/v1/groups/{part(name)}/members/{part(await self._user())}")

    async def unsubscribe_group(self, name: str, subscription: str) -> None:
        """By the id that `group` shows, or that subscribing for the group answered: it ends for all members."""
        await self._door.ask("DELETE", f"/v1/groups/{part(name)}/subscriptions/{part(subscription)}")

    async def change_password(self, old: str, new: str) -> None:
        """All tokens from before end, and with them what is connected elsewhere; this client goes on with a new one."""
        user = await self._user()
        body = {"old": old, "password": new}
        await self._door.ask("PUT", f"/v1/subscribers/{part(user)}/password", body)
        assert self.who is not None
        self._door.become(Credentials(user, new, self.who.application))

    async def remove_account(self) -> None:
        """The subscriber is gone, with all it has; the client is of no more use."""
        await self._stream.stop()
        await self._door.ask("DELETE", f"/v1/subscribers/{part(await self._user())}")
        self._marks.clear()

    async def _user(self) -> str:
        await self._door.token()
        assert self.who is not None, "a token was made or renewed"
        return self.who.user

    # --- webhooks

    async def set_webhook(self, url: str) -> Webhook:
        """Have notifications posted there from now on."""
        said = await self._door.ask("PUT", "/v1/webhook", {"url": url})
        return Webhook(said["url"], said.get("secret"))

    async def webhook(self) -> Webhook:
        """NotFoundError where there is none."""
        said = await self._door.ask("GET", "/v1/webhook")
        return Webhook(said["url"], said.get("secret"))

    async def remove_webhook(self) -> None:
        await self._door.ask("DELETE", "/v1/webhook")


def _record(record: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, default=dict)
    except TypeError as error:
        raise InputError(f"this record cannot be written as JSON: {error}") from None
