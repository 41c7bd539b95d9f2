"""Encodes deliveries as events on the wire. An event is encoded once for all subscribers, in each form that is needed.

fetched result ─▶ _CachedPayload: its item of an envelope ─▶ envelope of a delivery ─▶ frame or chunk of a connection
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from tocsin.broker.core import actions as ac
from tocsin.clock import now_us
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.wire.cursors import cursor_text
from tocsin.wire.envelopes import AVAILABLE, ENDED, RESULTS, EnvelopeWriter, item, server_sent
from tocsin.wire.results import FetchedResult


class _CachedPayload(NamedTuple):
    """The payload of a cached result."""

    item: bytes
    executed_us: int


def to_broker_result(result: FetchedResult) -> BrokerResult:
    """A fetched result as the cache keeps it, with its envelope item as the payload."""
    text = item(result.cursor, result.executed_us, result.payload)
    return BrokerResult(result.cursor, len(text), _CachedPayload(text, result.executed_us))


class OutletForm(IntEnum):
    """The form in which an outlet takes events."""

    WEBSOCKET = 0
    SERVER_SENT = 1
    PLAIN = 2


class EncodedEvent:
    """An event in every form; a form is encoded when the first outlet needs it. `mark` identifies the event within its
    interest, and is the same when the event is repeated."""

    __slots__ = ("_framed", "envelope", "interest", "kind", "mark", "to")

    def __init__(self, kind: str, envelope: bytes, interest: InterestId, to: Cursor | None, mark: str) -> None:
        self.kind = kind
        self.mark = mark
        self.envelope = envelope
        self.interest = interest
        self.to = to
        self._framed: list[bytes | None] = [None, None, envelope]

    def frame_as(self, form: OutletForm) -> bytes:
        """The bytes in this form, encoded on first use."""
        framed = self._framed[form]
        if framed is None:
            if form is OutletForm.WEBSOCKET:
                framed = websocket_frame(self.envelope)
            else:
                framed = http_chunk(server_sent(self.kind, self.envelope, interest=self.interest, to=self.to))
            self._framed[form] = framed
        return framed


class EventEncoder:
    """Encodes events. `channel_of` returns the name of an interest's channel."""

    def __init__(
        self, broker: str, channel_of: Callable[[InterestId], str], *, page_results: int, page_bytes: int
    ) -> None:
        self._writer = EnvelopeWriter(broker)
        self._channel_of = channel_of
        self._page_results = page_results
        self._page_bytes = page_bytes

    def results(self, action: ac.Deliver) -> list[EncodedEvent]:
        """Encodes the results as one envelope, or as several consecutive ones if they exceed the page size."""
        pages, events, after = self._pages(action.results), [], action.after
        for number, page in enumerate(pages, 1):
            last = number == len(pages)
            to = action.to if last else page[-1].cursor
            events.append(self._page(action, page, (after, to), action.more or not last))
            after = to
        return events

    def first(self, action: ac.Deliver, limit: int | None) -> tuple[list[EncodedEvent], bool]:
        """Encodes one envelope for a subscriber that pulls; returns it with whether there are more results."""
        page = self._pages(action.results)[0][:limit]
        whole = len(page) == len(action.results)
        to, more = action.to if whole else page[-1].cursor, action.more or not whole
        if action.after == to and action.gap is None:
            return [], more
        return [self._page(action, page, (action.after, to), more)], more

    def available(self, action: ac.NotifyAvailable) -> EncodedEvent:
        interest = action.interest
        channel = self._channel_of(interest)
        envelope = self._writer.available(channel, interest, action.to, at_us=now_us())
        return EncodedEvent(AVAILABLE, envelope, interest, None, f"available_{cursor_text(action.to)}")

    def encode_end(self, action: ac.EndSubscriptions) -> EncodedEvent:
        interest = action.interest
        channel = self._channel_of(interest)
        at_us = now_us()
        envelope = self._writer.end(channel, interest, action.reason, at_us=at_us)
        return EncodedEvent(ENDED, envelope, interest, None, f"ended_{at_us}")

    def _page(
        self, action: ac.Deliver, page: Sequence[BrokerResult], stretch: tuple[Cursor, Cursor], more: bool
    ) -> EncodedEvent:
        interest, (after, to) = action.interest, stretch
        gap = action.gap if action.gap is not None and action.gap > after else None
        envelope = self._writer.results(
            self._channel_of(interest), interest, after, to, [result.payload.item for result in page],
            at_us=now_us(), gap=gap, more=more,
        )  # fmt: skip
        return EncodedEvent(RESULTS, envelope, interest, to, f"{cursor_text(after)}_{cursor_text(to)}")

    def _pages(self, results: Sequence[BrokerResult]) -> list[Sequence[BrokerResult]]:
        """Splits the results into pages by number and bytes."""
        if len(results) < 2:
            return [results]
        pages: list[Sequence[BrokerResult]] = []
        begin = size_bytes = 0
        for end, result in enumerate(results, 1):
            size_bytes += result.size_bytes
            if end - begin >= self._page_results or size_bytes >= self._page_bytes:
                pages.append(results[begin:end])
                begin, size_bytes = end, 0
        if begin < len(results):
            pages.append(results[begin:])
        return pages


# --- frames: the bytes around an envelope in a WebSocket or an HTTP response


_TEXT: Final = 0x81  # FIN and the text opcode: the message is a single frame
_SHORT: Final = 126
_LONG: Final = 127
_TWO: Final = Struct("!BBH")
_EIGHT: Final = Struct("!BBQ")


def websocket_frame(message: bytes) -> bytes:
    """A server's text message: unmasked, uncompressed, in a single frame."""
    size_bytes = len(message)
    if size_bytes < _SHORT:
        return bytes((_TEXT, size_bytes)) + message
    if size_bytes < 1 << 16:
        return _TWO.pack(_TEXT, _SHORT, size_bytes) + message
    return _EIGHT.pack(_TEXT, _LONG, size_bytes) + message


def http_chunk(data: bytes) -> bytes:
    """A chunk of an HTTP response with chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)
