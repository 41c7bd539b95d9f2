"""Outlets that are connections: bytes that were encoded once go straight into the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.broker.delivery.outlets import EncodedEvent, Listener, OutletForm
from tocsin.serving.connections import ClientConnection


class ConnectionOutlet:
    """A WebSocket, or an HTTP response that streams events."""

    __slots__ = ("_on_room", "_transport", "connection", "kind", "listener")

    def __init__(
        self,
        kind: OutletForm,
        connection: ClientConnection,
        buffer_bytes: int,
        on_room: Callable[[ConnectionOutlet], None],
    ) -> None:
        transport = connection.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        self.kind = kind
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

    def changed(self) -> None:
        if self.listener is not None:
            self.listener.look()

    def has_room(self) -> None:
        self._on_room(self)

    def write(self, told: EncodedEvent) -> None:
        # A lost connection has no transport; the handler of the connection learns of the loss a little later.
        if self.connection.transport is not None:
            self._transport.write(told.form(self.kind))

    def write_raw(self, some: bytes) -> None:
        if self.connection.transport is not None:
            self._transport.write(some)

    def shed(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self.connection.outlet = None
