"""The outlets of a subscriber: its connections and its webhook.

A subscriber that is online is one listener with one or more outlets. An outlet takes events in its form and says
whether it has room. Events that it missed while it was full are sent again by the core when it has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast, runtime_checkable

from tocsin.broker.delivery.event_encoder import EncodedEvent, OutletForm
from tocsin.rules.model.cursors import SubscriptionId
from tocsin.serving.connections import ClientConnection


@runtime_checkable
class EventOutlet(Protocol):
    """A connection or webhook that takes events in one form."""

    form: OutletForm
    listener: Listener | None

    @property
    def full(self) -> bool:
        """It takes no more for now; it calls `FanOut.resume_outlet` when it has room again."""

    def write(self, event: EncodedEvent) -> None:
        """Never blocks."""

    def shed(self) -> None:
        """Closes the outlet: it is slower than others of its subscriber, or its subscriber has to reconnect."""


NO_SUBSCRIPTIONS: Final[set[SubscriptionId]] = set()
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
        self.behind: set[SubscriptionId] = NO_SUBSCRIPTIONS
        self.patience: asyncio.TimerHandle | None = None

    def add(self, outlet: EventOutlet) -> None:
        self.outlets.append(outlet)
        outlet.listener = self
        self.update_direct()

    def remove(self, outlet: EventOutlet) -> None:
        self.outlets.remove(outlet)
        outlet.listener = None
        self.update_direct()

    def update_direct(self) -> None:
        """Updates `direct` after an outlet came, went, became full or got room."""
        only = self.outlets[0] if len(self.outlets) == 1 else None
        websocket = only is not None and only.form is OutletForm.WEBSOCKET
        self.direct = cast("ConnectionOutlet", only).direct if websocket else None

    @property
    def full(self) -> bool:
        return any(outlet.full for outlet in self.outlets)

    def put_behind(self, subscription: SubscriptionId) -> None:
        if self.behind is NO_SUBSCRIPTIONS:
            self.behind = set()
        self.behind.add(subscription)


class PlainOutlet:
    """Hands envelopes to a function: long polls collect them, webhooks post them."""

    form = OutletForm.PLAIN

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

    def write(self, event: EncodedEvent) -> None:
        self._take(event)

    def shed(self) -> None:
        self._on_shed()


class ConnectionOutlet:
    """A WebSocket, or an HTTP response that streams events."""

    __slots__ = ("_on_room", "_transport", "connection", "form", "listener")

    def __init__(
        self,
        form: OutletForm,
        connection: ClientConnection,
        buffer_bytes: int,
        on_room: Callable[[ConnectionOutlet], None],
    ) -> None:
        transport = connection.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        self.form = form
        self.listener: Listener | None = None
        self.connection = connection
        self._transport: asyncio.Transport = transport
        # The transport reports when its buffer grows beyond `high` and when it has shrunk to `low`.
        transport.set_write_buffer_limits(high=buffer_bytes, low=buffer_bytes // 4)
        self._on_room = on_room
        connection.outlet = self

    @property
    def full(self) -> bool:
        return self.connection._paused

    @property
    def direct(self) -> asyncio.Transport | None:
        """The transport, if bytes may be written to it now."""
        return None if self.full or self.connection.transport is None else self._transport

    def on_change(self) -> None:
        if self.listener is not None:
            self.listener.update_direct()

    def on_room(self) -> None:
        self._on_room(self)

    def write(self, event: EncodedEvent) -> None:
        # A lost connection has no transport; the handler of the connection learns of the loss a little later.
        if self.connection.transport is not None:
            self._transport.write(event.frame_as(self.form))

    def write_raw(self, data: bytes) -> None:
        if self.connection.transport is not None:
            self._transport.write(data)

    def shed(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self.connection.outlet = None
