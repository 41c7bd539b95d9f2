"""What a broker's store keeps, row by row (see broker_store)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.wire.subscriber import Mode

PAGE: Final = 1_000

# Names of facts.
SESSION_KEY: Final = "session-key"
STORE_ID: Final = "store-id"
NAME_SINCE: Final = "name-since-us"
GENERATION: Final = "generation"
FENCED: Final = "fenced"
NOT_RESTORED: Final = (SESSION_KEY, STORE_ID, NAME_SINCE, GENERATION, FENCED)
"""What belongs to one life of a store: a backup that is brought back begins without."""


@dataclass(frozen=True, slots=True)
class ApplicationRights:
    """What an application may. `channels`, `feeds`: those it may use; None: every one. `limits`: its own, by name."""

    channels: Sequence[str] | None = None
    feeds: Sequence[str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


EVERYTHING: Final = ApplicationRights()


@dataclass(frozen=True, slots=True)
class ApplicationRow:
    """`digest`: of its token; None while it has none. `subscribers`: how many it has.

    `closed`: it is being removed, and takes nobody any more.
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
    """`password`: its hash, with all that is needed to check it. Tokens made before `tokens_from_us` count no more."""

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
    """A hold on an interest that the cluster has granted under this `subscription`. `parameters`: canonical text.

    `head`: up to where the cluster has told of results by now, which it may do before the backend is kept.
    """

    interest: int
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor | None = None


@dataclass(frozen=True, slots=True)
class BackendRow:
    """`head`: the cluster has told of results up to this cursor; never before `since`."""

    interest: int
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor


@dataclass(frozen=True, slots=True)
class ReboundBackend:
    """What the cluster calls a backend from now on, after it has forgotten what it called it before.

    `head`: up to where it has told of results under the new number by now.
    """

    interest: int
    new_interest: int
    subscription: str
    since: Cursor
    head: Cursor | None = None


@dataclass(frozen=True, slots=True)
class FrontendRequest:
    """`since`: everything after this cursor; None: after the backend's head, what is made from now on."""

    subscriber: int
    interest: int
    mode: Mode = "inline"
    since: Cursor | None = None


@dataclass(frozen=True, slots=True)
class FrontendRow:
    """One subscriber's hold on one interest. `id` is ours; `public_id` (`sub_…`) is what the subscriber calls it.

    It is there while the subscriber wants it itself (`own`) or one of the `groups` that it is in does. `marker`: the
    subscriber has everything up to this cursor; never before `since`.
    """

    id: int
    public_id: str
    subscriber: int
    interest: int
    mode: Mode
    since: Cursor
    marker: Cursor
    created_us: int
    own: bool = True
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FrontendOutcome:
    """`made`: it was not there before."""

    frontend: FrontendRow
    made: bool


@dataclass(frozen=True, slots=True)
class GroupSubscriptionRow:
    """What a group holds. `public_id` begins with `grp_`."""

    public_id: str
    group: int
    interest: int
    mode: Mode
    created_us: int


@dataclass(frozen=True, slots=True)
class GroupSubscriptionOutcome:
    """`made`: the group did not hold it before. `frontends`: those that members got by it."""

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
    """Where the broker stands with its cluster. `epoch`: the cluster's life that it registered in, 0 before that.

    `position`: everything the cluster told up to there is known. `secret` signs its announcements.
    """

    epoch: int
    position: Position
    secret: str | None = field(default=None, repr=False)
