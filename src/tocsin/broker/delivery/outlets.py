"""The outlets of a subscriber: its connections and its webhook.

A subscriber that is online is one listener with one or more outlets. An outlet takes events in its form and says
whether it has room. Events that it missed while it was full are sent again by the core when it has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, cast, runtime_checkable

from tocsin.broker.delivery.frames import http_chunk, websocket_frame
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.envelopes import server_sent

if TYPE_CHECKING:
    from tocsin.broker.delivery.connection_outlets import ConnectionOutlet


class OutletForm(IntEnum):
    """The form in which an outlet takes events."""

    WEBSOCKET = 0
    SERVER_SENT = 1
    PLAIN = 2


class EncodedEvent:
    """An event in every form; a form is encoded when the first outlet needs it. `mark` identifies the event within its
    interest, and is the same when the event is repeated."""

    __slots__ = ("_forms", "envelope", "interest", "kind", "mark", "to")

    def __init__(self, kind: str, envelope: bytes, interest: int, to: Cursor | None, mark: str) -> None:
        self.kind = kind
        self.mark = mark
        self.envelope = envelope
        self.interest = interest
        self.to = to
        self._forms: list[bytes | None] = [None, None, envelope]

    def form(self, kind: OutletForm) -> bytes:
        """The bytes in this form, encoded on first use."""
        form = self._forms[kind]
        if form is None:
            if kind is OutletForm.WEBSOCKET:
                form = websocket_frame(self.envelope)
            else:
                form = http_chunk(server_sent(self.kind, self.envelope, interest=self.interest, to=self.to))
            self._forms[kind] = form
        return form


@runtime_checkable
class EventOutlet(Protocol):
    """A connection or webhook that takes events in one form."""

    kind: OutletForm
    listener: Listener | None

    @property
    def full(self) -> bool:
        """It takes no more for now; it calls `FanOut.room` when it has room again."""

    def write(self, told: EncodedEvent) -> None:
        """Never blocks."""

    def shed(self) -> None:
        """Closes the outlet: it is slower than others of its subscriber, or its subscriber has to reconnect."""


NO_SUBSCRIPTIONS: Final[set[int]] = set()
"""The shared empty set; do not add to it."""


class Listener:
    """A subscriber that is online.

    `born`: fan-out jobs up to this number are not for it. `direct`: the transport to which frames can be written at
    once; nearly all listeners have one, since their only outlet is a WebSocket with room.
    """

    __slots__ = ("behind", "born", "direct", "outlets", "patience", "subscriber")

    def __init__(self, subscriber: int, born: int) -> None:
        self.subscriber = subscriber
        self.born = born
        self.outlets: list[EventOutlet] = []
        self.direct: asyncio.Transport | None = None
        # Very few listeners are behind. A set for each of them would be most of a listener's memory.
        self.behind: set[int] = NO_SUBSCRIPTIONS
        self.patience: asyncio.TimerHandle | None = None

    def add(self, outlet: EventOutlet) -> None:
        self.outlets.append(outlet)
        outlet.listener = self
        self.look()

    def remove(self, outlet: EventOutlet) -> None:
        self.outlets.remove(outlet)
        outlet.listener = None
        self.look()

    def look(self) -> None:
        """Updates `direct` after an outlet came, went, became full or got room."""
        only = self.outlets[0] if len(self.outlets) == 1 else None
        websocket = only is not None and only.kind is OutletForm.WEBSOCKET
        self.direct = cast("ConnectionOutlet", only).direct if websocket else None

    @property
    def full(self) -> bool:
        return any(outlet.full for outlet in self.outlets)

    def put_behind(self, subscription: int) -> None:
        if self.behind is NO_SUBSCRIPTIONS:
            self.behind = set()
        self.behind.add(subscription)


class PlainOutlet:
    """Hands envelopes to a function: long polls collect them, webhooks post them."""

    kind = OutletForm.PLAIN

    __slots__ = ("_is_full", "_on_shed", "_take", "listener")

    def __init__(
        self, take: Callable[[EncodedEvent], None], is_full: Callable[[], bool], on_shed: Callable[[], None]
    ) -> None:
        self.listener: Listener | None = None
        self._take = take
        self._is_full = is_full
        self._on_shed = on_shed

    @property
    def full(self) -> bool:
        return self._is_full()

    def write(self, told: EncodedEvent) -> None:
        self._take(told)

    def shed(self) -> None:
        self._on_shed()
