"""Runs scripts: parses one statement, executes it, yields its outcome, and continues with the next."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa

from tocsin.cluster.catalog.catalog import DEFAULT, CatalogStore
from tocsin.cluster.channels.channels import Channels
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.http.row_encoder import RowEncoder
from tocsin.cluster.procedures.procedures import Procedures
from tocsin.cluster.statements.ddl import DdlHandler
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax import script as scripts
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.queries import TranslatedQuery
from tocsin.language.types.typed_sql import FunctionError
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import ForbiddenError, StatementError, TocsinError

_BATCH_ROWS = 2_000


class StatementHandler(Protocol):
    """Executes the statements of one kind."""

    async def run(self, statement: st.Statement, scope: StatementScope) -> Mapping[str, Any] | None:
        """Executes the statement and returns a summary, or returns None if the statement belongs to another handler."""


class LifecycleHandler(StatementHandler, Protocol):
    """A handler that also runs background work, such as channels and feeds."""

    def leaving(self, dataverse: str) -> AbstractAsyncContextManager[None]:
        """Wraps the drop of a dataverse: on exit, it stops all background work that is no longer in the catalog."""


class ScriptRunner:
    """Implements `ScriptExecutor`. Every statement sees the catalog as of its own start."""

    def __init__(  # noqa: PLR0917
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        changes: DmlHandler,
        procedures: Procedures,
        channels: Channels,
        lifecycle_handlers: Sequence[LifecycleHandler],
        settings: ClusterSettings,
        data: Path,
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._data = data
        self._rows_limit = settings.statements.rows_limit
        self._encoder = RowEncoder()
        self._definitions = DdlHandler(catalog, tables, engine, settings.datasets.history)
        self._changes = changes
        self._procedures = procedures
        self._channels = channels
        self._lifecycle_handlers: tuple[LifecycleHandler, ...] = (procedures, *lifecycle_handlers)

    async def close(self) -> None:
        self._engine.close()

    async def run(
        self, script: str, *, stream: bool, may_write: bool = True, may_run_code: bool = True
    ) -> AsyncIterator[StatementOutcome]:
        dataverse = DEFAULT
        parsing = scripts.statements(script)
        number = 0
        while True:
            statement = await self._engine.compute(lambda: next(parsing, None))
            if statement is None:
                return
            number += 1
            try:
                if isinstance(statement, st.Use):
                    dataverse = self._catalog.catalog.dataverse(statement.dataverse).name
                    yield StatementOutcome(number, "use", {"dataverse": dataverse}, None)
                    continue
                if not (may_write or isinstance(statement, st.Query | st.Explain | st.ExplainChannel)):
                    raise ForbiddenError("this token may only run queries", hint="use one with the role writer")
                if isinstance(statement, st.CreatePythonFunction) and not may_run_code:
                    raise ForbiddenError(
                        "a function in Python runs as the cluster does: only an admin's token may create one",
                        hint=f"make one: tocsin token create NAME --role admin --data {shlex.quote(str(self._data))}; "
                        "then show it: export TOCSIN_TOKEN=tocsin_…",
                    )
                outcome = await self._execute(number, statement, dataverse, stream)
            except (TranslationError, FunctionError, TocsinError) as error:
                raise _placed(error, script, statement, number) from error
            yield (
                outcome
                if outcome.rows is None
                else StatementOutcome(
                    number, outcome.kind, outcome.summary, _guarded(outcome.rows, script, statement, number)
                )
            )

    async def _execute(self, number: int, statement: st.Statement, dataverse: str, stream: bool) -> StatementOutcome:
        now = datetime.now(UTC)
        scope = StatementScope(self._catalog.catalog, self._tables, self._engine, dataverse, now)
        kind = _kind(statement)
        if isinstance(statement, st.Query):
            rows = self._streamed(statement, scope) if stream else await self._whole(statement, scope)
            return StatementOutcome(number, "query", {}, rows)
        try:
            if isinstance(statement, st.Explain):
                plan = await self._engine.work(
                    lambda: self._engine.plan(scope.translated(statement.query).sql), statement.text
                )
                return StatementOutcome(number, kind, {}, _one(orjson.dumps(plan)))
            if isinstance(statement, st.ExplainChannel):
                return StatementOutcome(
                    number, kind, {}, _one(orjson.dumps(await self._channels.explained(statement, scope)))
                )
            if isinstance(statement, st.Execute):
                return await self._called(number, statement, scope, stream)
            if isinstance(statement, st.DropDataverse):
                async with AsyncExitStack() as stack:
                    for lifecycle_handler in self._lifecycle_handlers:
                        await stack.enter_async_context(lifecycle_handler.leaving(statement.name))
                    return StatementOutcome(number, kind, await self._definitions.run(statement, scope) or {}, None)
            handlers: tuple[StatementHandler, ...] = (self._definitions, self._changes, *self._lifecycle_handlers)
            for handler in handlers:
                summary = await handler.run(statement, scope)
                if summary is not None:
                    if isinstance(statement, st.Insert) and statement.upsert:
                        kind = "upsert"
                    return StatementOutcome(number, kind, summary, None)
        finally:
            scope.close()
        raise StatementError(f"{kind.replace('_', ' ').upper()} is no statement of this cluster")

    async def _called(
        self, number: int, statement: st.Execute, scope: StatementScope, stream: bool
    ) -> StatementOutcome:
        call = await self._procedures.called(statement, scope)
        with call.told():
            if isinstance(call.statement, st.Query):
                query, call_scope = call.statement, call.scope
                rows = self._streamed(query, call_scope) if stream else await self._whole(query, call_scope)
                return StatementOutcome(number, "execute", {}, call.told_of(rows))
            try:
                return StatementOutcome(
                    number, "execute", await self._changes.run(call.statement, call.scope) or {}, None
                )
            finally:
                call.scope.close()

    # ------------------------------------------------------------ answers

    async def _whole(self, statement: st.Query, scope: StatementScope) -> AsyncIterator[list[bytes]]:
        def work() -> list[bytes]:
            translated = scope.translated(statement.query)
            return self._encoder.encode(self._engine.rows(translated.sql, self._rows_limit + 1), translated)

        try:
            rows = await self._engine.work(work, statement.text)
        finally:
            scope.close()
        return _several(rows)

    async def _streamed(self, statement: st.Query, scope: StatementScope) -> AsyncIterator[list[bytes]]:
        """Yields rows while it reads Spark's result files. Memory holds at most one batch, even for a slow reader."""
        translated: TranslatedQuery | None = None
        batches: Iterator[pa.RecordBatch] = iter(())

        def begin() -> list[bytes] | None:
            nonlocal translated, batches
            translated = scope.translated(statement.query)
            batches = self._engine.batches(translated.sql)
            return following()

        def following() -> list[bytes] | None:
            assert translated is not None
            batch = next(batches, None)
            return None if batch is None else self._encoder.encode(pa.Table.from_batches([batch]), translated)

        try:
            next_batch: Callable[[], list[bytes] | None] = begin
            while (rows := await self._engine.work(next_batch, statement.text)) is not None:
                yield rows
                next_batch = following
        finally:
            # Closing the generator removes Spark's result files.
            close = getattr(batches, "close", None)
            if close is not None:
                with suppress(ValueError):  # an abandoned thread still runs the generator and cleans up when it ends
                    await asyncio.shield(asyncio.to_thread(close))
            scope.close()


async def _several(rows: list[bytes]) -> AsyncIterator[list[bytes]]:
    for start in range(0, len(rows), _BATCH_ROWS):
        yield rows[start : start + _BATCH_ROWS]


async def _one(row: bytes) -> AsyncIterator[list[bytes]]:
    yield [row]


async def _guarded(
    rows: AsyncIterator[list[bytes]], script: str, statement: st.Statement, number: int
) -> AsyncIterator[list[bytes]]:
    try:
        async for batch in rows:
            yield batch
    except (TranslationError, FunctionError, TocsinError) as error:
        raise _placed(error, script, statement, number) from error
    finally:
        close: Any = getattr(rows, "aclose", None)
        if close is not None:
            await close()


def _kind(statement: st.Statement) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(statement).__name__).lower()


def _placed(error: Exception, script: str, statement: st.Statement, number: int) -> TocsinError:
    """Adds the statement's number to the error, and the line and column: those of the error if known, else those of the
    statement."""
    offset = statement.offset
    if isinstance(error, TranslationError):
        offset = error.offset if error.offset is not None else offset
        error = StatementError(error.message, hint=error.hint)
    elif isinstance(error, FunctionError):
        error = StatementError(str(error))
    assert isinstance(error, TocsinError)
    error.statement = number
    if error.line is None:
        error.line, error.column = scripts.place(script, offset)
    return error
