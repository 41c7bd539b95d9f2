"""The cluster's HTTP API: runs scripts, accepts records, and serves health, metrics, backup and the brokers' API.

Scripts, bodies and answers have limits for each token and address, so that one client cannot keep the others out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web
from prometheus_client import Counter, Gauge, Histogram

from tocsin.clock import from_us
from tocsin.cluster.channels.metrics import ChannelCollector, ChannelMetrics
from tocsin.cluster.data_folder.clock_guard import ClockGuard
from tocsin.cluster.engine.watchdog_thread import EngineCollector, EngineWatch
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.metrics import FeedCollector
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.openapi import document
from tocsin.cluster.http.requests import asked_timeout_s, path_name, script_of, wants_stream
from tocsin.cluster.http.script_responses import BufferedResponse, StatementLimits, StreamedResponse
from tocsin.cluster.statements.outcomes import ScriptExecutor, StatementOutcome
from tocsin.cluster.statements.running_scripts import RunningScript, RunningScripts
from tocsin.serving.addresses import Networks
from tocsin.serving.answers import REQUEST_ID, answer, is_gone
from tocsin.serving.application import LIMITS, MEMORY_BUDGET, application
from tocsin.serving.authentication import (
    EVERYBODY,
    PRINCIPAL,
    TokenLookup,
    optional_authentication,
    token_authentication,
)
from tocsin.serving.limits import MemoryBudget, ServerLimits, WaitingLine, read_body
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import askers_of, read_json
from tocsin.serving.tokens import allows, require, require_feed
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import InputError, TocsinError, UnavailableError

_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})

_BACKUP_BYTES: Final = 64 << 10
_ANSWERS: Final = 4
"""This many answers of the largest size that is not streamed may be in memory; half of them for one caller."""

_T = TypeVar("_T")

# Writes a backup to a path on this machine and returns its summary.
Backup = Callable[[Path], Awaitable[Mapping[str, Any]]]


_KEPT: Final = {
    "tocsin_dataset_kept_files": "Removed data files of open datasets that stay for other engines that read them.",
    "tocsin_dataset_kept_bytes": "Bytes of the removed data files that stay for other engines that read datasets.",
    "tocsin_dataset_kept_log_entries": "Log entries of open datasets that stay for other engines that read them.",
}


def cluster_application(
    settings: ClusterSettings,
    statements: ScriptExecutor,
    credentials: TokenLookup,
    *,
    engine: EngineWatch | None = None,
    limits: StatementLimits | None = None,
    metrics: ServerMetrics | None = None,
    backup: Backup | None = None,
    feeds: Feeds | None = None,
    channel_figures: Callable[[], Iterable[ChannelMetrics]] | None = None,
    kept_for_readers: Callable[[], tuple[int, int, int]] | None = None,
    guard: ClockGuard | None = None,
    brokers: BrokerApi | None = None,
) -> web.Application:
    """Builds the application of a cluster with these settings. `engine` says whether scripts can run now."""
    metrics = metrics or ServerMetrics()
    access = (
        token_authentication(credentials, _OPEN_PATHS)
        if settings.token_needed
        else optional_authentication(
            credentials, _OPEN_PATHS, loopback=settings.http.loopback, forwarded=settings.auth.mode == "off"
        )
    )
    server_limits = ServerLimits(
        body_limit_bytes=settings.http.body_limit_bytes,
        bodies_limit_bytes=settings.http.bodies_limit_bytes,
        connections_limit=settings.http.connections_limit,
        address_connections_limit=settings.http.address_connections_limit,
        read_timeout_s=settings.http.read_timeout_s,
        write_timeout_s=2 * settings.statements.write_timeout_s,
        trusted_proxies=Networks(settings.http.trusted_proxies.split()),
    )
    app = application(limits=server_limits, metrics=metrics, access=access)
    scripts = _ScriptRoutes(
        statements, engine, limits or StatementLimits.of(settings.statements), metrics
    )  # fmt: skip

    async def healthz(_request: web.Request) -> web.Response:
        """Whether the process can continue by itself. An engine that is being replaced is no reason to kill it."""
        if engine is not None and not engine.is_watching():
            raise UnavailableError("the engine is not watched any more", hint="restart the cluster")
        return answer({"status": "alive"})

    async def readyz(_request: web.Request) -> web.Response:
        scripts.check_ready()
        return answer({"status": "ready"})

    if engine is not None:
        metrics.registry.register(EngineCollector(engine))

    app.add_routes(
        [
            web.get("/", _index),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics.expose),
            web.get("/v1/openapi.json", _openapi),
            web.post("/v1/statements", scripts.run),
            web.get("/v1/statements", scripts.list),
            web.delete("/v1/statements/{id}", scripts.cancel),
        ]
    )

    if backup is not None:
        app.add_routes([web.post("/v1/backup", _backing_up(backup))])

    if feeds is not None:
        metrics.registry.register(FeedCollector(feeds.figures))
        app.add_routes(
            [
                web.post("/v1/feeds/{name}", _publishing(feeds)),
                web.get("/v1/feeds/{name}", _describing(feeds), allow_head=False),
            ]
        )

    if channel_figures is not None:
        metrics.registry.register(ChannelCollector(channel_figures))

    if kept_for_readers is not None:
        count_kept = kept_for_readers
        gauges = (Gauge(name, help_text, registry=metrics.registry) for name, help_text in _KEPT.items())
        files, size_bytes, entries = gauges
        files.set_function(lambda: count_kept()[0])
        size_bytes.set_function(lambda: count_kept()[1])
        entries.set_function(lambda: count_kept()[2])

    if guard is not None:
        watch = guard
        suspect = Gauge(
            "tocsin_clock_suspect",
            "1 while the wall clock is not trusted and nothing is deleted by age, otherwise 0.",
            registry=metrics.registry,
        )
        suspect.set_function(lambda: float(watch.suspicion() is not None))
        app.add_routes([web.post("/v1/clock:accept", _accepting(guard))])

    if brokers is not None:
        app.add_routes(brokers.routes(metrics))

    async def stop(_app: web.Application) -> None:
        if brokers is not None:
            await brokers.announcer.close()
        await scripts.close()

    app.on_shutdown.append(stop)
    return app


async def _index(_request: web.Request) -> web.Response:
    return answer(
        {
            "name": "tocsin cluster",
            "statements": "/v1/statements",
            "feeds": "/v1/feeds/{name}",
            "results": "/v1/results:fetch",
            "result": "/v1/results/{interest}",
            "channels": "/v1/channels",
            "subscriptions": "/v1/channels/{name}/subscriptions",
            "brokers": "/v1/brokers/{name}",
            "backup": "/v1/backup",
            "clock": "/v1/clock:accept",
            "openapi": "/v1/openapi.json",
            "health": "/healthz",
            "ready": "/readyz",
            "metrics": "/metrics",
        }
    )


async def _openapi(_request: web.Request) -> web.Response:
    return answer(document())


def _backing_up(backup: Backup) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def back_up(request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "admin")
        body = await read_json(request, limit_bytes=_BACKUP_BYTES)
        target = body.get("to") if isinstance(body, dict) else None
        if not isinstance(target, str) or not Path(target).is_absolute() or "\0" in target:
            raise InputError('expected {"to": an absolute path on the cluster\'s machine}')
        return answer(dict(await backup(Path(target))))

    return back_up


def _accepting(guard: ClockGuard) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def accept_clock(request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "admin")
        accepted_us = await asyncio.to_thread(guard.accept)
        return answer({"now": from_us(accepted_us).isoformat()})

    return accept_clock


def _publishing(feeds: Feeds) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def publish(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))
        for parameter in request.query:
            if parameter != "wait":
                raise InputError(f'there is no parameter "{parameter[:100]}"', hint="known: wait")
        wait = request.query.get("wait", "")
        if wait not in ("", "visible"):
            raise InputError(f'wait: must be "visible", got "{wait}"')
        key = request.headers.get("Idempotency-Key")
        with request.app[MEMORY_BUDGET].share(*askers_of(request)) as grow:
            # Count the body twice: decoding makes a log payload of about the same size.
            body = await read_body(
                request, request.app[LIMITS], unpack=True, grow=lambda size_bytes: grow(2 * size_bytes)
            )
            accepted = await feeds.accept(request.match_info["name"], body, key, visible=wait == "visible")
        return answer(dict(accepted.answer), status=accepted.status)

    return publish


def _describing(feeds: Feeds) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def describe(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))
        return answer(dict(feeds.describe(request.match_info["name"])))

    return describe


class _ScriptRoutes:
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
        return answer({"running": [script.info().to_json() for script in self._running.seen_by(request[PRINCIPAL])]})

    async def cancel(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        self._running.cancel(identity, request[PRINCIPAL])
        return answer({"stopping": identity}, status=202)

    async def run(self, request: web.Request) -> web.StreamResponse:
        require(request[PRINCIPAL], "reader")
        timeout_s = min(asked_timeout_s(request), self._limits.timeout_s)
        askers = askers_of(request)
        with request.app[MEMORY_BUDGET].share(*askers) as grow:
            script = script_of(request, await read_body(request, request.app[LIMITS], grow=grow))
            self.check_ready()
            streamed = wants_stream(request)
            with (self._spools if streamed else self._answers).share(*askers) as grow_answer:
                count_rows = self._rows_out.inc
                to: BufferedResponse | StreamedResponse = BufferedResponse(self._limits, grow_answer, count_rows)
                if streamed:
                    to = StreamedResponse(request, grow_answer, self._limits.write_timeout_s, count_rows)
                try:
                    response = await self._run(request, script, timeout_s, to, askers)
                    await to.send(request, response)
                finally:
                    await to.close()
        return response

    async def _run(
        self,
        request: web.Request,
        script: str,
        timeout_s: float,
        to: BufferedResponse | StreamedResponse,
        askers: tuple[str, ...],
    ) -> web.StreamResponse:
        streamed = isinstance(to, StreamedResponse)
        running: RunningScript | None = None
        try:
            with self._running.register(request[REQUEST_ID], script, request[PRINCIPAL], timeout_s) as running:
                async with (
                    running.scope,
                    self._gate.passed(*askers),
                    self._asked_by(askers),
                    _closed(self._outcomes(running, streamed)) as outcomes,
                ):
                    async for outcome in outcomes:
                        await to.take(outcome)
                        _go_no_further(running)
            return await to.finished()
        except TocsinError as error:
            return await self._failed(error, to)
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
                return await self._failed(running.why_ended(), to)
            self._failures.labels("internal").inc()
            return await to.broke(request[REQUEST_ID], exc)

    @asynccontextmanager
    async def _asked_by(self, askers: tuple[str, ...]) -> AsyncIterator[None]:
        """Attributes the work to the caller's token, or to its address if it has none."""
        with nullcontext() if self._engine is None or not askers else self._engine.asked_by(askers[0]):
            yield

    async def _failed(self, error: TocsinError, to: BufferedResponse | StreamedResponse) -> web.StreamResponse:
        self._failures.labels(error.code).inc()
        return await to.failed(error)

    async def _outcomes(self, running: RunningScript, streamed: bool) -> AsyncIterator[StatementOutcome]:
        """Yields the script's outcomes and measures them; `running` records the current statement."""
        running.statement = 1
        began_s = time.perf_counter()
        asker = running.principal
        async with _closed(
            self._statements.run(
                running.script,
                stream=streamed,
                may_write=allows(asker, "writer"),
                may_run_code=asker is not EVERYBODY and allows(asker, "admin"),
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
async def _closed(iterator: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Closes the iterator at the end of the block, however the block ends, so that its work is over."""
    try:
        yield iterator
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()
