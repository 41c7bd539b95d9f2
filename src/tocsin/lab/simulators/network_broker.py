"""Simulates a broker, a cluster and subscribers on a network: every message travels over a link.

The core is the live broker's; none of its rules is repeated here. This module simulates the environment on the event
engine: a cluster that keeps every result and pushes those of interests that the broker subscribed to, and subscribers
that pull when they are notified, acknowledge what they got, and pull again while there is more. Pushes, notifications,
pulls, answers and acknowledgements go over links with latency and bandwidth, where they wait for each other. The
latency of subscribers is measured.

`fast_broker` plays long workloads to the same core much faster, with constant times and without queueing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Deliver, Fetch, NotifyAvailable, SubscribeBackend, UnsubscribeBackend
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.engine.engine import RunTrace, SimulationEngine
from tocsin.lab.engine.network import LinkSettings, Network
from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.scenario import VirtualClock, play
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import RESULT_BYTES, START, Cursor, InterestId, SubscriptionId

CLUSTER: Final = "the cluster"
BROKER: Final = "the broker"

# The time of a result at the cluster, its interest and its size.
Made = tuple[float, Hashable, int]


@dataclass(frozen=True, slots=True)
class Links:
    """One link per direction. Every subscriber has its own link; all share those between broker and cluster.

    `message_bytes` is the size of a message without results: a notification, a request, an acknowledgement.
    """

    to_subscriber: LinkSettings
    from_subscriber: LinkSettings
    to_cluster: LinkSettings
    from_cluster: LinkSettings
    message_bytes: int = 100

    @classmethod
    def of_round_trips(
        cls,
        subscriber_s: float,
        cluster_s: float,
        *,
        subscriber_bytes_per_s: float = 1e6,
        cluster_bytes_per_s: float = 10e6,
    ) -> Self:
        """Splits each round trip into halves."""
        subscriber = LinkSettings(subscriber_s / 2, subscriber_bytes_per_s)
        cluster = LinkSettings(cluster_s / 2, cluster_bytes_per_s)
        return cls(subscriber, subscriber, cluster, cluster)

    def between(self, source: str, target: str) -> LinkSettings:
        if source == CLUSTER:
            return self.from_cluster
        if target == CLUSTER:
            return self.to_cluster
        return self.to_subscriber if source == BROKER else self.from_subscriber


@dataclass(slots=True)
class _Held:
    """A subscriber's state of a subscription: results that it has and knows of, and since when it waits."""

    has: Cursor = START
    announced: Cursor = START
    asked_at_s: float | None = None


@dataclass(slots=True)
class _Person:
    """A subscriber's own state. `session` changes whenever it logs in or out."""

    session: int = 0
    online: bool = False
    held: dict[Hashable, _Held] = field(default_factory=dict)


class NetworkBrokerSim:
    """A target of the scenario driver. `waited_s` sums the latency of all results that subscribers got; `area_bytes_s`
    is the size of the caches, integrated over time.

    `looks_up_s` returns how long the cluster takes for a fetch; without it, a fetch takes no time at the cluster.
    """

    def __init__(
        self,
        engine: SimulationEngine,
        settings: CoreSettings,
        links: Links,
        *,
        looks_up_s: Callable[[], float] | None = None,
    ) -> None:
        self.broker = Broker(settings, engine.now_s)
        self.links = links
        self.network = Network(engine, self.links.between)
        self.retrievals = 0
        self.results = 0
        self.waited_s = 0.0
        self.area_bytes_s = 0.0
        self._engine = engine
        self._looks_up_s = looks_up_s
        self._passed_s = engine.now_s
        self._wake_s = math.inf
        # The cluster's state: its results of each interest, and the interests that it pushes.
        self._made: dict[Hashable, list[BrokerResult]] = {}
        self._pushed: set[Hashable] = set()
        self._people: dict[Hashable, _Person] = {}
        # The broker's state: the connected subscribers, with their sessions.
        self._connected: dict[Hashable, int] = {}
        self._perform: dict[type, Callable[[Any], None]] = {
            NotifyAvailable: self._notify,
            Deliver: self._deliver,
            Fetch: self._fetch,
            SubscribeBackend: lambda action: self._ask_cluster(self._begin_pushing, action.interest),
            UnsubscribeBackend: lambda action: self._ask_cluster(self._pushed.discard, action.interest),
        }

    # --- inputs

    def make(self, results: Iterable[Made]) -> None:
        """Schedules results at the cluster; they are in order of time."""
        self._engine.feed(((at_s, (interest, size)) for at_s, interest, size in results), self._produce)

    async def perform(self, act: acts.Act, at_s: float) -> None:  # noqa: ARG002 - the clock has waited for it
        match act:
            case acts.LogInStep(name):
                self._come(name)
            case acts.LogOutStep(name):
                self._go(name)
            case acts.SubscribeStep(name, channel, parameters):
                interest = _interest_of(channel, parameters)
                self._person(name).held[interest] = _Held()
                self._ask(name, self._handle, ev.SubscribeRequested(_subscription_id(name, interest), name, interest))
            case acts.UnsubscribeStep(name, channel, parameters):
                interest = _interest_of(channel, parameters)
                self._person(name).held.pop(interest, None)
                self._ask(name, self._handle, ev.UnsubscribeRequested(_subscription_id(name, interest)))
            case _:
                pass  # moves and publications are already part of the cluster's results

    def finish(self) -> None:
        """Integrates up to now."""
        self._pass()

    def figures(self) -> dict[str, float]:
        """Returns what the caches did and what subscribers waited for; sizes in KB."""
        counts = self.broker.caches.counters
        return {
            "hit_ratio": counts.hit_ratio,
            "latency_s": self.waited_s / max(1, self.results),
            "miss_kb": counts.miss_bytes / 1e3,
            "fetch_kb": (counts.arrived_bytes + counts.fetched_bytes) / 1e3,
            "vol_kb": counts.arrived_bytes / 1e3,
            "found": float(counts.arrived),
            "evicted": float(counts.evicted),
            "expired": float(counts.expired),
        }

    # --- subscribers

    def _person(self, name: str) -> _Person:
        return self._people.setdefault(name, _Person())

    def _come(self, name: str) -> None:
        person = self._person(name)
        person.session, person.online = person.session + 1, True
        for subscription in person.held.values():
            subscription.asked_at_s = None
        self._ask(name, self._connect, name, person.session)

    def _go(self, name: str) -> None:
        person = self._person(name)
        person.session, person.online = person.session + 1, False
        self._ask(name, self._disconnect, name)

    def _receive_notification(self, name: str, session: int, interest: InterestId, to: Cursor) -> None:
        person = self._people[name]
        subscription = person.held.get(interest)
        if subscription is None or person.session != session:
            return  # it has unsubscribed or left meanwhile
        subscription.announced = max(subscription.announced, to)
        if subscription.asked_at_s is None:
            self._pull(name, interest, subscription)

    def _pull(self, name: str, interest: InterestId, held: _Held) -> None:
        held.asked_at_s = self._engine.now_s
        self._ask(name, self._handle, ev.ResultsRequested(interest, (_subscription_id(name, interest),)))

    def _got(self, name: str, session: int, action: Deliver) -> None:
        person = self._people[name]
        interest, count = action.interest, len(action.results)
        subscription = person.held.get(interest)
        if subscription is None or person.session != session:
            return  # lost under way: it will ask again
        asked_at_s, subscription.asked_at_s = subscription.asked_at_s, None
        subscription.has = max(subscription.has, action.to)
        if count and asked_at_s is not None:
            waited_s = self._engine.now_s - asked_at_s
            self.retrievals += 1
            self.results += count
            self.waited_s += waited_s * count
            self._engine.note("Got", subscriber=name, interest=interest, results=count, waited_s=waited_s)
        self._ask(name, self._handle, ev.ResultsAcknowledged(interest, action.to, (_subscription_id(name, interest),)))
        if action.more or subscription.announced > subscription.has:
            self._pull(name, interest, subscription)

    def _ask(self, name: str, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(name, BROKER, self.links.message_bytes, arrive, *arguments)

    # --- broker

    def _connect(self, name: str, session: int) -> None:
        self._connected[name] = session
        self._handle(ev.SubscriberLoggedIn(name))

    def _disconnect(self, name: str) -> None:
        self._connected.pop(name, None)
        self._handle(ev.SubscriberLoggedOut(name))

    def _handle(self, event: ev.BrokerEvent) -> None:
        engine = self._engine
        self._pass()
        if engine.is_traced:
            engine.note(type(event).__name__, event=repr(event))
        for action in self.broker.handle(event, engine.now_s):
            perform = self._perform.get(type(action))
            if perform is not None:
                perform(action)
        due_s = self.broker.next_wake_s
        if due_s < self._wake_s:
            self._wake_s = due_s
            engine.at(max(due_s, engine.now_s), self._wake)

    def _wake(self) -> None:
        if self._engine.now_s >= self._wake_s:
            self._wake_s = math.inf
            self._handle(ev.TimePassed())

    def _pass(self) -> None:
        now_s = self._engine.now_s
        self.area_bytes_s += self.broker.caches.resident_bytes * (now_s - self._passed_s)
        self._passed_s = now_s

    def _notify(self, action: NotifyAvailable) -> None:
        for name in _subscribers(action.audience):
            self._send(name, 0, self._receive_notification, action.interest, action.to)

    def _deliver(self, action: Deliver) -> None:
        size_bytes = sum(result.size_bytes for result in action.results)
        for name in _subscribers(action.audience):
            self._send(name, size_bytes, self._got, action)

    def _send(self, name: str, size_bytes: int, arrive: Callable[..., object], *arguments: object) -> None:
        session = self._connected.get(name)
        if session is not None:
            size_bytes += self.links.message_bytes
            self.network.send(BROKER, name, size_bytes, arrive, name, session, *arguments)

    def _fetch(self, action: Fetch) -> None:
        self._ask_cluster(self._look_up, action, self._engine.now_s)

    def _receive_fetch(self, asked_at_s: float, fetch: Fetch, to: Cursor, found: tuple[BrokerResult, ...]) -> None:
        self._handle(ev.FetchSucceeded(fetch.fetch, to, found, self._engine.now_s - asked_at_s))

    def _ask_cluster(self, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(BROKER, CLUSTER, self.links.message_bytes, arrive, *arguments)

    # --- cluster

    def _produce(self, interest: InterestId, size_bytes: int) -> None:
        results = self._made.setdefault(interest, [])
        cursor = Cursor(1, len(results) + 1, 0)
        results.append(BrokerResult(cursor, size_bytes))
        if interest in self._pushed:
            self._answer(size_bytes, self._handle, ev.ResultArrived(interest, cursor, size_bytes))

    def _begin_pushing(self, interest: InterestId) -> None:
        self._pushed.add(interest)
        results = self._made.get(interest)
        self._answer(0, self._handle, ev.BackendSubscribed(interest, results[-1].cursor if results else START))

    def _look_up(self, fetch: Fetch, asked_at_s: float) -> None:
        results: list[BrokerResult] = []
        size_bytes = counted_bytes = 0
        for result in self._made[fetch.interest][fetch.after.execution : fetch.to.execution]:
            results.append(result)
            size_bytes += result.size_bytes
            counted_bytes += result.size_bytes + RESULT_BYTES
            if len(results) >= fetch.limit or counted_bytes >= fetch.limit_bytes:
                break
        to = results[-1].cursor if results else fetch.to
        answer = size_bytes, self._receive_fetch, asked_at_s, fetch, to, tuple(results)
        if self._looks_up_s is None:
            self._answer(*answer)
        else:
            self._engine.after(self._looks_up_s(), self._answer, *answer)

    def _answer(self, size_bytes: int, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(CLUSTER, BROKER, size_bytes + self.links.message_bytes, arrive, *arguments)


def _interest_of(channel: str, parameters: tuple[str | float, ...]) -> InterestId:
    """The core only hashes and compares the ids of interests. So here an interest is its own id."""
    return cast("InterestId", (channel, parameters))


def _subscription_id(name: str, interest: InterestId) -> SubscriptionId:
    return cast("SubscriptionId", (name, interest))


def _subscribers(audience: Collection[Hashable]) -> Iterator[str]:
    """Yields the subscribers of these subscriptions."""
    for subscription in audience:
        assert isinstance(subscription, tuple)
        yield subscription[0]


def simulate_scenario(
    scenario: acts.Scenario,
    results: Iterable[Made],
    settings: CoreSettings,
    links: Links,
    *,
    until_s: float,
    trace: RunTrace | None = None,
    looks_up_s: Callable[[], float] | None = None,
) -> NetworkBrokerSim:
    """Plays a scenario and its channels' results to a simulated network, and returns the simulator at this moment."""
    engine = SimulationEngine(0, trace=trace)
    simulator = NetworkBrokerSim(engine, settings, links, looks_up_s=looks_up_s)
    simulator.make(results)

    async def live() -> None:
        clock = VirtualClock(engine)
        await play(scenario, simulator, clock)
        await clock.until(until_s)

    asyncio.run(live())
    simulator.finish()
    return simulator
