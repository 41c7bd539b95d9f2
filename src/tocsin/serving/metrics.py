"""Prometheus metrics of a server, in a registry of its own, so that two servers in one process do not mix."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tocsin.serving.answers import Handler

_METHODS: Final = frozenset(hdrs.METH_ALL)


class ServerMetrics:
    """The metrics of every server; a server adds its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "tocsin_http_requests",
            "Requests answered, by method, route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tocsin_http_request_seconds", "Time from a request's head to the end of its answer, in seconds.",
            ["route"], registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "tocsin_http_refused", "Connections, bodies, scripts, fetches and answers refused at this limit.",
            ["limit"], registry=self.registry,
        )  # fmt: skip

    def count_refused(self, limit: str) -> None:
        """Counts a refusal by the limit of that name."""
        self.refused.labels(limit).inc()

    @property
    def counting(self) -> Middleware:
        """The middleware that counts requests. It must be outermost, to count the status that the client sees."""

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            began_s = time.perf_counter()
            route = _route(request)
            status = "aborted"
            try:
                response = await handler(request)
                status = str(response.status)
                return response
            finally:
                # Labels come from fixed sets only, so that clients cannot create new time series.
                method = request.method if request.method in _METHODS else "OTHER"
                self.requests.labels(method, route, status).inc()
                self.seconds.labels(route).observe(time.perf_counter() - began_s)

        return count

    async def expose(self, _request: web.Request) -> web.Response:
        # In a thread, because collectors may read from disk.
        exposed = await asyncio.to_thread(generate_latest, self.registry)
        return web.Response(body=exposed, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
