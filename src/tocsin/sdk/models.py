"""The data that managers and members get of groups, subscribers and applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from tocsin.wire.answers import Subscription, parse_subscription
from tocsin.wire.envelopes import parse_interest, parse_moment
from tocsin.wire.errors import InputError
from tocsin.wire.subscriber import Mode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """A subscription of a group; `unsubscribe_group` ends it for all members by its `id`."""

    id: str
    interest: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class Group:
    """A group of users. `members` and `subscriptions` are filled only if a single group was requested."""

    name: str
    created_at: datetime
    members: tuple[str, ...] = ()
    subscriptions: tuple[GroupSubscription, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A subscriber as managers see it. `online`, `subscriptions` and `webhook` are filled only if a single subscriber
    was requested; `more`: it has more subscriptions than these."""

    user: str
    created_at: datetime
    online: bool | None = None
    subscriptions: tuple[Subscription, ...] = ()
    more: bool = False
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Application:
    """An application and its rights. `channels`, `feeds`: None means all. `token` is set only when it is new."""

    name: str
    channels: tuple[str, ...] | None
    feeds: tuple[str, ...] | None
    limits: Mapping[str, int]
    subscribers: int
    created_at: datetime
    token: str | None = field(default=None, repr=False)


def parse_group(said: Any) -> Group:
    def read() -> Group:
        subscriptions = tuple(
            GroupSubscription(fields["id"], parse_interest(fields["interest"]), fields["mode"])
            for fields in said.get("subscriptions", ())
        )
        return Group(said["name"], parse_moment(said["created_at"]), tuple(said.get("members", ())), subscriptions)

    return _read(read, "a group")


def parse_subscriber(said: Any) -> Subscriber:
    return _read(
        lambda: Subscriber(
            said["user"],
            parse_moment(said["created_at"]),
            said.get("online"),
            tuple(parse_subscription(fields) for fields in said.get("subscriptions", ())),
            said.get("more", False),
            said.get("webhook"),
        ),
        "a subscriber",
    )


def parse_application(said: Any) -> Application:
    return _read(
        lambda: Application(
            said["name"],
            None if said["channels"] is None else tuple(said["channels"]),
            None if said["feeds"] is None else tuple(said["feeds"]),
            said["limits"],
            said["subscribers"],
            parse_moment(said["created_at"]),
            said.get("token"),
        ),
        "an application",
    )


async def whole_group(ask: Callable[..., Awaitable[Any]], name: str) -> Group:
    """The group with the members of all pages."""
    path, members, after = f"/v1/groups/{quote_path(name)}", [], None
    while True:
        page = await ask("GET", path, params=None if after is None else {"after": after})
        members += page["members"]
        after = page["next"]
        if after is None:
            return replace(parse_group(page), members=tuple(members))


def quote_path(name: str) -> str:
    """A name, percent-encoded as part of a path."""
    return quote(name, safe="")


def _read(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this is not {what}: {error!r}") from None
