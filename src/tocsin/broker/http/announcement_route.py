"""The route that receives the cluster's announcements.

Anybody can reach it without a token, so it is defensive: a request without a fresh signature header is refused before
its body is read, and its bodies have a small memory budget of their own.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from tocsin.serving.addresses import address_key, client_address
from tocsin.serving.answers import answer
from tocsin.serving.limits import MemoryBudget, RefusalCounter, ServerLimits, ignore_refusal, read_body
from tocsin.serving.rate_limit import RateLimiter
from tocsin.wire.signatures import check_headers

LIMIT_BYTES: Final = 4 << 20
"""The cluster's announcements have at most a little more than 1 MiB."""
_STRANGERS_PER_S: Final = 20
STRANGERS_BURST: Final = 100


class AnnouncementRoute:
    """An address that has sent an announcement with a valid signature is known as the cluster's and has its own memory
    budget, so that a flood from other addresses cannot keep the cluster out."""

    def __init__(
        self,
        receive: Callable[[Mapping[str, str], bytes], Awaitable[None]],
        limits: ServerLimits,
        *,
        refused: RefusalCounter = ignore_refusal,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._receive = receive
        self._limits = dataclasses.replace(limits, body_limit_bytes=min(LIMIT_BYTES, limits.body_limit_bytes))
        size_bytes, name = self._limits.body_limit_bytes, "announcement bytes"
        self._cluster_room = MemoryBudget(4 * size_bytes, name=name, refused=refused)
        self._strangers_room = MemoryBudget(2 * size_bytes, own_limit_bytes=size_bytes, name=name, refused=refused)
        self._strangers = RateLimiter(
            _STRANGERS_PER_S, STRANGERS_BURST, "announcements of an address that is not known"
        )
        self._cluster_address: str | None = None
        self._clock_s = clock_s

    async def take(self, request: web.Request) -> web.Response:
        """Receives one announcement; addresses other than the cluster's have a rate limit and a smaller budget."""
        check_headers(request.headers, now_s=self._clock_s())
        address = address_key(client_address(request))
        budget = self._cluster_room
        if address != self._cluster_address:
            budget = self._strangers_room
            self._strangers.check(address, time.monotonic())
        with budget.share(f"the address {address}") as grow:
            body = await read_body(request, self._limits, grow=grow)
            await self._receive(request.headers, body)
        self._cluster_address = address
        return answer({})
