"""What a broker's store keeps, row by row (see broker_store), and what not every backend could keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor, Position
from tocsin.store.channel_store import PARAMETERS_LIMIT, SUBSCRIPTION_ID_LIMIT
from tocsin.store.epochs import HIGHEST
from tocsin.store.store import DATAVERSE_LIMIT, NAME_LIMIT, check_text
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.subscriber import Mode

PERSON_LIMIT: Final = 128
"""Characters of the name of an application, a user or a group."""
CHANNEL_LIMIT: Final = DATAVERSE_LIMIT + 1 + NAME_LIMIT
URL_LIMIT: Final = 2_048
TEXT_LIMIT: Final = 4_096
"""Characters of a fact, a secret, a hash or a token's id."""
LISTED: Final = 10_000
"""How many channels or feeds an application may name."""
LIMITS: Final = 100
"""How many limits of its own an application may have."""
PAGE: Final = 1_000

MODES: Final = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Application:
    """`digest`: of its token; None while it has none. `channels`, `feeds`: those it may use; None: every one.

    `subscribers`: how many it has. `closed`: it is being removed, and takes nobody any more.
    """

    id: int
    name: str
    digest: str | None
    channels: tuple[str, ...] | None
    feeds: tuple[str, ...] | None
    limits: Mapping[str, int]
    created_us: int
    subscribers: int = 0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Subscriber:
    """`password`: its hash, with all that is needed to check it. Tokens made before `tokens_from_us` count no more."""

    id: int
    application: int
    user: str
    created_us: int
    tokens_from_us: int = 0
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Group:
    id: int
    application: int
    name: str
    created_us: int


@dataclass(frozen=True, slots=True)
class NewBackend:
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
class Backend:
    """`head`: the cluster has told of results up to this cursor; never before `since`."""

    interest: int
    channel: str
    parameters: str
    subscription: str
    since: Cursor
    head: Cursor


@dataclass(frozen=True, slots=True)
class Rebound:
    """What the cluster calls a backend from now on, after it has forgotten what it called it before.

    `head`: up to where it has told of results under the new number by now.
    """

    interest: int
    new_interest: int
    subscription: str
    since: Cursor
    head: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """`since`: everything after this cursor; None: after the backend's head, what is made from now on."""

    subscriber: int
    interest: int
    mode: Mode = "inline"
    since: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Frontend:
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
class Subscribed:
    """`made`: it was not there before."""

    frontend: Frontend
    made: bool


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """What a group holds. `public_id` begins with `grp_`."""

    public_id: str
    group: int
    interest: int
    mode: Mode
    created_us: int


@dataclass(frozen=True, slots=True)
class GroupSubscribed:
    """`made`: the group did not hold it before. `frontends`: those that members got by it."""

    subscription: GroupSubscription
    made: bool
    frontends: list[Frontend]


@dataclass(frozen=True, slots=True)
class Webhook:
    """`secret` signs what is sent to `url`."""

    subscriber: int
    url: str
    created_us: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Link:
    """Where the broker stands with its cluster. `epoch`: the cluster's life that it registered in, 0 before that.

    `position`: everything the cluster told up to there is known. `secret` signs its announcements.
    """

    epoch: int
    position: Position
    secret: str | None = field(default=None, repr=False)


def check_person(what: str, name: str) -> None:
    check_text(what, name, PERSON_LIMIT)
    if not name:
        raise InputError(f"a {what} cannot be empty")


def check_cursor(cursor: Cursor) -> None:
    """Refuses what does not fit the store: an epoch of 63 bits, execution and ordinal together of as many."""
    epoch, execution, ordinal = cursor
    if not (0 <= epoch <= HIGHEST and 0 <= execution <= HIGHEST >> ORDINAL_BITS and 0 <= ordinal <= LAST_ORDINAL):
        raise InputError(f"the cursor {epoch}-{execution}-{ordinal} is beyond every result")


def check_position(position: Position) -> None:
    if not (0 <= position.epoch <= HIGHEST and 0 <= position.number <= HIGHEST):
        raise InputError(f"the position {position.epoch}-{position.number} is beyond all news")


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise InputError(f"there is no mode {mode!r}", hint=f"modes: {', '.join(MODES)}")


def check_backend(backend: NewBackend) -> None:
    check_text("channel", backend.channel, CHANNEL_LIMIT)
    check_text("list of parameters", backend.parameters, PARAMETERS_LIMIT)
    check_text("subscription's id", backend.subscription, SUBSCRIPTION_ID_LIMIT)
    check_cursor(backend.since)
    if backend.head is not None:
        check_cursor(backend.head)
    check_number("interest", backend.interest)


def check_rebound(rebound: Rebound) -> None:
    check_text("subscription's id", rebound.subscription, SUBSCRIPTION_ID_LIMIT)
    check_cursor(rebound.since)
    if rebound.head is not None:
        check_cursor(rebound.head)
    check_number("interest", rebound.new_interest)


def check_wanted(wanted: Wanted) -> None:
    check_mode(wanted.mode)
    if wanted.since is not None:
        check_cursor(wanted.since)


def check_number(what: str, number: int) -> None:
    if not 1 <= number <= HIGHEST:
        raise InputError(f"there is no {what} {number}")


def check_kept(what: str, *texts: str) -> None:
    for text in texts:
        check_text(what, text, TEXT_LIMIT)


def check_application(channels: Sequence[str] | None, feeds: Sequence[str] | None, limits: Mapping[str, int]) -> None:
    for what, names in (("channels", channels), ("feeds", feeds)):
        if len(names or ()) > LISTED:
            raise LimitError(f"an application cannot name {len(names or ())} {what}", hint=f"at most {LISTED}")
        for name in names or ():
            check_text(f"name among the {what}", name, CHANNEL_LIMIT)
    if len(limits) > LIMITS:
        raise LimitError(f"an application cannot have {len(limits)} limits", hint=f"at most {LIMITS}")
    for name, limit in limits.items():
        check_person("name of a limit", name)
        if not 0 <= limit <= HIGHEST:
            raise InputError(f"the limit {name} cannot be {limit}")
