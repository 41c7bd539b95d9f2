"""The broker's core in a town: cluster, broker and subscribers are places, and whatever passes between them travels.

The core is the live broker's; nothing of its rules is here. Here is what stands around it, driven by the engine: a
cluster that keeps every result and pushes those of interests that the broker subscribed to, and subscribers who pull
when they are told of something, acknowledge what they got, and pull again while there is more. Pushes, notices, pulls,
answers and acknowledgements go over links with a latency and a bandwidth, where they wait for each other; what
subscribers wait for is measured.

`bodies.edge` plays long workloads to the same core much faster, with constant times and without waiting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tocsin.broker.core.actions import (
    Deliver,
    Fetch,
    NotifyAvailable,
    SubscribeBackend,
    UnsubscribeBackend,
)
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.events import (
    BackendSubscribed,
    BrokerEvent,
    FetchSucceeded,
    ResultArrived,
    ResultsAcknowledged,
    ResultsRequested,
    SubscribeRequested,
    SubscriberLoggedIn,
    SubscriberLoggedOut,
    TimePassed,
    UnsubscribeRequested,
)
from tocsin.broker.core.settings import CoreSettings
from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.network import LinkSettings, Network
from tocsin.lab.engine.trace import RunTrace
from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.driver import VirtualClock, play
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.model.cursors import RESULT_BYTES, START, Cursor

CLUSTER: Final = "the cluster"
BROKER: Final = "the broker"

# When the cluster makes it, for which interest, of which size.
Made = tuple[float, Hashable, int]


@dataclass(frozen=True, slots=True)
class Links:
    """One way each. Every subscriber has a link of its own, and all of them share those between broker and cluster.

    `message_bytes`: what a message has beside results: a notice, a question, an acknowledgement.
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
        """Half of each there and half back."""
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
    """What a subscriber knows of one of its subscriptions: how far it has and was told of results, and since when it
    waits for an answer."""

    has: Cursor = START
    told: Cursor = START
    asked_at_s: float | None = None


@dataclass(slots=True)
class _Person:
    """A subscriber's own state. `session` is another number whenever it comes or goes."""

    session: int = 0
    online: bool = False
    held: dict[Hashable, _Held] = field(default_factory=dict)


class NetworkBrokerSim:
    """A target of the driver. `waited_s` sums, over the results that subscribers got, the time from asking until they
    were there; `area_bytes_s` is what the caches held, integrated over time.

    `looks_up_s` tells of each fetch how long the cluster takes to look it up; without it, it has everything at hand.
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
        # The cluster's: what it has of each interest, and of which it tells the broker.
        self._made: dict[Hashable, list[BrokerResult]] = {}
        self._pushed: set[Hashable] = set()
        self._people: dict[Hashable, _Person] = {}
        # The broker's: who is connected, in which session.
        self._connected: dict[Hashable, int] = {}
        self._perform: dict[type, Callable[[Any], None]] = {
            NotifyAvailable: self._notify,
            Deliver: self._deliver,
            Fetch: self._fetch,
            SubscribeBackend: lambda action: self._ask_cluster(self._begin_pushing, action.interest),
            UnsubscribeBackend: lambda action: self._ask_cluster(self._pushed.discard, action.interest),
        }

    # --- from outside

    def make(self, results: Iterable[Made]) -> None:
        """The cluster makes these, which come in order of time."""
        self._engine.feed(((at_s, (interest, size)) for at_s, interest, size in results), self._produced)

    async def perform(self, act: acts.Act, at_s: float) -> None:  # noqa: ARG002 - the clock has waited for it
        match act:
            case acts.LogInStep(name):
                self._come(name)
            case acts.LogOutStep(name):
                self._go(name)
            case acts.SubscribeStep(name, channel, parameters):
                interest = channel, parameters
                self._person(name).held[interest] = _Held()
                self._ask(name, self._handle, SubscribeRequested((name, interest), name, interest))
            case acts.UnsubscribeStep(name, channel, parameters):
                interest = channel, parameters
                self._person(name).held.pop(interest, None)
                self._ask(name, self._handle, UnsubscribeRequested((name, interest)))
            case _:
                pass  # moves and publications are in what the cluster makes

    def finish(self) -> None:
        """Integrate up to now."""
        self._pass()

    # --- the subscribers

    def _person(self, name: str) -> _Person:
        return self._people.setdefault(name, _Person())

    def _come(self, name: str) -> None:
        one = self._person(name)
        one.session, one.online = one.session + 1, True
        for held in one.held.values():
            held.asked_at_s = None
        self._ask(name, self._connect, name, one.session)

    def _go(self, name: str) -> None:
        one = self._person(name)
        one.session, one.online = one.session + 1, False
        self._ask(name, self._disconnect, name)

    def _told(self, name: str, session: int, interest: Hashable, to: Cursor) -> None:
        one = self._people[name]
        held = one.held.get(interest)
        if held is None or one.session != session:
            return  # it has unsubscribed or left meanwhile
        held.told = max(held.told, to)
        if held.asked_at_s is None:
            self._pull(name, interest, held)

    def _pull(self, name: str, interest: Hashable, held: _Held) -> None:
        held.asked_at_s = self._engine.now_s
        self._ask(name, self._handle, ResultsRequested(interest, ((name, interest),)))

    def _got(self, name: str, session: int, action: Deliver) -> None:
        one = self._people[name]
        interest, count = action.interest, len(action.results)
        held = one.held.get(interest)
        if held is None or one.session != session:
            return  # lost on its way: it will be asked for again
        asked_at_s, held.asked_at_s = held.asked_at_s, None
        held.has = max(held.has, action.to)
        if count and asked_at_s is not None:
            waited_s = self._engine.now_s - asked_at_s
            self.retrievals += 1
            self.results += count
            self.waited_s += waited_s * count
            self._engine.note("Got", subscriber=name, interest=interest, results=count, waited_s=waited_s)
        self._ask(name, self._handle, ResultsAcknowledged(interest, action.to, ((name, interest),)))
        if action.more or held.told > held.has:
            self._pull(name, interest, held)

    def _ask(self, name: str, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(name, BROKER, self.links.message_bytes, arrive, *arguments)

    # --- the broker

    def _connect(self, name: str, session: int) -> None:
        self._connected[name] = session
        self._handle(SubscriberLoggedIn(name))

    def _disconnect(self, name: str) -> None:
        self._connected.pop(name, None)
        self._handle(SubscriberLoggedOut(name))

    def _handle(self, event: BrokerEvent) -> None:
        engine = self._engine
        self._pass()
        if engine.traced:
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
            self._handle(TimePassed())

    def _pass(self) -> None:
        now_s = self._engine.now_s
        self.area_bytes_s += self.broker.caches.resident_bytes * (now_s - self._passed_s)
        self._passed_s = now_s

    def _notify(self, action: NotifyAvailable) -> None:
        for name in _subscribers(action.audience):
            self._send(name, 0, self._told, action.interest, action.to)

    def _deliver(self, action: Deliver) -> None:
        size_bytes = sum(one.size_bytes for one in action.results)
        for name in _subscribers(action.audience):
            self._send(name, size_bytes, self._got, action)

    def _send(self, name: str, size_bytes: int, arrive: Callable[..., object], *arguments: object) -> None:
        session = self._connected.get(name)
        if session is not None:
            size_bytes += self.links.message_bytes
            self.network.send(BROKER, name, size_bytes, arrive, name, session, *arguments)

    def _fetch(self, action: Fetch) -> None:
        self._ask_cluster(self._look_up, action, self._engine.now_s)

    def _fetched(self, asked_at_s: float, fetch: Fetch, to: Cursor, found: tuple[BrokerResult, ...]) -> None:
        self._handle(FetchSucceeded(fetch.fetch, to, found, self._engine.now_s - asked_at_s))

    def _ask_cluster(self, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(BROKER, CLUSTER, self.links.message_bytes, arrive, *arguments)

    # --- the cluster

    def _produced(self, interest: Hashable, size_bytes: int) -> None:
        made = self._made.setdefault(interest, [])
        cursor = Cursor(1, len(made) + 1, 0)
        made.append(BrokerResult(cursor, size_bytes))
        if interest in self._pushed:
            self._answer(size_bytes, self._handle, ResultArrived(interest, cursor, size_bytes))

    def _begin_pushing(self, interest: Hashable) -> None:
        self._pushed.add(interest)
        made = self._made.get(interest)
        self._answer(0, self._handle, BackendSubscribed(interest, made[-1].cursor if made else START))

    def _look_up(self, fetch: Fetch, asked_at_s: float) -> None:
        found: list[BrokerResult] = []
        size_bytes = counted_bytes = 0
        for one in self._made[fetch.interest][fetch.after.execution : fetch.to.execution]:
            found.append(one)
            size_bytes += one.size_bytes
            counted_bytes += one.size_bytes + RESULT_BYTES
            if len(found) >= fetch.limit or counted_bytes >= fetch.limit_bytes:
                break
        to = found[-1].cursor if found else fetch.to
        answer = size_bytes, self._fetched, asked_at_s, fetch, to, tuple(found)
        if self._looks_up_s is None:
            self._answer(*answer)
        else:
            self._engine.after(self._looks_up_s(), self._answer, *answer)

    def _answer(self, size_bytes: int, arrive: Callable[..., object], *arguments: object) -> None:
        self.network.send(CLUSTER, BROKER, size_bytes + self.links.message_bytes, arrive, *arguments)


def _subscribers(audience: Collection[Hashable]) -> Iterator[str]:
    """Whose subscriptions these are."""
    for subscription in audience:
        assert isinstance(subscription, tuple)
        yield subscription[0]


def play_town(
    made: acts.Scenario,
    results: Iterable[Made],
    settings: CoreSettings,
    links: Links,
    *,
    until_s: float,
    trace: RunTrace | None = None,
    looks_up_s: Callable[[], float] | None = None,
) -> NetworkBrokerSim:
    """Have the driver play a scenario, and what its channels find, to a town; as it is at this moment, afterwards."""
    engine = SimulationEngine(0, trace=trace)
    town = NetworkBrokerSim(engine, settings, links, looks_up_s=looks_up_s)
    town.make(results)

    async def live() -> None:
        clock = VirtualClock(engine)
        await play(made, town, clock)
        await clock.until(until_s)

    asyncio.run(live())
    town.finish()
    return town
