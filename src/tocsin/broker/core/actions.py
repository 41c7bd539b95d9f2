"""What a broker wants done. An audience is handed over by reference: perform an action before the next event."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import InputError


class DeliveryReason(Enum):
    """Why something is delivered: it has just come, it was asked for, or somebody is catching up."""

    LIVE = "live"
    PULLED = "pulled"
    CAUGHT_UP = "caught up"


# --- to subscribers


@dataclass(slots=True, unsafe_hash=True)
class Subscribed:
    """The subscription holds; it gets everything after `since`."""

    subscription: Hashable
    interest: Hashable
    since: Cursor


@dataclass(slots=True, unsafe_hash=True)
class Deliver:
    """All results of the interest in `(after, to]`, in order, to everybody in the audience.

    `gap`: of the results up to this cursor those that are not here are gone for good: say so. `more`: this is not
    all yet. Who pulled pulls again; who is catching up gets the rest after Ready.
    """

    interest: Hashable
    after: Cursor
    to: Cursor
    results: tuple[BrokerResult, ...]
    audience: Collection[Hashable]
    why: DeliveryReason
    gap: Cursor | None = None
    more: bool = False


@dataclass(slots=True, unsafe_hash=True)
class NotifyAvailable:
    """There are results up to `to`: the audience may pull."""

    interest: Hashable
    to: Cursor
    audience: Collection[Hashable]


@dataclass(slots=True, unsafe_hash=True)
class EndSubscriptions:
    """These subscriptions are gone, and this is why."""

    interest: Hashable
    audience: Collection[Hashable]
    reason: str


@dataclass(slots=True, unsafe_hash=True)
class RefuseEvent:
    """An event named a subscription with which that cannot be done; nothing changed."""

    subscription: Hashable
    error: InputError


# --- to the cluster


@dataclass(slots=True, unsafe_hash=True)
class SubscribeBackend:
    interest: Hashable


@dataclass(slots=True, unsafe_hash=True)
class UnsubscribeBackend:
    interest: Hashable


@dataclass(slots=True, unsafe_hash=True)
class Fetch:
    """The results in `(after, to]`: at most the first `limit`, and none after the one that reaches `limit_bytes`.
    Answered by Fetched or FetchFailed with its number."""

    fetch: int
    interest: Hashable
    after: Cursor
    to: Cursor
    limit: int
    limit_bytes: int


@dataclass(slots=True, unsafe_hash=True)
class ReportConsumed:
    """What everybody here has, per interest: the cluster needs to keep nothing up to there for us."""

    lowest: Mapping[Hashable, Cursor]


Action = (
    Subscribed
    | Deliver
    | NotifyAvailable
    | EndSubscriptions
    | RefuseEvent
    | SubscribeBackend
    | UnsubscribeBackend
    | Fetch
    | ReportConsumed
)
