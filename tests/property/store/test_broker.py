"""The broker's store against plain dictionaries: any sequence of people, groups, subscriptions, markers and lives."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tocsin.rules.model.cursors import BEGINNING, START, Cursor, Position
from tocsin.store.broker.rows import FrontendRequest, FrontendRow, NewBackendRow, ReboundBackend
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError

Answer = TypeVar("Answer")

USERS = ["ann", "bob", "cid"]
NAMES = ["crew", "staff"]
INTERESTS = [1, 2, 3]
AT_MOST = 2
MODES = ["inline", "notify"]

cursors = st.builds(Cursor, st.integers(1, 2), st.integers(0, 3), st.integers(0, 1))
interests = st.sampled_from(INTERESTS)
users = st.sampled_from(USERS)
names = st.sampled_from(NAMES)


@dataclass
class Held:
    """A frontend: who wants it follows from `own`, and from who is in which group and what that one holds."""

    mode: str
    since: Cursor
    marker: Cursor
    own: bool


@dataclass
class BrokerStoreModel:
    people: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    members: set[tuple[str, str]] = field(default_factory=set)
    shared: dict[tuple[str, int], str] = field(default_factory=dict)
    heads: dict[int, Cursor] = field(default_factory=dict)
    held: dict[tuple[str, int], Held] = field(default_factory=dict)
    position: Position = BEGINNING

    def wanting(self, user: str, interest: int) -> set[str]:
        return {group for group, member in self.members if member == user and (group, interest) in self.shared}

    def settle(self) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
        """What members got, and what nobody wants any more."""
        made = set()
        for group, user in self.members:
            for (holder, interest), mode in self.shared.items():
                if holder == group and (user, interest) not in self.held:
                    head = self.heads[interest]
                    self.held[user, interest] = Held(mode, head, head, False)
                    made.add((user, interest))
        gone = {at for at, holding in self.held.items() if not holding.own and not self.wanting(*at)}
        for at in gone:
            del self.held[at]
        return made, gone


class StoreAndDictionaries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model = BrokerStoreModel()
        self.given: set[int] = set()
        self.do(self.open())
        self.application = self.do(self.store.applications())[0].id

    def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    async def open(self) -> None:
        self.store = SqliteBrokerStore(self.folder / "broker.db")
        await self.store.open()

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def places(self, frontends: Sequence[FrontendRow]) -> set[tuple[str, int]]:
        user_of = {id_: user for user, id_ in self.model.people.items()}
        return {(user_of[each.subscriber], each.interest) for each in frontends}

    def frontends(self) -> dict[tuple[str, int], FrontendRow]:
        async def read() -> list[FrontendRow]:
            return [each async for chunk in self.store.frontends() for each in chunk]

        user_of = {id_: user for user, id_ in self.model.people.items()}
        return {(user_of[each.subscriber], each.interest): each for each in self.do(read())}

    @initialize()
    def begin(self) -> None:
        for user in USERS:
            self.register(user)

    @rule(user=users)
    def register(self, user: str) -> None:
        try:
            made = self.do(self.store.add_subscriber(self.application, user, password="#", created_us=1))
        except ConflictError:
            assert user in self.model.people
            return
        assert user not in self.model.people
        assert made.id not in self.given
        self.given.add(made.id)
        self.model.people[user] = made.id

    @rule(user=users)
    def remove(self, user: str) -> None:
        gone = self.do(self.store.remove_subscribers([self.model.people.get(user, 999)]))
        told = self.places(gone)
        self.model.members = {(group, member) for group, member in self.model.members if member != user}
        assert told == {at for at in self.model.held if at[0] == user}
        self.model.held = {at: holding for at, holding in self.model.held.items() if at[0] != user}
        self.model.people.pop(user, None)

    @rule(
        wanted=st.lists(
            st.tuples(users, interests, st.sampled_from(MODES), st.none() | cursors), min_size=1, max_size=3
        ),
        backend_since=cursors,
    )
    def subscribe(self, wanted: list[tuple[str, int, str, Cursor | None]], backend_since: Cursor) -> None:
        model = self.model
        backends = [
            NewBackendRow(interest, "v.c", f"[{interest}]", "s", backend_since)
            for _, interest, _, _ in wanted
            if interest not in model.heads
        ]
        asked = [FrontendRequest(model.people.get(user, 999), item, mode, since) for user, item, mode, since in wanted]  # type: ignore[arg-type]
        owned = {at for at, holding in model.held.items() if holding.own} | {
            (user, item) for user, item, _, _ in wanted
        }
        too_many = any(sum(at[0] == user for at in owned) > AT_MOST for user, *_ in wanted)
        missing = any(user not in model.people for user, *_ in wanted)
        try:
            made = self.do(self.store.subscribe(asked, backends=backends, created_us=1, at_most=AT_MOST))
        except NotFoundError:
            assert missing
            return
        except LimitError:
            assert too_many
            return
        assert not too_many
        assert not missing
        for (user, interest, mode, since), answer in zip(wanted, made, strict=True):
            head = model.heads.setdefault(interest, backend_since)
            there = model.held.get((user, interest))
            assert answer.made == (there is None)
            if there is None:
                begin = head if since is None else since
                model.held[user, interest] = Held(mode, begin, begin, True)
            else:
                there.own = True

    @rule(chosen=st.lists(st.tuples(users, interests), max_size=3))
    def unsubscribe(self, chosen: list[tuple[str, int]]) -> None:
        there = self.frontends()
        gone = self.do(self.store.unsubscribe([there[at].id if at in there else 9_999 for at in chosen]))
        for at in chosen:
            if at in self.model.held:
                self.model.held[at].own = False
        assert self.places(gone) == self.model.settle()[1]

    @rule(acks=st.lists(st.dictionaries(st.tuples(users, interests), cursors, max_size=4), min_size=1, max_size=4))
    def acknowledge(self, acks: list[dict[tuple[str, int], Cursor]]) -> None:
        there = self.frontends()

        async def together() -> None:
            markers = [{there[at].id: cursor for at, cursor in ack.items() if at in there} for ack in acks]
            await asyncio.gather(*(self.store.acknowledge(marker) for marker in markers))

        self.do(together())
        for ack in acks:
            for at, cursor in ack.items():
                if at in self.model.held:
                    self.model.held[at].marker = max(self.model.held[at].marker, cursor)

    @rule(position=st.builds(Position, st.integers(1, 2), st.integers(0, 9)), heads=st.dictionaries(interests, cursors))
    def news(self, position: Position, heads: dict[int, Cursor]) -> None:
        self.do(self.store.record_announcement(position, heads))
        self.model.position = max(self.model.position, position)
        for interest, head in heads.items():
            if interest in self.model.heads:
                self.model.heads[interest] = max(self.model.heads[interest], head)

    @rule(asked=st.lists(interests, max_size=3))
    def release(self, asked: list[int]) -> None:
        held = {interest for _, interest in self.model.held} | {interest for _, interest in self.model.shared}
        free = sorted({point for point in asked if point in self.model.heads and point not in held})
        assert self.do(self.store.release_backends(asked)) == free
        for interest in free:
            del self.model.heads[interest]

    @rule(interest=interests)
    def drop(self, interest: int) -> None:
        gone = self.do(self.store.drop_backends([interest]))
        assert self.places(gone) == {at for at in self.model.held if at[1] == interest}
        self.model.held = {at: holding for at, holding in self.model.held.items() if at[1] != interest}
        self.model.shared = {at: mode for at, mode in self.model.shared.items() if at[1] != interest}
        self.model.heads.pop(interest, None)

    @precondition(lambda self: len(self.model.heads) > 1)
    @rule(data=st.data(), since=cursors)
    def rebind(self, data: st.DataObject, since: Cursor) -> None:
        """All change places. Their parameters go along; so that the model needs no more names, they come back."""
        old = sorted(self.model.heads)
        new = data.draw(st.permutations(old))
        there = [ReboundBackend(a, b, "t", since) for a, b in zip(old, new, strict=True)]
        self.do(self.store.rebind(there))
        moved = dict(zip(old, new, strict=True))
        assert set(self.frontends()) == {(user, moved[interest]) for user, interest in self.model.held}
        self.do(self.store.rebind([ReboundBackend(b, a, "t", since) for a, b in zip(old, new, strict=True)]))
        for interest in old:
            self.model.heads[interest] = max(self.model.heads[interest], since)

    @rule(name=names)
    def add_group(self, name: str) -> None:
        if name not in self.model.groups:
            self.model.groups[name] = self.do(self.store.add_group(self.application, name, created_us=1)).id

    @rule(name=names)
    def remove_group(self, name: str) -> None:
        gone = self.do(self.store.remove_group(self.model.groups.pop(name, 999)))
        self.model.members = {(group, user) for group, user in self.model.members if group != name}
        self.model.shared = {at: mode for at, mode in self.model.shared.items() if at[0] != name}
        assert self.places(gone) == self.model.settle()[1]

    @rule(name=names, chosen=st.lists(users, min_size=1, max_size=3))
    def join(self, name: str, chosen: list[str]) -> None:
        model = self.model
        wanted = [model.people.get(user, 999) for user in chosen]
        try:
            made = self.do(self.store.add_members(model.groups.get(name, 999), wanted, created_us=1))
        except NotFoundError:
            assert name not in model.groups or 999 in wanted
            return
        model.members |= {(name, user) for user in chosen}
        assert self.places(made) == model.settle()[0]

    @rule(name=names, chosen=st.lists(users, max_size=3))
    def leave(self, name: str, chosen: list[str]) -> None:
        ids = [self.model.people.get(user, 999) for user in chosen]
        gone = self.do(self.store.remove_members(self.model.groups.get(name, 999), ids))
        self.model.members -= {(name, user) for user in chosen}
        assert self.places(gone) == self.model.settle()[1]

    @rule(name=names, interest=interests, mode=st.sampled_from(MODES))
    def subscribe_group(self, name: str, interest: int, mode: str) -> None:
        model = self.model
        backends = [] if interest in model.heads else [NewBackendRow(interest, "v.c", f"[{interest}]", "s", START)]
        call = self.store.subscribe_group(
            model.groups.get(name, 999),
            interest,
            mode=mode,
            backends=backends,
            created_us=1,  # type: ignore[arg-type]
        )
        try:
            made = self.do(call)
        except NotFoundError:
            assert name not in model.groups
            return
        model.heads.setdefault(interest, START)
        assert made.made == ((name, interest) not in model.shared)
        model.shared.setdefault((name, interest), mode)
        assert self.places(made.frontends) == model.settle()[0]

    @precondition(lambda self: self.model.shared)
    @rule(data=st.data())
    def unsubscribe_group(self, data: st.DataObject) -> None:
        name, interest = data.draw(st.sampled_from(sorted(self.model.shared)))
        group = self.model.groups[name]
        held = self.do(self.store.group_subscriptions(group))
        assert {each.interest for each in held} == {holding for at, holding in self.model.shared if at == name}
        (public_id,) = [each.public_id for each in held if each.interest == interest]
        gone = self.do(self.store.unsubscribe_group(group, public_id))
        del self.model.shared[name, interest]
        assert gone is not None
        assert self.places(gone) == self.model.settle()[1]

    @rule()
    def open_again(self) -> None:
        self.do(self.store.close())
        self.do(self.open())

    @invariant()
    def the_store_says_what_the_dictionaries_say(self) -> None:
        found = self.frontends()
        group_of = {id_: name for name, id_ in self.model.groups.items()}
        assert {
            at: (each.mode, each.since, each.marker, each.own, {group_of[group] for group in each.groups})
            for at, each in found.items()
        } == {
            at: (holding.mode, holding.since, holding.marker, holding.own, self.model.wanting(*at))
            for at, holding in self.model.held.items()
        }

        async def heads() -> dict[int, Cursor]:
            return {each.interest: each.head async for chunk in self.store.backends() for each in chunk}

        assert self.do(heads()) == self.model.heads
        assert self.do(self.store.link()).position == self.model.position
        assert self.do(self.store.applications())[0].subscribers == len(self.model.people)


StoreAndDictionaries.TestCase.settings = settings(
    max_examples=examples(25),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_the_broker_store_says_what_the_dictionaries_say = StoreAndDictionaries.TestCase
