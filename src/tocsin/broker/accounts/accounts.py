"""Accounts: who asks, and what they may. The rest of a broker knows this interface only, so that accounts can become
valid at every broker without the broker changing.

    operator ── application ── subscriber ── session       each reaches what stands to its right, and nothing beside it
                     └──────── group

A `Principal` asks: a subscriber's `Session`, or the `ManagerIdentity` of one application or, for the operator, of
all. Every call that needs rights takes the principal first and raises ForbiddenError before it looks at anything, so
that nobody learns from an answer what another application has.

What is done is durable before the answer. Calls that end subscriptions tell which, and those that make some do, too:
they are in the store already, and the caller takes care of the rest of the broker.

Errors: UnauthorizedError for a bad token, user or password; ForbiddenError for a good one that may not; NotFoundError,
ConflictError; InputError and LimitError (400) for names and passwords that are too long or too short; LimitError (429)
where an application, a group or the broker has as many as it may.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from tocsin.store.broker.rows import (
    EVERYTHING,
    PAGE,
    ApplicationRights,
    ApplicationRow,
    FrontendRow,
    GroupRow,
    SubscriberRow,
)
from tocsin.wire.answers import LoginAnswer
from tocsin.wire.subscriber import Credentials

# What an application's limits may be called. Where it has none of its own the broker's settings hold.
LIMITS: Final[dict[str, str]] = {
    "subscribers": "subscribers of the application",
    "subscriptions": "subscriptions of one subscriber, without those of its groups",
    "connections": "connections of one subscriber at once",
    "groups": "groups of the application",
    "members": "members of one group",
    "group_subscriptions": "subscriptions of one group",
}


@dataclass(frozen=True, slots=True)
class Session:
    """A subscriber that has shown a good token."""

    subscriber: int
    user: str
    application: int
    application_name: str
    token_id: str
    issued_us: int
    expires_us: int
    session_id: str
    """Of the login that this token is from, directly or by renewals."""
    began_us: int


@dataclass(frozen=True, slots=True)
class ManagerIdentity:
    """Who may manage one application; with None, all of them and the broker."""

    application: int | None
    application_name: str | None = None

    @property
    def is_operator(self) -> bool:
        return self.application is None


OPERATOR: Final = ManagerIdentity(None)

Principal: TypeAlias = Session | ManagerIdentity


@dataclass(frozen=True, slots=True)
class Rights:
    """What the subscribers of an application may use. None: every one."""

    channels: frozenset[str] | None = None
    feeds: frozenset[str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(allowed: ApplicationRights) -> Rights:
        channels, feeds = (None if one is None else frozenset(one) for one in (allowed.channels, allowed.feeds))
        return Rights(channels, feeds, allowed.limits)

    def may_subscribe(self, channel: str) -> bool:
        return self.channels is None or channel in self.channels

    def may_publish(self, feed: str) -> bool:
        return self.feeds is None or feed in self.feeds


@dataclass(frozen=True, slots=True)
class NewApplicationToken:
    """An application and its new token, which is shown once and kept by nobody."""

    application: ApplicationRow
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Removed:
    """Subscribers that are gone, and what they held."""

    subscribers: list[int]
    frontends: list[FrontendRow]


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """`made`: what members got by it. `gone`: what nobody wants any more."""

    group: GroupRow
    made: list[FrontendRow] = field(default_factory=list)
    gone: list[FrontendRow] = field(default_factory=list)


class Accounts(Protocol):
    async def open(self) -> None:
        """Reads what is kept, and brings to its end what was interrupted."""

    async def close(self) -> None:
        """Passwords that are being checked are checked to the end. May be called twice."""

    # --- who asks

    async def who(self, token: str | None) -> Principal:
        """Whose token this is; without one the operator, where everybody is. Always UnauthorizedError otherwise."""

    def rights(self, application: int) -> Rights:
        """What an application's subscribers may use at this moment. Nothing, when it is not there any more."""

    # --- subscribers, for themselves

    async def register(
        self, by: Principal | None, credentials: Credentials, *, origin: str | None = None
    ) -> SubscriberRow:
        """By nobody, or a subscriber: where registration is open, and only into the application `default`. By an
        application: into itself, also when the credentials name `default`, which is what they do by default."""

    async def login(self, credentials: Credentials, *, origin: str | None = None) -> LoginAnswer:
        """Takes as long for a user, an application or a password that is wrong, and says the same of all three.

        `origin`: whence it is asked. LimitError (429, with `retry_after_s`) when too many passwords wait to be checked,
        those of one origin first; and when too many were wrong for this user, whatever is said now.
        """

    async def renew(self, session: Session) -> LoginAnswer:
        """A fresh token; the old one stays good until it ends."""

    async def logout(self, session: Session) -> None:
        """Its token is good no more, also after a restart."""

    # --- applications, for the operator

    async def create_application(
        self, by: Principal, name: str, allowed: ApplicationRights = EVERYTHING
    ) -> NewApplicationToken: ...

    async def change_application(self, by: Principal, name: str, allowed: ApplicationRights) -> ApplicationRow:
        """In place of all it had. Counts from now on; `end_outside` ends what was subscribed to before."""

    def end_outside(self, application: int) -> AsyncIterator[list[FrontendRow]]:
        """Ends in steps, each of which is told, what the application's subscribers and groups hold of channels that it
        may not use. What was interrupted is brought to its end when the accounts are opened again."""

    async def renew_application_token(self, by: Principal, name: str) -> NewApplicationToken:
        """Also by the application itself. The old one is good no more."""

    def remove_application(self, by: Principal, name: str) -> AsyncIterator[Removed]:
        """In steps, each of which is told. Nobody registers or logs in from the first one on; a removal that was
        interrupted is brought to its end. `default` stays (ConflictError)."""

    async def applications(self, by: Principal) -> list[ApplicationRow]:
        """All for the operator, and for an application itself."""

    async def application(self, by: Principal, name: str) -> ApplicationRow: ...

    # --- subscribers, for managers. Without `application`: the manager's own; for the operator, `default`.

    async def subscribers(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[SubscriberRow]: ...

    async def subscriber(self, by: Principal, user: str, application: str | None = None) -> SubscriberRow: ...

    async def set_password(
        self,
        by: Principal,
        user: str,
        password: str,
        application: str | None = None,
        *,
        old: str | None = None,
        origin: str | None = None,
    ) -> SubscriberRow:
        """For one who forgot it; and by the subscriber itself, who says the old one. All tokens from before are good no
        more."""

    async def remove_subscriber(self, by: Principal, user: str, application: str | None = None) -> Removed:
        """Also by the subscriber itself."""

    # --- groups, for managers

    async def create_group(
        self, by: Principal, name: str, members: Sequence[str] = (), application: str | None = None
    ) -> GroupChanged:
        """With these users as members: all or, when one is not there, none and no group."""

    async def add_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        """They get what the group holds, each with a marker of its own, from now on."""

    async def remove_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        """Also by a member that leaves. Users that are no members are passed over."""

    async def remove_group(self, by: Principal, name: str, application: str | None = None) -> GroupChanged: ...

    async def groups(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[GroupRow]:
        """A subscriber sees those that it is in."""

    async def group(self, by: Principal, name: str, application: str | None = None) -> GroupRow:
        """One that `by` may see and subscribe for: its managers', and its members'."""

    async def members(
        self, by: Principal, name: str, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[str]:
        """A page of users, in the order of names. Members see each other."""
