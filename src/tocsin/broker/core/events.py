"""What can happen to a broker. Interests, subscriptions and subscribers are whatever names the shell gives them.

Nobody changes an event or an action. They are not frozen all the same: making one would be six times as dear, and
the broker makes some for everything that happens.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor


class Mode(Enum):
    """How a subscription is served: told that there is something to pull, or sent the results themselves."""

    NOTIFY = "notify"
    INLINE = "inline"


# --- subscribers


@dataclass(slots=True, unsafe_hash=True)
class SubscribeRequested:
    """`since`: wants everything after this cursor; None: what is made from now on."""

    subscription: Hashable
    subscriber: Hashable
    interest: Hashable
    since: Cursor | None = None
    mode: Mode = Mode.NOTIFY


@dataclass(slots=True, unsafe_hash=True)
class UnsubscribeRequested:
    subscription: Hashable


@dataclass(slots=True, unsafe_hash=True)
class SubscriberLoggedIn:
    subscriber: Hashable


@dataclass(slots=True, unsafe_hash=True)
class SubscriberLoggedOut:
    subscriber: Hashable


@dataclass(slots=True, unsafe_hash=True)
class ResultsRequested:
    """Subscriptions of one interest ask for what they lack. `after` asks from there instead of from their markers, but
    never for what was made before they subscribed. `limit`: no more than so many results are wanted."""

    interest: Hashable
    subscriptions: Collection[Hashable]
    after: Cursor | None = None
    limit: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class ResultsRequestedByMany:
    """Subscriptions of any interests ask for what each lacks, as somebody does who has been away."""

    subscriptions: tuple[Hashable, ...]


@dataclass(slots=True, unsafe_hash=True)
class ResultsAcknowledged:
    """These subscriptions of one interest have everything up to the cursor. Cumulative; going back means nothing.

    Where the subscriptions are the audience of a delivery, handed back as it came, all of it acknowledges at once.
    """

    interest: Hashable
    cursor: Cursor
    subscriptions: Collection[Hashable]


@dataclass(slots=True, unsafe_hash=True)
class ResultsAcknowledgedByMany:
    """Subscriptions of any interests, each with the cursor up to which it has everything."""

    acks: tuple[tuple[Hashable, Cursor], ...]


@dataclass(slots=True, unsafe_hash=True)
class SubscriberFellBehind:
    """A client takes no more for now. `sent`: the last that it was sent; None: what it has acknowledged."""

    subscription: Hashable
    sent: Cursor | None = None


@dataclass(slots=True, unsafe_hash=True)
class SubscriberReady:
    """A client has room (again), and gets on with what it lacks."""

    subscription: Hashable


# --- the cluster


@dataclass(slots=True, unsafe_hash=True)
class BackendSubscribed:
    """The cluster holds our subscription; results after `since` concern us."""

    interest: Hashable
    since: Cursor


@dataclass(slots=True, unsafe_hash=True)
class BackendSubscriptionLost:
    """The cluster refuses or has ended our subscription."""

    interest: Hashable
    reason: str


@dataclass(slots=True, unsafe_hash=True)
class ResultArrived:
    """The cluster pushed the next result of an interest."""

    interest: Hashable
    cursor: Cursor
    size_bytes: int
    payload: Any = None


@dataclass(slots=True, unsafe_hash=True)
class ResultsAnnounced:
    """An interest has results up to the cursor."""

    interest: Hashable
    cursor: Cursor


@dataclass(slots=True, unsafe_hash=True)
class FetchSucceeded:
    """The answer to a Fetch: all results up to `to`, which lies before the asked end when that was too much.

    `gap`: results after the asked beginning and up to this cursor are gone for good. `size_bytes`: of all results; None
    where that has to be counted.
    """

    fetch: int
    to: Cursor
    results: tuple[BrokerResult, ...]
    took_s: float
    gap: Cursor | None = None
    size_bytes: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class FetchesSucceeded:
    """Answers that came at the same moment."""

    answers: tuple[FetchSucceeded, ...]


@dataclass(slots=True, unsafe_hash=True)
class FetchFailed:
    """It will be asked again after a while."""

    fetch: int


# --- the broker itself


@dataclass(slots=True, unsafe_hash=True)
class TimePassed:
    """Nothing but time."""


@dataclass(slots=True, unsafe_hash=True)
class CachePoliciesChanged:
    """Other caching policies from now on; the content stays."""

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
