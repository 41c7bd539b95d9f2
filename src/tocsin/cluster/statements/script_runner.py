"""Runs scripts: parses one statement, executes it, yields its outcome, and continues with the next.

One table names the handler of each statement, so that a reader finds from here what any statement does.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from tocsin.cluster.catalog.catalog import DEFAULT, CatalogStore
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.channels import Channels
from tocsin.cluster.channels.subscription_statements import SubscriptionStatements
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.statements.ddl import DdlHandler
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.function_replacement import FunctionReplacement
from tocsin.cluster.statements.options import SetOptions
from tocsin.cluster.statements.outcomes import (
    USUAL_OPTIONS,
    DataverseUser,
    QueryRows,
    ScriptOptions,
    StatementOutcome,
    StatementSummary,
)
from tocsin.cluster.statements.procedures import Procedures
from tocsin.cluster.statements.row_encoder import RowEncoder
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax import script as scripts
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.language.types.typed_sql import FunctionError
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import ForbiddenError, InputError, StatementError, StoppedError, TocsinError

_StatementHandler: TypeAlias = Callable[[Any, StatementScope], Awaitable[StatementSummary | QueryRows]]
"""Executes one statement; returns a summary of what it did, or rows."""

# A writer may run every statement but these.
_FOR_READERS: Final = (st.Use, st.SetOption, st.WriteOutput, st.Query, st.Explain, st.ExplainChannel)
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
        subscriptions: SubscriptionStatements,
        settings: ClusterSettings,
        data: Path,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now` is the clock that statements see: `current_datetime()` is the start of the statement."""
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._data = data
        self._now = now
        self._rows_limit = settings.statements.rows_limit
        self._encoder = RowEncoder()
        replacement = FunctionReplacement(catalog, engine, channels, procedures)
        self._definitions = DdlHandler(catalog, tables, engine, replacement, settings.datasets.history)
        self._changes = changes
        self._procedures = procedures
        self._feeds = feeds
        self._brokers = brokers
        self._channels = channels
        self._subscriptions = subscriptions
        self.handlers = {streamed: self._table(streamed) for streamed in (False, True)}

    def _table(self, streamed: bool) -> Mapping[type[st.Statement], _StatementHandler]:
        """Returns the handler of every statement except USE, SET and WRITE OUTPUT, which concern only the rest of their
        script."""
        definitions, changes, procedures = self._definitions, self._changes, self._procedures
        feeds, brokers, channels = self._feeds, self._brokers, self._channels
        query = self._stream_rows if streamed else self._whole_rows
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
            st.Insert: self._insert,
            st.Delete: changes.run,
            st.Load: changes.load,
            st.CreateProcedure: procedures.create,
            st.DropProcedure: procedures.drop,
            st.Execute: partial(self._call, query),
            st.CreateFeed: feeds.create,
            st.ConnectFeed: feeds.connect,
            st.DisconnectFeed: feeds.disconnect,
            st.StartFeed: feeds.start_feed,
            st.StopFeed: feeds.stop_feed,
            st.DropFeed: feeds.drop,
            st.CreateBroker: brokers.create,
            st.DropBroker: brokers.drop,
            st.CreateChannel: channels.create,
            st.DropChannel: channels.drop,
            st.ExplainChannel: self._explain_channel,
            st.SubscribeStatement: self._subscriptions.subscribe,
            st.UnsubscribeStatement: self._subscriptions.unsubscribe,
            st.ChangeSubscription: self._subscriptions.change_subscription,
        }

    async def close(self) -> None:
        self._engine.close()
        self._encoder.close()

    async def run(
        self,
        script: str,
        *,
        stream: bool,
        may_write: bool = True,
        may_run_code: bool = True,
        options: ScriptOptions = USUAL_OPTIONS,
    ) -> AsyncIterator[StatementOutcome]:
        dataverse = self._catalog.catalog.dataverse(options.dataverse or DEFAULT).name
        set_options = SetOptions()
        parsing = scripts.statements(script)

        def parse_next() -> st.Statement | StatementError | None:
            try:
                return next(parsing, None)
            except StatementError as error:
                return error

        number = 0
        following = await self._engine.compute(parse_next)
        while following is not None:
            if isinstance(following, StatementError):
                raise following
            statement, following = following, await self._engine.compute(parse_next)
            number += 1
            try:
                self._check_role(statement, may_write, may_run_code)
                _check_options(statement, options, is_last=following is None)
                if isinstance(statement, st.Use):
                    dataverse = self._catalog.catalog.dataverse(statement.dataverse).name
                    result: StatementSummary | QueryRows = {"dataverse": dataverse}
                elif isinstance(statement, st.SetOption):
                    result = set_options.apply(statement)
                elif isinstance(statement, st.WriteOutput):
                    result = {"target": statement.target, "note": "this has no effect: the answer carries the rows"}
                else:
                    result = await self._execute_in_time(
                        statement, dataverse, stream, options.values, set_options.timeout_s
                    )
                    if following is not None and isinstance(result, QueryRows):
                        await _check_rows(result)
            except (TranslationError, FunctionError, TocsinError) as error:
                raise _place_error(error, script, statement, number) from error
            if isinstance(result, Mapping):
                yield StatementOutcome(number, _kind(statement), result, None)
            else:
                rows = _with_placed_errors(result, script, statement, number)
                yield StatementOutcome(number, _kind(statement), result.summary, rows)

    def _check_role(self, statement: st.Statement, may_write: bool, may_run_code: bool) -> None:
        if not (may_write or isinstance(statement, _FOR_READERS)):
            raise ForbiddenError("this token may only run queries", hint="use one with the role writer")
        if isinstance(statement, _FOR_ADMINS) and not may_run_code:
            raise ForbiddenError(
                "a function in Python runs as the cluster does: only an admin's token may create one",
                hint=f"make one: tocsin token create NAME --role admin --data {shlex.quote(str(self._data))}; "
                "then show it: export TOCSIN_TOKEN=tocsin_…",
            )

    async def _execute_in_time(
        self, statement: st.Statement, dataverse: str, stream: bool, values: Mapping[str, Any], timeout_s: float | None
    ) -> StatementSummary | QueryRows:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._execute(statement, dataverse, stream, values)
        except TimeoutError:
            raise StoppedError(
                f"the statement was not done within {timeout_s:g} s", hint="SET timeout gives it more time"
            ) from None

    async def _execute(
        self, statement: st.Statement, dataverse: str, stream: bool, values: Mapping[str, Any]
    ) -> StatementSummary | QueryRows:
        scope = StatementScope(self._catalog.catalog, self._tables, self._engine, dataverse, self._now(), values=values)
        try:
            return await self.handlers[stream][type(statement)](statement, scope)
        finally:
            if not isinstance(statement, st.Query):  # the rows of a query close the scope when they have been read
                scope.close()

    async def _explain(self, statement: st.Explain, scope: StatementScope) -> QueryRows:
        plan = await self._engine.work(lambda: self._engine.plan(scope.translate(statement.query).sql), statement.text)
        return _whole([orjson.dumps(plan)])

    async def _explain_channel(self, statement: st.ExplainChannel, scope: StatementScope) -> QueryRows:
        return _whole([orjson.dumps(await self._channels.explain(statement, scope))])

    async def _drop_dataverse(self, statement: st.DropDataverse, scope: StatementScope) -> StatementSummary:
        """Drops a dataverse while its procedures, feeds, brokers and channels stop their background work."""
        async with AsyncExitStack() as stack:
            users: tuple[DataverseUser, ...] = (self._procedures, self._feeds, self._brokers, self._channels)
            for user in users:
                await stack.enter_async_context(user.stop_for_drop(statement.name))
            return await self._definitions.drop_dataverse(statement, scope)

    async def _call(
        self,
        query: Callable[[st.Query, StatementScope], Awaitable[QueryRows]],
        statement: st.Execute,
        scope: StatementScope,
    ) -> StatementSummary | QueryRows:
        call = await self._procedures.prepare_call(statement, scope)
        if call.entry.period is not None:
            return await self._procedures.start_schedule(call)
        with call.attribute_errors():
            if isinstance(call.statement, st.Query):
                return call.attribute_errors_of(await query(call.statement, call.scope))
            try:
                if isinstance(call.statement, st.Insert):
                    return await self._insert(call.statement, call.scope)
                return await self._changes.run(call.statement, call.scope)
            finally:
                call.scope.close()

    async def _insert(self, statement: st.Insert, scope: StatementScope) -> StatementSummary | QueryRows:
        if statement.returning is None:
            return await self._changes.run(statement, scope)
        summary, rows = await self._changes.run_returning(statement, scope, self._rows_limit, self._encoder.encode)
        return replace(_whole(rows), summary=summary)

    # ------------------------------------------------------------ answers

    async def _whole_rows(self, statement: st.Query, scope: StatementScope) -> QueryRows:
        def work() -> list[bytes]:
            translated = scope.translate(statement.query)
            return self._encoder.encode(self._engine.rows(translated.sql, self._rows_limit + 1), translated)

        try:
            rows = await self._engine.work(work, statement.text)
        finally:
            scope.close()
        return _whole(rows)

    async def _stream_rows(self, statement: st.Query, scope: StatementScope) -> QueryRows:
        """Returns when Spark has written the rows. They are encoded when they are read: a client that reads slowly
        costs only disk space."""

        files = self._engine.result_files()

        def work() -> TranslatedQuery:
            translated = scope.translate(statement.query)
            self._engine.write_rows(translated.sql, files)
            return translated

        async def remove() -> None:
            await self._encoder.run(files.remove)

        try:
            translated = await self._engine.work(work, statement.text)
        except BaseException:
            await remove()
            raise
        finally:
            scope.close()

        async def check() -> None:
            async for _ in self._encoder.stream(files.batches(), translated):
                pass

        return QueryRows(self._encoder.stream(files.batches(), translated), files.size_bytes(), remove, check)


def _check_options(statement: st.Statement, options: ScriptOptions, *, is_last: bool) -> None:
    if options.is_read_only and not isinstance(statement, _FOR_READERS):
        raise InputError("this request may only read", hint="run it by POST, without readonly")
    if options.is_single and not is_last and not isinstance(statement, st.Use):
        raise InputError("this request may have one statement", hint="send the others in requests of their own")


async def _check_rows(rows: QueryRows) -> None:
    """Refuses rows that cannot be encoded before the next statement runs: a failing statement ends its script."""
    if rows.check is not None:
        try:
            await rows.check()
        except BaseException:
            await rows.close()
            raise


def _whole(rows: list[bytes]) -> QueryRows:
    async def batches() -> AsyncIterator[list[bytes]]:
        for start in range(0, len(rows), _BATCH_ROWS):
            yield rows[start : start + _BATCH_ROWS]

    return QueryRows(batches())


def _with_placed_errors(rows: QueryRows, script: str, statement: st.Statement, number: int) -> QueryRows:
    """Adds the place of the statement to errors of the rows."""

    async def batches() -> AsyncIterator[list[bytes]]:
        try:
            async for batch in rows.batches:
                yield batch
        except (TranslationError, FunctionError, TocsinError) as error:
            raise _place_error(error, script, statement, number) from error

    return QueryRows(batches(), rows.held_bytes, rows.close, summary=rows.summary)


def _kind(statement: st.Statement) -> str:
    if isinstance(statement, st.Insert) and statement.upsert:
        return "upsert"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(statement).__name__).lower()


def _place_error(error: Exception, script: str, statement: st.Statement, number: int) -> TocsinError:
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
