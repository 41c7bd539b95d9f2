"""Results of many interests in one answer: frames, each a line of JSON that describes the bytes after it.

    {"bytes":178,"parts":[{"range":0,"results":[["1763200000-12-0",1763200000000000,88],…]},…]}
    …88 bytes of JSON…                                  one result after the other, each followed by a line feed
    {"end":true}                                        or {"end":true,"next":{…}}, or {"error":{…}}

A broker that forwards results reads one line per frame and cuts the rest into pieces without parsing them. An answer
that ends with neither `end` nor `error` was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import orjson

from tocsin.rules.model.cursors import Cursor, InterestId, Range
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.errors import UnavailableError
from tocsin.wire.messages import Mark, Message, at_most, positive

FRAMES: Final = "application/vnd.tocsin.frames"

_RANGES_LIMIT: Final = 10_000
_LF: Final = b"\n"


@dataclass(frozen=True, slots=True)
class FetchedResult:
    """A result as the cluster sends it. `executed_us`: microseconds since 1970. `payload`: JSON."""

    cursor: Cursor
    executed_us: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Results of the range with this index in the request; a range may come in several parts.

    `gap`: results up to this cursor no longer exist. `known` is False if the interest does not exist.
    """

    range: int
    results: list[FetchedResult]
    gap: Cursor | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class NextRange(Message):
    """Where a too large answer stopped: ranges before `range` are complete, later ones have not begun."""

    range: int
    after: Cursor
    limit: int | None = None
    limit_bytes: int | None = None


def list_remaining_ranges(asked: Sequence[Range], stopped: NextRange) -> list[Range]:
    """The ranges to request next. Indexes in the next answer count from `stopped.range`."""
    first = asked[stopped.range]
    rest = Range(first.interest, stopped.after, first.to, stopped.limit, stopped.limit_bytes)
    return [rest, *asked[stopped.range + 1 :]]


@dataclass(frozen=True, slots=True)
class RangeRequest(Message):
    """A range of an interest's results; the fields are those of `rules.model.cursors.Range`."""

    SHAPE: ClassVar[str] = "interest, after, and maybe to, limit and limit_bytes"

    interest: InterestId
    after: Annotated[Cursor, Mark("Results after this cursor; `0-0-0` requests all results that are kept.")]
    to: Annotated[Cursor | None, Mark("Results up to this cursor, inclusive.")] = None
    limit: Annotated[int | None, positive(1 << 63)] = None
    limit_bytes: Annotated[int | None, positive(1 << 63)] = None


@dataclass(frozen=True, slots=True)
class FetchRequest(Message):
    """A request for the results of many interests."""

    SHAPE: ClassVar[str] = '{"ranges": [{"interest": 17, "after": "0-0-0"}, …]}'

    ranges: Annotated[tuple[RangeRequest, ...], at_most(_RANGES_LIMIT, status=413, hint="ask in parts")]


@dataclass(frozen=True, slots=True)
class FetchedPageItem(Message):
    """A result of an interest. `executed_us`: microseconds since 1970."""

    cursor: Cursor
    executed_us: int
    result: Any


@dataclass(frozen=True, slots=True)
class FetchedPage(Message):
    """Results of one interest."""

    interest: InterestId
    known: Annotated[bool, Mark("False if the interest does not exist.")]
    gap: Annotated[Cursor | None, Mark("Results up to this cursor no longer exist.")]
    results: tuple[FetchedPageItem, ...]
    more: Annotated[bool, Mark("True if there are further results after the last cursor.")]


# --- writing


def fetch_request(ranges: Iterable[Range]) -> bytes:
    return orjson.dumps(FetchRequest(tuple(RangeRequest(*wanted) for wanted in ranges)).to_json())


def frame(parts: Iterable[tuple[int, Sequence[tuple[Cursor, int, bytes]], Cursor | None, bool]]) -> bytes:
    """One frame. A part has a range, results as (cursor, executed_us, payload), a gap, and `known`."""
    part_heads: list[dict[str, Any]] = []
    payloads: list[bytes] = []
    for index, results, gap, exists in parts:
        result_heads = []
        for (epoch, execution, ordinal), executed_us, payload in results:
            result_heads.append((f"{epoch}-{execution}-{ordinal}", executed_us, len(payload)))
            payloads.append(payload)
        part: dict[str, Any] = {"range": index, "results": result_heads}
        if gap is not None:
            part["gap"] = cursor_text(gap)
        if not exists:
            part["known"] = False
        part_heads.append(part)
    body = _LF.join(payloads) + _LF if payloads else b""
    return orjson.dumps({"bytes": len(body), "parts": part_heads}) + _LF + body


def end(stopped: NextRange | None = None) -> bytes:
    head: dict[str, Any] = {"end": True}
    return orjson.dumps(head if stopped is None else {**head, "next": stopped.to_json()}) + _LF


# --- reading


class FrameReader:
    """Takes the bytes of an answer as they arrive and yields complete parts."""

    def __init__(self) -> None:
        self.ended = False
        self.next: NextRange | None = None
        self.error: dict[str, Any] | None = None
        self._buffer = bytearray()
        self._head: dict[str, Any] | None = None

    def feed(self, chunk: bytes) -> Iterator[FetchedPart]:
        """Yields the parts that are complete with these bytes."""
        self._buffer += chunk
        while not self.ended:
            if self._head is None:
                line, line_feed, rest = self._buffer.partition(_LF)
                if not line_feed:
                    return
                self._buffer = rest
                head = orjson.loads(line)
                if "parts" not in head:
                    self._finish(head)
                    return
                self._head = head
            if len(self._buffer) < self._head["bytes"]:
                return
            body = bytes(self._buffer[: self._head["bytes"]])
            del self._buffer[: self._head["bytes"]]
            parts, self._head = self._head["parts"], None
            yield from _parts(parts, body)

    def check(self) -> NextRange | None:
        """At the end of the answer: where to continue, if anywhere. Raises UnavailableError if it is incomplete."""
        if self.error is not None:
            raise UnavailableError(f"the answer broke off: {self.error.get('message')}")
        if not self.ended:
            raise UnavailableError("the answer was cut off", hint="fetch again after the last cursor that came")
        return self.next

    def _finish(self, last: dict[str, Any]) -> None:
        self.ended = True
        self.error = last.get("error")
        if (fields := last.get("next")) is not None:
            self.next = NextRange.parse(fields)


def _parts(parts: list[dict[str, Any]], body: bytes) -> Iterator[FetchedPart]:
    at = 0
    for part in parts:
        results = []
        for cursor, executed_us, size_bytes in part["results"]:
            results.append(FetchedResult(parse_cursor(cursor), executed_us, body[at : at + size_bytes]))
            at += size_bytes + 1
        gap = part.get("gap")
        yield FetchedPart(part["range"], results, None if gap is None else parse_cursor(gap), part.get("known", True))
