"""A broker's core in a world where everything happens in any order: nothing is lost, nobody gets what is another's."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.caching_model import at
from tests.support.core_model import CoreModel
from tests.support.examples import examples
from tocsin.broker.core import events as ev
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.eviction import EVICTION
from tocsin.rules.caching.expiry import EXPIRY
from tocsin.rules.caching.settings import CachingSettings

CACHING = st.builds(
    CachingSettings,
    budget_bytes=st.sampled_from([0, 40, 150, 10_000]),
    eviction=st.sampled_from(list(EVICTION)),
    expiry=st.sampled_from(list(EXPIRY)),
    admission=st.sampled_from(["all", "none", "threshold", "mean(3)", "buffer"]),
    fetched_enters=st.booleans(),
    newcomer_may_go=st.booleans(),
    ttl_first_s=st.sampled_from([3.0, 30.0]),
    ttl_every_s=st.just(20.0),
)
CHOSEN = st.builds(
    CoreSettings,
    caching=CACHING,
    grace_s=st.sampled_from([0.0, 5.0]),
    page_results=st.sampled_from([1, 3, 100]),
    page_bytes=st.sampled_from([15, 10_000]),
    report_every_s=st.just(4.0),
)
INTERESTS = st.sampled_from("xyz")
PEOPLE = st.sampled_from(["ann", "ben", "cyd"])


class BrokerBetweenClusterAndClients(RuleBasedStateMachine):
    @initialize(chosen=CHOSEN)
    def begin(self, chosen: CoreSettings) -> None:
        self.world = CoreModel(chosen)
        self.named = 0

    @rule(who=PEOPLE, interest=INTERESTS, mode=st.sampled_from(ev.Mode), since=st.none() | st.integers(0, 12))
    def subscribe(self, who: str, interest: str, mode: ev.Mode, since: int | None) -> None:
        self.named += 1
        cursor = None if since is None else at(since)
        self.world.subscribe(f"{who}{self.named}", who, interest, mode=mode, since=cursor)

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        self.world.unsubscribe(data.draw(st.sampled_from(sorted(map(str, self.world.clients)))))

    @precondition(lambda self: self.world.asked)
    @rule()
    def backend_ready(self) -> None:
        self.world.backend_ready(self.world.asked[0])

    @rule(interest=INTERESTS, count=st.integers(1, 4), size=st.integers(0, 40))
    def make(self, interest: str, count: int, size: int) -> None:
        self.world.make(interest, count, size)

    @rule(interest=INTERESTS)
    def announce(self, interest: str) -> None:
        if self.world.channels[interest].held:
            self.world.announce(interest)

    @rule(interest=INTERESTS, size=st.integers(0, 40))
    def push(self, interest: str, size: int) -> None:
        self.world.push(interest, size)

    @rule(interest=INTERESTS, keep=st.integers(0, 6))
    def retain(self, interest: str, keep: int) -> None:
        self.world.retain(interest, keep)

    @precondition(lambda self: self.world.fetches)
    @rule(data=st.data(), limit=st.integers(1, 4), took_s=st.floats(0.01, 3.0))
    def answer(self, data: st.DataObject, limit: int, took_s: float) -> None:
        self.world.answer(data.draw(st.sampled_from(sorted(self.world.fetches))), limit=limit, took_s=took_s)

    @precondition(lambda self: self.world.fetches)
    @rule(limit=st.integers(1, 4))
    def answer_together(self, limit: int) -> None:
        self.world.answer_together(limit=limit)

    @rule(who=PEOPLE)
    def pull_each(self, who: str) -> None:
        self.world.pull_each(who)

    @rule(who=PEOPLE)
    def ack_each(self, who: str) -> None:
        self.world.ack_each(who)

    @precondition(lambda self: self.world.fetches)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.world.fail(data.draw(st.sampled_from(sorted(self.world.fetches))))

    @rule(who=PEOPLE)
    def log_in(self, who: str) -> None:
        self.world.log_in(who)

    @rule(who=PEOPLE)
    def log_out(self, who: str) -> None:
        self.world.log_out(who)

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), number=st.integers(0, 15))
    def ack(self, data: st.DataObject, number: int) -> None:
        names = data.draw(st.sets(st.sampled_from(sorted(map(str, self.world.clients))), min_size=1))
        self.world.ack(self.world.clients[min(names)].interest, at(number), sorted(names))

    @rule(interest=INTERESTS)
    def ack_as_one(self, interest: str) -> None:
        self.world.ack_as_one(interest)

    @rule(interest=INTERESTS, together=st.booleans())
    def pull_as_one(self, interest: str, together: bool) -> None:
        self.world.pull_as_one(interest, together=together)

    @rule(interest=INTERESTS)
    def ack_group(self, interest: str) -> None:
        self.world.ack_group(interest)

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(map(str, self.world.clients))))
        interest = self.world.clients[name].interest
        self.world.pull(
            interest, [other for other, client in self.world.clients.items() if client.interest == interest]
        )

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def fall_behind(self, data: st.DataObject) -> None:
        self.world.fall_behind(data.draw(st.sampled_from(sorted(map(str, self.world.clients)))))

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        self.world.ready(data.draw(st.sampled_from(sorted(map(str, self.world.clients)))))

    @rule(by_s=st.sampled_from([0.1, 1.0, 6.0]))
    def pass_time(self, by_s: float) -> None:
        self.world.pass_time(by_s)

    @rule(chosen=CACHING)
    def switch(self, chosen: CachingSettings) -> None:
        self.world.handle(ev.CachePoliciesChanged(chosen))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check()


TestBrokerBetweenClusterAndClients = BrokerBetweenClusterAndClients.TestCase
TestBrokerBetweenClusterAndClients.settings = settings(
    max_examples=examples(150), stateful_step_count=50, deadline=None
)
