"""What a broker is told: one line of JSON and, behind it, the results that are pushed.

    {"broker":"v.b","after":"1763200000-10","position":"1763200000-250","more":false,
     "news":[{"channel":"v.c","interests":[[17,"1763200000-12-0"],…]},…],
     "pushed":[{"channel":"v.p","interest":9,"results":[["1763200000-12-0",1763200000000000,88],…]},…],
     "gaps":["v.c"],"dropped":2}
    …88 bytes of JSON…                      one result after the other, each followed by a line feed

It holds everything that happened after `after` and up to `position`: the interests of `news` have results up to the
cursor, to be fetched; of those in `pushed` all new results are here; of channels in `gaps` some are gone already.
`dropped` counts the channels that were ever dropped: who sees more of them than before looks for its subscriptions.
With `more` there is more to tell. A receiver whose own position is not `after` has missed something, and asks for its
news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.wire.cursors import cursor_text, parse_cursor, parse_position, position_text
from tocsin.wire.errors import InputError
from tocsin.wire.results import FetchedResult


@dataclass(frozen=True, slots=True)
class PushedResult:
    """All results of one interest that are new."""

    channel: str
    interest: int
    results: Sequence[FetchedResult]


@dataclass(frozen=True, slots=True)
class Announcement:
    """`news`: per channel, its interests that have news, and up to which cursor."""

    broker: str
    after: Position
    position: Position
    more: bool = False
    news: dict[str, list[tuple[int, Cursor]]] = field(default_factory=dict)
    pushed: list[PushedResult] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    dropped: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.news or self.pushed or self.gaps)

    @property
    def id(self) -> str:
        """The same for the same news, so that a receiver knows what it has seen."""
        return f"news_{position_text(self.after)}_{position_text(self.position)}_{self.dropped}"

    def to_bytes(self) -> bytes:
        head = {
            "broker": self.broker,
            "after": position_text(self.after),
            "position": position_text(self.position),
            "more": self.more,
            "news": [
                {"channel": channel, "interests": [(interest, cursor_text(cursor)) for interest, cursor in interests]}
                for channel, interests in self.news.items()
            ],
            "pushed": [
                {
                    "channel": one.channel,
                    "interest": one.interest,
                    "results": [
                        (cursor_text(each.cursor), each.executed_us, len(each.payload)) for each in one.results
                    ],
                }
                for one in self.pushed
            ],
            "gaps": self.gaps,
            "dropped": self.dropped,
        }
        payloads = [each.payload for one in self.pushed for each in one.results]
        return b"\n".join([orjson.dumps(head), *payloads, b""])


def parse_announcement(body: bytes) -> Announcement:
    """InputError when it is none."""
    line, _, rest = body.partition(b"\n")
    try:
        head = orjson.loads(line)
        return Announcement(
            head["broker"],
            parse_position(head["after"]),
            parse_position(head["position"]),
            head["more"],
            {
                one["channel"]: [(interest, parse_cursor(cursor)) for interest, cursor in one["interests"]]
                for one in head["news"]
            },
            _pushed(head["pushed"], rest),
            head["gaps"],
            head["dropped"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is not an announcement: {error}") from None


def _pushed(told: list[dict[str, Any]], payloads: bytes) -> list[PushedResult]:
    found, at = [], 0
    for one in told:
        results = []
        for cursor, executed_us, size_bytes in one["results"]:
            results.append(FetchedResult(parse_cursor(cursor), executed_us, payloads[at : at + size_bytes]))
            at += size_bytes + 1
        found.append(PushedResult(one["channel"], one["interest"], results))
    if at != len(payloads):
        raise InputError("this is not a whole announcement")
    return found
