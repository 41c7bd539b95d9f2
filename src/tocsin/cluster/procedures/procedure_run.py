"""What a procedure did by itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tocsin.cluster.catalog.entries import ProcedureEntry


@dataclass(frozen=True, slots=True)
class ProcedureRun:
    """A run of a procedure by itself, for a tick; `reason` is there where it failed."""

    entry: ProcedureEntry
    tick: datetime
    started: datetime
    ended: datetime
    missed: int
    reason: str | None
