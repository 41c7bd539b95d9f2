"""Requests of subscribers to brokers, with validation. `wire.answers` has the answers.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import orjson

from tocsin.rules.model.cursors import Cursor
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.envelopes import parse_interest
from tocsin.wire.errors import InputError, LimitError

Mode = Literal["inline", "notify"]

DEFAULT_MODE: Final[Mode] = "inline"
DEFAULT_APPLICATION: Final = "default"
# Upper bounds for parsing; brokers and applications have lower limits of their own.
NAME_LIMIT: Final = 200
PASSWORD_LIMIT_BYTES: Final = 1_024
PARAMETERS_LIMIT: Final = 1_000
ACKS_LIMIT: Final = 10_000

JsonObject = dict[str, Any]


# --- requests


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user, password and application of a registration or login."""

    user: str
    password: str
    application: str = DEFAULT_APPLICATION

    def to_json(self) -> JsonObject:
        return {"user": self.user, "password": self.password, "application": self.application}

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, …, {self.application!r})"


def parse_credentials(said: object) -> Credentials:
    fields = _object(said, '{"user": "…", "password": "…"}', {"user", "password"}, {"application"})
    password = fields["password"]
    if not isinstance(password, str) or not password:
        raise InputError("password: must be a text that is not empty")
    if len(_bytes(password, "password")) > PASSWORD_LIMIT_BYTES:
        raise LimitError(f"password: longer than {PASSWORD_LIMIT_BYTES} bytes", status=400)
    application = fields.get("application")
    return Credentials(
        name_of(fields["user"], "user"),
        password,
        DEFAULT_APPLICATION if application is None else name_of(application, "application"),
    )


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """The first message on a WebSocket whose upgrade request had no token."""

    token: str

    def to_json(self) -> JsonObject:
        return {"token": self.token}

    def __repr__(self) -> str:
        return "Login(…)"


def parse_login(said: object) -> LoginRequest:
    token = _object(said, '{"token": "…"}', {"token"})["token"]
    if not isinstance(token, str) or not token:
        raise InputError("token: must be a text that is not empty")
    return LoginRequest(token)


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A request to subscribe. `since`: the client wants the results after this cursor; None: those made from now on.
    `group`: for all its members."""

    channel: str
    parameters: tuple[Any, ...]
    since: Cursor | None = None
    mode: Mode = DEFAULT_MODE
    group: str | None = None

    def to_json(self) -> JsonObject:
        fields: JsonObject = {"channel": self.channel, "parameters": list(self.parameters), "mode": self.mode}
        if self.since is not None:
            fields["since"] = cursor_text(self.since)
        if self.group is not None:
            fields["group"] = self.group
        return fields


_SUBSCRIBE: Final = '{"channel": "dataverse.channel", "parameters": […]}, and maybe since, mode and group'


def parse_subscribe(said: object) -> SubscribeRequest:
    fields = _object(said, _SUBSCRIBE, {"channel"}, {"parameters", "since", "mode", "group"})
    parameters = fields.get("parameters", [])
    if not isinstance(parameters, list):
        raise InputError("parameters: must be an array, one value for each of the channel's parameters")
    if len(parameters) > PARAMETERS_LIMIT:
        raise LimitError(f"parameters: {len(parameters)}, at most {PARAMETERS_LIMIT}", status=400)
    mode = fields.get("mode", DEFAULT_MODE)
    if mode not in get_args(Mode):
        raise InputError('mode: must be "inline" or "notify"')
    since, group = fields.get("since"), fields.get("group")
    return SubscribeRequest(
        name_of(fields["channel"], "channel"),
        tuple(parameters),
        None if since is None else _cursor(since, "since"),
        cast("Mode", mode),
        None if group is None else name_of(group, "group"),
    )


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest:
    id: str

    def to_json(self) -> JsonObject:
        return {"id": self.id}


def parse_unsubscribe(said: object) -> UnsubscribeRequest:
    return UnsubscribeRequest(name_of(_object(said, '{"id": "sub_…"}', {"id"})["id"], "id"))


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Results of an interest after `after`, or after the marker if it is None."""

    interest: int
    after: Cursor | None = None
    limit: int | None = None

    def to_json(self) -> JsonObject:
        fields: JsonObject = {"interest": str(self.interest)}
        if self.after is not None:
            fields["after"] = cursor_text(self.after)
        if self.limit is not None:
            fields["limit"] = self.limit
        return fields


def parse_pull(said: object) -> PullRequest:
    fields = _object(said, '{"interest": "17"}, and maybe after and limit', {"interest"}, {"after", "limit"})
    after, limit = fields.get("after"), fields.get("limit")
    if limit is not None and (limit.__class__ is not int or not 0 < limit < 1 << 31):
        raise InputError("limit: must be a whole number above 0")
    return PullRequest(parse_interest(fields["interest"]), None if after is None else _cursor(after, "after"), limit)


@dataclass(frozen=True, slots=True)
class AckRequest:
    """Per interest, everything up to this cursor has arrived. Cumulative: an earlier cursor has no effect."""

    cursors: Mapping[int, Cursor]

    def to_json(self) -> JsonObject:
        return {str(interest): cursor_text(cursor) for interest, cursor in self.cursors.items()}


def parse_acks(said: object) -> AckRequest:
    """Parses a WebSocket's `ack`, and `acks` in POST /v1/acks."""
    if not isinstance(said, dict):
        raise InputError('expected acks per interest, such as {"17": "1763200000-12-0"}')
    if len(said) > ACKS_LIMIT:
        raise LimitError(f"{len(said)} acks, at most {ACKS_LIMIT} at once", status=400)
    return AckRequest(
        {parse_interest(interest): _cursor(cursor, f"ack of {interest}") for interest, cursor in said.items()}
    )


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A page of the subscriber's subscriptions; `after` is the `next` of the page before."""

    after: str | None = None

    def to_json(self) -> JsonObject:
        return {} if self.after is None else {"after": self.after}


def parse_list(said: object) -> ListRequest:
    after = _object(said, '{} or {"after": "…"}', set(), {"after"}).get("after")
    return ListRequest(None if after is None else name_of(after, "after"))


Body = LoginRequest | SubscribeRequest | UnsubscribeRequest | PullRequest | AckRequest | ListRequest

_WORDS: Final[dict[str, tuple[type[Body], Any]]] = {
    "login": (LoginRequest, parse_login),
    "subscribe": (SubscribeRequest, parse_subscribe),
    "unsubscribe": (UnsubscribeRequest, parse_unsubscribe),
    "pull": (PullRequest, parse_pull),
    "ack": (AckRequest, parse_acks),
    "list": (ListRequest, parse_list),
}
_WORD_OF: Final = {kind: word for word, (kind, _) in _WORDS.items()}


@dataclass(frozen=True, slots=True)
class Request:
    """A message of a subscriber. With a `ref` it gets a reply that repeats the ref."""

    body: Body
    ref: int | None = None

    def to_bytes(self) -> bytes:
        head: JsonObject = {} if self.ref is None else {"ref": self.ref}
        return orjson.dumps({**head, _WORD_OF[type(self.body)]: self.body.to_json()})


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
    if len(message) != 1 or (keyword := next(iter(message))) not in _WORDS:
        hint = f"one of {', '.join(_WORDS)}"
        return BadRequest(InputError("a message says one thing that is wanted, and maybe a ref", hint=hint), ref)
    try:
        return Request(_WORDS[keyword][1](message[keyword]), ref)
    except InputError as error:
        error.message = f"{keyword}: {error.message}"
        return BadRequest(error, ref)


# --- checks


def name_of(given: object, what: str) -> str:
    """Checks a name: text that is neither empty nor very long, without control characters."""
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise InputError(f"{what}: must be a text that is not empty, without control characters")
    if len(given) > NAME_LIMIT:
        raise LimitError(f"{what}: longer than {NAME_LIMIT} characters", status=400)
    return given


def _object(said: object, shape: str, needed: set[str], allowed: frozenset[str] | set[str] = frozenset()) -> JsonObject:
    """Checks that it is an object with all needed fields and no unknown ones."""
    if not isinstance(said, dict):
        raise InputError(f"expected {shape}")
    if missing := sorted(needed - said.keys()):
        raise InputError(f"{missing[0]} is missing", hint=f"expected {shape}")
    if unknown := sorted(said.keys() - needed - allowed):
        raise InputError(f"{unknown[0][:60]!r} is not known here", hint=f"expected {shape}")
    return said


def _cursor(given: object, what: str) -> Cursor:
    try:
        return parse_cursor(given)
    except InputError as error:
        raise InputError(f"{what}: {error.message}", hint=error.hint) from None


def _bytes(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what}: is not Unicode") from None
