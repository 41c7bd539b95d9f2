"""The events that a consumer receives, in the order of each interest's cursors.

A gap is an event and not an exception: lost results do not end the stream, and the consumer learns of them in their
place in the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tocsin.rules.model.cursors import InterestId
from tocsin.wire.cursors import Cursor, cursor_text
from tocsin.wire.envelopes import Available, Ended


@dataclass(frozen=True, slots=True)
class Result:
    """A result. `(interest, cursor)` identifies it permanently: a consumer that sees the pair again has a duplicate."""

    channel: str
    interest: InterestId
    cursor: Cursor
    executed_at: datetime
    result: Any

    def to_json(self) -> dict[str, Any]:
        return {
            "channel": self.channel,
            "interest": str(self.interest),
            "cursor": cursor_text(self.cursor),
            "executed_at": self.executed_at.isoformat().replace("+00:00", "Z"),
            "result": self.result,
        }

    def __str__(self) -> str:
        return f"{self.channel}: {orjson.dumps(self.result, default=str).decode()}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Results up to `cursor` that were not delivered no longer exist: they expired before they were fetched."""

    channel: str
    interest: InterestId
    cursor: Cursor

    def __str__(self) -> str:
        return f"{self.channel}: results up to {cursor_text(self.cursor)} that did not come are gone"


Event = Result | Gap | Available | Ended

__all__ = ["Available", "Ended", "Event", "Gap", "Result"]
