"""Resolves host names in a thread per lookup, so that a name server that does not answer delays only lookups of its own
names. (The event loop has two threads for all lookups.)"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

_KEPT_S: Final = 60.0
_NAMES_KEPT: Final = 10_000

# The signature of `socket.getaddrinfo`: (family, kind, protocol, canonical name, (address, port, …)) of each address.
_LookUp = Callable[..., list[tuple[Any, Any, int, str, tuple[Any, ...]]]]
_Key = tuple[str, int, int]


class NameResolver(AbstractResolver):
    """A caching resolver, for connectors without a cache. Concurrent lookups of a name share a thread, and a caller
    that times out does not cancel the lookup for the others."""

    def __init__(self, look_up: _LookUp = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._kept: dict[_Key, tuple[float, list[ResolveResult]]] = {}
        self._coming: dict[_Key, asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop, key = asyncio.get_running_loop(), (host, port, int(family))
        until_s, results = self._kept.get(key, (0.0, []))
        if loop.time() < until_s:
            return results
        lookup = self._coming.get(key)
        if lookup is None:
            lookup = self._coming[key] = loop.create_future()
            lookup.add_done_callback(lambda done: self._came(key, done))
            arguments = (loop, lookup, host, port, family)
            # A daemon thread, so that the interpreter does not wait for it at exit.
            threading.Thread(target=self._run, args=arguments, name="name lookup", daemon=True).start()
        return await asyncio.shield(lookup)

    async def close(self) -> None:
        """There is nothing to close: lookup threads end by themselves."""

    def _came(self, key: _Key, done: asyncio.Future[list[ResolveResult]]) -> None:
        del self._coming[key]
        self._kept.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            if len(self._kept) >= _NAMES_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = asyncio.get_running_loop().time() + _KEPT_S, done.result()

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        coming: asyncio.Future[list[ResolveResult]],
        host: str,
        port: int,
        family: socket.AddressFamily,
    ) -> None:
        """Runs in the lookup's thread, and hands the outcome to the event loop."""
        error: Exception | None = None
        results: list[ResolveResult] = []
        try:
            addresses = self._look_up(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
            results = [_result(host, port, address_info) for address_info in addresses]
        except (OSError, UnicodeError, ValueError) as failed:
            error = failed if isinstance(failed, OSError) else OSError(f"{host!r} is no name: {failed}")

        def tell() -> None:
            if coming.done():
                return
            if error is None:
                coming.set_result(results)
            else:
                coming.set_exception(error)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            return  # The event loop has closed in the meantime.


def _result(host: str, port: int, address_info: tuple[Any, Any, int, str, tuple[Any, ...]]) -> ResolveResult:
    """A lookup's result in aiohttp's form."""
    family, _, protocol, _, socket_address = address_info
    address = str(socket_address[0])
    if family == socket.AF_INET6 and len(socket_address) > 3 and socket_address[3]:
        address, _ = socket.getnameinfo(
            (address, port, 0, socket_address[3]), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        )
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=protocol, flags=flags)
