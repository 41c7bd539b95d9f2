"""Runs scripts for clients: a bounded number at once, each with limits and cancellable.

All ways to send a script (`POST /v1/statements`, the query service) go through here, so that the same limits hold for
all of them together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from aiohttp import web
from prometheus_client import Counter, Gauge, Histogram

from tocsin.cluster.engine.watchdog_thread import EngineWatch
from tocsin.cluster.http.requests import read_timeout_s, script_of, wants_stream
from tocsin.cluster.http.script_responses import BufferedAnswer, BufferedResponse, StatementLimits, StreamedResponse
from tocsin.cluster.statements.outcomes import USUAL_OPTIONS, ScriptExecutor, ScriptOptions, StatementOutcome
from tocsin.cluster.statements.running_scripts import RunningScript, RunningScripts
from tocsin.serving.answers import REQUEST_ID, answer, is_gone
from tocsin.serving.application import LIMITS, MEMORY_BUDGET
from tocsin.serving.authentication import EVERYBODY, PRINCIPAL
from tocsin.serving.limits import BudgetShare, MemoryBudget, ServerLimits, WaitingLine, read_body
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import callers_of
from tocsin.serving.tokens import allows, require
from tocsin.wire.errors import TocsinError, UnavailableError

_ANSWERS: Final = 4
"""This many answers of the largest size that is not streamed may be in memory; half of them for one caller."""

_T = TypeVar("_T")
_Count: TypeAlias = Callable[[int], None]
_Response: TypeAlias = BufferedResponse | BufferedAnswer | StreamedResponse


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with what its request says about it."""

    script: str
    timeout_s: float
    options: ScriptOptions = USUAL_OPTIONS
    is_streamed: bool = False


class ScriptRoutes:
    """Runs scripts for clients: a bounded number at once, each cancellable."""

    def __init__(
        self, statements: ScriptExecutor, engine: EngineWatch | None, limits: StatementLimits, metrics: ServerMetrics
    ) -> None:
        self._statements = statements
        self._engine = engine
        self._limits = limits
        self._running = RunningScripts()
        self._gate = WaitingLine(
            limits.concurrent,
            limits.waiting,
            own_inside=limits.own_concurrent or _three_quarters(limits.concurrent),
            own_waiting=_three_quarters(limits.waiting),
            refused=metrics.count_refused,
        )
        self._spools = MemoryBudget(
            limits.spool_limit_bytes,
            free_bytes=0,
            own_limit_bytes=limits.spool_limit_bytes // 2,
            name="spooled bytes",
            what="the streamed answers that are not read yet",
            refused=metrics.count_refused,
        )
        self._answers = MemoryBudget(
            _ANSWERS * limits.answer_limit_bytes,
            own_limit_bytes=_ANSWERS // 2 * limits.answer_limit_bytes,
            name="answer bytes",
            what="the answers on their way",
            refused=metrics.count_refused,
        )
        registry = metrics.registry
        self._statement_seconds = Histogram(
            "tocsin_statement_seconds",
            "Duration of a statement, in seconds; without the transfer of streamed rows.",
            ["kind"],
            registry=registry,
        )
        self._failures = Counter(
            "tocsin_scripts_failed",
            "Scripts that ended in an error; the code is disconnected if the client left.",
            ["code"],
            registry=registry,
        )
        self._rows_out = Counter("tocsin_rows_out", "Rows sent to clients.", registry=registry)
        Gauge("tocsin_scripts_running", "Scripts that run now.", registry=registry).set_function(
            lambda: self._gate.inside
        )
        Gauge("tocsin_scripts_waiting", "Scripts that wait for a slot.", registry=registry).set_function(
            lambda: self._gate.waiting
        )

    def check_ready(self) -> None:
        """Raises if the engine's watch reports trouble. Calls nothing else."""
        if (trouble := self._trouble()) is not None:
            raise trouble

    def _trouble(self) -> UnavailableError | None:
        trouble = None if self._engine is None else self._engine.trouble()
        if self._engine is None or trouble is None:
            return None
        return UnavailableError(
            f"the cluster is not ready: {trouble}",
            hint="the engine is being replaced; try again soon", retry_after_s=self._engine.retry_after_s(),
        )  # fmt: skip

    async def close(self) -> None:
        await self._running.close(self._limits.grace_s)

    async def list(self, request: web.Request) -> web.Response:
        return answer({"running": [script.info().to_json() for script in self._running.visible_to(request[PRINCIPAL])]})

    async def cancel(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        self._running.cancel(identity, request[PRINCIPAL])
        return answer({"stopping": identity}, status=202)

    async def run(self, request: web.Request) -> web.StreamResponse:
        async def read(body: bytes) -> ScriptCall:
            return ScriptCall(script_of(request, body), timeout_s, is_streamed=wants_stream(request))

        def respond(call: ScriptCall, grow: BudgetShare, limits: StatementLimits, count_rows: _Count) -> _Response:
            if call.is_streamed:
                return StreamedResponse(request, grow, limits.write_timeout_s, count_rows)
            return BufferedResponse(limits, grow, count_rows)

        timeout_s = read_timeout_s(request)
        return await self.answer(request, read, respond)

    async def answer(
        self,
        request: web.Request,
        read: Callable[[bytes], Awaitable[ScriptCall]],
        respond: Callable[[ScriptCall, BudgetShare, StatementLimits, _Count], _Response],
    ) -> web.StreamResponse:
        """Runs the script that `read` finds in the body, and answers in the form that `respond` chooses."""
        require(request[PRINCIPAL], "reader")
        callers = callers_of(request)
        with request.app[MEMORY_BUDGET].share(*callers) as grow:
            call = await read(await read_body(request, self._body_limits(request), grow=grow))
            self.check_ready()
            with (self._spools if call.is_streamed else self._answers).share(*callers) as grow_answer:
                to = respond(call, grow_answer, self._limits, self._rows_out.inc)
                try:
                    response = await self._run(request, call, to, callers)
                    await to.send(request, response)
                finally:
                    await to.close()
        return response

    def _body_limits(self, request: web.Request) -> ServerLimits:
        """A script is parsed as a whole: it takes far more memory than its text, so it is shorter than other bodies."""
        limits = request.app[LIMITS]
        return replace(limits, body_limit_bytes=min(limits.body_limit_bytes, self._limits.script_limit_bytes))

    async def _run(
        self, request: web.Request, call: ScriptCall, to: _Response, callers: tuple[str, ...]
    ) -> web.StreamResponse:
        timeout_s = min(call.timeout_s, self._limits.timeout_s)
        running: RunningScript | None = None
        try:
            with self._running.register(request[REQUEST_ID], call.script, request[PRINCIPAL], timeout_s) as running:
                async with (
                    running.scope,
                    self._gate.hold_slot(*callers),
                    self._attribute_work(callers),
                    _closing(self._outcomes(running, call)) as outcomes,
                ):
                    async for outcome in outcomes:
                        await to.take(outcome)
                        _go_no_further(running)
            return await to.finish()
        except TocsinError as error:
            return await self._fail(error, to)
        except asyncio.CancelledError:
            self._failures.labels("disconnected").inc()
            raise
        except Exception as exc:
            if is_gone(request, exc):
                self._failures.labels("disconnected").inc()
                raise
            if isinstance(exc, TimeoutError) and running is not None and running.scope.expired():
                if running.stopped is None and (trouble := self._trouble()) is not None:
                    running.stopped = trouble  # the engine is at fault, not the statement
                return await self._fail(running.why_ended(), to)
            self._failures.labels("internal").inc()
            return await to.crash(request[REQUEST_ID], exc)

    @asynccontextmanager
    async def _attribute_work(self, callers: tuple[str, ...]) -> AsyncIterator[None]:
        """Attributes the work to the caller's token, or to its address if it has none."""
        with nullcontext() if self._engine is None or not callers else self._engine.asked_by(callers[0]):
            yield

    async def _fail(self, error: TocsinError, to: _Response) -> web.StreamResponse:
        self._failures.labels(error.code).inc()
        return await to.fail(error)

    async def _outcomes(self, running: RunningScript, call: ScriptCall) -> AsyncIterator[StatementOutcome]:
        """Yields the script's outcomes and measures them; `running` records the current statement."""
        running.statement = 1
        began_s = time.perf_counter()
        principal = running.principal
        async with _closing(
            self._statements.run(
                running.script,
                stream=call.is_streamed,
                may_write=allows(principal, "writer"),
                may_run_code=principal is not EVERYBODY and allows(principal, "admin"),
                options=call.options,
            )
        ) as outcomes:
            async for outcome in outcomes:
                running.statement = outcome.statement
                yield outcome  # continues when the consumer has taken the rows
                self._statement_seconds.labels(outcome.kind).observe(time.perf_counter() - began_s)
                began_s = time.perf_counter()
                running.statement = outcome.statement + 1


def _three_quarters(of: int) -> int:
    return -(-3 * of // 4)


def _go_no_further(running: RunningScript) -> None:
    """Ends a script that was cancelled during a statement that could not stop. That statement counts as done."""
    task = asyncio.current_task()
    if running.scope.expired():
        raise running.why_ended(done=True)
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@asynccontextmanager
async def _closing(iterator: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Closes the iterator at the end of the block, however the block ends, so that its work is over."""
    try:
        yield iterator
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()
