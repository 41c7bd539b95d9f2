"""Announcements to brokers: one line of JSON, followed by the results that are pushed.

    {"broker":"v.b","after":"1763200000-10","position":"1763200000-250","more":false,
     "heads":[{"channel":"v.c","interests":[[17,"1763200000-12-0"],…]},…],
     "pushed":[{"channel":"v.p","interest":9,"results":[["1763200000-12-0",1763200000000000,88],…]},…],
     "gaps":["v.c"],"dropped":2}
    …88 bytes of JSON…                      one result after the other, each followed by a line feed

An announcement covers everything after `after` and up to `position`. The interests in `heads` have results up to the
cursor, which the broker fetches. `pushed` contains all new results of its interests. Channels in `gaps` have lost
results already. `dropped` counts the channels that were ever dropped: a broker that sees the count grow checks its
subscriptions. `more` says that further announcements follow. A broker whose position is not `after` has missed
something, and asks for everything since its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tocsin.rules.model.cursors import Cursor, InterestId, Position
from tocsin.wire.cursors import cursor_text, parse_cursor, parse_position, position_text
from tocsin.wire.errors import InputError
from tocsin.wire.results import FetchedResult


@dataclass(frozen=True, slots=True)
class PushedResults:
    """All new results of one interest."""

    channel: str
    interest: InterestId
    results: Sequence[FetchedResult]


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement. `heads`: per channel, the interests with new results, each with its newest cursor."""

    broker: str
    after: Position
    position: Position
    more: bool = False
    heads: dict[str, list[tuple[InterestId, Cursor]]] = field(default_factory=dict)
    pushed: list[PushedResults] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    dropped: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.heads or self.pushed or self.gaps)

    @property
    def id(self) -> str:
        """The same for the same content, so that a receiver recognises a repeated message."""
        return f"announcement_{position_text(self.after)}_{position_text(self.position)}_{self.dropped}"

    def to_bytes(self) -> bytes:
        head = {
            "broker": self.broker,
            "after": position_text(self.after),
            "position": position_text(self.position),
            "more": self.more,
            "heads": [
                {"channel": channel, "interests": [(interest, cursor_text(cursor)) for interest, cursor in interests]}
                for channel, interests in self.heads.items()
            ],
            "pushed": [
                {
                    "channel": pushed.channel,
                    "interest": pushed.interest,
                    "results": [
                        (cursor_text(result.cursor), result.executed_us, len(result.payload))
                        for result in pushed.results
                    ],
                }
                for pushed in self.pushed
            ],
            "gaps": self.gaps,
            "dropped": self.dropped,
        }
        payloads = [result.payload for pushed in self.pushed for result in pushed.results]
        return b"\n".join([orjson.dumps(head), *payloads, b""])


def parse_announcement(body: bytes) -> Announcement:
    """Raises InputError if the body is not an announcement."""
    line, _, rest = body.partition(b"\n")
    try:
        head = orjson.loads(line)
        return Announcement(
            head["broker"],
            parse_position(head["after"]),
            parse_position(head["position"]),
            head["more"],
            {
                channel_heads["channel"]: [
                    (interest, parse_cursor(cursor)) for interest, cursor in channel_heads["interests"]
                ]
                for channel_heads in head["heads"]
            },
            _parse_pushed(head["pushed"], rest),
            head["gaps"],
            head["dropped"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is not an announcement: {error}") from None


def _parse_pushed(entries: list[dict[str, Any]], payloads: bytes) -> list[PushedResults]:
    pushed, at = [], 0
    for entry in entries:
        results = []
        for cursor, executed_us, size_bytes in entry["results"]:
            results.append(FetchedResult(parse_cursor(cursor), executed_us, payloads[at : at + size_bytes]))
            at += size_bytes + 1
        pushed.append(PushedResults(entry["channel"], entry["interest"], results))
    if at != len(payloads):
        raise InputError("this is not a whole announcement")
    return pushed
