"""Rows of the broker's store: what it stores and returns (see store/broker/interface.py).

They are plain values, so that every backend of the store returns the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tocsin.rules.model.cursors import Cursor, InterestId, Position, SubscriptionId
from tocsin.wire.subscriber import DeliveryMode

PAGE: Final = 1_000

# Names of facts.
SESSION_KEY: Final = "session-key"
STORE_ID: Final = "store-id"
NAME_SINCE: Final = "name-since-us"
GENERATION: Final = "generation"
FENCED: Final = "fenced"
NOT_RESTORED: Final = (SESSION_KEY, STORE_ID, NAME_SINCE, GENERATION, FENCED)
"""Facts that belong to one lifetime of a store: a restored backup begins without them."""


@dataclass(frozen=True, slots=True)
class ApplicationRights:
    """What an application may use: `channels` and `feeds` (None allows all), and its own `limits` by name."""

    channels: Sequence[str] | None = None
    feeds: Sequence[str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


EVERYTHING: Final = ApplicationRights()


@dataclass(frozen=True, slots=True)
class ApplicationRow:
    """An application. `digest` is the digest of its token, None without a token; `subscribers` is their number.

    `closed`: the application is being removed and accepts no subscribers.
    """

    id: int
    name: str
    digest: str | None
    allowed: ApplicationRights
    created_us: int
    subscribers: int = 0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """`password` is a hash with all that is needed to check it. Tokens made before `tokens_from_us` are invalid."""

    id: int
    application: int
    user: str
    created_us: int
    tokens_from_us: int = 0
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class GroupRow:
    id: int
    application: int
    name: str
    created_us: int


@dataclass(frozen=True, slots=True)
class NewBackendRow:
    """A backend subscription that the cluster has granted under the id `subscription`. `parameters`: canonical text.

    `head`: the cluster has announced results up to this cursor, which it may do before the backend is stored.
    """

    interest: InterestId
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor | None = None


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A stored backend subscription. `head`: results up to this cursor are announced; never before `since`."""

    interest: InterestId
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor


@dataclass(frozen=True, slots=True)
class ReboundBackend:
    """The new identity of a backend after the cluster has lost the old one.

    `head`: the cluster has announced results up to this cursor under the new interest.
    """

    interest: InterestId
    new_interest: InterestId
    subscription: str
    since: Cursor
    head: Cursor | None = None


@dataclass(frozen=True, slots=True)
class FrontendRequest:
    """A request for a frontend. It gets everything after the cursor `since`; None means after the backend's head."""

    subscriber: int
    interest: InterestId
    mode: DeliveryMode = "inline"
    since: Cursor | None = None


@dataclass(frozen=True, slots=True)
class FrontendRow:
    """A subscriber's hold on an interest. `id` is internal; the subscriber knows it as `public_id` (`sub_…`).

    It exists while the subscriber itself (`own`) or one of its `groups` holds the interest. `marker`: the subscriber
    has acknowledged everything up to this cursor; never before `since`.
    """

    id: SubscriptionId
    public_id: str
    subscriber: int
    interest: InterestId
    mode: DeliveryMode
    since: Cursor
    marker: Cursor
    created_us: int
    own: bool = True
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FrontendOutcome:
    """`made`: the frontend is new."""

    frontend: FrontendRow
    made: bool


@dataclass(frozen=True, slots=True)
class GroupSubscriptionRow:
    """A group's hold on an interest. `public_id` begins with `grp_`."""

    public_id: str
    group: int
    interest: InterestId
    mode: DeliveryMode
    created_us: int


@dataclass(frozen=True, slots=True)
class GroupSubscriptionOutcome:
    """`made`: the group's subscription is new. `frontends`: those that members got through it."""

    subscription: GroupSubscriptionRow
    made: bool
    frontends: list[FrontendRow]


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """`secret` signs what is sent to `url`."""

    subscriber: int
    application: int
    url: str
    created_us: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """The broker's link to its cluster. `epoch`: the cluster's epoch in which it registered, 0 before that.

    `position`: the broker knows everything that the cluster announced up to there. `secret` signs the announcements.
    """

    epoch: int
    position: Position
    secret: str | None = field(default=None, repr=False)
