"""An observer of a log: keeps a fact about every entry for longer than the log keeps the entry."""

from __future__ import annotations

from typing import Protocol

from tocsin.cluster.intake.frames import LogEntry


class LogObserver(Protocol):
    def recall(self, entry: LogEntry) -> None:
        """Receives each entry in order: those in the log when it opens, and later each new one when it is durable,
        before its append returns. The log holds its lock during the call."""

    def keep(self, position: int) -> None:
        """Saves what the observer needs of the entries below the position. The log deletes them when this returns."""
