"""What brokers answer subscribers; the same over HTTP and, behind a `ref`, over a WebSocket."""

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
from tocsin.wire.subscriber import DEFAULT_MODE, Given, Mode


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """`expires_at`: the token is good until then; a fresh one is to be had before."""

    token: str
    expires_at: datetime
    user: str
    application: str

    def to_json(self) -> Given:
        moment = self.expires_at.isoformat().replace("+00:00", "Z")
        return {"token": self.token, "expires_at": moment, "user": self.user, "application": self.application}


def parse_logged_in(said: Any) -> LoginAnswer:
    try:
        return LoginAnswer(said["token"], parse_moment(said["expires_at"]), said["user"], said["application"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is not the answer to a login: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Subscription:
    """`marker`: what was acknowledged. Where a `since` was wanted: `since_applied` is False when the subscription was
    there before and goes on after its marker; `recovered` is False where something after the `since` is gone."""

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

    def to_json(self) -> Given:
        said: Given = {
            "id": self.id,
            "channel": self.channel,
            "parameters": list(self.parameters),
            "interest": str(self.interest),
            "since": cursor_text(self.since),
            "mode": self.mode,
        }
        if self.group is not None:
            said["group"] = self.group
        if self.marker is not None:
            said["marker"] = cursor_text(self.marker)
        if self.recovered is not None:
            said["recovered"] = self.recovered
        if self.since_applied is not None:
            said["since_applied"] = self.since_applied
        return said


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


def subscriptions_page(subscriptions: Iterable[Subscription], following: str | None) -> Given:
    """The answer to a list."""
    return {"subscriptions": [one.to_json() for one in subscriptions], "next": following}


def parse_subscriptions_page(said: Any) -> tuple[list[Subscription], str | None]:
    try:
        return [parse_subscription(one) for one in said["subscriptions"]], said["next"]
    except (KeyError, TypeError) as error:
        raise InputError(f"this is not a page of subscriptions: {error!r}") from None


def events_page(envelopes: Iterable[bytes], *, more: bool | None = None) -> bytes:
    """The answer to a pull and to a poll, from envelopes as they are. A poll says nothing of `more`."""
    tail = b"]}" if more is None else b'],"more":true}' if more else b'],"more":false}'
    return b"".join((b'{"events":[', b",".join(envelopes), tail))


def parse_events_page(said: Any) -> tuple[list[WireEvent], bool]:
    try:
        events = [event for one in said["events"] if (event := event_of(one)) is not None]
        return events, bool(said.get("more", False))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is not a page of events: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request with this ref: what was asked for, or why not."""

    ref: int | None
    ok: Any = None
    error: TocsinError | None = None


def ok_reply(ref: int, value: Any) -> bytes:
    """`value`: bytes are JSON already."""
    return b"".join((f'{{"ref":{ref},"ok":'.encode(), value if isinstance(value, bytes) else orjson.dumps(value), b"}"))


def error_reply(ref: int | None, error: TocsinError) -> bytes:
    """Without a ref for what is wrong with no request in particular."""
    # What an error repeats of a request may be no Unicode.
    said = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in error.to_json().items()
    }
    return orjson.dumps({"ref": ref, "error": said} if ref is not None else {"error": said}, default=str)


def parse_message(frame: bytes | str) -> Reply | WireEvent | None:
    """What a broker sent over a WebSocket; None for an event of a type that is not known here."""
    try:
        said = orjson.loads(frame)
        if "specversion" in said:
            return event_of(said)
        ref = said.get("ref")
        return Reply(ref, error=error_of(said["error"])) if "error" in said else Reply(ref, said["ok"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"this is not a broker's message: {error!r}") from None
