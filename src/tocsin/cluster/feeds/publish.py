"""Reads the records of an HTTP request within the server's limits, and hands them to a feed.

The cluster's own server and the ports of feeds share this, so that the same limits and promises hold at both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.serving.application import LIMITS, MEMORY_BUDGET
from tocsin.serving.limits import read_body
from tocsin.serving.requests import askers_of, check_query
from tocsin.wire.errors import InputError


async def publish_records(
    request: web.Request, accept: Callable[[bytes, str | None, bool], Awaitable[AcceptedRecords]]
) -> AcceptedRecords:
    """Calls `accept` with the body, the idempotency key, and whether to wait until queries see the records."""
    check_query(request, "wait")
    wait = request.query.get("wait", "")
    if wait not in ("", "visible"):
        raise InputError(f'wait: must be "visible", got "{wait}"')
    key = request.headers.get("Idempotency-Key")
    with request.app[MEMORY_BUDGET].share(*askers_of(request)) as grow:
        # Count the body twice: decoding makes a log payload of about the same size.
        body = await read_body(request, request.app[LIMITS], unpack=True, grow=lambda size_bytes: grow(2 * size_bytes))
        return await accept(body, key, wait == "visible")
