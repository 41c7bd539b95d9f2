"""Messages of the cluster's HTTP API: scripts, feeds, and what brokers send and get.

The cluster, its OpenAPI document and the brokers' client share these definitions, so that they cannot disagree.
`wire.results` has the messages for fetching results, `wire.announcements` the announcements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import quote, unquote

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.wire.cursors import parse_position, position_text
from tocsin.wire.errors import InputError
from tocsin.wire.messages import Mark, Message, at_most, parse_interest

_CURSORS_LIMIT: Final = 100_000
SUBSCRIPTIONS_LIMIT: Final = 100_000
SUBSCRIPTION_ID_LIMIT: Final = 200
STORE_ID_LIMIT: Final = 100
_APPLICATION_LIMIT: Final = 600


def _check_store(store: str) -> None:
    if not 0 < len(store) <= STORE_ID_LIMIT:
        raise InputError(f"must be a text of 1 to {STORE_ID_LIMIT} characters")


def _check_interest(interest: int) -> None:
    if interest >= 10**18:
        raise InputError("an interest has at most 18 digits")


_BrokerName = Annotated[str, Mark("`dataverse.broker`", schema={"minLength": 1, "examples": ["v.b"]})]
_SubscriptionId = Annotated[str, Mark(schema={"minLength": 1, "maxLength": SUBSCRIPTION_ID_LIMIT})]
_AckedInterest = Annotated[
    InterestId,
    Mark(read=parse_interest, write=str, check=_check_interest, schema={"type": "string", "pattern": "^[0-9]{1,18}$"}),
]


# --- scripts and feeds


@dataclass(frozen=True, slots=True)
class ScriptRequest(Message):
    """A script of statements."""

    SHAPE: ClassVar[str] = '{"script": "…"}, or the script itself as text/plain'

    script: str


@dataclass(frozen=True, slots=True)
class StatementResult(Message):
    """The result of one statement. A query has rows; other statements have a summary, such as `inserted`."""

    statement: Annotated[int, Mark("The position of the statement in the script, from 1.", schema={"minimum": 1})]
    kind: Annotated[str, Mark(schema={"examples": ["query", "insert", "create_dataset"]})]
    rows: Annotated[tuple[Any, ...], Mark("The rows of a query.")] = ()


@dataclass(frozen=True, slots=True)
class ServiceRequest(Message):
    """A request to the query service. Further fields `$name` give statement parameters their values."""

    statement: Annotated[str, Mark(schema={"examples": ["SELECT VALUE r FROM Reports r WHERE r.severity > $least;"]})]
    client_context_id: Annotated[str | None, Mark("A text of the client's, which the answer repeats.")] = None
    dataverse: Annotated[str | None, Mark("Where names without a dataverse are looked up; the default is Default.")] = (
        None
    )
    timeout: Annotated[str | None, Mark("The time limit, such as `30s`.", schema={"examples": ["30s"]})] = None
    args: Annotated[tuple[Any, ...], Mark("The values of `$1`, `$2` …, or of the `?` of each statement.")] = ()
    readonly: Annotated[bool, Mark("Refuse statements that change anything.")] = False
    mode: Literal["immediate"] = "immediate"
    format: Literal["json"] = "json"
    pretty: bool = False
    signature: Annotated[bool, Mark("Whether the answer has a `signature`.")] = True
    stream: Annotated[bool, Mark("Send rows when they are there, without a limit on their number.")] = False


@dataclass(frozen=True, slots=True)
class ServiceMessage(Message):
    """An error or a warning of the query service."""

    code: int
    msg: str
    retriable: bool | None = None


@dataclass(frozen=True, slots=True)
class ServiceAnswer(Message):
    """The answer of the query service. The rows of further queries are in `results-0`, `results-1` and so on."""

    requestID: str  # noqa: N815 - a name of the protocol
    status: Annotated[str, Mark(schema={"examples": ["success", "fatal", "failed", "timeout"]})]
    metrics: Annotated[dict[str, Any], Mark("`elapsedTime`, `executionTime`, `resultCount`, `resultSize` and others.")]
    clientContextID: str | None = None  # noqa: N815
    signature: dict[str, Any] | None = None
    results: Annotated[tuple[Any, ...], Mark("The rows of the first query.")] = ()
    errors: Annotated[tuple[ServiceMessage, ...], Mark("What is wrong, if the script has failed.")] = ()


@dataclass(frozen=True, slots=True)
class RunningScriptInfo(Message):
    """A script that runs, or waits to start."""

    id: str
    state: Literal["running", "waiting"]
    statement: Annotated[int | None, Mark("The position of the current statement, from 1; null while it waits.")]
    seconds: Annotated[float, Mark("Seconds since the request arrived.")]
    token: Annotated[str, Mark("The name of the token that the script was sent with.")]
    script: Annotated[str, Mark("The first characters of the script.")]


@dataclass(frozen=True, slots=True)
class FeedInfo(Message):
    """The format of a feed's records."""

    feed: str
    adapter: str
    format: str
    header: Annotated[bool | None, Mark("Whether the first line of a body names the columns.")] = None
    quote: Annotated[str | None, Mark("The character that quotes cells; empty if cells are not quoted.")] = None


# --- brokers


@dataclass(frozen=True, slots=True)
class RegistrationRequest(Message):
    """The registration of a broker. A broker that names its store gets a generation."""

    SHAPE: ClassVar[str] = '{"url": "http://…"}, or null where there is no callback'

    url: Annotated[str | None, Mark("Where announcements are posted.", schema={"examples": ["http://127.0.0.1:1/"]})]
    store: Annotated[
        str | None,
        Mark("The id of the broker's store.", check=_check_store, schema={"minLength": 1, "maxLength": STORE_ID_LIMIT}),
    ] = None
    generation: Annotated[
        Position | None, Mark("The last generation of this store; without it the broker takes over the name.")
    ] = field(default_factory=lambda: None)
    starts: Annotated[bool, Mark("Whether the process has just started, so that it has no generation yet.")] = True


@dataclass(frozen=True, slots=True)
class BrokerInfo(Message):
    """A broker as the cluster knows it."""

    broker: str
    url: Annotated[str | None, Mark("Where announcements are posted.")]
    position: Annotated[Position | None, Mark("The broker has acknowledged announcements up to this position.")]
    dropped: Annotated[int, Mark("How many channels were ever dropped.")]
    # Not required, so that a broker can tell the user that its cluster is too old to give generations.
    generation: Annotated[
        Position | None,
        Mark(
            "The generation of the process that has the name. The process sends it with every request, in the header "
            "Tocsin-Broker; requests of an older generation are refused with the code `fenced`."
        ),
    ] = field(default_factory=lambda: None)
    secret: Annotated[str | None, Mark("The key that signs announcements; shown once.")] = field(
        default=None, repr=False
    )


@dataclass(frozen=True, slots=True)
class BrokerAcks(Message):
    """The cursors and the position up to which a broker has everything."""

    SHAPE: ClassVar[str] = '{"cursors": {"17": "…", …}, "position": "…", "trim": true}'

    cursors: Annotated[
        dict[_AckedInterest, Cursor],
        Mark("Per interest, the cursor up to which the broker needs no results."),
        at_most(_CURSORS_LIMIT, "maxProperties", status=413, hint="send them in parts"),
    ] = field(default_factory=dict)
    position: Annotated[Position | None, Mark("The broker has handled announcements up to this position.")] = None
    trim: Annotated[
        bool | None, Mark("Delete results now that all brokers have acknowledged, before their retention ends.")
    ] = None


# --- channels and backend subscriptions


@dataclass(frozen=True, slots=True)
class ParameterInfo(Message):
    """A parameter of a channel, with its type as in `Metadata`."""

    name: str
    type: Any


@dataclass(frozen=True, slots=True)
class ChannelInfo(Message):
    """A channel that can be subscribed to."""

    name: str
    parameters: tuple[ParameterInfo, ...]
    continuous: bool
    push: Annotated[bool, Mark("Whether announcements contain the results.")]


@dataclass(frozen=True, slots=True)
class SubscriptionRequest(Message):
    """A requested backend subscription."""

    SHAPE: ClassVar[str] = '{"parameters": […]}, and maybe id and application'

    parameters: Annotated[Sequence[Any], Mark("One JSON value for each of the channel's parameters.")]
    id: Annotated[_SubscriptionId | None, Mark("An id of the broker's choice; without it the cluster makes one.")] = (
        None
    )
    application: Annotated[
        str,
        Mark(
            "The application of the broker that the subscription counts for.", schema={"maxLength": _APPLICATION_LIMIT}
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class SubscriptionRequests(Message):
    """Requested backend subscriptions to one channel."""

    SHAPE: ClassVar[str] = '{"broker": "v.b", "subscriptions": [{"parameters": […], "id": "…", "application": "…"}, …]}'

    broker: _BrokerName
    subscriptions: Annotated[tuple[SubscriptionRequest, ...], Mark(schema={"maxItems": SUBSCRIPTIONS_LIMIT})]


@dataclass(frozen=True, slots=True)
class GrantedSubscription(Message):
    """A backend subscription that the cluster has made, or already had."""

    id: str
    interest: InterestId
    since: Annotated[Cursor, Mark("The subscription sees results after this cursor.")]


@dataclass(frozen=True, slots=True)
class SubscriptionInfo(Message):
    """A backend subscription."""

    id: str
    interest: InterestId
    parameters: tuple[Any, ...]
    broker: str
    application: Annotated[str, Mark("The broker's application; empty if the broker did not name one.")]
    since: Annotated[Cursor, Mark("The subscription sees results after this cursor.")]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BrokerSubscription(SubscriptionInfo):
    """A backend subscription of a broker. `channel` is null while the channel is being dropped."""

    channel: str | None


@dataclass(frozen=True, slots=True)
class BrokerChange(Message):
    """The broker that a subscription moves to."""

    SHAPE: ClassVar[str] = '{"broker": "v.b"}'

    broker: _BrokerName


@dataclass(frozen=True, slots=True)
class SubscriptionIds(Message):
    """The subscriptions to end."""

    SHAPE: ClassVar[str] = '{"ids": ["…", …]}'

    ids: Annotated[tuple[_SubscriptionId, ...], Mark(schema={"maxItems": SUBSCRIPTIONS_LIMIT})]


# --- the header in which a broker names its generation

BROKER_HEADER: Final = "Tocsin-Broker"
"""A broker's full name, percent-encoded, and its generation from the cluster. A broker that was replaced, and does not
know it, has an older generation than the present broker of its name; so the cluster can refuse its requests."""


def generation_header(broker: str, generation: Position) -> dict[str, str]:
    return {BROKER_HEADER: f"{quote(broker, safe='')} {position_text(generation)}"}


def parse_generation_header(text: str) -> tuple[str, Position]:
    name, _, generation = text.partition(" ")
    try:
        return unquote(name, errors="strict"), parse_position(generation)
    except (InputError, UnicodeDecodeError):
        raise InputError(f"{BROKER_HEADER}: must be a broker's name and its generation, such as v.b 17-3") from None
