"""The life of a server: binds the port, starts the application, serves until a signal, finishes requests, and ends.

The port is bound first, so that a conflict shows before anything slow (Spark) starts, and it accepts connections last,
so that no client meets a server that is half started.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final, Protocol

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from tocsin.serving.addresses import TRUSTED_PROXIES
from tocsin.serving.answers import answer_errors, answer_middleware, finish_headers
from tocsin.serving.authentication import refuse_messages
from tocsin.serving.connections import LimitedServer, count_forwarded
from tocsin.serving.limits import MemoryBudget, ServerLimits
from tocsin.serving.metrics import ServerMetrics
from tocsin.wire.errors import ConflictError, InputError

_log = structlog.get_logger("tocsin.serving")

LIMITS: Final = web.AppKey("LIMITS", ServerLimits)
MEMORY_BUDGET: Final = web.AppKey("MEMORY_BUDGET", MemoryBudget)
_METRICS: Final = web.AppKey("METRICS", ServerMetrics)

_BACKLOG = 1024
_LINGERING_S = 2.0
_LAST_WORDS_S = 2.0
_COLLECT_AFTER: Final = (20_000, 20, 20)
SWITCH_INTERVAL_S: Final = 0.000_5
"""The time after which a computing thread yields the GIL. A request changes threads several times, and each change
waits for it while a thread parses or encodes another client's data. (Python's default is 5 ms.)"""
_RESERVED_FILES: Final = 256
"""Files for other purposes than client connections: stores, logs, datasets and outgoing connections."""
_MOST_FILES: Final = 1 << 20
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def application(
    *,
    limits: ServerLimits,
    metrics: ServerMetrics,
    access: Middleware,
    budget: MemoryBudget | None = None,
    message_routes: Collection[str] = (),
) -> web.Application:
    """An application without routes that counts requests, answers in one form, and applies the middleware `access`.
    `budget` is the memory for bodies, if several servers share it. Only `message_routes` take messages that a cluster
    or a broker sends."""
    middlewares = [metrics.count_requests, answer_middleware, count_forwarded, access, refuse_messages(message_routes)]
    app = web.Application(middlewares=middlewares)
    app.on_response_prepare.append(finish_headers)
    app[LIMITS] = limits
    app[TRUSTED_PROXIES] = limits.trusted_proxies
    app[_METRICS] = metrics
    app[MEMORY_BUDGET] = body_budget(limits, metrics) if budget is None else budget
    return app


def body_budget(limits: ServerLimits, metrics: ServerMetrics) -> MemoryBudget:
    """The memory for the bodies in flight."""
    # A single client must be able to send the largest body, and to have it parsed.
    own_limit_bytes = max(limits.bodies_limit_bytes // 2, 2 * limits.body_limit_bytes)
    return MemoryBudget(
        max(limits.bodies_limit_bytes, own_limit_bytes), own_limit_bytes=own_limit_bytes, refused=metrics.count_refused
    )


class _ServedApplication(Protocol):
    """The application of a server, once it has started."""

    @property
    def app(self) -> web.Application: ...


async def serve(
    start: Callable[[str], AbstractAsyncContextManager[_ServedApplication]],
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    stop: asyncio.Event | None = None,
) -> None:
    """Runs a server until SIGTERM, SIGINT or `stop`; a second SIGINT ends the process at once.

    The port is bound first (0 picks a free one), so that a conflict is known before anything slow starts, but no
    connection is accepted before `start(address)` has completed. A signal during the start cancels it. On a signal
    while serving, no further connection is accepted, and the application's `on_shutdown` decides how long running
    requests may take.
    """
    stop = stop or asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    starting = True

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set() and number == signal.SIGINT:
            os._exit(130)
        stop.set()
        if starting:
            task.cancel()

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with bind_socket(host, port) as (sock, address):
        try:
            _handle_signals(on_signal)
            async with start(address) as served:
                starting = False
                # Install the handlers again: Spark replaces the handler of SIGINT.
                _handle_signals(on_signal)
                _spare_the_collector()
                if not stop.is_set():
                    async with listen(served.app, sock):
                        on_ready(address)
                        await stop.wait()
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            task.uncancel()
        finally:
            _forget_signals()


def _spare_the_collector() -> None:
    """Excludes the objects of the start from garbage collection, since they stay, and makes collections less frequent.
    (A fetch of a thousand results spent a third of its time in the collector.)"""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _handle_signals(on_signal: Callable[[signal.Signals], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


def _forget_signals() -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.remove_signal_handler(number)


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """A socket bound to the host and port, and its URL. It refuses connections until it listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError) as exc:
        raise InputError(f"cannot serve at {host}:{port}: {exc}", hint="give a host of this machine") from None
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError as exc:
            raise _not_bound(host, port, exc) from None
        yield sock, _url_of(host, sock.getsockname()[1])


def _url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host.strip("[]") else f"http://{host}:{port}"


def _not_bound(host: str, port: int, exc: OSError) -> InputError:
    if exc.errno == errno.EADDRINUSE:
        return ConflictError(f"{host}:{port} is taken by another program", hint="choose another port with --port")
    return InputError(f"cannot serve at {host}:{port}: {exc.strerror}", hint="choose another host or port")


@asynccontextmanager
async def listen(app: web.Application, sock: socket.socket) -> AsyncIterator[LimitedServer]:
    """Accepts connections on the bound socket; at the end it accepts no more and finishes those that are open."""
    runner = _Runner(
        app,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        shutdown_timeout=_LAST_WORDS_S,
        keepalive_timeout=app[LIMITS].keepalive_timeout_s,
        max_headers=app[LIMITS].headers_limit,
        max_field_size=app[LIMITS].header_limit_bytes,
        max_line_size=app[LIMITS].header_limit_bytes,
        lingering_time=_LINGERING_S,
    )
    await runner.setup()
    try:
        try:
            # Two processes can bind the port while neither listens, and uvloop does not report a failure to listen.
            sock.listen(_BACKLOG)
            await web.SockSite(runner, sock, backlog=_BACKLOG).start()
        except OSError as exc:
            host, port = sock.getsockname()[:2]
            raise _not_bound(host, port, exc) from None
        assert isinstance(runner.server, LimitedServer)
        yield runner.server
    finally:
        await runner.cleanup()


def _raise_file_limit() -> int:
    """Raises the soft limit as far as the system allows and returns it. Shells and service managers set it to 1,024,
    for the sake of old programs that cannot handle more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target


def connections_within(files: int, connections_limit: int) -> int:
    """The number of connections for which `files` open files are enough, at most `connections_limit`."""
    return min(connections_limit, max(1, files - min(_RESERVED_FILES, files // 2)))


def _within_files(limits: ServerLimits, files: int) -> ServerLimits:
    """Limits connections by the open files: running out of files would harm clients that are connected."""
    connections = connections_within(files, limits.connections_limit)
    if connections < limits.connections_limit:
        _log.warning(
            "there are not enough files for all connections", files=files, connections_limit=limits.connections_limit,
            connections=connections, hint="raise the limit of open files (ulimit -n, LimitNOFILE=)",
        )  # fmt: skip
    return dataclasses.replace(limits, connections_limit=connections)


class _Runner(web.AppRunner):
    """Serves through LimitedServer."""

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()

        async def handle(request: web.Request) -> web.StreamResponse:
            # This is outside the middlewares, too: a refused `Expect` never reaches them.
            return await answer_errors(request, plain.request_handler)

        return LimitedServer(
            handle,
            _within_files(self.app[LIMITS], _raise_file_limit()),
            refused=self.app[_METRICS].count_refused,
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
            loop=asyncio.get_running_loop(),
            **plain._kwargs,
        )
