"""Runs scripts: parses one statement, executes it, yields its outcome, and continues with the next."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa

from tocsin.cluster.catalog.catalog import DEFAULT, CatalogStore
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.channels import Channels
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.http.row_encoder import RowEncoder
from tocsin.cluster.procedures.procedures import Procedures
from tocsin.cluster.statements.ddl import DdlHandler
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.outcomes import StatementOutcome
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax import script as scripts
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.language.types.typed_sql import FunctionError
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import ForbiddenError, StatementError, TocsinError

Rows: TypeAlias = AsyncIterator[list[bytes]]
Handler: TypeAlias = Callable[[Any, StatementScope], Awaitable[Mapping[str, Any] | Rows]]
"""Executes one statement; returns a summary of what it did, or rows."""

# A writer may run every statement but these.
_FOR_READERS: Final = (st.Use, st.Query, st.Explain, st.ExplainChannel)
_FOR_ADMINS: Final = (st.CreatePythonFunction,)

_BATCH_ROWS: Final = 2_000


class ScriptRunner:
    """Implements `ScriptExecutor`. Every statement sees the catalog as of its own start."""

    def __init__(  # noqa: PLR0917
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        changes: DmlHandler,
        procedures: Procedures,
        feeds: Feeds,
        brokers: Brokers,
        channels: Channels,
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
        self._feeds = feeds
        self._brokers = brokers
        self._channels = channels
        self._handlers = {streamed: self._table(streamed) for streamed in (False, True)}

    def _table(self, streamed: bool) -> Mapping[type[st.Statement], Handler]:
        """Returns the handler of every statement except USE, which only changes how the rest of its script is read."""
        definitions, changes, procedures = self._definitions, self._changes, self._procedures
        feeds, brokers, channels = self._feeds, self._brokers, self._channels
        query = self._streamed_rows if streamed else self._whole_rows
        return {
            st.Query: query,
            st.Explain: self._explain,
            st.CreateDataverse: definitions.create_dataverse,
            st.CreateType: definitions.create_type,
            st.CreateDataset: definitions.create_dataset,
            st.CreateIndex: definitions.create_index,
            st.CreateFunction: definitions.create_function,
            st.CreatePythonFunction: definitions.create_python_function,
            st.DropDataverse: self._drop_dataverse,
            st.DropType: definitions.drop,
            st.DropDataset: definitions.drop,
            st.DropIndex: definitions.drop_index,
            st.DropFunction: definitions.drop_function,
            st.Insert: changes.run,
            st.Delete: changes.run,
            st.Load: changes.load,
            st.CreateProcedure: procedures.create,
            st.DropProcedure: procedures.drop,
            st.Execute: partial(self._call, query),
            st.CreateFeed: feeds.run,
            st.ConnectFeed: feeds.run,
            st.DisconnectFeed: feeds.run,
            st.StartFeed: feeds.run,
            st.StopFeed: feeds.run,
            st.DropFeed: feeds.run,
            st.CreateBroker: brokers.create,
            st.DropBroker: brokers.drop,
            st.CreateChannel: channels.create,
            st.DropChannel: channels.drop,
            st.ExplainChannel: self._explain_channel,
            st.SubscribeStatement: channels.subscribe,
            st.UnsubscribeStatement: channels.unsubscribe,
            st.ChangeSubscription: channels.change_subscription,
        }

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
                self._check_role(statement, may_write, may_run_code)
                if isinstance(statement, st.Use):
                    dataverse = self._catalog.catalog.dataverse(statement.dataverse).name
                    result: Mapping[str, Any] | Rows = {"dataverse": dataverse}
                else:
                    result = await self._execute(statement, dataverse, stream)
            except (TranslationError, FunctionError, TocsinError) as error:
                raise _placed(error, script, statement, number) from error
            if isinstance(result, Mapping):
                yield StatementOutcome(number, _kind(statement), result, None)
            else:
                rows = _guarded(result, script, statement, number)
                yield StatementOutcome(number, _kind(statement), {}, rows)

    def _check_role(self, statement: st.Statement, may_write: bool, may_run_code: bool) -> None:
        if not (may_write or isinstance(statement, _FOR_READERS)):
            raise ForbiddenError("this token may only run queries", hint="use one with the role writer")
        if isinstance(statement, _FOR_ADMINS) and not may_run_code:
            raise ForbiddenError(
                "a function in Python runs as the cluster does: only an admin's token may create one",
                hint=f"make one: tocsin token create NAME --role admin --data {shlex.quote(str(self._data))}; "
                "then show it: export TOCSIN_TOKEN=tocsin_…",
            )

    async def _execute(self, statement: st.Statement, dataverse: str, stream: bool) -> Mapping[str, Any] | Rows:
        scope = StatementScope(self._catalog.catalog, self._tables, self._engine, dataverse, datetime.now(UTC))
        try:
            return await self._handlers[stream][type(statement)](statement, scope)
        finally:
            if not isinstance(statement, st.Query):  # the rows of a query close the scope when they have been read
                scope.close()

    async def _explain(self, statement: st.Explain, scope: StatementScope) -> Rows:
        plan = await self._engine.work(lambda: self._engine.plan(scope.translate(statement.query).sql), statement.text)
        return _batches([orjson.dumps(plan)])

    async def _explain_channel(self, statement: st.ExplainChannel, scope: StatementScope) -> Rows:
        return _batches([orjson.dumps(await self._channels.explain(statement, scope))])

    async def _drop_dataverse(self, statement: st.DropDataverse, scope: StatementScope) -> Mapping[str, Any]:
        """Drops a dataverse while its procedures, feeds, brokers and channels stop their background work."""
        async with AsyncExitStack() as stack:
            for handler in (self._procedures, self._feeds, self._brokers, self._channels):
                await stack.enter_async_context(handler.leaving(statement.name))
            return await self._definitions.drop_dataverse(statement, scope)

    async def _call(
        self, query: Callable[[st.Query, StatementScope], Awaitable[Rows]], statement: st.Execute, scope: StatementScope
    ) -> Mapping[str, Any] | Rows:
        call = await self._procedures.called(statement, scope)
        with call.told():
            if isinstance(call.statement, st.Query):
                return call.told_of(await query(call.statement, call.scope))
            try:
                return await self._changes.run(call.statement, call.scope)
            finally:
                call.scope.close()

    # ------------------------------------------------------------ answers

    async def _whole_rows(self, statement: st.Query, scope: StatementScope) -> Rows:
        def work() -> list[bytes]:
            translated = scope.translate(statement.query)
            return self._encoder.encode(self._engine.rows(translated.sql, self._rows_limit + 1), translated)

        try:
            rows = await self._engine.work(work, statement.text)
        finally:
            scope.close()
        return _batches(rows)

    async def _streamed_rows(self, statement: st.Query, scope: StatementScope) -> Rows:
        return self._stream(statement, scope)

    async def _stream(self, statement: st.Query, scope: StatementScope) -> Rows:
        """Yields rows while it reads Spark's result files. Memory holds at most one batch, even for a slow reader."""
        translated: TranslatedQuery | None = None
        batches: Iterator[pa.RecordBatch] = iter(())

        def begin() -> list[bytes] | None:
            nonlocal translated, batches
            translated = scope.translate(statement.query)
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


async def _batches(rows: list[bytes]) -> Rows:
    for start in range(0, len(rows), _BATCH_ROWS):
        yield rows[start : start + _BATCH_ROWS]


async def _guarded(rows: Rows, script: str, statement: st.Statement, number: int) -> Rows:
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
    if isinstance(statement, st.Insert) and statement.upsert:
        return "upsert"
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
