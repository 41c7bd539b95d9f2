"""Rows of the channel store: what it stores and returns (see store/channels/interface.py).

They are plain values, so that every backend of the store returns the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.store.cluster.interface import DATAVERSE_LIMIT, NAME_LIMIT, check_text
from tocsin.wire.cluster import STORE_ID_LIMIT, SUBSCRIPTION_ID_LIMIT
from tocsin.wire.errors import InputError

# Every backend refuses longer texts, because some backend cannot store them.
PARAMETERS_LIMIT: Final = 100_000


class BrokerName(NamedTuple):
    dataverse: str
    name: str

    def check(self) -> None:
        """Refuses what some backend cannot store, as every `check` here does."""
        check_text("dataverse", self.dataverse, DATAVERSE_LIMIT)
        check_text("broker's name", self.name, NAME_LIMIT)


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """A request for a subscription. `parameters` is the canonical text: equal texts are the same interest.

    `id` is the client's own key; without it the store makes a UUID. `application` is the broker's application for
    which the subscription is made; empty if the broker does not say.
    """

    parameters: str
    broker: BrokerName
    id: str | None = None
    application: str = ""

    def check(self) -> None:
        self.broker.check()
        check_text("application's name", self.application, NAME_LIMIT)
        check_text("list of parameters", self.parameters, PARAMETERS_LIMIT)
        if self.id is not None:
            check_text("subscription's id", self.id, SUBSCRIPTION_ID_LIMIT)
            if not self.id:
                raise InputError("a subscription's id cannot be empty", hint="leave it out to get one")


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription. It gets the results after the cursor `since`: those of executions after its creation."""

    id: str
    channel_id: int
    interest: InterestId
    parameters: str
    broker: BrokerName
    since: Cursor
    created_us: int
    application: str = ""


@dataclass(frozen=True, slots=True)
class SubscribeOutcome:
    """`made`: the subscription is new. `new_interest`: this call created the interest."""

    id: str
    interest: InterestId
    since: Cursor
    made: bool
    new_interest: bool


@dataclass(frozen=True, slots=True)
class UnsubscribeOutcome:
    """`removed`: the ids that existed. `emptied`: the interests that ended with their last subscription."""

    removed: list[str]
    emptied: list[int]


@dataclass(frozen=True, slots=True)
class ChannelState:
    """`change` numbers the last change of the interests; `result_bytes` approximates the results' size on the disk."""

    channel_id: int
    last_execution: int
    vector: dict[str, int]
    tick_us: int | None
    change: int
    interests: int
    subscriptions: int
    results: int
    result_bytes: int


@dataclass(frozen=True, slots=True)
class InterestChunk:
    """A chunk of all interests, as columns, oldest first. After the last chunk, ask for the changes since `change`."""

    change: int
    ids: list[InterestId]
    parameters: list[str]


@dataclass(frozen=True, slots=True)
class InterestChanges:
    """The changes up to `change`. `removed` may contain ids that the reader has never seen."""

    change: int
    added: list[tuple[InterestId, str]]
    removed: list[InterestId]
    more: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """A completed run of a channel. `vector`: the commit number up to which it read, per dataset. `details`: JSON."""

    number: int
    started_us: int
    ended_us: int
    vector: Mapping[str, int]
    tick_us: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed run; the channel retries it under the same number. `details`: JSON, such as the poison records."""

    number: int
    started_us: int
    ended_us: int
    reason: str
    tick_us: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommittedExecution:
    """`position` is the position after this execution's results. `results` counts the stored results, `left_out` the
    results beyond an interest's limit (see `commit_execution`).
    """

    position: Position
    results: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """An execution as it is stored. `reason` says why it failed; None if it succeeded. `results` counts its results."""

    number: int
    epoch: int
    tick_us: int | None
    started_us: int
    ended_us: int
    vector: dict[str, int]
    results: int
    reason: str | None
    details: dict[str, Any]


class ResultRow(NamedTuple):
    """A result. `executed_us` is the execution's tick, or its start if it has no tick."""

    cursor: Cursor
    executed_us: int
    payload: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.payload)


class FetchedRange(NamedTuple):
    """Some results of the range with this index in the request.

    `gap`: results between the beginning of the range (or the previous chunk) and this cursor are gone; all later
    results exist. `known` is False if the interest does not exist (any more).
    """

    range: int
    results: list[ResultRow]
    gap: Cursor | None = None
    known: bool = True


class NewResults(NamedTuple):
    """This interest of this broker has results up to `cursor`; `first` is the first of them on this page."""

    broker: BrokerName
    channel_id: int
    interest: InterestId
    cursor: Cursor
    first: Cursor


@dataclass(frozen=True, slots=True)
class NewResultsPage:
    """The new results up to `position`; `more` says whether there are further pages.

    `gaps` lists channels whose results were removed before they could be listed here. A holder of interests in them
    fetches from its own cursors; the fetch reports what is gone. `dropped` is the number of channels ever dropped.
    """

    position: Position
    items: list[NewResults]
    gaps: list[int]
    more: bool
    dropped: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that receives announcements, which `secret` signs. `owner` registered it: None before anyone has, "" if
    the owner's name is unknown.

    `position`: the broker knows everything up to there. `generation` belongs to the process that owns the name now, and
    `holder` is the id of its store. Both are None if no process owns the name, or if a restore made it unknown.
    """

    broker: BrokerName
    owner: str | None
    position: Position
    secret: str = field(repr=False)
    generation: Position | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerClaim:
    """A broker process claims its name. `store` is the id of its store, which a restore changes. `generation` is the
    last generation that it was given, if any. `starts`: this process has not been given a generation yet.
    """

    store: str
    generation: Position | None
    starts: bool

    def check(self) -> None:
        check_text("store's id", self.store, STORE_ID_LIMIT)
        if not self.store:
            raise InputError("a store's id cannot be empty")
