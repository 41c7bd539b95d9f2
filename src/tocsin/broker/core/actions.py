"""The actions that the broker core wants performed. Perform an action before the next event: its audience is a live
reference, not a copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import Cursor, InterestId, SubscriptionId
from tocsin.wire.errors import InputError


class DeliveryReason(Enum):
    """Why results are delivered: they have just arrived, a subscriber pulled them, or a subscriber is catching up."""

    LIVE = "live"
    PULLED = "pulled"
    CAUGHT_UP = "caught up"


# --- to subscribers


@dataclass(slots=True, unsafe_hash=True)
class Deliver:
    """Deliver all results of the interest in `(after, to]`, in order, to every subscription of the audience.

    `gap`: results up to this cursor that are not included no longer exist, and the client must learn of it. `more`:
    this page is not the last. A subscriber that pulled pulls again; one that catches up receives the next page after
    SubscriberReady.
    """

    interest: InterestId
    after: Cursor
    to: Cursor
    results: tuple[BrokerResult, ...]
    audience: Collection[SubscriptionId]
    why: DeliveryReason
    gap: Cursor | None = None
    more: bool = False


@dataclass(slots=True, unsafe_hash=True)
class NotifyAvailable:
    """There are results up to `to` that the audience can pull."""

    interest: InterestId
    to: Cursor
    audience: Collection[SubscriptionId]


@dataclass(slots=True, unsafe_hash=True)
class EndSubscriptions:
    """These subscriptions have ended, for this reason."""

    interest: InterestId
    audience: Collection[SubscriptionId]
    reason: str


@dataclass(slots=True, unsafe_hash=True)
class RefuseEvent:
    """The event does not fit the state of the subscription that it names; nothing changed."""

    subscription: SubscriptionId
    error: InputError


# --- to the cluster


@dataclass(slots=True, unsafe_hash=True)
class SubscribeBackend:
    interest: InterestId


@dataclass(slots=True, unsafe_hash=True)
class UnsubscribeBackend:
    interest: InterestId


@dataclass(slots=True, unsafe_hash=True)
class Fetch:
    """Fetch the results in `(after, to]`: at most the first `limit`, and none after the result that reaches
    `limit_bytes`. FetchSucceeded or FetchFailed answers it by its number."""

    fetch: int
    interest: InterestId
    after: Cursor
    to: Cursor
    limit: int
    limit_bytes: int


@dataclass(slots=True, unsafe_hash=True)
class ReportConsumed:
    """The lowest acknowledged cursor per interest: the cluster need not keep results up to there for us."""

    lowest: Mapping[InterestId, Cursor]


Action = (
    Deliver
    | NotifyAvailable
    | EndSubscriptions
    | RefuseEvent
    | SubscribeBackend
    | UnsubscribeBackend
    | Fetch
    | ReportConsumed
)
