"""The iterator over events that a client hands to its consumer."""

from __future__ import annotations

from typing import Self

from tocsin.sdk.events import Ended, Event
from tocsin.sdk.inbox import AckTracker, Inbox, InboxEntry
from tocsin.sdk.stream import EventStream
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import InputError


class Consumer:
    """Yields the entries of the inbox; asking for the next one acknowledges the one before."""

    def __init__(
        self, stream: EventStream, inbox: Inbox, marks: AckTracker, known: dict[int, Subscription], *, automatic: bool
    ) -> None:
        self._stream = stream
        self._inbox = inbox
        self._acks = marks
        self._known = known
        self._automatic = automatic
        self._held: InboxEntry | None = None
        self._asked = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; acknowledges the one before, if `automatic`."""
        if self._asked:
            raise InputError("somebody waits for the next result already", hint="one consumer per client")
        self._asked = True
        try:
            self._stream.start()
            while True:
                if (previous := self._held) is not None and previous.reached is not None and self._automatic:
                    self._acks.take(previous.interest, previous.reached)
                self._held = None
                self._held = await self._inbox.get()
                if self._held is None:
                    raise StopAsyncIteration
                if isinstance(self._held.told, Ended):
                    self._known.pop(self._held.interest, None)
                if self._held.told is not None:
                    return self._held.told
        finally:
            self._asked = False
