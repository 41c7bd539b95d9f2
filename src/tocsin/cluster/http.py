"""The cluster's HTTP face: scripts in, rows out, and what an operator looks at."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from aiohttp import hdrs, web
from prometheus_client import Counter, Gauge, Histogram

from tocsin.cluster.channels.figures import ChannelCollector, ChannelFigures
from tocsin.cluster.door import BrokerDoor
from tocsin.cluster.engine_watch import EngineCollector, EngineWatch
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.figures import FeedCollector
from tocsin.cluster.openapi import document
from tocsin.cluster.outcome import Outcome, Statements
from tocsin.cluster.path_names import path_name
from tocsin.cluster.replies import NDJSON, StatementLimits, StreamedAnswer, WholeAnswer
from tocsin.cluster.running import Running, RunningScripts
from tocsin.serving.addresses import Networks
from tocsin.serving.answers import REQUEST_ID, answer, is_gone
from tocsin.serving.application import LIMITS, application
from tocsin.serving.authentication import (
    EVERYBODY,
    PRINCIPAL,
    Credentials,
    optional_authentication,
    token_authentication,
)
from tocsin.serving.limits import Gate, Limits, Room, read_body
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.tokens import allows, require, require_feed
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import InputError, TocsinError, UnavailableError, UnsupportedError

BODIES_BYTES: Final = 256 << 20
"""What bodies for feeds may take in memory together."""
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})

_T = TypeVar("_T")

# Writes a backup to a path on this machine and says what is in it.
Backup = Callable[[Path], Awaitable[Mapping[str, Any]]]


def cluster_application(
    settings: ClusterSettings,
    statements: Statements,
    credentials: Credentials,
    *,
    engine: EngineWatch | None = None,
    limits: StatementLimits | None = None,
    metrics: ServerMetrics | None = None,
    backup: Backup | None = None,
    feeds: Feeds | None = None,
    channel_figures: Callable[[], Iterable[ChannelFigures]] | None = None,
    brokers: BrokerDoor | None = None,
) -> web.Application:
    """The application a cluster with these settings serves; `engine` says whether scripts can be run now."""
    metrics = metrics or ServerMetrics()
    access = (
        token_authentication(credentials, OPEN_PATHS)
        if settings.token_needed
        else optional_authentication(
            credentials, OPEN_PATHS, loopback=settings.http.loopback, forwarded=settings.auth.mode == "off"
        )
    )
    server_limits = Limits(
        body_limit_bytes=settings.http.body_limit_bytes,
        connections_limit=settings.http.connections_limit,
        read_timeout_s=settings.http.read_timeout_s,
        trusted_proxies=Networks(settings.http.trusted_proxies.split()),
    )
    app = application(limits=server_limits, metrics=metrics, access=access)
    scripts = ScriptRoutes(statements, engine, limits or StatementLimits.of(settings.statements), metrics)

    async def healthz(_request: web.Request) -> web.Response:
        """Whether the process can go on by itself. An engine that is being replaced is no reason to end it."""
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
                web.post(
                    "/v1/feeds/{name}", _publishing(feeds, Room(max(BODIES_BYTES, server_limits.body_limit_bytes)))
                ),
                web.get("/v1/feeds/{name}", _describing(feeds), allow_head=False),
            ]
        )

    if channel_figures is not None:
        metrics.registry.register(ChannelCollector(channel_figures))

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
        body = await read_body(request, request.app[LIMITS])
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError:
            asked = None
        target = asked.get("to") if isinstance(asked, dict) else None
        if not isinstance(target, str) or not Path(target).is_absolute() or "\0" in target:
            raise InputError('expected {"to": an absolute path on the cluster\'s machine}')
        return answer(dict(await backup(Path(target))))

    return back_up


def _publishing(feeds: Feeds, room: Room) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def publish(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))
        for given in request.query:
            if given != "wait":
                raise InputError(f'there is no parameter "{given[:100]}"', hint="known: wait")
        wait = request.query.get("wait", "")
        if wait not in ("", "visible"):
            raise InputError(f'wait: must be "visible", got "{wait}"')
        key = request.headers.get("Idempotency-Key")
        with room.share() as grow:
            body = await read_body(request, request.app[LIMITS], unpack=True, grow=grow)
            accepted = await feeds.accept(request.match_info["name"], body, key, visible=wait == "visible")
        return answer(dict(accepted.answer), status=accepted.status)

    return publish


def _describing(feeds: Feeds) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def describe(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))
        return answer(dict(feeds.described(request.match_info["name"])))

    return describe


class ScriptRoutes:
    """Runs scripts for clients, so many at once, each stoppable."""

    def __init__(
        self, statements: Statements, engine: EngineWatch | None, limits: StatementLimits, metrics: ServerMetrics
    ) -> None:
        self._statements = statements
        self._engine = engine
        self._limits = limits
        self._running = RunningScripts()
        self._gate = Gate(limits.concurrent, limits.waiting)
        registry = metrics.registry
        self._statement_seconds = Histogram(
            "tocsin_statement_seconds", "A statement, with its rows taken.", ["kind"], registry=registry
        )
        self._failures = Counter(
            "tocsin_scripts_failed", "Scripts that ended in an error.", ["code"], registry=registry
        )
        self._rows_out = Counter("tocsin_rows_out", "Rows handed to clients.", registry=registry)
        Gauge("tocsin_scripts_running", "Scripts running now.", registry=registry).set_function(
            lambda: self._gate.inside
        )
        Gauge("tocsin_scripts_waiting", "Scripts waiting for their turn.", registry=registry).set_function(
            lambda: self._gate.waiting
        )

    def check_ready(self) -> None:
        """Asks nobody but the engine's watch, which knows."""
        trouble = None if self._engine is None else self._engine.trouble()
        if self._engine is not None and trouble is not None:
            raise UnavailableError(
                f"the cluster is not ready: {trouble}",
                hint="it goes on by itself: try again soon", retry_after_s=self._engine.retry_after_s(),
            )  # fmt: skip

    async def close(self) -> None:
        await self._running.close(self._limits.grace_s)

    async def list(self, request: web.Request) -> web.Response:
        return answer({"running": [one.to_json() for one in self._running.seen_by(request[PRINCIPAL])]})

    async def cancel(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        self._running.cancel(identity, request[PRINCIPAL])
        return answer({"stopping": identity}, status=202)

    async def run(self, request: web.Request) -> web.StreamResponse:
        require(request[PRINCIPAL], "reader")
        timeout_s = min(_asked_timeout_s(request), self._limits.timeout_s)
        script = _script(request, await read_body(request, request.app[LIMITS]))
        self.check_ready()
        streamed = _wants_stream(request)
        to: WholeAnswer | StreamedAnswer = StreamedAnswer(request) if streamed else WholeAnswer(self._limits)
        running: Running | None = None
        try:
            with self._running.register(request[REQUEST_ID], script, request[PRINCIPAL], timeout_s) as running:
                async with running.scope, self._gate.passed(), _closed(self._outcomes(running, streamed)) as outcomes:
                    async for outcome in outcomes:
                        await self._take(outcome, to)
                        _go_no_further(running)
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
                return await self._failed(running.why_ended(), to)
            self._failures.labels("internal").inc()
            return await to.broke(request[REQUEST_ID], exc)
        return await to.finished()

    async def _failed(self, error: TocsinError, to: WholeAnswer | StreamedAnswer) -> web.StreamResponse:
        self._failures.labels(error.code).inc()
        return await to.failed(error)

    async def _outcomes(self, running: Running, streamed: bool) -> AsyncIterator[Outcome]:
        """The script's outcomes, timed; `running` knows how far it is."""
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
                yield outcome  # Control is back once the rows are taken.
                self._statement_seconds.labels(outcome.kind).observe(time.perf_counter() - began_s)
                began_s = time.perf_counter()
                running.statement = outcome.statement + 1

    async def _take(self, outcome: Outcome, to: WholeAnswer | StreamedAnswer) -> None:
        await to.begin()
        if outcome.rows is not None:
            async with _closed(outcome.rows) as batches:
                async for batch in batches:
                    await to.rows(outcome, batch)
                    self._rows_out.inc(len(batch))
        await to.end(outcome)


def _go_no_further(running: Running) -> None:
    """Ends a script that was stopped while a statement could no longer be: that one is done, and is told as done."""
    task = asyncio.current_task()
    if running.scope.expired():
        raise running.why_ended(done=True)
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@asynccontextmanager
async def _closed(iterator: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """The iterator, closed at the end of the block however it ends: what it does is then over."""
    try:
        yield iterator
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()


def _asked_timeout_s(request: web.Request) -> float:
    given = request.query.get("timeout")
    if given is None:
        return math.inf
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InputError("timeout must be a number of seconds above 0")
    return timeout_s


def _wants_stream(request: web.Request) -> bool:
    accepted = (part.partition(";")[0].strip().lower() for part in request.headers.get(hdrs.ACCEPT, "").split(","))
    return NDJSON in accepted


def _script(request: web.Request, body: bytes) -> str:
    """The script in the body: plain text, or JSON with one field."""
    if hdrs.CONTENT_TYPE in request.headers and request.content_type not in ("text/plain", "application/json"):
        raise UnsupportedError(
            f"a script is text/plain, not {request.content_type[:100]}",
            hint='send "Content-Type: text/plain" (curl: -H "Content-Type: text/plain" --data-binary @FILE)',
        )
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedError(f"a script is UTF-8, not {(request.charset or '')[:100]}", hint="convert it to UTF-8")
    if request.content_type == "application/json":
        return _script_of_json(body)
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = body[: exc.start]
        raise InputError(
            f"the script is not UTF-8: byte {exc.start} cannot be read",
            hint="convert it to UTF-8",
            line=before.count(b"\n") + 1,
            column=len(before[before.rfind(b"\n") + 1 :].decode()) + 1,
        ) from None


def _script_of_json(body: bytes) -> str:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InputError(f"the body is not JSON: {exc.msg}", line=exc.lineno, column=exc.colno) from None
    if not isinstance(value, dict) or list(value) != ["script"] or not isinstance(value["script"], str):
        raise InputError('the body must be {"script": "…"}', hint="or send the script itself as text/plain")
    return value["script"]
