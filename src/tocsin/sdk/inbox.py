"""The buffer between connection and consumer: removes duplicates, keeps the order, and is bounded.

It does no I/O, and acknowledges nothing that the consumer has not taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.rules.model.cursors import InterestId
from tocsin.sdk.events import Event, Gap, Result
from tocsin.wire.cursors import START, Cursor
from tocsin.wire.envelopes import Available, Ended, WireEvent
from tocsin.wire.errors import TocsinError


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """An event for the consumer, or None for a range without results. A consumer that has taken the entry has
    everything of the interest up to `reached`."""

    event: Event | None
    interest: InterestId
    reached: Cursor | None


class AckTracker:
    """Per interest: what has arrived, what the consumer has taken, and which acknowledgements are open."""

    def __init__(self) -> None:
        self._seen: dict[InterestId, Cursor] = {}
        self._taken: dict[InterestId, Cursor] = {}
        self.unsent: dict[InterestId, Cursor] = {}
        self._unsure: dict[InterestId, Cursor] = {}  # sent, but not confirmed as durable
        self.changed = asyncio.Event()

    def last_seen(self, interest: InterestId) -> Cursor:
        return self._seen.get(interest, START)

    def see(self, interest: InterestId, cursor: Cursor) -> None:
        if cursor > self.last_seen(interest):
            self._seen[interest] = cursor

    def take(self, interest: InterestId, cursor: Cursor) -> None:
        """The consumer has taken everything up to the cursor; it will be acknowledged."""
        if cursor > self._taken.get(interest, START):
            self._taken[interest] = self.unsent[interest] = cursor
            self.changed.set()

    def remind(self, interest: InterestId) -> None:
        """The broker repeats results that were taken, so the acknowledgement was lost: send it again."""
        if (taken := self._taken.get(interest)) is not None:
            self.unsent[interest] = taken
            self.changed.set()

    def forget(self, interest: InterestId) -> None:
        for cursors in (self._seen, self._taken, self.unsent, self._unsure):
            cursors.pop(interest, None)

    def clear(self) -> None:
        """Drops everything, because there is nothing left to acknowledge."""
        for cursors in (self._seen, self._taken, self.unsent, self._unsure):
            cursors.clear()

    def take_unsent(self, most: int) -> dict[InterestId, Cursor]:
        """Takes up to `most` acknowledgements to send now; the broker does not confirm them."""
        chosen = dict(list(self.unsent.items())[:most])
        for interest, cursor in chosen.items():
            del self.unsent[interest]
            self._unsure[interest] = cursor
        if not self.unsent:
            self.changed.clear()
        return chosen

    def list_unconfirmed(self, most: int) -> dict[InterestId, Cursor]:
        """Up to `most` acknowledgements that may not be durable yet."""
        return dict(list({**self._unsure, **self.unsent}.items())[:most])

    def confirm(self, acks: dict[InterestId, Cursor]) -> None:
        """The broker has confirmed that these are durable."""
        for cursors in (self._unsure, self.unsent):
            for interest, cursor in acks.items():
                if cursors.get(interest) == cursor:
                    del cursors[interest]
        if not self.unsent:
            self.changed.clear()


def new_entries(event: WireEvent, marks: AckTracker) -> Iterable[InboxEntry]:
    """Yields the entries of an event that the inbox has not had. Duplicates are known by interest and cursor."""
    interest = event.interest
    if isinstance(event, Ended):
        marks.forget(interest)
        yield InboxEntry(event, interest, None)
        return
    before = marks.last_seen(interest)
    if event.to <= before:
        marks.remind(interest)
        return
    if isinstance(event, Available):
        yield InboxEntry(event, interest, None)
        return
    marks.see(interest, event.to)
    fresh = [result for result in event.results if result.cursor > before]
    if event.gap is not None and event.gap > before:
        yield InboxEntry(Gap(event.channel, interest, event.gap), interest, None if fresh else event.to)
    elif not fresh:
        yield InboxEntry(None, interest, event.to)
    for number, result in enumerate(fresh, 1):
        event_result = Result(event.channel, interest, result.cursor, result.executed_at, result.result)
        yield InboxEntry(event_result, interest, event.to if number == len(fresh) else result.cursor)


class Inbox:
    """A queue of at most `bound` entries, plus the rest of the envelope that reached the bound."""

    def __init__(self, bound: int, marks: AckTracker) -> None:
        self._bound = bound
        self._acks = marks
        self._entries: deque[InboxEntry] = deque()
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._end: TocsinError | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: WireEvent) -> None:
        self._entries.extend(new_entries(event, self._acks))
        if self._entries:
            self._some.set()
        if len(self._entries) >= self._bound:
            self._room.clear()

    def drop(self, interest: InterestId) -> None:
        """Drops the entries of the interest."""
        self._entries = deque(entry for entry in self._entries if entry.interest != interest)
        if len(self._entries) < self._bound:
            self._room.set()

    async def wait_for_room(self) -> None:
        """Returns when an event may be added."""
        await self._room.wait()

    async def get(self) -> InboxEntry | None:
        """The next entry; None once it is closed. Raises the stream's error after all entries before it."""
        while not self._entries:
            if self._end is not None:
                raise self._end
            if self._closed:
                return None
            self._some.clear()
            await self._some.wait()
        entry = self._entries.popleft()
        if len(self._entries) < self._bound:
            self._room.set()
        return entry

    def fail(self, error: TocsinError) -> None:
        self._end = error
        self._some.set()

    def close(self) -> None:
        """Drops entries that were not taken; they are not acknowledged, so they come again at the next login."""
        self._closed = True
        self._entries.clear()
        self._some.set()
        self._room.set()
