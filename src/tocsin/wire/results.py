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
from typing import Any, Final

import orjson

from tocsin.rules.model.cursors import Cursor, InterestId, Range
from tocsin.wire.cursors import cursor_text, parse_cursor
from tocsin.wire.errors import InputError, LimitError, UnavailableError

FRAMES: Final = "application/vnd.tocsin.frames"
RANGES_LIMIT: Final = 10_000

_LF: Final = b"\n"
_RANGE_HAS: Final = "expected interest, after, and maybe to, limit and limit_bytes"


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
class NextRange:
    """Where a too large answer stopped: ranges before `range` are complete, later ones have not begun."""

    range: int
    after: Cursor
    limit: int | None = None
    limit_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"range": self.range, "after": cursor_text(self.after)}
        return fields | _limits_json(self)


def remaining_ranges(asked: Sequence[Range], stopped: NextRange) -> list[Range]:
    """The ranges to request next. Indexes in the next answer count from `stopped.range`."""
    first = asked[stopped.range]
    rest = Range(first.interest, stopped.after, first.to, stopped.limit, stopped.limit_bytes)
    return [rest, *asked[stopped.range + 1 :]]


# --- writing


def fetch_request(ranges: Iterable[Range]) -> bytes:
    return orjson.dumps({"ranges": [_range_json(fetch_range) for fetch_range in ranges]})


def _range_json(one: Range) -> dict[str, Any]:
    fields: dict[str, Any] = {"interest": one.interest, "after": cursor_text(one.after)}
    if one.to is not None:
        fields["to"] = cursor_text(one.to)
    return fields | _limits_json(one)


def _limits_json(one: Range | NextRange) -> dict[str, Any]:
    limits = {"limit": one.limit, "limit_bytes": one.limit_bytes}
    return {name: limit for name, limit in limits.items() if limit is not None}


def parse_ranges(asked: object) -> list[Range]:
    """The ranges of a request; the InputError names the wrong range."""
    if not isinstance(asked, dict) or set(asked) != {"ranges"} or not isinstance(asked["ranges"], list):
        raise InputError('expected {"ranges": [{"interest": 17, "after": "0-0-0"}, …]}')
    if len(asked["ranges"]) > RANGES_LIMIT:
        raise LimitError(f"{len(asked['ranges'])} ranges, at most {RANGES_LIMIT} in one request", hint="ask in parts")
    ranges = []
    for index, fields in enumerate(asked["ranges"]):
        try:
            ranges.append(_parse_range(fields))
        except InputError as error:
            raise InputError(f"range {index}: {error.message}", hint=error.hint) from None
    return ranges


def _parse_range(one: Any) -> Range:
    if one.__class__ is not dict or "interest" not in one or "after" not in one:
        raise InputError(_RANGE_HAS)
    number, after = one["interest"], parse_cursor(one["after"])
    if number.__class__ is not int:
        raise InputError("an interest is a whole number")
    interest = InterestId(number)
    if len(one) == 2:
        return Range(interest, after)
    to, limit, limit_bytes = one.get("to"), one.get("limit"), one.get("limit_bytes")
    if not one.keys() <= {"interest", "after", "to", "limit", "limit_bytes"}:
        raise InputError(_RANGE_HAS)
    for value in (limit, limit_bytes):
        if value is not None and (value.__class__ is not int or not 0 < value < 1 << 63):
            raise InputError("a limit is a whole number above 0")
    return Range(interest, after, None if to is None else parse_cursor(to), limit, limit_bytes)


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
        self._kept = bytearray()
        self._head: dict[str, Any] | None = None

    def feed(self, some: bytes) -> Iterator[FetchedPart]:
        """Yields the parts that are complete with these bytes."""
        self._kept += some
        while not self.ended:
            if self._head is None:
                line, line_feed, rest = self._kept.partition(_LF)
                if not line_feed:
                    return
                self._kept = rest
                head = orjson.loads(line)
                if "parts" not in head:
                    self._finish(head)
                    return
                self._head = head
            if len(self._kept) < self._head["bytes"]:
                return
            body = bytes(self._kept[: self._head["bytes"]])
            del self._kept[: self._head["bytes"]]
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
            self.next = NextRange(
                fields["range"], parse_cursor(fields["after"]), fields.get("limit"), fields.get("limit_bytes")
            )


def _parts(parts: list[dict[str, Any]], body: bytes) -> Iterator[FetchedPart]:
    at = 0
    for part in parts:
        results = []
        for cursor, executed_us, size_bytes in part["results"]:
            results.append(FetchedResult(parse_cursor(cursor), executed_us, body[at : at + size_bytes]))
            at += size_bytes + 1
        gap = part.get("gap")
        yield FetchedPart(part["range"], results, None if gap is None else parse_cursor(gap), part.get("known", True))
