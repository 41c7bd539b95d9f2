"""Trouble reports: what fails, why, and since when, for work that is retried until it succeeds.

Work that is retried in the background raises its error to nobody. Statements, publishers and the health endpoint show
the report instead; it has the time of the first failure, however often the work was retried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from tocsin.wire.errors import StorageFullError, TocsinError


@dataclass(frozen=True, slots=True)
class Trouble:
    """Which work fails, why, and since when."""

    what: str
    reason: str
    since: datetime
    since_s: float
    """The same instant by the event loop's clock."""
    disk_full: bool = False

    @classmethod
    def of(cls, what: str, error: Exception, earlier: Trouble | None) -> Trouble:
        """The report of a failure; it goes on from `earlier` if the work has failed before."""
        since, since_s = datetime.now(UTC), asyncio.get_running_loop().time()
        if earlier is not None:
            since, since_s = earlier.since, earlier.since_s
        return cls(what, reason_of(error), since, since_s, isinstance(error, StorageFullError))


def reason_of(error: Exception) -> str:
    """The message of one of our errors; an unexpected one with its type."""
    return error.message if isinstance(error, TocsinError) else f"{type(error).__name__}: {error}".rstrip(": ")
