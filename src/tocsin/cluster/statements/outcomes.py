"""The interface of script execution: one outcome per statement, in order, as soon as it is there.

A statement starts only when the caller asks for its outcome. So outcomes do not pile up for a slow client, and a client
that has gone leaves no further statements behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

StatementSummary: TypeAlias = Mapping[str, Any]
"""What a statement did, e.g. `{"inserted": 3}`: merged into the object of the response."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The rows of a query in batches; each row is encoded as one JSON value. `close` ends the reading and frees the
    disk space of `held_bytes`, whether or not the rows have been read. `check` raises if a row cannot be encoded.
    `summary` says what a statement with RETURNING did."""

    batches: AsyncIterator[list[bytes]]
    held_bytes: int = 0
    remove: Callable[[], Awaitable[None]] | None = None
    check: Callable[[], Awaitable[None]] | None = None
    summary: StatementSummary = field(default_factory=dict)

    async def close(self) -> None:
        try:
            end = getattr(self.batches, "aclose", None)
            if end is not None:
                await end()
        finally:
            if self.remove is not None:
                await self.remove()


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """The outcome of one statement. The caller reads the rows of a query, and closes them."""

    statement: int
    """The number of the statement in the script, from 1."""
    kind: str
    """`query`, `insert`, `create_dataset`, …"""
    summary: StatementSummary
    rows: QueryRows | None


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """What a request says about its script.

    `values` binds statement parameters by their names, such as `$name`: data that no part of a statement is made of.
    `is_read_only`: the script may only run queries. `is_single`: it has one statement, besides USE. `dataverse`: where
    it begins."""

    dataverse: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    is_read_only: bool = False
    is_single: bool = False


USUAL_OPTIONS: Final = ScriptOptions()


class DataverseUser(Protocol):
    """Works in the background for entries of dataverses: feeds, channels, brokers, procedures."""

    def stop_for_drop(self, dataverse: str, /) -> AbstractAsyncContextManager[None]:
        """Surrounds the drop of a dataverse: stops the work for it, and resumes if the drop fails."""
        ...


class ScriptExecutor(Protocol):
    """Runs scripts.

    The executor runs statements one by one, each only when the caller asks for the next outcome. With `stream`, the
    rows of a query wait on the disk: the caller may read them later, even after the end of the script. The first
    failing statement raises a `TocsinError` with its position and ends the script. Cancelling the waiting task, or
    closing the iterator, stops the running job. Without `may_write`, the executor refuses statements that change
    anything; without `may_run_code`, it refuses statements that bring code into the cluster."""

    def run(
        self,
        script: str,
        *,
        stream: bool,
        may_write: bool = True,
        may_run_code: bool = True,
        options: ScriptOptions = USUAL_OPTIONS,
    ) -> AsyncIterator[StatementOutcome]: ...

    async def close(self) -> None: ...
