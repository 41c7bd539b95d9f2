"""The record of one scheduled run of a procedure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tocsin.cluster.catalog.entries import ProcedureEntry


@dataclass(frozen=True, slots=True)
class ProcedureRun:
    """One run of a procedure at a tick. `reason` is set if the run failed."""

    entry: ProcedureEntry
    tick: datetime
    started: datetime
    ended: datetime
    missed: int
    reason: str | None
