"""Acknowledgements are gathered, told to the core at once, and durable before anybody is told that they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.support.waiting import until
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.acks import AckBatcher
from tocsin.broker.metrics import BrokerCounters
from tocsin.rules.model.cursors import Cursor
from tocsin.store.broker.interface import BrokerStore
from tocsin.wire.errors import StorageFullError


class FakeStore:
    def __init__(self) -> None:
        self.calls: list[dict[int, Cursor]] = []
        self.full = False
        self.hold: asyncio.Event | None = None
        self.writing = False

    async def acknowledge(self, markers: Mapping[int, Cursor]) -> None:
        self.writing = True
        if self.hold is not None:
            await self.hold.wait()
        if self.full:
            raise StorageFullError("no room")
        self.calls.append(dict(markers))


def ack_batcher(store: FakeStore, subscriptions: int = 3, every_s: float = 0.01) -> tuple[AckBatcher, CoreRuntime]:
    runtime = CoreRuntime(Broker(CoreSettings(), 0.0))
    runtime.performers = dict.fromkeys((ac.SubscribeBackend, ac.Fetch, ac.ReportConsumed), lambda _: None)
    for item in range(subscriptions):
        runtime.handle(ev.SubscribeRequested(item, item, 7, None, ev.Mode.NOTIFY))
    runtime.handle(ev.BackendSubscribed(7, Cursor(1, 0, 0)))
    for number in (1, 2):
        runtime.handle(ev.ResultArrived(7, Cursor(1, number, 0), 1, None))
    return AckBatcher(runtime, cast("BrokerStore", store), BrokerCounters(), every_s, retry_s=0.01), runtime


async def test_those_of_many_are_one_transaction_and_never_beyond_what_there_is() -> None:
    store = FakeStore()
    acks, runtime = ack_batcher(store)
    acks.acknowledge(0, 7, Cursor(1, 1, 0))
    acks.acknowledge(1, 7, Cursor(9, 9, 9))
    acks.acknowledge(2, 7, Cursor(1, 1, 0))
    acks.acknowledge(99, 7, Cursor(1, 1, 0))
    await acks.durable()
    assert store.calls == [{0: Cursor(1, 1, 0), 1: Cursor(1, 2, 0), 2: Cursor(1, 1, 0)}]
    assert runtime.core.marker(1) == Cursor(1, 2, 0)
    await acks.durable()
    assert len(store.calls) == 1


async def test_what_comes_while_one_is_written_is_written_next_and_waited_for() -> None:
    store = FakeStore()
    store.hold = asyncio.Event()
    acks, _ = ack_batcher(store)
    acks.acknowledge(0, 7, Cursor(1, 1, 0))
    first = asyncio.create_task(acks.durable())
    await until(lambda: store.writing)
    acks.acknowledge(0, 7, Cursor(1, 2, 0))
    second = asyncio.create_task(acks.durable())
    await asyncio.sleep(0)
    assert not first.done()
    store.hold.set()
    await asyncio.gather(first, second)
    assert store.calls == [{0: Cursor(1, 1, 0)}, {0: Cursor(1, 2, 0)}]


async def test_a_full_disk_is_told_to_who_waits_and_nothing_is_lost() -> None:
    store = FakeStore()
    store.full = True
    acks, _ = ack_batcher(store)
    acks.acknowledge(0, 7, Cursor(1, 1, 0))
    with pytest.raises(StorageFullError):
        await acks.durable()
    acks.acknowledge(1, 7, Cursor(1, 2, 0))
    store.full = False
    await until(lambda: store.calls)
    await acks.close()
    written: dict[Any, Any] = {}
    for call in store.calls:
        written |= call
    assert written == {0: Cursor(1, 1, 0), 1: Cursor(1, 2, 0)}


async def test_what_was_acknowledged_is_written_at_the_end() -> None:
    store = FakeStore()
    acks, _ = ack_batcher(store, every_s=60.0)
    acks.acknowledge(0, 7, Cursor(1, 1, 0))
    await acks.close()
    assert store.calls == [{0: Cursor(1, 1, 0)}]
