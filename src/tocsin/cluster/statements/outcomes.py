"""The interface of script execution: one outcome per statement, in order, as soon as it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# What a statement did, as fields of the response.
SummaryFields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """The outcome of one statement. A query has only begun: the caller still has to read its rows."""

    statement: int
    """The number of the statement in the script, from 1."""
    kind: str
    """`query`, `insert`, `create_dataset`, …"""
    summary: SummaryFields
    """What the statement did, e.g. `{"inserted": 3}`: merged into the object of the response."""
    rows: AsyncIterator[list[bytes]] | None
    """The rows of a query in batches; each row is encoded as one JSON value."""


class ScriptExecutor(Protocol):
    """Runs scripts.

    The executor runs statements one by one, each only when the caller asks for the next outcome. The caller reads the
    rows of an outcome before it asks for the next. The first failing statement raises a `TocsinError` with its position
    and ends the script. Cancelling the waiting task, or closing the iterator, stops the running job. Without
    `may_write`, the executor refuses statements that change anything; without `may_run_code`, it refuses statements
    that bring code into the cluster."""

    def run(
        self, script: str, *, stream: bool, may_write: bool = True, may_run_code: bool = True
    ) -> AsyncIterator[StatementOutcome]: ...

    async def close(self) -> None: ...
