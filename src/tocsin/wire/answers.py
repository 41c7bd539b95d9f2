"""The answers of brokers to subscribers: the same over HTTP and, with a `ref`, over a WebSocket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tocsin.rules.model.cursors import Cursor
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.envelopes import WireEvent, event_of, parse_interest, parse_moment
from tocsin.wire.errors import InputError, TocsinError, error_of
from tocsin.wire.subscriber import DEFAULT_MODE, JsonObject, Mode


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """The token is valid until `expires_at` and can be renewed before."""

    token: str
    expires_at: datetime
    user: str
    application: str

    def to_json(self) -> JsonObject:
        moment = self.expires_at.isoformat().replace("+00:00", "Z")
        return {"token": self.token, "expires_at": moment, "user": self.user, "application": self.application}


def parse_login_answer(said: Any) -> LoginAnswer:
    try:
        return LoginAnswer(said["token"], parse_moment(said["expires_at"]), said["user"], said["application"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is not the answer to a login: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as a broker shows it to its subscriber.

    `marker`: the cursor up to which it is acknowledged. If the request had a `since`: `since_applied` is False if the
    subscription existed before and continues at its marker; `recovered` is False if results after `since` no longer
    exist.
    """

    id: str
    channel: str
    parameters: tuple[Any, ...]
    interest: int
    since: Cursor
    mode: Mode = DEFAULT_MODE
    group: str | None = None
    marker: Cursor | None = None
    recovered: bool | None = None
    since_applied: bool | None = None

    def to_json(self) -> JsonObject:
        fields: JsonObject = {
            "id": self.id,
            "channel": self.channel,
            "parameters": list(self.parameters),
            "interest": str(self.interest),
            "since": cursor_text(self.since),
            "mode": self.mode,
        }
        if self.group is not None:
            fields["group"] = self.group
        if self.marker is not None:
            fields["marker"] = cursor_text(self.marker)
        if self.recovered is not None:
            fields["recovered"] = self.recovered
        if self.since_applied is not None:
            fields["since_applied"] = self.since_applied
        return fields


def parse_subscription(said: Any) -> Subscription:
    try:
        marker = said.get("marker")
        return Subscription(
            said["id"],
            said["channel"],
            tuple(said["parameters"]),
            parse_interest(said["interest"]),
            parse_cursor(said["since"]),
            said["mode"],
            said.get("group"),
            None if marker is None else parse_cursor(marker),
            said.get("recovered"),
            said.get("since_applied"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is not a subscription: {error!r}") from None


def subscriptions_page(subscriptions: Iterable[Subscription], following: str | None) -> JsonObject:
    """The answer to a list request."""
    return {"subscriptions": [subscription.to_json() for subscription in subscriptions], "next": following}


def parse_subscriptions_page(said: Any) -> tuple[list[Subscription], str | None]:
    try:
        return [parse_subscription(fields) for fields in said["subscriptions"]], said["next"]
    except (KeyError, TypeError) as error:
        raise InputError(f"this is not a page of subscriptions: {error!r}") from None


def events_page(envelopes: Iterable[bytes], *, more: bool | None = None) -> bytes:
    """The answer to a pull or a poll, joined from encoded envelopes. A poll has no `more`."""
    tail = b"]}" if more is None else b'],"more":true}' if more else b'],"more":false}'
    return b"".join((b'{"events":[', b",".join(envelopes), tail))


def parse_events_page(said: Any) -> tuple[list[WireEvent], bool]:
    try:
        events = [event for envelope in said["events"] if (event := event_of(envelope)) is not None]
        return events, bool(said.get("more", False))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is not a page of events: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request with this ref: its outcome or an error."""

    ref: int | None
    ok: Any = None
    error: TocsinError | None = None


def ok_reply(ref: int, value: Any) -> bytes:
    """Bytes in `value` already are JSON."""
    return b"".join((f'{{"ref":{ref},"ok":'.encode(), value if isinstance(value, bytes) else orjson.dumps(value), b"}"))


def error_reply(ref: int | None, error: TocsinError) -> bytes:
    """The reply has no ref if the error belongs to no particular request."""
    # Text that the error repeats from a request may be invalid Unicode.
    fields = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in error.to_json().items()
    }
    return orjson.dumps({"ref": ref, "error": fields} if ref is not None else {"error": fields}, default=str)


def parse_message(frame: bytes | str) -> Reply | WireEvent | None:
    """A broker's WebSocket message; None for an event of an unknown type."""
    try:
        message = orjson.loads(frame)
        if "specversion" in message:
            return event_of(message)
        ref = message.get("ref")
        return Reply(ref, error=error_of(message["error"])) if "error" in message else Reply(ref, message["ok"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is not a broker's message: {error!r}") from None
