"""The blocking client is the asynchronous one, from another thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.fake_broker import FakeBroker, listening
from tests.support.waiting import WITHIN_S
from tocsin.sdk import Client as AsyncClient
from tocsin.sdk import NoBrokerError
from tocsin.sdk.sync import BlockingClient
from tocsin.wire.errors import InputError, UnauthorizedError


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with listening(FakeBroker(passwords={"ann": "secret"})) as broker:
        yield broker


async def apart(work: Callable[[], Any]) -> Any:
    """What it gives in a thread of its own, while the broker goes on here."""
    async with asyncio.timeout(WITHIN_S):
        return await asyncio.to_thread(work)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tocsin-sdk"]


async def test_results_are_a_plain_iterator(broker: FakeBroker) -> None:
    loop = asyncio.get_running_loop()

    def work() -> list[Any]:
        with BlockingClient(broker.url, "ann", "secret", ack_every_s=0.0) as client:
            made = client.subscribe("v.c", [1])
            found = []
            loop.call_soon_threadsafe(broker.make, 17, 1, 2, 3)
            for told in client.results():
                found.append(told.result)
                if len(found) == 2:
                    break
            # Going on acknowledges what was held, and skips nothing.
            found.append(next(client.results()).result)
            client.flush()
            assert broker.interests[17].marker == broker.interests[17].results[1][0]
            found.append([action.result for action in client.pull(made)])
            assert client.connected
            assert client.known == {17: made}
            return found

    assert await apart(work) == [1, 2, 3, [3]]
    assert threads() == []


async def test_errors_come_as_they_are_and_leave_no_thread_behind(broker: FakeBroker, unused_tcp_port: int) -> None:
    def work() -> None:
        with pytest.raises(UnauthorizedError), BlockingClient(broker.url, "ann", "wrong"):
            pass
        with pytest.raises(NoBrokerError), BlockingClient(f"http://127.0.0.1:{unused_tcp_port}", "ann", "secret"):
            pass
        with pytest.raises(InputError):
            BlockingClient(broker.url)
        with BlockingClient(broker.url, "ann", "secret") as client:
            with pytest.raises(InputError):
                client.subscribe("v.c", "text")
            with pytest.raises(AttributeError):
                client.nothing()
        with pytest.raises(InputError, match="closed"):
            client.subscriptions()
        client.close()

    await apart(work)
    assert threads() == []


async def test_everything_that_the_asynchronous_client_has_is_there_with_its_words(broker: FakeBroker) -> None:
    client = BlockingClient(broker.url, "ann", "secret")
    try:
        for name, method in inspect.getmembers(AsyncClient, inspect.isfunction):
            if not name.startswith("_"):
                assert name in dir(client)
                if name != "close":
                    assert getattr(client, name).__doc__ == method.__doc__
    finally:
        await apart(client.close)
