"""Requests of subscribers to brokers. `wire.answers` has the answers.

HTTP carries the bodies alone; a WebSocket carries the same bodies with a keyword, and a `ref` that the reply repeats:

    {"login":{"token":"…"}}                                 first, unless the upgrade carried the token
    {"ref":1,"subscribe":{"channel":"v.c","parameters":[…],"since":"…","mode":"inline","group":"…"}}
    {"ref":2,"unsubscribe":{"id":"sub_…"}}
    {"ref":3,"pull":{"interest":"17","after":"…","limit":100}}
    {"ref":4,"list":{}}                                     {"ref":4,"list":{"after":"…"}} for the next page
    {"ack":{"17":"1763200000-12-0"}}                        with a ref, it is answered when it is durable
    {"ref":1,"ok":{…}}   {"ref":1,"error":{"code":"…","message":"…","hint":"…"}}

A message with a `specversion` is an event (`wire.envelopes`). Parsers raise InputError, which names the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import orjson

from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.messages import InterestText, JsonObject, Mark, Message, NameText, at_most, parse_name, positive

DeliveryMode = Literal["inline", "notify"]

DEFAULT_MODE: Final[DeliveryMode] = "inline"
DEFAULT_APPLICATION: Final = "default"
# Upper bounds for parsing; brokers and applications have lower limits of their own.
PASSWORD_LIMIT_BYTES: Final = 1_024
_PARAMETERS_LIMIT: Final = 1_000
_ACKS_LIMIT: Final = 10_000


def _check_secret(text: str) -> None:
    if not text:
        raise InputError("must be a text that is not empty")


def _check_password(text: str) -> None:
    _check_secret(text)
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InputError("is not Unicode") from None
    if size_bytes > PASSWORD_LIMIT_BYTES:
        raise LimitError(f"longer than {PASSWORD_LIMIT_BYTES} bytes", status=400)


def _parse_application(value: object) -> str:
    return DEFAULT_APPLICATION if value is None else parse_name(value)


# --- requests


@dataclass(frozen=True, slots=True)
class Credentials(Message):
    """The user, password and application of a registration or login."""

    SHAPE: ClassVar[str] = '{"user": "…", "password": "…"}, and maybe application'

    user: NameText
    password: Annotated[str, Mark(check=_check_password, schema={"minLength": 1})] = field(repr=False)
    application: Annotated[NameText, Mark(read=_parse_application)] = DEFAULT_APPLICATION


@dataclass(frozen=True, slots=True)
class LoginRequest(Message):
    """The first message on a WebSocket whose upgrade request had no token."""

    SHAPE: ClassVar[str] = '{"token": "…"}'

    token: Annotated[str, Mark(check=_check_secret, schema={"minLength": 1})] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SubscribeRequest(Message):
    """A request to subscribe."""

    SHAPE: ClassVar[str] = '{"channel": "dataverse.channel", "parameters": […]}, and maybe since, mode and group'

    channel: Annotated[NameText, Mark("`dataverse.channel`")]
    parameters: Annotated[
        tuple[Any, ...], Mark("One value for each of the channel's parameters."), at_most(_PARAMETERS_LIMIT)
    ] = ()
    since: Annotated[Cursor | None, Mark("The results after this cursor; without it, those made from now on.")] = None
    mode: Annotated[DeliveryMode, Mark("Whether events contain results, or only announce them.")] = DEFAULT_MODE
    group: Annotated[NameText | None, Mark("Subscribe for all members of this group.")] = None


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest(Message):
    """A request to end a subscription."""

    SHAPE: ClassVar[str] = '{"id": "sub_…"}'

    id: NameText


@dataclass(frozen=True, slots=True)
class PullRequest(Message):
    """A request for the results of an interest."""

    SHAPE: ClassVar[str] = '{"interest": "17"}, and maybe after and limit'

    interest: InterestText
    after: Annotated[Cursor | None, Mark("The results after this cursor; without it, after the marker.")] = None
    limit: Annotated[int | None, positive(1 << 31)] = None


@dataclass(frozen=True, slots=True)
class AckRequest(Message):
    """Per interest, everything up to this cursor has arrived. Cumulative: an earlier cursor has no effect."""

    SHAPE: ClassVar[str] = 'acks per interest, such as {"17": "1763200000-12-0"}'

    acks: Annotated[dict[InterestText, Cursor], at_most(_ACKS_LIMIT, "maxProperties")]


@dataclass(frozen=True, slots=True)
class ListRequest(Message):
    """A request for a page of the subscriber's subscriptions."""

    SHAPE: ClassVar[str] = '{} or {"after": "…"}'

    after: Annotated[NameText | None, Mark("The `next` of the page before.")] = None


Body = LoginRequest | SubscribeRequest | UnsubscribeRequest | PullRequest | AckRequest | ListRequest

# What a subscriber may request, by the keyword of its message.
REQUESTS: Final[dict[str, type[Body]]] = {
    "login": LoginRequest,
    "subscribe": SubscribeRequest,
    "unsubscribe": UnsubscribeRequest,
    "pull": PullRequest,
    "ack": AckRequest,
    "list": ListRequest,
}
_WORDS: Final = {kind: word for word, kind in REQUESTS.items()}


@dataclass(frozen=True, slots=True)
class Request:
    """A message of a subscriber. With a `ref` it gets a reply that repeats the ref."""

    body: Body
    ref: int | None = None

    def to_bytes(self) -> bytes:
        head: JsonObject = {} if self.ref is None else {"ref": self.ref}
        value = self.body.to_json()
        # On a WebSocket the keyword is name enough for the acknowledgements.
        return orjson.dumps({**head, _WORDS[type(self.body)]: value.get("acks", value)})


@dataclass(frozen=True, slots=True)
class BadRequest:
    """An invalid message, with the `ref` if it could be read."""

    error: InputError
    ref: int | None = None


def parse_request(frame: bytes | str) -> Request | BadRequest:
    """Parses a subscriber's message. It never raises, so that every message can be answered."""
    try:
        message = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        return BadRequest(InputError(f"the message is not JSON: {error.msg}"))
    if not isinstance(message, dict):
        return BadRequest(InputError("a message is a JSON object", hint='such as {"ref": 1, "list": {}}'))
    ref = message.pop("ref", None)
    if ref is not None and (ref.__class__ is not int or not 0 <= ref < 1 << 53):
        return BadRequest(InputError("ref: must be a whole number"))
    if len(message) != 1 or (keyword := next(iter(message))) not in REQUESTS:
        hint = f"one of {', '.join(REQUESTS)}"
        return BadRequest(InputError("a message says one thing that is wanted, and maybe a ref", hint=hint), ref)
    try:
        return Request(_parse_body(keyword, message[keyword]), ref)
    except InputError as error:
        error.message = f"{keyword}: {error.message}"
        return BadRequest(error, ref)


def _parse_body(keyword: str, value: object) -> Body:
    if keyword != "ack":
        return REQUESTS[keyword].parse(value)
    if not isinstance(value, dict):
        raise InputError(f"expected {AckRequest.SHAPE}")
    return AckRequest.parse({"acks": value})
