"""Getting results to many: in order, in turns, and to nobody who has no room, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest

from tests.support.waiting import until
from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import EncodedEvent, EventEncoder, OutletForm, to_broker_result
from tocsin.broker.delivery.fanout import FanOut
from tocsin.broker.delivery.outlets import Listener
from tocsin.broker.metrics import BrokerCounters
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.results import FetchedResult


class Outlet:
    """Takes envelopes until it is full, and checks that what comes follows what has come since it logged in."""

    form = OutletForm.PLAIN

    def __init__(self, rng: random.Random, marker: dict[int, Cursor]) -> None:
        self.listener: Listener | None = None
        self._rng = rng
        self.full = False
        self.position = dict(marker)
        self.given_up = False

    def write(self, event: EncodedEvent) -> None:
        assert not self.full, "nothing is written to who has no room"
        said = orjson.loads(event.envelope)["data"]
        after = Cursor(*map(int, said["after"].split("-")))
        to = Cursor(*map(int, said["to"].split("-")))
        have = self.position.get(event.interest, after)
        assert after == have, f"{event.interest}: {have} was followed by {after}"
        assert len(said["results"]) == to.execution - after.execution, "nothing is left out"
        self.position[event.interest] = to
        self.full = self._rng.random() < 0.1

    def shed(self) -> None:
        self.given_up = True


class FanOutHarness:
    """A core that is told everything, a cluster that answers at once, and people."""

    def __init__(self, rng: random.Random, people: int, interests: int, at_once: int = 2) -> None:
        """Two writes at a time: there is always something on its way."""
        self.rng = rng
        self.runtime = CoreRuntime(Broker(CoreSettings(page_results=3), 0.0))
        # What the core delivers may be several envelopes, between which somebody may be full.
        encoder = EventEncoder("v.b", lambda _: "v.c", page_results=2, page_bytes=10_000)
        self.fan_out = FanOut(self.runtime, encoder, BrokerCounters(), patience_s=60, at_once=at_once)
        self.results: dict[int, list[BrokerResult]] = {number: [] for number in range(interests)}
        self.markers: dict[tuple[int, int], Cursor] = {}
        self.outlets: dict[int, Outlet] = {}
        runtime = self.runtime
        runtime.performers = {
            **dict.fromkeys((ac.ReportConsumed, ac.UnsubscribeBackend, ac.RefuseEvent), lambda _: None),
            ac.Deliver: self.fan_out.deliver,
            ac.NotifyAvailable: self.fan_out.notify,
            ac.EndSubscriptions: self.fan_out.end,
            ac.Fetch: self._fetch,
            ac.SubscribeBackend: lambda it: runtime.handle(ev.BackendSubscribed(it.interest, Cursor(1, 0, 0))),
        }
        for person in range(people):
            for interest in range(interests):
                self.fan_out.add_subscription(person, self.name(person, interest))
                runtime.handle(
                    ev.SubscribeRequested(self.name(person, interest), person, interest, None, ev.Mode.INLINE)
                )
                self.markers[person, interest] = Cursor(1, 0, 0)

    def name(self, person: int, interest: int) -> int:
        return person * 100 + interest

    def _fetch(self, fetch: ac.Fetch) -> None:
        found = [result for result in self.results[int(str(fetch.interest))] if fetch.after < result.cursor <= fetch.to]
        some = found[: fetch.limit]
        to = fetch.to if len(some) == len(found) else some[-1].cursor
        asyncio.get_running_loop().call_soon(self.runtime.handle, ev.FetchSucceeded(fetch.fetch, to, tuple(some), 0.01))

    def step(self, person: int, interest: int) -> None:
        outlet = self.outlets.get(person)
        choice = self.rng.randrange(10)
        if choice < 5:
            number = len(self.results[interest]) + 1
            one = to_broker_result(FetchedResult(Cursor(1, number, 0), 1, b"1"))
            self.results[interest].append(one)
            self.runtime.handle(ev.ResultArrived(interest, one.cursor, one.size_bytes, one.payload))
        elif outlet is None:
            mine = {each: cursor for (who, each), cursor in self.markers.items() if who == person}
            self.outlets[person] = outlet = Outlet(self.rng, mine)
            self.fan_out.attach(person, outlet)
        elif choice == 5:
            del self.outlets[person]
            self.fan_out.detach(outlet)
        elif choice == 6 and not outlet.full:
            cursor = outlet.position[interest]
            self.runtime.handle(ev.ResultsAcknowledged(interest, cursor, [self.name(person, interest)]))
            self.markers[person, interest] = max(cursor, self.markers[person, interest])
        elif outlet.full:
            outlet.full = False
            self.fan_out.resume_outlet(outlet)

    async def settle(self) -> None:
        for _ in range(3_000):
            await asyncio.sleep(0)
            for outlet in self.outlets.values():
                if outlet.full:
                    outlet.full = False
                    self.fan_out.resume_outlet(outlet)
            if all(self.complete(outlet) for outlet in self.outlets.values()):
                return
        raise AssertionError({person: outlet.position for person, outlet in self.outlets.items()})

    def complete(self, outlet: Outlet) -> bool:
        return all(outlet.position[each].execution == len(all_) for each, all_ in self.results.items())


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_while_results_are_fanned_out_each_gets_all_in_order(seed: int) -> None:
    rng = random.Random(seed)
    harness = FanOutHarness(rng, people=7, interests=2)
    for _ in range(400):
        harness.step(rng.randrange(7), rng.randrange(2))
        if rng.random() < 0.4:
            await asyncio.sleep(0)
    await harness.settle()
    assert harness.outlets
    await harness.fan_out.close()


async def test_a_large_audience_does_not_keep_a_small_one_waiting() -> None:
    harness = FanOutHarness(random.Random(1), people=40, interests=1)
    harness.results[1] = []
    harness.fan_out.add_subscription(99, 9901)
    harness.runtime.handle(ev.SubscribeRequested(9901, 99, 1, None, ev.Mode.INLINE))
    for person in (*range(40), 99):
        harness.outlets[person] = Outlet(random.Random(2), {0: Cursor(1, 0, 0), 1: Cursor(1, 0, 0)})
        harness.fan_out.attach(person, harness.outlets[person])
    for interest in (0, 1):
        one = to_broker_result(FetchedResult(Cursor(1, 1, 0), 1, b"1"))
        harness.runtime.handle(ev.ResultArrived(interest, one.cursor, one.size_bytes, one.payload))
    assert harness.outlets[99].position[1].execution == 1
    assert sum(outlet.position[0].execution for outlet in harness.outlets.values()) < 40
    harness.results = {0: [one], 1: [one]}
    await until(lambda: sum(harness.outlets[person].position[0].execution for person in range(40)) == 40)


@pytest.mark.parametrize("at_once", [2, 500])
async def test_a_connection_that_breaks_while_it_is_written_to_costs_nobody_else(at_once: int) -> None:
    harness = FanOutHarness(random.Random(1), people=7, interests=1, at_once=at_once)

    class Broken(Outlet):
        def write(self, event: EncodedEvent) -> None:
            raise RuntimeError("the handler is closed")

    for person in range(7):
        kind = Broken if person in (0, 3) else Outlet
        harness.outlets[person] = kind(random.Random(2), {0: Cursor(1, 0, 0)})
        harness.fan_out.attach(person, harness.outlets[person])
    for number in (1, 2):
        one = to_broker_result(FetchedResult(Cursor(1, number, 0), 1, b"1"))
        harness.runtime.handle(ev.ResultArrived(0, one.cursor, one.size_bytes, one.payload))
        whole = [outlet for person, outlet in harness.outlets.items() if person not in (0, 3)]
        await until(lambda: {outlet.position[0].execution for outlet in whole} == {number})  # noqa: B023
    assert [person for person, outlet in harness.outlets.items() if outlet.given_up] == [0, 3]


async def test_who_only_catches_up_is_no_slow_consumer() -> None:
    harness = FanOutHarness(random.Random(1), people=1, interests=1)
    outlet = Outlet(random.Random(2), {})
    harness.fan_out.attach(0, outlet)
    page = to_broker_result(FetchedResult(Cursor(1, 1, 0), 1, b"1"))
    more = ac.Deliver(0, Cursor(1, 0, 0), Cursor(1, 1, 0), (page,), (0,), ac.DeliveryReason.CAUGHT_UP, more=True)
    outlet.full = False
    harness.fan_out.deliver(more)
    assert harness.fan_out.behind == int(outlet.full) == 0
    outlet.full = True
    harness.fan_out.deliver(more)
    assert harness.fan_out.behind == 1
    await harness.fan_out.close()


async def test_an_action_that_fails_does_not_keep_others_from_being_performed() -> None:
    runtime = CoreRuntime(Broker(CoreSettings(), 0.0))
    ended: list[Any] = []

    def fail(_action: Any) -> None:
        raise ValueError("a fault")

    runtime.performers = {ac.SubscribeBackend: fail, ac.EndSubscriptions: ended.append}
    runtime.handle(ev.SubscribeRequested(1, 1, 1, None, ev.Mode.INLINE))
    runtime.handle(ev.BackendSubscriptionLost(1, "the channel is gone"))
    assert len(ended) == 1
