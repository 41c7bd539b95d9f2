"""What runs scripts, as its callers see it: one outcome per statement, in order, as it happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """One statement, done; or, for a query, begun: its rows are still to be taken."""

    statement: int
    """Its place in the script, from 1."""
    kind: str
    """`query`, `insert`, `create_dataset`, …"""
    summary: Mapping[str, Any]
    """What it did, e.g. `{"inserted": 3}`: merged into the answer's object."""
    rows: AsyncIterator[list[bytes]] | None
    """A query's rows in batches, each row already encoded as one JSON value."""


class ScriptExecutor(Protocol):
    """Runs scripts.

    Statements are executed one by one and only as they are asked for; an outcome's rows are taken before the next
    outcome is. The first failing statement raises a `TocsinError` that carries its place, and ends the script.
    Cancelling the task that waits, or closing the iterator, stops the running job. Without `may_write`, a statement
    that would change anything is refused; without `may_run_code`, one that brings code of its own into the cluster.
    """

    def run(
        self, script: str, *, stream: bool, may_write: bool = True, may_run_code: bool = True
    ) -> AsyncIterator[StatementOutcome]: ...

    async def close(self) -> None: ...
