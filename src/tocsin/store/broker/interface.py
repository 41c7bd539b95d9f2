"""The broker's store: who its subscribers are, what they hold, how far each has come, and how far the broker is.

    application ── subscriber ── frontend ── backend       a subscriber's hold on an interest; many share a backend
         └──────── group ─────── group subscription        its members hold what it holds, each with its own marker

Every backend of this interface keeps what is promised here; the contract suite (tests/contract/broker_store)
tries to break it.

Each call is one transaction, all or nothing, durable when it returns (kill -9, power cut). Calls that wait at the same
time may share one commit; an error in one of them undoes that one alone. They take effect in the order they were made.
Reads see the last committed state and never wait for a writer. A cancellation during a write is raised when the write
is over.

Errors: NotFoundError for an application, subscriber, group or backend that is not there; ConflictError for a name that
is taken; LimitError and InputError for what not every backend could keep; StorageFullError when there is no room
(nothing committed is lost, the store goes on once there is room); UnavailableError when somebody else holds the store,
or it is closed; StoreError when it is damaged, not ours, or newer than this program.

Ids are whole numbers, never given twice. Times are microseconds since 1970 (`_us`) and come from the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.store.broker.rows import (
    EVERYTHING,
    PAGE,
    ApplicationRights,
    ApplicationRow,
    BackendRow,
    FrontendOutcome,
    FrontendRequest,
    FrontendRow,
    GroupRow,
    GroupSubscriptionOutcome,
    GroupSubscriptionRow,
    LinkRow,
    NewBackendRow,
    ReboundBackend,
    SubscriberRow,
    WebhookRow,
)
from tocsin.wire.subscriber import Mode


class BrokerStore(Protocol):
    @property
    def schema_version(self) -> int:
        """The version the stored data have. Known once the store is open."""

    async def open(self) -> None:
        """Creates the store if there is none, or brings an older one to the present version: wholly or not at all.

        A new store has the application `default`, which may use every channel and feed and has no token.
        """

    async def close(self) -> None:
        """Waits for what runs. May be called twice."""

    async def backup_to(self, path: Path) -> None:
        """Writes a whole, checked copy of one committed state to a new file, while others read and write.

        The file appears complete or not at all; ConflictError when there is one already.
        """

    # --- facts, and the tokens that were ended before their time

    async def fact(self, name: str) -> str | None: ...

    async def set_fact(self, name: str, value: str) -> None: ...

    async def first_fact(self, name: str, value: str) -> str:
        """Keeps the value unless there is one already, and says which is kept: all who ask get the same."""

    async def revoke(self, token: str, *, expires_us: int) -> None:
        """The token with this id counts no more. Ending it again changes nothing."""

    async def revoked(self) -> dict[str, int]:
        """All that are kept, and when each would have ended by itself."""

    async def forget_revoked(self, *, expired_before_us: int) -> int:
        """Those that have ended by themselves need not be kept. How many went."""

    # --- the cluster

    async def link(self) -> LinkRow: ...

    async def registered(self, *, epoch: int, position: Position, secret: str | None = None) -> None:
        """The broker is known to the cluster, and goes on from this position, wherever it stood before. A secret that
        is None stays what it was."""

    async def record_news(self, position: Position, heads: Mapping[int, Cursor]) -> None:
        """The position, and up to where these interests have results: together. Neither ever goes back; interests that
        are not held are passed over."""

    def backends(self) -> AsyncIterator[list[BackendRow]]:
        """All of them in chunks, in the order of interests."""

    async def backend(self, channel: str, parameters: str) -> BackendRow | None: ...

    async def rebind(self, rebound: Sequence[ReboundBackend]) -> None:
        """Backends get other interests, all at once, so that they may also change places. Frontends follow and keep
        their markers; `head` becomes the new `since` or `head` where that is later. NotFoundError for one that is not
        there, ConflictError when two would share an interest."""

    async def release_backends(self, interests: Sequence[int]) -> list[int]:
        """Ends those of these that neither a frontend nor a group holds. Which ones."""

    async def drop_backends(self, interests: Sequence[int]) -> list[FrontendRow]:
        """Ends these with everything that holds them. The frontends that went."""

    # --- subscriptions

    async def subscribe(
        self,
        wanted: Sequence[FrontendRequest],
        *,
        backends: Sequence[NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> list[FrontendOutcome]:
        """The backends first, then these subscriptions: all or none, answered in the order asked.

        A backend that is there stays as it is, but for a later head; ConflictError when the interest is another's. Who
        holds the interest already gets what is there, with its mode and marker, now as its own. LimitError (429) when
        a subscriber would have more than `at_most` of its own.
        """

    async def unsubscribe(self, ids: Sequence[int]) -> list[FrontendRow]:
        """The subscribers do not want these themselves any more. Those that went; what a group holds stays."""

    async def frontend(self, subscriber: int, public_id: str) -> FrontendRow | None:
        """None also when it is somebody else's."""

    async def frontends_of(self, subscriber: int, *, after: int = 0, limit: int = PAGE) -> list[FrontendRow]:
        """A page in the order of ids, those greater than `after`."""

    def frontends(self) -> AsyncIterator[list[FrontendRow]]:
        """All of them in chunks, in the order of ids."""

    async def acknowledge(self, markers: Mapping[int, Cursor]) -> None:
        """These frontends have everything up to the cursors. Never goes back; those that are not there are passed
        over. All who wait at the same time share one commit."""

    # --- applications

    async def add_application(
        self, name: str, allowed: ApplicationRights = EVERYTHING, *, digest: str | None, created_us: int
    ) -> ApplicationRow:
        """ConflictError when the name is taken, or the digest is another's."""

    async def change_application(self, application: int, allowed: ApplicationRights) -> ApplicationRow: ...

    async def end_outside(
        self, application: int, channels: Sequence[str], *, after: int = 0, limit: int = PAGE
    ) -> list[FrontendRow]:
        """Ends what the application's groups hold of other channels than these, and the next `limit` of its
        subscribers' frontends with greater ids than `after`. The frontends that went, in the order of ids."""

    async def renew_application_token(self, application: int, digest: str) -> ApplicationRow: ...

    async def close_application(self, application: int) -> None:
        """It takes nobody any more, for good: its subscribers can be removed in steps, and it last."""

    async def remove_application(self, application: int) -> None:
        """With its groups. ConflictError while it is not closed, or has subscribers. Nothing happens when it is not
        there."""

    async def application(self, application: int) -> ApplicationRow | None: ...

    async def applications(self) -> list[ApplicationRow]:
        """All of them, closed ones too, in the order of names (by code point)."""

    # --- subscribers

    async def add_subscriber(
        self, application: int, user: str, *, password: str, created_us: int, at_most: int | None = None
    ) -> SubscriberRow:
        """ConflictError when the user is there; LimitError (429) when the application would have more than `at_most`;
        NotFoundError also when it is closed."""

    async def change_subscriber(self, subscriber: int, *, password: str, tokens_from_us: int | None = None) -> None:
        """Another hash; and with it, tokens made before that time may end."""

    async def remove_subscribers(self, subscribers: Sequence[int]) -> list[FrontendRow]:
        """Those of these that are there, with all they have. The frontends that went."""

    async def subscriber(self, application: int, user: str) -> SubscriberRow | None: ...

    async def subscriber_by_id(self, subscriber: int) -> SubscriberRow | None: ...

    async def find_subscribers(self, application: int, users: Sequence[str]) -> list[SubscriberRow]:
        """Those of these that are there, in the order of users (by code point)."""

    async def subscribers(self, application: int, *, after: str = "", limit: int = PAGE) -> list[SubscriberRow]:
        """A page in the order of users (by code point), those greater than `after`."""

    # --- groups

    async def add_group(
        self,
        application: int,
        name: str,
        members: Sequence[int] = (),
        *,
        created_us: int,
        at_most: int | None = None,
        members_at_most: int | None = None,
    ) -> GroupRow:
        """With these members, as `add_members` takes them. ConflictError when the name is taken; LimitError (429) when
        there would be more than `at_most`."""

    async def remove_group(self, group: int) -> list[FrontendRow]:
        """With what it holds. The frontends that went; nothing happens when it is not there."""

    async def group(self, application: int, name: str) -> GroupRow | None: ...

    async def groups(self, application: int, *, after: str = "", limit: int = PAGE) -> list[GroupRow]:
        """A page in the order of names (by code point), those greater than `after`."""

    async def groups_of(self, subscriber: int) -> list[GroupRow]:
        """Those it is a member of, in the order of names."""

    async def add_members(
        self, group: int, subscribers: Sequence[int], *, created_us: int, at_most: int | None = None
    ) -> list[FrontendRow]:
        """Each gets what the group holds, from the present heads on. The frontends that were made: who held an
        interest already goes on as it was. NotFoundError for one who is not of the group's application; LimitError
        (429) when the group would have more than `at_most`."""

    async def remove_members(self, group: int, subscribers: Sequence[int]) -> list[FrontendRow]:
        """Those of these that are members. The frontends that went: who holds an interest otherwise goes on."""

    async def members(self, group: int, *, after: str = "", limit: int = PAGE) -> list[SubscriberRow]:
        """A page in the order of users (by code point), those greater than `after`."""

    async def subscribe_group(
        self,
        group: int,
        interest: int,
        *,
        mode: Mode = "inline",
        backends: Sequence[NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> GroupSubscriptionOutcome:
        """The backends first, as `subscribe` does. A group that holds the interest already goes on as it was;
        LimitError (429) when it would hold more than `at_most`."""

    async def unsubscribe_group(self, group: int, public_id: str) -> list[FrontendRow] | None:
        """The frontends that went; None when the group does not have this subscription."""

    async def group_subscriptions(self, group: int) -> list[GroupSubscriptionRow]:
        """In the order they were made."""

    # --- webhooks

    async def put_webhook(self, subscriber: int, url: str, secret: str, *, created_us: int) -> WebhookRow:
        """In place of the one there was, if any."""

    async def remove_webhook(self, subscriber: int, *, secret: str | None = None) -> bool:
        """Whether there was one. With `secret` only the one that has it, and not one that was put in its place."""

    async def webhook(self, subscriber: int) -> WebhookRow | None: ...

    async def webhooks(self) -> list[WebhookRow]:
        """All of them, in the order of subscribers."""
