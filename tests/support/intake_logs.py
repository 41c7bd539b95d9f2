"""Intake logs for tests: opened and closed again, and read in full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.intake.log import IntakeLog, LogEntry

ALL = {"max_rows": 1 << 40, "max_bytes": 1 << 40}


class FakeLogClock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[IntakeLog]:
    """The log in this folder, with a lost folder beside it."""
    lost = LostFolder(folder.parent, lambda: datetime(2026, 11, 16, tzinfo=UTC))
    log = IntakeLog.open(folder, lost=lost, **options)
    try:
        yield log
    finally:
        await log.close()


def payloads(entries: list[LogEntry]) -> list[bytes]:
    return [entry.payload for entry in entries]


def newest(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def all_of(log: IntakeLog) -> list[bytes]:
    return payloads(log.read(log.first, **ALL))
