"""What managers and members are told of groups, subscribers and applications."""

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
    """What a group holds; `id` ends it for all (`unsubscribe_group`)."""

    id: str
    interest: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class Group:
    """`members` and `subscriptions` are there where one group was asked for."""

    name: str
    created_at: datetime
    members: tuple[str, ...] = ()
    subscriptions: tuple[GroupSubscription, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscriber:
    """`online`, `subscriptions` and `webhook` are there where one subscriber was asked for; `more`: it has more
    subscriptions than these."""

    user: str
    created_at: datetime
    online: bool | None = None
    subscriptions: tuple[Subscription, ...] = ()
    more: bool = False
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Application:
    """`channels`, `feeds`: None for all. `token`: only where it is new; it is never told again."""

    name: str
    channels: tuple[str, ...] | None
    feeds: tuple[str, ...] | None
    limits: Mapping[str, int]
    subscribers: int
    created_at: datetime
    token: str | None = field(default=None, repr=False)


def parse_group(said: Any) -> Group:
    def read() -> Group:
        held = tuple(
            GroupSubscription(one["id"], parse_interest(one["interest"]), one["mode"])
            for one in said.get("subscriptions", ())
        )
        return Group(said["name"], parse_moment(said["created_at"]), tuple(said.get("members", ())), held)

    return _read(read, "a group")


def parse_subscriber(said: Any) -> Subscriber:
    return _read(
        lambda: Subscriber(
            said["user"],
            parse_moment(said["created_at"]),
            said.get("online"),
            tuple(parse_subscription(one) for one in said.get("subscriptions", ())),
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
    """All its pages."""
    path, members, after = f"/v1/groups/{part(name)}", [], None
    while True:
        said = await ask("GET", path, params=None if after is None else {"after": after})
        members += said["members"]
        after = said["next"]
        if after is None:
            return replace(parse_group(said), members=tuple(members))


def part(name: str) -> str:
    """Of a path."""
    return quote(name, safe="")


def _read(read: Callable[[], T], what: str) -> T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this is not {what}: {error!r}") from None
