"""What the channel store keeps and answers, row by row (see channel_store)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tocsin.rules.model.cursors import Cursor, Position


class BrokerName(NamedTuple):
    dataverse: str
    name: str


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """A subscription to be made. `parameters` is the canonical text: equal texts are one interest.

    `id` is the client's own key; without one the store makes a UUID. `application`: of the broker's, for which it is
    made; empty where the broker does not say.
    """

    parameters: str
    broker: BrokerName
    id: str | None = None
    application: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """`since`: after this cursor it sees results, those of executions later than its making."""

    id: str
    channel_id: int
    interest: int
    parameters: str
    broker: BrokerName
    since: Cursor
    created_us: int
    application: str = ""


@dataclass(frozen=True, slots=True)
class SubscribeOutcome:
    """`made`: it was not there before. `new_interest`: this call made the interest."""

    id: str
    interest: int
    since: Cursor
    made: bool
    new_interest: bool


@dataclass(frozen=True, slots=True)
class UnsubscribeOutcome:
    """`removed`: the ids that were there. `emptied`: the interests that went with their last subscription."""

    removed: list[str]
    emptied: list[int]


@dataclass(frozen=True, slots=True)
class ChannelState:
    """`change` numbers the last change of the interests; `result_bytes` is about what its results take on the disk."""

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
    """A chunk of all interests, as columns, oldest first. Whoever has read all asks for the changes since `change`."""

    change: int
    ids: list[int]
    parameters: list[str]


@dataclass(frozen=True, slots=True)
class InterestChanges:
    """What happened up to `change`. An id in `removed` may be one the reader never heard of."""

    change: int
    added: list[tuple[int, str]]
    removed: list[int]
    more: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a channel that came to its end. `vector`: how far it read, per dataset. `details`: JSON."""

    number: int
    started_us: int
    ended_us: int
    vector: Mapping[str, int]
    tick_us: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed: it will be tried again under the same number. `details`: JSON, such as the culprits."""

    number: int
    started_us: int
    ended_us: int
    reason: str
    tick_us: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommittedExecution:
    """`position` stands after this execution's results. `results` counts those kept, and `left_out` those of interests
    that had more than they may, see `commit_execution`."""

    position: Position
    results: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """An execution as it is kept; `reason` says why it failed, None when it did not. `results` were found by it."""

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
    """`executed_us`: the execution's tick, or where it has none, its start."""

    cursor: Cursor
    executed_us: int
    payload: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.payload)


class FetchedRange(NamedTuple):
    """Some results of the range with this place in the request.

    `gap`: results after the range's beginning (or after what came of it before) and up to this cursor are gone;
    everything later is there. `known` is False when there is no such interest, or no more.
    """

    range: int
    results: list[ResultRow]
    gap: Cursor | None = None
    known: bool = True


class NewResults(NamedTuple):
    """This interest of this broker's has results up to `cursor`; `first` is the first of them on this page."""

    broker: BrokerName
    channel_id: int
    interest: int
    cursor: Cursor
    first: Cursor


@dataclass(frozen=True, slots=True)
class NewResultsPage:
    """What happened up to `position`; `more` when that is not all yet.

    `gaps`: channels of which results were removed before they could be told here. Whoever holds interests in them
    fetches these from its own cursors, and is told there what is gone. `dropped`: how many channels ever were.
    """

    position: Position
    items: list[NewResults]
    gaps: list[int]
    more: bool
    dropped: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that is told of news. `secret` signs what it is told; `owner` is who registered it: None while nobody
    has, and "" for somebody whose name is not known.

    `position`: it knows everything up to there. `generation`: of the process that has the name now, `holder` the id of
    its store; None where there is none, or it is not known since a restore.
    """

    broker: BrokerName
    owner: str | None
    position: Position
    secret: str = field(repr=False)
    generation: Position | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerClaim:
    """A broker's process that wants its name. `store` is the id of its store, another one after a restore, and
    `generation` the last that it was given, if any. `starts`: the process has not been given one yet."""

    store: str
    generation: Position | None
    starts: bool
