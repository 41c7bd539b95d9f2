"""Ways to ask the cluster's server, well and badly."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.support.waiting import WITHIN_S

PLAIN = {"Content-Type": "text/plain"}


STREAM = {"Accept": "application/x-ndjson"}


async def ask(url: str, method: str = "POST", path: str = "/v1/statements", **options: Any) -> tuple[int, Any, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, **options) as response:
        body = await response.read()
        said = json.loads(body) if response.content_type == "application/json" else body
        return response.status, said, response.headers


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


async def raw(url: str, data: bytes, *, end: bool = False) -> bytes:
    """All that the server answers to these bytes, until it closes."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(WITHIN_S):
            return await reader.read()
    finally:
        writer.close()


def error_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]
