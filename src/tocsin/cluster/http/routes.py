"""The cluster's HTTP API: runs scripts, accepts records, and serves health, metrics, backup and the brokers' API.

Scripts, bodies and answers have limits for each token and address, so that one client cannot keep the others out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Gauge

from tocsin.clock import from_us
from tocsin.cluster.channels.metrics import ChannelCollector, ChannelMetrics
from tocsin.cluster.data_folder.clock_guard import ClockGuard
from tocsin.cluster.engine.watchdog_thread import EngineCollector, EngineWatch
from tocsin.cluster.feeds.adapters.http_port import publish_records
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.metrics import FeedCollector
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.openapi import document
from tocsin.cluster.http.query_service import QueryService
from tocsin.cluster.http.requests import path_name
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.cluster.http.script_routes import ScriptRoutes
from tocsin.cluster.statements.outcomes import ScriptExecutor
from tocsin.serving.addresses import Networks
from tocsin.serving.answers import answer
from tocsin.serving.application import application
from tocsin.serving.authentication import PRINCIPAL, TokenLookup, optional_authentication, token_authentication
from tocsin.serving.limits import MemoryBudget, ServerLimits
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import read_json
from tocsin.serving.tokens import require, require_feed
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import InputError, UnavailableError

_BACKUP_BYTES: Final = 64 << 10
_FEED: Final = "/v1/feeds/{name}"
# Writes a backup to a path on this machine and returns its summary.
_Backup = Callable[[Path], Awaitable[Mapping[str, Any]]]


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
    backup: _Backup | None = None,
    feeds: Feeds | None = None,
    channel_figures: Callable[[], Iterable[ChannelMetrics]] | None = None,
    kept_for_readers: Callable[[], tuple[int, int, int]] | None = None,
    guard: ClockGuard | None = None,
    brokers: BrokerApi | None = None,
    budget: MemoryBudget | None = None,
) -> web.Application:
    """Builds the application of a cluster with these settings. `engine` says whether scripts can run now. `budget` is
    the memory for bodies, if other servers share it."""
    metrics = metrics or ServerMetrics()
    access = _server_authentication(settings, credentials)
    app = application(
        limits=server_limits(settings), metrics=metrics, access=access, budget=budget,
        message_routes=(_FEED,),  # a broker of the kind `bad` is the feed of a cluster
    )  # fmt: skip
    scripts = ScriptRoutes(
        statements, engine, limits or StatementLimits.of(settings.statements), metrics
    )  # fmt: skip
    service = QueryService(scripts)

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
            web.post("/query/service", service.run),
            web.get("/query/service", service.run, allow_head=False),
        ]
    )

    if backup is not None:
        app.add_routes([web.post("/v1/backup", _back_up(backup))])

    if feeds is not None:
        metrics.registry.register(FeedCollector(feeds.figures))
        app.add_routes([web.post(_FEED, _publish(feeds)), web.get(_FEED, _describe_feed(feeds), allow_head=False)])

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
        app.add_routes([web.post("/v1/clock:accept", _accept_clock(guard))])

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
            "query_service": "/query/service",
            "feeds": _FEED,
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


def _back_up(backup: _Backup) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def back_up(request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "admin")
        body = await read_json(request, limit_bytes=_BACKUP_BYTES)
        target = body.get("to") if isinstance(body, dict) else None
        if not isinstance(target, str) or not Path(target).is_absolute() or "\0" in target:
            raise InputError('expected {"to": an absolute path on the cluster\'s machine}')
        return answer(dict(await backup(Path(target))))

    return back_up


def _accept_clock(guard: ClockGuard) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def accept_clock(request: web.Request) -> web.Response:
        require(request[PRINCIPAL], "admin")
        accepted_us = await asyncio.to_thread(guard.accept)
        return answer({"now": from_us(accepted_us).isoformat()})

    return accept_clock


def _publish(feeds: Feeds) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def publish(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))

        async def accept(body: bytes, key: str | None, visible: bool) -> AcceptedRecords:
            return await feeds.accept(request.match_info["name"], body, key, visible=visible)

        accepted = await publish_records(request, accept)
        return answer(dict(accepted.answer), status=accepted.status)

    return publish


def _describe_feed(feeds: Feeds) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def describe(request: web.Request) -> web.Response:
        require_feed(request[PRINCIPAL], ".".join(path_name(request)))
        return answer(dict(feeds.describe(request.match_info["name"])))

    return describe


_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


def server_limits(settings: ClusterSettings) -> ServerLimits:
    return ServerLimits(
        body_limit_bytes=settings.http.body_limit_bytes,
        bodies_limit_bytes=settings.http.bodies_limit_bytes,
        connections_limit=settings.http.connections_limit,
        address_connections_limit=settings.http.address_connections_limit,
        read_timeout_s=settings.http.read_timeout_s,
        write_timeout_s=2 * settings.statements.write_timeout_s,
        trusted_proxies=Networks(settings.http.trusted_proxies.split()),
    )


def _server_authentication(settings: ClusterSettings, credentials: TokenLookup) -> Middleware:
    """The authentication of the cluster's own server."""
    if settings.token_needed:
        return token_authentication(credentials, _OPEN_PATHS)
    return optional_authentication(
        credentials, _OPEN_PATHS, loopback=settings.http.loopback, forwarded=settings.auth.mode == "off"
    )


def port_authentication(settings: ClusterSettings, credentials: TokenLookup, loopback: bool) -> Middleware:
    """The authentication of a feed's port, by the rule of the cluster's server: `auto` needs a token unless the port is
    on loopback and no proxy is trusted."""
    mode = settings.auth.mode
    if mode == "on" or (mode == "auto" and not (loopback and not settings.http.trusted_proxies.strip())):
        return token_authentication(credentials, ())
    return optional_authentication(credentials, (), loopback=loopback, forwarded=mode == "off")
