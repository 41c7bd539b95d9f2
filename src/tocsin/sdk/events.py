"""What a consumer is handed, in the order of each interest's cursors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tocsin.wire.cursors import Cursor, cursor_text
from tocsin.wire.envelopes import Available, Ended


@dataclass(frozen=True, slots=True)
class Result:
    """One result. `(interest, cursor)` names it for good: who sees both again has seen it before."""

    channel: str
    interest: int
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
    """Results of the interest up to `cursor` that did not come are gone for good: they were too long not fetched."""

    channel: str
    interest: int
    cursor: Cursor

    def __str__(self) -> str:
        return f"{self.channel}: results up to {cursor_text(self.cursor)} that did not come are gone"


Event = Result | Gap | Available | Ended

__all__ = ["Available", "Ended", "Event", "Gap", "Result"]
