"""Messages about accounts: groups, subscribers, applications and webhooks, and the answer to publishing.

Subscribers and managers of applications send and get them, so that clients need no code of the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from tocsin.wire.answers import Subscription
from tocsin.wire.errors import InputError
from tocsin.wire.messages import InterestText, Mark, Message, NameText, schema_of
from tocsin.wire.subscriber import DeliveryMode


def _check_limit(limit: int) -> None:
    if not 0 <= limit < 1 << 40:
        raise InputError(f"must be a whole number from 0 to {(1 << 40) - 1}")


# The names of channels or feeds; None means all.
_Allowed = tuple[NameText, ...] | None
_Limits = dict[str, Annotated[int, Mark(check=_check_limit, schema={"minimum": 0})]]


# --- requests


@dataclass(frozen=True, slots=True)
class PasswordChange(Message):
    """A new password. A subscriber sends the old one, too; a manager need not."""

    SHAPE: ClassVar[str] = '{"password": "…", "old": "…"}'

    password: str = field(repr=False)
    old: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class GroupMembers(Message):
    """Users of a group."""

    SHAPE: ClassVar[str] = '{"members": ["…"]}'

    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewGroup(Message):
    """A group with its first members."""

    SHAPE: ClassVar[str] = '{"name": "…", "members": ["…"]}'

    name: NameText
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RightsChange(Message):
    """A change of what an application may use, and of its limits. Fields that it does not have stay unchanged."""

    SHAPE: ClassVar[str] = '{"channels": […], "feeds": […], "limits": {…}}'

    channels: _Allowed = None
    feeds: _Allowed = None
    limits: _Limits = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewApplication(Message):
    """An application and its rights."""

    SHAPE: ClassVar[str] = '{"name": "…"}, and maybe channels, feeds and limits'

    name: NameText
    channels: _Allowed = None
    feeds: _Allowed = None
    limits: _Limits = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WebhookRequest(Message):
    """Where events are posted from now on."""

    SHAPE: ClassVar[str] = '{"url": "https://…"}'

    url: str


# --- answers


def _null() -> Any:
    """A field that is written as null while it has no value, and may be absent in what is read."""
    return field(default_factory=lambda: None)


@dataclass(frozen=True, slots=True)
class GroupSubscription(Message):
    """A subscription of a group; `unsubscribe_group` ends it for all members by its `id`."""

    id: str
    interest: InterestText
    mode: DeliveryMode


@dataclass(frozen=True, slots=True)
class ListedGroup(Message):
    """A group in a list of groups."""

    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Group(Message):
    """A group of users. `members` and `subscriptions` are filled only if a single group was requested."""

    name: str
    created_at: datetime
    members: tuple[str, ...] = ()
    subscriptions: tuple[GroupSubscription, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupPage(Group):
    """A group with a page of its members."""

    next: Annotated[str | None, Mark("`after` of the next page, if there is one.")] = _null()


@dataclass(frozen=True, slots=True)
class ListedSubscriber(Message):
    """A subscriber in a list of subscribers."""

    user: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Subscriber(Message):
    """A subscriber as managers see it. `online`, `subscriptions` and `webhook` are filled only if a single subscriber
    was requested; `more`: it has more subscriptions than these."""

    user: str
    created_at: datetime
    online: bool | None = None
    subscriptions: tuple[Subscription, ...] = ()
    more: bool = False
    webhook: str | None = _null()


@dataclass(frozen=True, slots=True)
class Application(Message):
    """An application and its rights. `channels`, `feeds`: None means all. `token` is set only when it is new."""

    name: str
    channels: tuple[str, ...] | None
    feeds: tuple[str, ...] | None
    limits: dict[str, int]
    subscribers: int
    created_at: datetime
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Webhook(Message):
    """Where events are posted. `secret` signs them (`tocsin.sdk.verify`) and is shown only when the webhook is made."""

    url: str
    secret: str | None = field(default=None, repr=False)


_REJECTED: Final = {
    "index": Annotated[int, Mark("The position of the record in the body, from 0.")],
    "field": Annotated[str, Mark("The field that was wrong; empty for the record as a whole.")],
    "reason": str,
}
# Clients get the fields as a dict.
_RejectedRecord = Annotated[
    dict[str, Any],
    Mark(
        schema={"properties": {name: schema_of(kind) for name, kind in _REJECTED.items()}, "required": list(_REJECTED)}
    ),
]


@dataclass(frozen=True, slots=True)
class PublishAnswer(Message):
    """`accepted` records are durable. `rejected` are those that the feed refused (`index`, `field`, `reason`)."""

    accepted: Annotated[int, Mark("The number of records that are durable now.", schema={"minimum": 0})]
    rejected: Annotated[
        tuple[_RejectedRecord, ...],
        Mark("The first thousand rejected records; the dataset `<feed>Rejected` has all of them."),
    ]
    rejected_in_all: Annotated[int | None, Mark("The number of rejected records, if not all are listed.")] = None
