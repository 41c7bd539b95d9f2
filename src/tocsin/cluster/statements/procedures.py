"""Runs procedures: stored statements that run by name with arguments, or on schedule once a period.

EXECUTE of a procedure with a period starts a schedule for its arguments, which the catalog keeps. A scheduled run
commits its changes and its tick number in one commit of the dataset. So after a crash no tick changes the dataset
twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog
from sqlglot import exp

from tocsin.clock import from_us
from tocsin.cluster.catalog.catalog import CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import DatasetEntry, ProcedureEntry, ProcedureSchedule
from tocsin.cluster.catalog.refs import Ref, procedure_ref
from tocsin.cluster.channels.virtual_datasets import ProcedureRun, VirtualDataset
from tocsin.cluster.data_folder.dataset_tables import DatasetTables, new_folder
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.engine.engine_session import EngineLostError
from tocsin.cluster.schedule import run_ticks
from tocsin.cluster.statements.ddl import arity_to_drop
from tocsin.cluster.statements.dml import DmlHandler, decode_rows, keys_to_delete
from tocsin.cluster.statements.outcomes import QueryRows, StatementSummary
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.nodes import ValueOf
from tocsin.language.syntax.script import parse_procedure
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.typed_sql import FunctionError
from tocsin.rules.backoff import BackOff
from tocsin.rules.model.open_form import dumps_value, loads_value
from tocsin.rules.model.values import MISSING, datetime_text
from tocsin.rules.periods import instant, last_tick
from tocsin.store.channels.rows import PARAMETERS_LIMIT
from tocsin.store.cluster.interface import check_text
from tocsin.wire.errors import LimitError, StoppedError

_log = structlog.get_logger()

_FIRST_ENGINE_RETRY_S: Final = 2.0
_LAST_ENGINE_RETRY_S: Final = 10.0
AT_ONCE: Final = 4  # scheduled procedures that run at once; each takes an engine thread
RUNS_KEPT: Final = 100  # the latest runs that are kept, per schedule
SCHEDULES_LIMIT: Final = 100  # schedules of one procedure, each for other arguments
_REASON_LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True)
class ProcedureCall:
    """A procedure's statement, ready to run. Its scope has the arguments; the caller closes the scope."""

    entry: ProcedureEntry
    statement: st.ProcedureBody
    scope: StatementScope

    @contextmanager
    def attribute_errors(self) -> Iterator[None]:
        """Attributes errors in the body to the procedure, because their positions are not positions in the caller's
        script."""
        try:
            yield
        except TranslationError as error:
            raise TranslationError(f"in procedure {self.entry.name}: {error.message}", hint=error.hint) from None
        except FunctionError as error:
            raise TranslationError(f"in procedure {self.entry.name}: {error}") from None

    def attribute_errors_of(self, rows: QueryRows) -> QueryRows:
        async def batches() -> AsyncIterator[list[bytes]]:
            with self.attribute_errors():
                async for batch in rows.batches:
                    yield batch

        return QueryRows(batches(), rows.held_bytes, rows.close)


class Procedures:
    def __init__(  # noqa: PLR0917
        self,
        catalog: CatalogStore,
        tables: DatasetTables,
        engine: Engine,
        changes: DmlHandler,
        now: Callable[[], datetime] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        deadline_s: float | None = None,
        ran_until: datetime | None = None,
    ) -> None:
        """`deadline_s` is how long a scheduled run may take. The cluster is known to have run at `ran_until`, before
        its last restart."""
        self._deadline_s = deadline_s
        self._ran_until = ran_until
        self._catalog = catalog
        self._tables = tables
        self._engine = engine
        self._changes = changes
        # The clock guard continues from its last trusted value while the wall clock is suspect.
        self._now = now or (lambda: from_us(tables.clock.now_us()))
        self._sleep = sleep
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._changing = asyncio.Lock()  # held while schedules are added, and while procedures are dropped
        self._running: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, deque[ProcedureRun]] = {}

    def runs(self) -> list[ProcedureRun]:
        """Returns the latest scheduled runs since the cluster started."""
        return [run for procedure_runs in self._runs.values() for run in procedure_runs]

    # ------------------------------------------------------------ lifecycle

    async def start(self) -> None:
        """Starts the schedules. Of the ticks that were missed during a downtime, only the latest runs."""
        await self._settle()

    async def close(self) -> None:
        await self._end(*self._running)

    @asynccontextmanager
    async def stop_for_drop(self, _dataverse: str) -> AsyncIterator[None]:
        """Wraps the drop of a dataverse: stops its procedures."""
        async with self._changing:
            try:
                yield
            finally:
                await asyncio.shield(self._settle())

    async def _settle(self) -> None:
        """Makes the running schedules equal to the catalog: every schedule of a procedure runs, and no other."""
        scheduled = {
            schedule.schedule_id: (entry, schedule)
            for entry in self._catalog.catalog.procedures
            for schedule in entry.schedules
        }
        for name, (entry, schedule) in scheduled.items():
            if name not in self._running:
                self._running[name] = asyncio.create_task(self._keep(entry, schedule), name=f"procedure {entry.name}")
        await self._end(*(name for name in self._running if name not in scheduled))

    async def _end(self, *names: str) -> None:
        tasks = [self._running.pop(name) for name in names]
        for name in names:
            self._runs.pop(name, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ ticks

    async def _keep(self, entry: ProcedureEntry, schedule: ProcedureSchedule) -> None:
        assert entry.period is not None
        # A tick that changed nothing left no trace. Before `ran_until` the cluster ran, so no tick was missed unseen.
        seen = 0 if self._ran_until is None else last_tick(schedule.anchor, entry.period, self._ran_until)

        def write_log(level: str, event: str, **about: Any) -> None:
            # A failing log must not stop the schedule.
            with suppress(Exception):
                getattr(_log, level)(event, procedure=str(entry.ref), arguments=schedule.arguments, **about)

        async def run(tick: int, due: datetime, missed: int) -> None:
            missed = max(min(missed, tick - seen - 1), 0)
            if missed:
                write_log("warning", "a procedure missed ticks", tick=tick, missed=missed)
            started, reason = self._now(), None
            try:
                async with self._turns:
                    started = self._now()
                    await self._execute_with_retries(entry, schedule, tick, due)
            except Exception as error:
                # The next tick tries again.
                reason = str(error)[:_REASON_LIMIT]
                if self._is_current(entry):
                    write_log("error", "a procedure failed", tick=tick, reason=str(error))
            procedure_runs.append(ProcedureRun(entry, schedule.arguments, due, started, self._now(), missed, reason))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # The task was cancelled during a commit that could not be stopped.
                raise asyncio.CancelledError

        procedure_runs = self._runs.setdefault(schedule.schedule_id, deque(maxlen=RUNS_KEPT))
        try:
            done = await self._engine.work(lambda: self._last_tick_done(entry, schedule), asks_spark=False)
        except Exception as error:
            write_log("error", "a procedure cannot be started", reason=str(error))
            return
        await run_ticks(schedule.anchor, entry.period, done, run, self._now, self._sleep)

    def _is_current(self, entry: ProcedureEntry) -> bool:
        current = self._catalog.catalog.find(entry.ref)
        return isinstance(current, ProcedureEntry) and current.procedure_id == entry.procedure_id

    def _last_tick_done(self, entry: ProcedureEntry, schedule: ProcedureSchedule) -> int:
        """Returns the last tick that is known to have run."""
        statement = parse_procedure(entry.body)
        target = None
        if not isinstance(statement, st.Query):
            target = self._changes.target(statement.dataset, self._scope(entry, self._now()))
        if isinstance(target, DatasetEntry):
            return self._tables.table(target).position(_position(schedule)) or 0
        # A query changes nothing, and a channel's dataset keeps no positions: missed ticks do not run.
        assert entry.period is not None
        return last_tick(schedule.anchor, entry.period, self._now())

    async def _execute_with_retries(
        self, entry: ProcedureEntry, schedule: ProcedureSchedule, tick: int, due: datetime
    ) -> None:
        """Runs the tick, and retries it on the next engine if the engine is lost: then the tick has changed nothing."""
        back_off = BackOff(_FIRST_ENGINE_RETRY_S, _LAST_ENGINE_RETRY_S)
        while True:
            try:
                return await self._tick(entry, schedule, tick, due)
            except EngineLostError:
                await self._engine.pause(back_off.next_s())

    async def _tick(self, entry: ProcedureEntry, schedule: ProcedureSchedule, tick: int, due: datetime) -> None:
        arguments = dict(zip(entry.parameters, loads_value(schedule.arguments), strict=True))
        call = ProcedureCall(entry, parse_procedure(entry.body), self._scope(entry, due, arguments))
        try:
            with call.attribute_errors():
                async with asyncio.timeout(self._deadline_s):
                    await self._carry_out(call, {_position(schedule): tick})
        except TimeoutError:
            raise StoppedError(f"it was not done within {self._deadline_s:g} s") from None
        finally:
            call.scope.close()

    async def _carry_out(self, call: ProcedureCall, positions: Mapping[str, int]) -> None:
        if isinstance(call.statement, st.Query):
            query = call.statement.query
            await self._engine.work(lambda: self._engine.discard(call.scope.translate(query).sql), call.statement.text)
        else:
            await self._changes.run(call.statement, call.scope, positions)

    def _scope(self, entry: ProcedureEntry, now: datetime, given: Mapping[str, Any] | None = None) -> StatementScope:
        return StatementScope(
            self._catalog.catalog, self._tables, self._engine, entry.dataverse, now, values=given or {}
        )

    # ------------------------------------------------------------ EXECUTE

    async def prepare_call(self, statement: st.Execute, scope: StatementScope) -> ProcedureCall:
        """Returns the procedure with its arguments; each argument is evaluated once."""
        dataverse = statement.procedure.dataverse or scope.dataverse
        entry = scope.catalog.procedure(dataverse, statement.procedure.name, len(statement.arguments))

        def values() -> list[Any]:
            return [self._value(argument, scope) for argument in statement.arguments]

        arguments = await self._engine.work(values, statement.text) if statement.arguments else []
        body = parse_procedure(entry.body)
        return ProcedureCall(
            entry, body, self._scope(entry, scope.now, dict(zip(entry.parameters, arguments, strict=True)))
        )

    def _value(self, node: exp.Expr, scope: StatementScope) -> Any:
        try:
            return evaluate(node, scope.now)
        except ConstantError as error:
            raise TranslationError(str(error), error.offset) from None
        except NotConstantError:
            translated = scope.translate(exp.Select(expressions=[ValueOf(this=node)]))
            return decode_rows(self._engine.rows(translated.sql), translated)[0]

    async def start_schedule(self, call: ProcedureCall) -> StatementSummary:
        """Starts to run a procedure with a period, with the arguments of this call. A schedule with the same arguments
        goes on as it is."""
        call.scope.close()
        assert call.entry.period is not None
        arguments = dumps_value([call.scope.values[name] for name in call.entry.parameters])
        check_text("list of arguments", arguments, PARAMETERS_LIMIT)
        async with self._changing:
            if not self._is_current(call.entry):
                raise self._catalog.catalog.not_found_error(call.entry.ref)
            entry = self._catalog.catalog.procedure(call.entry.dataverse, call.entry.name, call.entry.arity)
            existing = [schedule for schedule in entry.schedules if schedule.arguments == arguments]
            schedule = existing[0] if existing else ProcedureSchedule(new_folder(), arguments, call.scope.now)
            if not existing:
                await self._add_schedule(entry, schedule)
        first = instant(schedule.anchor, call.entry.period, 1)
        summary = {"name": entry.name, **({} if first is None else {"first": datetime_text(first)})}
        return {**summary, "existed": True} if existing else summary

    async def _add_schedule(self, entry: ProcedureEntry, schedule: ProcedureSchedule) -> None:
        if len(entry.schedules) >= SCHEDULES_LIMIT:
            raise LimitError(
                f"the procedure {entry.name} runs for {SCHEDULES_LIMIT} lists of arguments already",
                hint=f"DROP PROCEDURE {entry.name}@{entry.arity} ends them all; create it again for others", status=429,
            )  # fmt: skip
        scheduled = replace(entry, schedules=(*entry.schedules, schedule))
        try:
            await self._catalog.apply([Put(scheduled, when_taken="replace")])
        finally:
            # Also settle if the statement was cancelled after the catalog took the entry.
            await asyncio.shield(self._settle())

    # ------------------------------------------------------------ CREATE, DROP

    async def create(self, statement: st.CreateProcedure, scope: StatementScope) -> StatementSummary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        existing = scope.catalog.find(procedure_ref(dataverse, name, len(statement.parameters)))
        if statement.if_not_exists and existing is not None:
            return {"name": name, "existed": True}
        uses = await self._engine.work(lambda: self._uses(statement, scope), statement.text)
        entry = ProcedureEntry(
            dataverse, name, procedure_id=new_folder(), parameters=statement.parameters, body=statement.body,
            period=statement.period, anchor=scope.now, uses=uses,
        )  # fmt: skip
        after = await self._catalog.apply([Put(entry, when_taken="keep" if statement.if_not_exists else "refuse")])
        return {"name": name} if after.find(entry.ref) is entry else {"name": name, "existed": True}

    def check(self, entry: ProcedureEntry, scope: StatementScope) -> None:
        """Raises if the body does not work in this scope."""
        name = st.Name(entry.name, entry.dataverse)
        self._uses(st.CreateProcedure(name=name, parameters=entry.parameters, body=entry.body, body_offset=0), scope)

    def _uses(self, statement: st.CreateProcedure, scope: StatementScope) -> tuple[Ref, ...]:
        """Translates the body with untyped parameters. This checks that all names exist, and returns what the body
        uses."""
        dataverse = statement.name.dataverse or scope.dataverse
        untyped = dict.fromkeys(statement.parameters, MISSING)
        own_scope = StatementScope(scope.catalog, self._tables, self._engine, dataverse, scope.now, values=untyped)
        translator = own_scope.translator()
        target: DatasetEntry | VirtualDataset | None = None
        query: exp.Expr | None
        try:
            body = parse_procedure(statement.body)
            if isinstance(body, st.Query):
                query = body.query
            else:
                target = self._changes.target(body.dataset, own_scope)
                if isinstance(target, VirtualDataset) and isinstance(body, st.Insert) and statement.period is not None:
                    raise TranslationError(
                        f"a procedure with a PERIOD cannot insert into {target.name}: after a crash a tick could "
                        "subscribe twice", body.dataset.offset, "leave PERIOD out, and EXECUTE it when it is due",
                    )  # fmt: skip
                query = body.source if isinstance(body, st.Insert) else keys_to_delete(body, target)
            if query is not None:
                translator.statement(query)
        except TranslationError as error:
            raise TranslationError(error.message, statement.body_offset + (error.offset or 0), error.hint) from None
        finally:
            own_scope.close()
        used = {Ref(kind, where, name) for kind, where, name in translator.uses}
        if target is not None:
            used.add(target.ref)
        return tuple(sorted(used, key=lambda ref: (ref.kind, ref.dataverse, ref.name)))

    async def drop(self, statement: st.DropProcedure, scope: StatementScope) -> StatementSummary:
        dataverse, name = statement.name.dataverse or scope.dataverse, statement.name.name
        arity = arity_to_drop(statement, scope.catalog.procedures_named(dataverse, name))
        ref = procedure_ref(dataverse, name, arity)
        if self._catalog.catalog.find(ref) is None and statement.if_exists:
            return {"name": name, "existed": False}
        async with self._changing:
            try:
                await self._catalog.apply([Remove(ref, if_exists=statement.if_exists)])
            finally:
                await asyncio.shield(self._settle())
        return {"name": name}


def _position(schedule: ProcedureSchedule) -> str:
    """Returns the name under which a dataset stores the last tick that changed it."""
    return f"procedure.{schedule.schedule_id}"
