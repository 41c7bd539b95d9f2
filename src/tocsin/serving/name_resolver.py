"""Names to addresses, each looked up on a thread of its own: a name server that does not answer holds up nobody but who
asks for its names. (The event loop has two threads for all of them.)"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

KEPT_S: Final = 60.0
NAMES_KEPT: Final = 10_000

# As `socket.getaddrinfo` does: (family, kind, protocol, canonical name, (address, port, …)) of each address.
LookUp = Callable[..., list[tuple[Any, Any, int, str, tuple[Any, ...]]]]
_Key = tuple[str, int, int]


class NameResolver(AbstractResolver):
    """For connectors that keep no addresses themselves. Whoever asks for a name that is being looked up waits for the
    same thread, and whoever has no more time for it leaves the others waiting."""

    def __init__(self, look_up: LookUp = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._kept: dict[_Key, tuple[float, list[ResolveResult]]] = {}
        self._coming: dict[_Key, asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop, key = asyncio.get_running_loop(), (host, port, int(family))
        until_s, found = self._kept.get(key, (0.0, []))
        if loop.time() < until_s:
            return found
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = loop.create_future()
            coming.add_done_callback(lambda done: self._came(key, done))
            arguments = (loop, coming, host, port, family)
            # No thread that the interpreter waits for at its end.
            threading.Thread(target=self._run, args=arguments, name="name lookup", daemon=True).start()
        return await asyncio.shield(coming)

    async def close(self) -> None:
        """There is nothing to close: threads that still look a name up end by themselves."""

    def _came(self, key: _Key, done: asyncio.Future[list[ResolveResult]]) -> None:
        del self._coming[key]
        self._kept.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            if len(self._kept) >= NAMES_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = asyncio.get_running_loop().time() + KEPT_S, done.result()

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        coming: asyncio.Future[list[ResolveResult]],
        host: str,
        port: int,
        family: socket.AddressFamily,
    ) -> None:
        error: Exception | None = None
        found: list[ResolveResult] = []
        try:
            made = self._look_up(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
            found = [_result(host, port, each) for each in made]
        except (OSError, UnicodeError, ValueError) as failed:
            error = failed if isinstance(failed, OSError) else OSError(f"{host!r} is no name: {failed}")

        def tell() -> None:
            if coming.done():
                return
            if error is None:
                coming.set_result(found)
            else:
                coming.set_exception(error)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            return  # The loop has ended meanwhile.


def _result(host: str, port: int, made: tuple[Any, Any, int, str, tuple[Any, ...]]) -> ResolveResult:
    family, _, protocol, _, place = made
    address = str(place[0])
    if family == socket.AF_INET6 and len(place) > 3 and place[3]:
        address, _ = socket.getnameinfo((address, port, 0, place[3]), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=protocol, flags=flags)
