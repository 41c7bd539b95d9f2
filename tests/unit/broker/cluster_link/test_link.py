"""An announcement that is taken in turns: whatever else happens in between, nothing that it tells is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.broker.cluster_link.backend_index import BackendIndex, BackendSubscription
from tocsin.broker.cluster_link.link import TURN_EVENTS, ClusterLink
from tocsin.broker.core import events as ev
from tocsin.rules.model.cursors import Cursor, Position
from tocsin.wire.announcements import Announcement, PushedResults
from tocsin.wire.results import FetchedResult
from tocsin.wire.signatures import sign

SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
OLD = Cursor(1, 1, 0)


def cursor(execution: int, ordinal: int = 0) -> Cursor:
    return Cursor(1, execution, ordinal)


class FakeStore:
    """Rows in memory, in the order in which they were asked for. A write takes a few turns."""

    def __init__(self) -> None:
        self.position = Position(1, 1)
        self.heads: dict[int, Cursor] = {}
        self.markers: dict[int, Cursor] = {}
        self.log: list[str] = []

    async def link(self) -> Any:
        return SimpleNamespace(epoch=1, position=self.position, secret=SECRET)

    async def record_announcement(self, position: Position, heads: Mapping[int, Cursor]) -> None:
        self.log.append("announcement")
        self.position = max(self.position, position)
        self.heads.update({interest: max(head, self.heads[interest]) for interest, head in heads.items()
                           if interest in self.heads})  # fmt: skip
        for _ in range(3):
            await asyncio.sleep(0)

    def add(self, holding: BackendSubscription) -> None:
        self.log.append(f"row {holding.interest}")
        self.heads[holding.interest] = holding.head

    def acknowledge(self, interest: int, marker: Cursor) -> None:
        self.log.append(f"ack {interest}")
        self.markers[interest] = marker
        assert self.heads[interest] >= marker, "a head that is kept is not behind a marker"


class FakeCore:
    """Counts what it is told in each turn."""

    def __init__(self) -> None:
        self.events: list[ev.ResultArrived | ev.ResultsAnnounced] = []
        self.turns: list[int] = [0]

    def handle(self, event: Any) -> None:
        self.events.append(event)
        self.turns[-1] += 1

    def wake_waiters(self, _interest: object) -> None: ...


class Outcomes(dict[str, int]):
    """Counts outcomes, and notes them in their order."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __missing__(self, _outcome: str) -> int:
        return 0

    def __setitem__(self, outcome: str, count: int) -> None:
        self._log.append(outcome)
        super().__setitem__(outcome, count)


class LinkHarness:
    def __init__(self) -> None:
        self.store: Any = FakeStore()
        self.core: Any = FakeCore()
        self.index = BackendIndex("v.b", "store")
        self.early: dict[int, Cursor] = {}
        self.counted: list[str] = []
        backends: Any = SimpleNamespace(note_early_announcement=self.early.__setitem__)
        counters: Any = SimpleNamespace(announcements=Outcomes(self.counted))
        client: Any = SimpleNamespace()
        self.link = ClusterLink(
            client, self.core, index=self.index, backends=backends, store=self.store, generation=client,
            counters=counters, on_changed=client, callback="", first_retry_s=60, last_retry_s=60, check_every_s=60,
        )  # fmt: skip

    def hold(self, interest: int) -> BackendSubscription:
        """Does what `BackendSubscriptions` does when a subscription is granted and stored."""
        head = max(OLD, self.early.get(interest, OLD))
        holding = self.index.add(BackendSubscription(interest, "v.c", f"[{interest}]", f"broker:{interest}", OLD, head))
        self.store.add(holding)
        return holding

    async def receive(self, announcement: Announcement) -> None:
        body = announcement.to_bytes()
        await self.link.receive_announcement(sign(SECRET, announcement.id, int(time.time()), body), body)


def pushed(interest: int, count: int, execution: int = 2) -> PushedResults:
    return PushedResults("v.p", interest, [FetchedResult(cursor(execution, n), 0, b"1") for n in range(count)])


@pytest.fixture
async def harness() -> Any:
    """The link reads its state from the store. It then fails to register, since there is no cluster."""
    harness = LinkHarness()
    await harness.link.start()
    yield harness
    await harness.link.close()


async def turn_by_turn(harness: LinkHarness, work: Any, between: Any) -> int:
    """In how many turns it was done. `between` happens in each."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    turns = 0
    while not task.done():
        turns += 1
        harness.core.turns.append(0)
        between(turns)
        await asyncio.sleep(0)
    await task
    return turns


async def test_what_is_acknowledged_in_between_is_known_to_the_store(harness: LinkHarness) -> None:
    harness.hold(7)

    there: list[Cursor] = []

    def acknowledge(_turn: int) -> None:
        # What the core handed on in the turn before has reached a client, and its acknowledgement is kept at once.
        if there:
            harness.store.acknowledge(7, there[-1])
        there.extend(event.cursor for event in harness.core.events[-1:])

    announcement = Announcement("v.b", Position(1, 1), Position(1, 2), pushed=[pushed(7, 10 * TURN_EVENTS)])
    assert await turn_by_turn(harness, harness.receive(announcement), acknowledge) >= 10
    assert max(harness.core.turns) <= TURN_EVENTS
    assert [event.cursor for event in harness.core.events] == [cursor(2, n) for n in range(10 * TURN_EVENTS)]
    assert harness.store.log.count("ack 7") >= 9
    assert harness.store.heads[7] == harness.index.get(7).head == cursor(2, 10 * TURN_EVENTS - 1)  # type: ignore[union-attr]
    assert harness.link.position == harness.store.position == Position(1, 2)


async def test_what_is_subscribed_to_in_between_begins_where_the_announcement_ends(harness: LinkHarness) -> None:
    """Its row may be written before or after the news are; the head is told once, and must be in one of both."""
    interests = range(100, 100 + 5 * TURN_EVENTS)
    announcement = Announcement(
        "v.b", Position(1, 1), Position(1, 2), heads={"v.c": [(interest, cursor(3)) for interest in interests]},
        pushed=[pushed(1, 3 * TURN_EVENTS)],
    )  # fmt: skip
    waiting = iter([*interests[::7], 1])

    def subscribe(_turn: int) -> None:
        for interest in [next(waiting, None) for _ in range(20)]:
            if interest is not None:
                harness.hold(interest)

    await turn_by_turn(harness, harness.receive(announcement), subscribe)
    subscribe(0)
    held = {holding.interest: holding.head for holding in harness.index}
    assert len(held) > 50
    assert held == harness.store.heads
    assert {interest: head for interest, head in held.items() if interest != 1 and head != cursor(3)} == {}


async def test_another_announcement_waits_for_its_turn_and_begins_where_this_one_ends(harness: LinkHarness) -> None:
    harness.hold(7)
    first = Announcement("v.b", Position(1, 1), Position(1, 2), pushed=[pushed(7, 3 * TURN_EVENTS, 2)])
    second = Announcement("v.b", Position(1, 2), Position(1, 3), pushed=[pushed(7, 3 * TURN_EVENTS, 3)])
    again = Announcement("v.b", Position(1, 1), Position(1, 2), pushed=first.pushed)
    await asyncio.gather(*map(harness.receive, (first, second, again)))
    assert harness.counted == ["taken", "taken", "again"]
    cursors = [event.cursor for event in harness.core.events]
    assert cursors == sorted(set(cursors))
    assert harness.link.position == Position(1, 3)
    assert harness.store.heads[7] == cursor(3, 3 * TURN_EVENTS - 1)


async def test_one_that_is_given_up_in_between_is_told_again_in_full(harness: LinkHarness) -> None:
    harness.hold(7)
    announcement = Announcement("v.b", Position(1, 1), Position(1, 2), pushed=[pushed(7, 5 * TURN_EVENTS)])
    task = asyncio.create_task(harness.receive(announcement))
    while not harness.core.events:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.link.position == Position(1, 1)
    await harness.receive(announcement)
    assert harness.counted == ["taken"]
    assert harness.core.events[-1].cursor == harness.store.heads[7] == cursor(2, 5 * TURN_EVENTS - 1)


async def test_a_new_life_of_the_cluster_is_noticed_when_its_announcement_is_taken(harness: LinkHarness) -> None:
    harness.hold(7)
    life = Announcement("v.b", Position(1, 1), Position(2, 5), pushed=[pushed(7, 3 * TURN_EVENTS)])
    older = Announcement("v.b", Position(1, 1), Position(1, 9), heads={"v.c": [(7, cursor(9))]})
    await asyncio.gather(harness.receive(life), harness.receive(older))
    assert harness.counted == ["taken", "again"]
    assert harness.link.position == harness.store.position == Position(2, 5)
    assert harness.link.is_compared is False
