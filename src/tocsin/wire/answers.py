"""The answers of brokers to subscribers: the same over HTTP and, with a `ref`, over a WebSocket.

Answers with results are joined from encoded envelopes, so that a result is encoded once for all its subscribers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import orjson

from tocsin.rules.model.cursors import Cursor
from tocsin.wire.envelopes import WireEvent, event_of
from tocsin.wire.errors import InputError, TocsinError, error_of
from tocsin.wire.messages import InterestText, Mark, Message
from tocsin.wire.subscriber import DeliveryMode


@dataclass(frozen=True, slots=True)
class LoginAnswer(Message):
    """A token, which is valid until `expires_at` and can be renewed before."""

    token: str = field(repr=False)
    expires_at: datetime
    user: str
    application: str


@dataclass(frozen=True, slots=True)
class Subscription(Message):
    """A subscription as a broker shows it to its subscriber."""

    id: str
    channel: str
    parameters: tuple[Any, ...]
    interest: InterestText
    since: Cursor
    mode: DeliveryMode
    group: str | None = None
    marker: Annotated[Cursor | None, Mark("Everything up to this cursor is acknowledged.")] = None
    recovered: Annotated[bool | None, Mark("False if results after the requested `since` no longer exist.")] = None
    since_applied: Annotated[
        bool | None, Mark("False if the subscription existed before: it continues at its marker, not at `since`.")
    ] = None


@dataclass(frozen=True, slots=True)
class SubscriptionsPage(Message):
    """A page of a subscriber's subscriptions."""

    subscriptions: tuple[Subscription, ...]
    next: Annotated[str | None, Mark("`after` of the next page, if there is one.")]


@dataclass(frozen=True, slots=True)
class ErrorFields(Message):
    """An error, as `TocsinError.to_json` writes it."""

    code: Annotated[str, Mark(schema={"examples": ["bad_statement"]})]
    message: str
    statement: Annotated[int | None, Mark("The position of the statement in the script, from 1.")] = None
    line: int | None = None
    column: int | None = None
    hint: Annotated[str | None, Mark("How to correct the request.")] = None
    retry: Annotated[bool, Mark("Whether the same request may succeed later.")] = False
    id: Annotated[str | None, Mark("Of an internal error: the id of its entry in the server's log.")] = None


def events_page(envelopes: Iterable[bytes], *, more: bool | None = None) -> bytes:
    """The answer to a pull or a poll, joined from encoded envelopes. A poll has no `more`."""
    tail = b"]}" if more is None else b'],"more":true}' if more else b'],"more":false}'
    return b"".join((b'{"events":[', b",".join(envelopes), tail))


def parse_events_page(value: Any) -> tuple[list[WireEvent], bool]:
    try:
        events = [event for envelope in value["events"] if (event := event_of(envelope)) is not None]
        return events, bool(value.get("more", False))
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
