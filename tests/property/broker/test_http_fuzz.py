"""Whatever is sent to a broker, it answers as its OpenAPI document says, and never with a fault of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.examples import examples
from tests.support.in_process_broker import InProcessBroker, both
from tests.support.sparkless_cluster import world
from tocsin.broker.http.openapi import document

# Streams have no end, and are asked for elsewhere.
schema = schemathesis.openapi.from_dict(document())
OPERATIONS = [
    (path, method)
    for path, methods in document()["paths"].items()
    for method in methods
    if path not in ("/v1/stream", "/v1/events")
]
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The broker's address and a subscriber's token; it has a channel, subscriptions, results and a group."""
    folder: Path = tmp_path_factory.mktemp("broker")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> InProcessBroker:
        here = await stack.enter_async_context(world(folder / "cluster"))
        limits = {"limits__requests_per_s": 100_000, "limits__requests_burst": 100_000, "http__read_timeout_s": 0.5}
        made = await stack.enter_async_context(both(folder / "broker", here, delivery__wait_limit_s=0.05, **limits))
        channel = await here.channel("c")
        held = await made.subscribe("ada", "v.c", 1)
        await here.execute(channel, {int(held["interest"]): [{"n": 1}, "two"]})
        await made.ask("POST", "/v1/groups", {"name": "g", "members": ["ada"]})
        return made

    made = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    yield made.url, made.tokens["ada"]
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


# Each under a name of its own: workers that share the tests tell them apart by that.
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda one: one)
def test_every_operation_answers_as_documented(path: str, method: str, served: tuple[str, str]) -> None:
    url, token = served

    @given(case=schema[path][method].as_strategy())
    @settings(max_examples=examples(5), deadline=None, suppress_health_check=list(HealthCheck))
    def answers(case: schemathesis.Case[Any]) -> None:
        for headers in ({}, {"Authorization": f"Bearer {token}"}):
            case.headers = {**(case.headers or {}), **headers}  # type: ignore[assignment]
            response = case.call(base_url=url)
            case.validate_response(response, checks=CHECKS if response.status_code != 405 else [not_a_server_error])

    answers()
