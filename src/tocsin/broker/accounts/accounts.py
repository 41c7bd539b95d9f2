"""Accounts: authenticates requests and decides what they may do. The rest of a broker knows only this interface, so
that accounts can become valid at every broker without changes elsewhere.

    operator ── application ── subscriber ── session       each may access what is to its right, and nothing beside it
                     └──────── group

A `Principal` makes the request: a subscriber's `Session`, or the `ManagerIdentity` of one application or, for the
operator, of all. A call that needs rights takes the principal first and raises ForbiddenError before it looks at
anything, so that an answer never reveals what another application has.

Changes are durable before the answer. Calls that end or make subscriptions return them: the store has the change
already, and the caller updates the rest of the broker.

Errors: UnauthorizedError for a bad token, user or password; ForbiddenError for a valid token without the right;
NotFoundError, ConflictError; InputError and LimitError (400) for names and passwords that are too long or too short;
LimitError (429) where an application, a group or the broker has reached its limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from tocsin.store.broker import rows
from tocsin.wire.answers import LoginAnswer
from tocsin.wire.subscriber import Credentials


@dataclass(frozen=True, slots=True)
class Session:
    """A subscriber with a valid token."""

    subscriber: int
    user: str
    application: int
    application_name: str
    token_id: str
    issued_us: int
    expires_us: int
    session_id: str
    """Names the login that this token comes from, directly or by renewals."""
    began_us: int


@dataclass(frozen=True, slots=True)
class ManagerIdentity:
    """The manager of one application; with None, the operator, who manages all applications and the broker."""

    application: int | None
    application_name: str | None = None

    @property
    def is_operator(self) -> bool:
        return self.application is None


OPERATOR: Final = ManagerIdentity(None)

Principal: TypeAlias = Session | ManagerIdentity


@dataclass(frozen=True, slots=True)
class Rights:
    """The channels and feeds that the subscribers of an application may use; None means all."""

    channels: frozenset[str] | None = None
    feeds: frozenset[str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(allowed: rows.ApplicationRights) -> Rights:
        channels, feeds = (None if names is None else frozenset(names) for names in (allowed.channels, allowed.feeds))
        return Rights(channels, feeds, allowed.limits)

    def may_subscribe(self, channel: str) -> bool:
        return self.channels is None or channel in self.channels

    def may_publish(self, feed: str) -> bool:
        return self.feeds is None or feed in self.feeds


@dataclass(frozen=True, slots=True)
class NewApplicationToken:
    """An application and its new token. The token is shown once and not stored."""

    application: rows.ApplicationRow
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Removed:
    """Subscribers that were removed, and the subscriptions that they had."""

    subscribers: list[int]
    frontends: list[rows.FrontendRow]


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The outcome of a change of a group. `made`: subscriptions that members got. `gone`: subscriptions that ended."""

    group: rows.GroupRow
    made: list[rows.FrontendRow] = field(default_factory=list)
    gone: list[rows.FrontendRow] = field(default_factory=list)


class Accounts(Protocol):
    """The interface of accounts; each method states what it promises and who may call it."""

    async def open(self) -> None:
        """Reads the stored accounts and completes removals that were interrupted."""

    async def close(self) -> None:
        """Completes password checks that are running. It may be called twice."""

    # --- authentication

    async def who(self, token: str | None) -> Principal:
        """The principal of this token; without a token the operator, if the policy allows that. Raises
        UnauthorizedError in all other cases."""

    def rights(self, application: int) -> Rights:
        """What an application's subscribers may use at this moment; nothing if the application no longer exists."""

    # --- subscribers, for themselves

    async def register(
        self, by: Principal | None, credentials: Credentials, *, origin: str | None = None
    ) -> rows.SubscriberRow:
        """Registers a subscriber. Without a principal, or by a subscriber: only if registration is open, and only into
        the application `default`. By an application: into itself, also if the credentials name `default`, their default
        value."""

    async def login(self, credentials: Credentials, *, origin: str | None = None) -> LoginAnswer:
        """Checks the credentials. A wrong user, application or password gives the same error in the same time.

        `origin`: the address that the request comes from. Raises LimitError (429, with `retry_after_s`) if too many
        password checks wait, first for the origin that has the most; and if too many passwords were wrong for this
        user, even if the present one is right.
        """

    async def renew(self, session: Session) -> LoginAnswer:
        """Issues a new token; the old one stays valid until it expires."""

    async def logout(self, session: Session) -> None:
        """Revokes the tokens of the session durably."""

    # --- applications, for the operator

    async def create_application(
        self, by: Principal, name: str, allowed: rows.ApplicationRights = rows.EVERYTHING
    ) -> NewApplicationToken: ...

    async def change_application(
        self, by: Principal, name: str, allowed: rows.ApplicationRights
    ) -> rows.ApplicationRow:
        """Replaces all rights of the application; `end_outside` then ends subscriptions that they exclude."""

    def end_outside(self, application: int) -> AsyncIterator[list[rows.FrontendRow]]:
        """Ends subscriptions of the application's subscribers and groups to channels that it may not use; yields them
        in batches. An interruption is completed when the accounts are opened again."""

    async def renew_application_token(self, by: Principal, name: str) -> NewApplicationToken:
        """Replaces the token; the old one is no longer valid. The application may do this itself."""

    def remove_application(self, by: Principal, name: str) -> AsyncIterator[Removed]:
        """Removes the application in batches. No subscriber registers or logs in after the first batch, and an
        interrupted removal is completed later. `default` cannot be removed (ConflictError)."""

    async def applications(self, by: Principal) -> list[rows.ApplicationRow]:
        """All applications for the operator; for an application, only itself."""

    async def application(self, by: Principal, name: str) -> rows.ApplicationRow: ...

    # --- subscribers, for managers. Without `application`: the manager's own; for the operator, `default`.

    async def subscribers(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = rows.PAGE
    ) -> list[rows.SubscriberRow]: ...

    async def subscriber(self, by: Principal, user: str, application: str | None = None) -> rows.SubscriberRow: ...

    async def set_password(
        self,
        by: Principal,
        user: str,
        password: str,
        application: str | None = None,
        *,
        old: str | None = None,
        origin: str | None = None,
    ) -> rows.SubscriberRow:
        """Sets a password; the subscriber itself has to give the old one. All earlier tokens become invalid."""

    async def remove_subscriber(self, by: Principal, user: str, application: str | None = None) -> Removed:
        """The subscriber may do this itself."""

    # --- groups, for managers

    async def create_group(
        self, by: Principal, name: str, members: Sequence[str] = (), application: str | None = None
    ) -> GroupChanged:
        """Creates the group with these members. If a user does not exist, it creates no group."""

    async def add_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        """New members get the group's subscriptions from now on, each with a marker of its own."""

    async def remove_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        """A member may remove itself. Users that are not members are ignored."""

    async def remove_group(self, by: Principal, name: str, application: str | None = None) -> GroupChanged: ...

    async def groups(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = rows.PAGE
    ) -> list[rows.GroupRow]:
        """A subscriber sees the groups that it is in."""

    async def group(self, by: Principal, name: str, application: str | None = None) -> rows.GroupRow:
        """A group that `by` may see and subscribe for, as a manager or a member."""

    async def members(
        self, by: Principal, name: str, application: str | None = None, *, after: str = "", limit: int = rows.PAGE
    ) -> list[str]:
        """A page of users, ordered by name. Members see each other."""
