"""Defines the events that the broker core handles. Interests and subscriptions have ids of their own types
(`InterestId`, `SubscriptionId`); a subscriber is any hashable value.

Events and actions are immutable by convention only: a frozen dataclass takes six times as long to create, and the
broker creates several for each thing that happens.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor, InterestId, SubscriptionId


class Mode(Enum):
    """How a subscription is served: it is notified that there are results to pull, or it is sent the results inline."""

    NOTIFY = "notify"
    INLINE = "inline"


# --- subscribers


@dataclass(slots=True, unsafe_hash=True)
class SubscribeRequested:
    """A subscriber wants the results after the cursor `since`; None means those that are made from now on."""

    subscription: SubscriptionId
    subscriber: Hashable
    interest: InterestId
    since: Cursor | None = None
    mode: Mode = Mode.NOTIFY


@dataclass(slots=True, unsafe_hash=True)
class UnsubscribeRequested:
    subscription: SubscriptionId


@dataclass(slots=True, unsafe_hash=True)
class SubscriberLoggedIn:
    subscriber: Hashable


@dataclass(slots=True, unsafe_hash=True)
class SubscriberLoggedOut:
    subscriber: Hashable


@dataclass(slots=True, unsafe_hash=True)
class ResultsRequested:
    """Subscriptions of one interest pull the results that they lack.

    `after` replaces their markers as the beginning of the range, but never reaches back before they subscribed. `limit`
    is the largest number of results that they want.
    """

    interest: InterestId
    subscriptions: Collection[SubscriptionId]
    after: Cursor | None = None
    limit: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class ResultsRequestedByMany:
    """Subscriptions of several interests each pull what they lack, for example after their subscriber was away."""

    subscriptions: tuple[SubscriptionId, ...]


@dataclass(slots=True, unsafe_hash=True)
class ResultsAcknowledged:
    """These subscriptions of one interest have everything up to the cursor. Acknowledgements are cumulative, and a
    cursor before the marker has no effect.

    If `subscriptions` is the audience object of a delivery, the whole audience is acknowledged in one step.
    """

    interest: InterestId
    cursor: Cursor
    subscriptions: Collection[SubscriptionId]


@dataclass(slots=True, unsafe_hash=True)
class ResultsAcknowledgedByMany:
    """Subscriptions of several interests, each with the cursor up to which it has everything."""

    acks: tuple[tuple[SubscriptionId, Cursor], ...]


@dataclass(slots=True, unsafe_hash=True)
class SubscriberFellBehind:
    """A slow consumer takes no more for now. `sent` is the last cursor that it was sent; None means its marker."""

    subscription: SubscriptionId
    sent: Cursor | None = None


@dataclass(slots=True, unsafe_hash=True)
class SubscriberReady:
    """A client has room again and continues with what it lacks."""

    subscription: SubscriptionId


# --- the cluster


@dataclass(slots=True, unsafe_hash=True)
class BackendSubscribed:
    """The cluster has made our backend subscription; we receive the results after `since`."""

    interest: InterestId
    since: Cursor


@dataclass(slots=True, unsafe_hash=True)
class BackendSubscriptionLost:
    """The cluster refuses or has ended our backend subscription."""

    interest: InterestId
    reason: str


@dataclass(slots=True, unsafe_hash=True)
class ResultArrived:
    """The cluster pushed the next result of an interest."""

    interest: InterestId
    cursor: Cursor
    size_bytes: int
    payload: Any = None


@dataclass(slots=True, unsafe_hash=True)
class ResultsAnnounced:
    """The cluster announces that an interest has results up to the cursor."""

    interest: InterestId
    cursor: Cursor


@dataclass(slots=True, unsafe_hash=True)
class FetchSucceeded:
    """The answer to a Fetch: all results up to `to`, which lies before the requested end if the range was too large.

    `gap`: results after the requested beginning and up to this cursor no longer exist. `size_bytes` is the size of all
    results; None means that the core has to add it up.
    """

    fetch: int
    to: Cursor
    results: tuple[BrokerResult, ...]
    took_s: float
    gap: Cursor | None = None
    size_bytes: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class FetchesSucceeded:
    """Several answers that came at the same moment."""

    answers: tuple[FetchSucceeded, ...]


@dataclass(slots=True, unsafe_hash=True)
class FetchFailed:
    """The fetch failed; the core retries it after `fetch_retry_s`."""

    fetch: int


# --- the broker itself


@dataclass(slots=True, unsafe_hash=True)
class TimePassed:
    """Only time has passed; the core does what is due."""


@dataclass(slots=True, unsafe_hash=True)
class CachePoliciesChanged:
    """The caches use other policies from now on; their content stays."""

    caching: CachingSettings


BrokerEvent = (
    SubscribeRequested
    | UnsubscribeRequested
    | SubscriberLoggedIn
    | SubscriberLoggedOut
    | ResultsRequested
    | ResultsRequestedByMany
    | ResultsAcknowledged
    | ResultsAcknowledgedByMany
    | SubscriberFellBehind
    | SubscriberReady
    | BackendSubscribed
    | BackendSubscriptionLost
    | ResultArrived
    | ResultsAnnounced
    | FetchSucceeded
    | FetchesSucceeded
    | FetchFailed
    | TimePassed
    | CachePoliciesChanged
)
