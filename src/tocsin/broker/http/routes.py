"""The broker's HTTP application: all its routes, and which web origins may use them.

Web pages of other origins are refused unless the settings name them, since a browser sends their requests unasked.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Final

from aiohttp import hdrs, web

from tocsin.broker.http.account_routes import AccountRoutes
from tocsin.broker.http.announcement_route import AnnouncementRoute
from tocsin.broker.http.asyncapi import document as asyncapi
from tocsin.broker.http.openapi import document as openapi
from tocsin.broker.http.requests import RequestBodies, operator
from tocsin.broker.http.subscriber_routes import SubscriberRoutes
from tocsin.broker.service import BrokerService
from tocsin.broker.transports.transport import Transport
from tocsin.rules.caching.settings import CachingSettings
from tocsin.serving.addresses import Networks, is_forwarded
from tocsin.serving.answers import RequestHandler, answer
from tocsin.serving.application import application
from tocsin.serving.authentication import check_host, is_own_origin
from tocsin.serving.limits import MemoryBudget, ServerLimits
from tocsin.serving.metrics import ServerMetrics
from tocsin.serving.requests import check_query, read_json
from tocsin.settings.broker import BrokerSettings
from tocsin.wire.errors import ForbiddenError, InputError

_SMALL_BYTES: Final = 1 << 20
_BODIES_BYTES: Final = 128 << 20
"""The memory that all large bodies may take together."""
_PREFLIGHT_S: Final = "600"
_ANNOUNCEMENTS: Final = "/v1/announcements"


def broker_application(
    service: BrokerService, transports: Sequence[Transport], metrics: ServerMetrics
) -> web.Application:
    """The HTTP application of a broker, with all routes and limits."""
    http = service.settings.http
    limits = ServerLimits(
        body_limit_bytes=http.body_limit_bytes,
        connections_limit=http.connections_limit,
        address_connections_limit=http.address_connections_limit,
        read_timeout_s=http.read_timeout_s,
        trusted_proxies=Networks(http.trusted_proxies.split()),
    )
    # Requests of subscribers are small; only records for feeds may be as large as the settings allow.
    small = dataclasses.replace(limits, body_limit_bytes=min(_SMALL_BYTES, http.body_limit_bytes))
    # A body is in memory twice while the user is written into its records.
    bodies_bytes = max(_BODIES_BYTES, 4 * http.body_limit_bytes)
    room = MemoryBudget(bodies_bytes, own_limit_bytes=bodies_bytes // 2, refused=metrics.count_refused)
    announcements = AnnouncementRoute(service.receive_announcement, limits, refused=metrics.count_refused)
    app = application(
        limits=small, metrics=metrics, access=_origins(service.settings), message_routes=(_ANNOUNCEMENTS,)
    )
    app.add_routes(_StatusRoutes(service, metrics, announcements).routes())
    app.add_routes(AccountRoutes(service, transports).routes())
    app.add_routes(SubscriberRoutes(service, RequestBodies(limits, room)).routes())
    for transport in transports:
        app.add_routes(transport.routes())

    async def close_connections(_app: web.Application) -> None:
        service.close_connections()

    app.on_shutdown.append(close_connections)
    app.on_response_prepare.append(_allow_origin)
    return app


class _StatusRoutes:
    """Routes about the broker itself."""

    def __init__(self, service: BrokerService, metrics: ServerMetrics, announcements: AnnouncementRoute) -> None:
        self._service = service
        self._metrics = metrics
        self._announcements = announcements

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.index),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/openapi.json", self.openapi),
            web.get("/v1/asyncapi.json", self.asyncapi),
            web.get("/v1/tocsin.js", self.javascript),
            web.post(_ANNOUNCEMENTS, self._announcements.take),
            web.get("/v1/policies", self.policies, allow_head=False),
            web.put("/v1/policies", self.choose),
        ]

    async def index(self, _request: web.Request) -> web.Response:
        return answer(
            {
                "name": "tocsin broker",
                "broker": self._service.settings.name,
                "register": "/v1/register",
                "login": "/v1/login",
                "subscriptions": "/v1/subscriptions",
                "stream": "/v1/stream",
                "events": "/v1/events",
                "poll": "/v1/poll",
                "channels": "/v1/channels",
                "openapi": "/v1/openapi.json",
                "asyncapi": "/v1/asyncapi.json",
                "javascript": "/v1/tocsin.js",
                "health": "/healthz",
                "ready": "/readyz",
                "metrics": "/metrics",
            }
        )

    async def healthz(self, _request: web.Request) -> web.Response:
        return answer({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        """Whether subscribers are served: also while the cluster is away, unless `cluster=1` requires it. A broker that
        the cluster has refused since the start is not ready: an operator must correct its settings."""
        check_query(request, "cluster")
        required = request.query.get("cluster", "0")
        if required not in ("0", "1"):
            raise InputError("cluster: must be 1 or 0")
        return answer({"status": "ready", "cluster": await self._service.cluster_state(must_answer=required == "1")})

    async def metrics(self, request: web.Request) -> web.Response:
        await operator(self._service.accounts, request)
        return await self._metrics.expose(request)

    async def openapi(self, _request: web.Request) -> web.Response:
        return answer(openapi())

    async def asyncapi(self, _request: web.Request) -> web.Response:
        return answer(asyncapi())

    async def javascript(self, _request: web.Request) -> web.Response:
        """The JavaScript client for web pages."""
        headers = {hdrs.CACHE_CONTROL: "max-age=600"}
        return web.Response(body=_client(), content_type="text/javascript", charset="utf-8", headers=headers)

    async def policies(self, request: web.Request) -> web.Response:
        await operator(self._service.accounts, request)
        return answer(self._service.describe_policies())

    async def choose(self, request: web.Request) -> web.Response:
        """Changes the named caching settings; the others stay."""
        await operator(self._service.accounts, request)
        changes = await read_json(request)
        types = {field.name: field.type for field in dataclasses.fields(CachingSettings)}
        if not isinstance(changes, dict) or not changes.keys() <= types.keys():
            raise InputError("expected caching settings", hint=f"known: {', '.join(types)}")
        for name, value in changes.items():
            if not _fits(value, str(types[name])):
                raise InputError(f"{name}: must be a value such as {getattr(CachingSettings(), name)!r}")
        try:
            self._service.change_policies(changes)
        except ValueError as error:
            raise InputError(str(error)) from None
        return answer(self._service.describe_policies())


@functools.cache
def _client() -> bytes:
    return resources.files("tocsin").joinpath("sdk/tocsin.js").read_bytes()


def _fits(value: object, kind: str) -> bool:
    """Whether the value has the type of the setting."""
    checks: dict[str, Callable[[object], bool]] = {
        "int": lambda it: type(it) is int and abs(it) < 1 << 53,
        "float": lambda it: type(it) in (int, float),
        "bool": lambda it: isinstance(it, bool),
        "str": lambda it: isinstance(it, str),
    }
    return checks[kind](value)


# ---------------------------------------------------------------- web origins (CORS)


_ALLOWED: Final = web.RequestKey("ALLOWED_ORIGIN", str)


def _origins(settings: BrokerSettings) -> Any:
    """A middleware that refuses web pages, except those of the broker's own origin and of configured origins (CORS).

    If every program on this machine is the operator, it also checks the Host header, against DNS rebinding.
    """
    named = set(settings.http.origins.split())

    @web.middleware
    async def admit(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        if settings.everybody_operates and not is_forwarded(request):
            check_host(request, hint="use localhost or an address; or set broker.accounts.admin_token")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None:
            return await handler(request)
        if not (is_own_origin(request, origin) or "*" in named or origin in named):
            raise ForbiddenError(f"web pages of {origin[:100]!r} may not use this broker", hint="broker.http.origins")
        request[_ALLOWED] = origin
        requested_method = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
        if request.method == hdrs.METH_OPTIONS and requested_method is not None:
            return web.Response(
                status=204,
                headers={
                    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, PUT, PATCH, DELETE",
                    hdrs.ACCESS_CONTROL_ALLOW_HEADERS: "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
                    hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_S,
                },
            )
        return await handler(request)

    return admit


async def _allow_origin(request: web.Request, response: web.StreamResponse) -> None:
    if (origin := request.get(_ALLOWED)) is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.VARY] = "Origin"
