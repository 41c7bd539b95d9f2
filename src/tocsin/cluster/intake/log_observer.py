"""Whoever must know something of every entry of a log for longer than the log keeps it."""

from __future__ import annotations

from typing import Protocol

from tocsin.cluster.intake.frames import LogEntry


class LogObserver(Protocol):
    def recall(self, entry: LogEntry) -> None:
        """One more entry, in their order: those in the log when it is opened, later each one that has become durable,
        before whoever appended it is told. The log stands still meanwhile."""

    def keep(self, position: int) -> None:
        """What is known of the entries below the position is on the disk when this returns, and they may go."""
