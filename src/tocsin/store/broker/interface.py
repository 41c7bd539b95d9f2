"""The broker's store: its subscribers, their subscriptions and markers, and the broker's own position.

    application ── subscriber ── frontend ── backend       a subscriber's hold on an interest; many share a backend
         └──────── group ─────── group subscription        its members hold what it holds, each with its own marker

Every backend of this interface keeps the promises below; the contract suite (tests/contract/store/broker) tries to
break them.

Each call is one transaction, all or nothing, durable when it returns (kill -9, power cut). Calls that wait at the same
time may share one commit; an error in one call undoes that call alone. Calls take effect in the order they were made.
Reads see the last committed state and never wait for a writer. A cancellation during a write is raised when the write
is complete.

Errors: NotFoundError for an application, subscriber, group or backend that does not exist; ConflictError for a name
that is taken; LimitError and InputError for values that some backend cannot store; StorageFullError if the disk is
full (nothing committed is lost, and the store continues once there is space); UnavailableError if another process
holds the store, or it is closed; StoreError if it is damaged, not a Tocsin store, or newer than this program.

Ids are whole numbers, never given out twice. Times are microseconds since 1970 (`_us`) and come from the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tocsin.rules.model.cursors import Cursor, InterestId, Position, SubscriptionId
from tocsin.store.broker import rows
from tocsin.wire.subscriber import DeliveryMode


class BrokerStore(Protocol):
    @property
    def schema_version(self) -> int:
        """The schema version of the stored data. Known once the store is open."""

    async def open(self) -> None:
        """Creates the store if there is none, or upgrades an older store, completely or not at all.

        A new store has the application `default`, which may use every channel and feed and has no token.
        """

    async def close(self) -> None:
        """Waits for running calls. May be called twice."""

    async def backup_to(self, path: Path) -> None:
        """Writes a complete, checked copy of a committed state to a new file, while others read and write.

        The file appears complete or not at all. Raises ConflictError if the file exists.
        """

    # --- facts, and tokens that were revoked before they expired

    async def fact(self, name: str) -> str | None: ...

    async def set_fact(self, name: str, value: str) -> None: ...

    async def first_fact(self, name: str, value: str) -> str:
        """Stores the value unless there is one already. Returns the stored value: all callers get the same."""

    async def revoke(self, token: str, *, expires_us: int) -> None:
        """Revokes the token with this id. Revoking it again changes nothing."""

    async def revoked_tokens(self) -> dict[str, int]:
        """All revoked tokens that are stored, each with its expiry time."""

    async def forget_revoked(self, *, expired_before_us: int) -> int:
        """Forgets revoked tokens that have expired anyway. Returns their number."""

    # --- the cluster

    async def link(self) -> rows.LinkRow: ...

    async def record_registration(self, *, epoch: int, position: Position, secret: str | None = None) -> None:
        """Records that the broker is registered and continues from this position, also where that moves it back. A
        secret of None leaves the secret unchanged.
        """

    async def record_announcement(self, position: Position, heads: Mapping[InterestId, Cursor]) -> None:
        """Records the position and the heads of these interests together.

        Neither ever moves back; interests without a backend are ignored.
        """

    def backends(self) -> AsyncIterator[list[rows.BackendRow]]:
        """All backends in chunks, in the order of interests."""

    async def backend(self, channel: str, parameters: str) -> rows.BackendRow | None: ...

    async def rebind(self, rebound: Sequence[rows.ReboundBackend]) -> None:
        """Gives backends other interests, all at once, so that they may also swap them. Frontends follow and keep
        their markers; the head becomes the later of the new `since` and `head`. Raises NotFoundError for an unknown
        backend and ConflictError if two would share an interest.
        """

    async def release_backends(self, interests: Sequence[InterestId]) -> list[int]:
        """Ends those of these backends that neither a frontend nor a group holds. Returns their interests."""

    async def drop_backends(self, interests: Sequence[InterestId]) -> list[rows.FrontendRow]:
        """Ends these backends and everything that holds them. Returns the frontends that ended."""

    # --- subscriptions

    async def subscribe(
        self,
        requests: Sequence[rows.FrontendRequest],
        *,
        backends: Sequence[rows.NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> list[rows.FrontendOutcome]:
        """Adds the backends, then makes all subscriptions or none. The outcomes have the order of the requests.

        An existing backend changes only to a later head; the call raises ConflictError if the interest belongs to
        another backend. A subscriber that already holds the interest keeps its frontend, with its mode and marker; it
        now counts as its own. Raises LimitError (429) if a subscriber would have more than `at_most` frontends of its
        own.
        """

    async def unsubscribe(self, ids: Sequence[int]) -> list[rows.FrontendRow]:
        """Ends the subscribers' own hold on these. Returns the frontends that ended; those that a group holds stay."""

    async def frontend(self, subscriber: int, public_id: str) -> rows.FrontendRow | None:
        """Returns None also if it belongs to another subscriber."""

    async def frontends_of(self, subscriber: int, *, after: int = 0, limit: int = rows.PAGE) -> list[rows.FrontendRow]:
        """A page in the order of ids, beginning after the id `after`."""

    def frontends(self) -> AsyncIterator[list[rows.FrontendRow]]:
        """All frontends in chunks, in the order of ids."""

    async def acknowledge(self, markers: Mapping[SubscriptionId, Cursor]) -> None:
        """Records that these frontends have everything up to the cursors. A marker never moves back; unknown frontends
        are ignored. Calls that wait at the same time share one commit.
        """

    # --- applications

    async def add_application(
        self, name: str, allowed: rows.ApplicationRights = rows.EVERYTHING, *, digest: str | None, created_us: int
    ) -> rows.ApplicationRow:
        """Raises ConflictError if the name is taken, or another application has the digest."""

    async def change_application(self, application: int, allowed: rows.ApplicationRights) -> rows.ApplicationRow: ...

    async def end_outside(
        self, application: int, channels: Sequence[str], *, after: int = 0, limit: int = rows.PAGE
    ) -> list[rows.FrontendRow]:
        """Ends the groups' subscriptions to channels other than these, and the next `limit` such frontends of the
        application's subscribers with ids after `after`. Returns the frontends that ended, in the order of ids.
        """

    async def renew_application_token(self, application: int, digest: str) -> rows.ApplicationRow: ...

    async def close_application(self, application: int) -> None:
        """Closes the application for good: it accepts no subscriber any more. Its subscribers can then be removed in
        steps, and the application last.
        """

    async def remove_application(self, application: int) -> None:
        """Removes the application and its groups. Raises ConflictError while it is not closed, or has subscribers.
        Does nothing if it does not exist.
        """

    async def application(self, application: int) -> rows.ApplicationRow | None: ...

    async def applications(self) -> list[rows.ApplicationRow]:
        """All applications, including closed ones, in the order of names (by code point)."""

    # --- subscribers

    async def add_subscriber(
        self, application: int, user: str, *, password: str, created_us: int, at_most: int | None = None
    ) -> rows.SubscriberRow:
        """Raises ConflictError if the user exists, LimitError (429) if the application would have more than `at_most`
        subscribers, and NotFoundError also if the application is closed.
        """

    async def change_subscriber(self, subscriber: int, *, password: str, tokens_from_us: int | None = None) -> None:
        """Sets another password hash. With `tokens_from_us`, tokens made before that time end."""

    async def remove_subscribers(self, subscribers: Sequence[int]) -> list[rows.FrontendRow]:
        """Removes those of these subscribers that exist, and all their data. Returns the frontends that ended."""

    async def subscriber(self, application: int, user: str) -> rows.SubscriberRow | None: ...

    async def subscriber_by_id(self, subscriber: int) -> rows.SubscriberRow | None: ...

    async def find_subscribers(self, application: int, users: Sequence[str]) -> list[rows.SubscriberRow]:
        """Returns the users that exist, in the order of users (by code point)."""

    async def subscribers(
        self, application: int, *, after: str = "", limit: int = rows.PAGE
    ) -> list[rows.SubscriberRow]:
        """A page in the order of users (by code point), beginning after the user `after`."""

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
    ) -> rows.GroupRow:
        """Adds a group with these members (see `add_members`). Raises ConflictError if the name is taken, and
        LimitError (429) if there would be more than `at_most` groups.
        """

    async def remove_group(self, group: int) -> list[rows.FrontendRow]:
        """Removes the group and its subscriptions, if it exists. Returns the frontends that ended."""

    async def group(self, application: int, name: str) -> rows.GroupRow | None: ...

    async def groups(self, application: int, *, after: str = "", limit: int = rows.PAGE) -> list[rows.GroupRow]:
        """A page in the order of names (by code point), beginning after the name `after`."""

    async def groups_of(self, subscriber: int) -> list[rows.GroupRow]:
        """The groups that have the subscriber as a member, in the order of names."""

    async def add_members(
        self, group: int, subscribers: Sequence[int], *, created_us: int, at_most: int | None = None
    ) -> list[rows.FrontendRow]:
        """Adds members. Each gets the group's subscriptions, from the present heads on. Returns the frontends that
        were made: a member that already held an interest keeps its frontend. Raises NotFoundError for a subscriber of
        another application, and LimitError (429) if the group would have more than `at_most` members.
        """

    async def remove_members(self, group: int, subscribers: Sequence[int]) -> list[rows.FrontendRow]:
        """Removes those of these that are members. Returns the frontends that ended; those with another holder stay."""

    async def members(self, group: int, *, after: str = "", limit: int = rows.PAGE) -> list[rows.SubscriberRow]:
        """A page in the order of users (by code point), beginning after the user `after`."""

    async def subscribe_group(
        self,
        group: int,
        interest: InterestId,
        *,
        mode: DeliveryMode = "inline",
        backends: Sequence[rows.NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> rows.GroupSubscriptionOutcome:
        """Adds the backends first, as `subscribe` does. A group that already holds the interest keeps its
        subscription. Raises LimitError (429) if the group would hold more than `at_most`.
        """

    async def unsubscribe_group(self, group: int, public_id: str) -> list[rows.FrontendRow] | None:
        """Returns the frontends that ended; None if the group does not have this subscription."""

    async def group_subscriptions(self, group: int) -> list[rows.GroupSubscriptionRow]:
        """The group's subscriptions in the order of their creation."""

    # --- webhooks

    async def put_webhook(self, subscriber: int, url: str, secret: str, *, created_us: int) -> rows.WebhookRow:
        """Sets the subscriber's webhook, in place of an earlier one."""

    async def remove_webhook(self, subscriber: int, *, secret: str | None = None) -> bool:
        """Returns whether there was a webhook. With `secret`, removes only the webhook that has this secret."""

    async def webhook(self, subscriber: int) -> rows.WebhookRow | None: ...

    async def webhooks(self) -> list[rows.WebhookRow]:
        """All webhooks, in the order of subscribers."""
