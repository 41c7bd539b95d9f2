"""The channel store against plain dictionaries: any sequence of subscriptions, executions, removals, lives, reads."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tocsin.rules.model.cursors import LAST_ORDINAL, RESULT_BYTES, START, Cursor, Position, Range
from tocsin.store.channels.rows import BackendRequest, BrokerName, Execution, Failure
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.wire.errors import ConflictError

Answer = TypeVar("Answer")

BROKERS = [BrokerName("v", "east"), BrokerName("v", "west")]
TEXTS = [f"[{n}]" for n in range(5)]
IDS = ["a", "b", "c", "d", "e", "f"]
PAYLOADS = [b"", b"x", b"yy" * 40, b"z" * 9_000]


@dataclass
class Sub:
    text: str
    broker: BrokerName
    interest: int
    since: Cursor


@dataclass
class Kept:
    cursor: Cursor
    payload: bytes


@dataclass
class ChannelStoreModel:
    last: int = 0
    change: int = 0
    subs: dict[str, Sub] = field(default_factory=dict)
    interests: dict[str, int] = field(default_factory=dict)
    results: dict[int, list[Kept]] = field(default_factory=dict)
    lost: dict[int, Cursor] = field(default_factory=dict)
    acknowledged: dict[tuple[int, BrokerName], Cursor] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)

    def lose(self, interest: int, upto: Cursor) -> int:
        gone = [each for each in self.results[interest] if each.cursor <= upto]
        self.results[interest] = [each for each in self.results[interest] if each.cursor > upto]
        if gone:
            self.lost[interest] = max(gone[-1].cursor, self.lost.get(interest, START))
        return len(gone)

    def holders(self, interest: int) -> set[BrokerName]:
        return {sub.broker for sub in self.subs.values() if sub.interest == interest}


class StoreAndDictionaries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.cleanup = ExitStack()
        self.channels: dict[int, ChannelStoreModel] = {}
        self.positions: list[tuple[Position, int]] = []
        # Every result ever committed, in order: (channel, interest, cursor).
        self.committed: list[tuple[int, int, Cursor]] = []
        self.deleted: set[tuple[int, Cursor]] = set()

    def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    @initialize(step=st.sampled_from([1, 3, 2_500]))
    def begin(self, step: int) -> None:
        # Small steps, so that a few rows take several.
        self.store = SqliteChannelStore(self.folder / "channels.db", step_rows=step)
        self.do(self.store.open())
        self.cleanup.callback(lambda: self.do(self.store.close()))
        self.positions.append((self.do(self.store.position()), 0))
        self.add_channel()

    def teardown(self) -> None:
        self.cleanup.close()
        self.runner.close()
        shutil.rmtree(self.folder)

    def some(self, data: st.DataObject) -> tuple[int, ChannelStoreModel]:
        channel_id = data.draw(st.sampled_from(sorted(self.channels)))
        return channel_id, self.channels[channel_id]

    @precondition(lambda self: len(self.channels) < 3)
    @rule()
    def add_channel(self) -> None:
        channel_id = self.do(self.store.add_channel())
        assert channel_id not in self.channels
        self.channels[channel_id] = ChannelStoreModel()

    @precondition(lambda self: len(self.channels) > 1)
    @rule(data=st.data())
    def drop_channel(self, data: st.DataObject) -> None:
        channel_id, _ = self.some(data)
        self.do(self.store.drop_channel(channel_id))
        del self.channels[channel_id]

    @rule(
        data=st.data(),
        wanted=st.lists(
            st.builds(
                BackendRequest, st.sampled_from(TEXTS), st.sampled_from(BROKERS), st.none() | st.sampled_from(IDS)
            ),
            max_size=4,
        ),
    )
    def subscribe(self, data: st.DataObject, wanted: list[BackendRequest]) -> None:
        channel_id, model = self.some(data)
        there = {id_: (sub.text, sub.broker) for id_, sub in model.subs.items()}
        conflict = False
        for each in wanted:
            if each.id is not None:
                conflict |= there.setdefault(each.id, (each.parameters, each.broker)) != (each.parameters, each.broker)
        try:
            answers = self.do(self.store.subscribe(channel_id, wanted, created_us=1))
        except ConflictError:
            assert conflict
            return
        assert not conflict
        for each, answer in zip(wanted, answers, strict=True):
            assert answer.made == (answer.id not in model.subs)
            if not answer.made:
                assert (answer.interest, answer.since) == (model.subs[answer.id].interest, model.subs[answer.id].since)
                continue
            if each.parameters not in model.interests:
                assert answer.new_interest
                assert answer.interest not in model.results, "an interest's number came again"
                model.interests[each.parameters] = answer.interest
                model.results[answer.interest] = []
            assert answer.interest == model.interests[each.parameters]
            if each.broker not in model.holders(answer.interest):
                model.acknowledged[answer.interest, each.broker] = answer.since
            model.subs[answer.id] = Sub(each.parameters, each.broker, answer.interest, answer.since)

    @rule(data=st.data(), others=st.lists(st.sampled_from(IDS), max_size=2))
    def unsubscribe(self, data: st.DataObject, others: list[str]) -> None:
        channel_id, model = self.some(data)
        ids = [*data.draw(st.lists(st.sampled_from(list(model.subs)), max_size=4)), *others] if model.subs else others
        done = self.do(self.store.unsubscribe(channel_id, ids))
        assert sorted(done.removed) == sorted(set(ids) & set(model.subs))
        for id_ in done.removed:
            del model.subs[id_]
        held = {sub.interest for sub in model.subs.values()}
        emptied = {text: interest for text, interest in model.interests.items() if interest not in held}
        assert sorted(done.emptied) == sorted(emptied.values())
        for text in emptied:
            del model.interests[text]

    @rule(data=st.data(), broker=st.sampled_from(BROKERS))
    def change_broker(self, data: st.DataObject, broker: BrokerName) -> None:
        channel_id, model = self.some(data)
        if model.subs:
            id_ = data.draw(st.sampled_from(list(model.subs)))
            sub = model.subs[id_]
            old = model.acknowledged[sub.interest, sub.broker]
            if broker in model.holders(sub.interest):
                old = min(old, model.acknowledged[sub.interest, broker])
            model.acknowledged[sub.interest, broker] = old
            sub.broker = broker
            moved = self.do(self.store.change_subscription(channel_id, id_, broker))
            assert (moved.broker, moved.since, moved.interest) == (broker, sub.since, sub.interest)

    @rule(data=st.data(), broker=st.sampled_from(BROKERS), text=st.sampled_from(TEXTS), upsert=st.booleans())
    def change_parameters(self, data: st.DataObject, broker: BrokerName, text: str, upsert: bool) -> None:
        channel_id, model = self.some(data)
        others = {id_: sub for id_, sub in model.subs.items() if sub.text != text}
        if not others:
            return
        id_ = data.draw(st.sampled_from(list(others)))
        old = model.subs.pop(id_)
        if not model.holders(old.interest):
            del model.interests[old.text]
        known = model.interests.get(text)
        holders = set() if known is None else model.holders(known)
        if upsert:
            request = BackendRequest(text, broker, id_)
            self.do(self.store.subscribe(channel_id, [request], created_us=9, when_taken="change"))
        else:
            self.do(self.store.change_subscription(channel_id, id_, broker, parameters=text))
        moved = self.do(self.store.subscription(channel_id, id_))
        assert moved is not None
        end = Cursor(moved.since.epoch, model.last, LAST_ORDINAL)
        assert (moved.parameters, moved.broker, moved.since, moved.created_us) == (text, broker, end, 1)
        assert known is None or moved.interest == known
        if known is None:
            model.interests[text] = moved.interest
            model.results[moved.interest] = []
        if broker not in holders:
            model.acknowledged[moved.interest, broker] = moved.since
        model.subs[id_] = Sub(text, broker, moved.interest, moved.since)

    @rule(data=st.data())
    def delete_results(self, data: st.DataObject) -> None:
        channel_id, model = self.some(data)
        kept = [(interest, each.cursor) for interest in model.interests.values() for each in model.results[interest]]
        if kept:
            chosen = data.draw(st.lists(st.sampled_from(kept), unique=True))
            unknown = [(99_999, START), (chosen[0][0], START)] if chosen else []
            assert self.do(self.store.delete_results(channel_id, [*chosen, *unknown, *chosen])) == len(chosen)
            assert self.do(self.store.delete_results(channel_id, chosen)) == 0
            self.deleted.update(chosen)
            for interest in model.interests.values():
                rest = [each for each in model.results[interest] if (interest, each.cursor) not in self.deleted]
                model.results[interest] = rest

    @rule(data=st.data(), offset=st.sampled_from([1, 1, 1, 1, 0, 2]))
    def execute(self, data: st.DataObject, offset: int) -> None:
        channel_id, model = self.some(data)
        # Interests that went are among them.
        interests = st.sampled_from(sorted(model.results)) if model.results else st.just(10**6)
        found = data.draw(st.lists(st.tuples(interests, st.sampled_from(PAYLOADS)), max_size=12))
        number = model.last + offset
        execution = Execution(number, number * 100 - 1, number * 100, {"d": number}, tick_us=number)
        ids, payloads = [interest for interest, _ in found], [payload for _, payload in found]
        try:
            done = self.do(self.store.commit_execution(channel_id, execution, ids, payloads))
        except ConflictError:
            assert offset != 1
            return
        assert offset == 1
        model.last = number
        ordinals: dict[int, int] = {}
        live = set(model.interests.values())
        for interest, payload in found:
            if interest in live:
                cursor = Cursor(self.store.epoch, number, ordinals.get(interest, 0))
                ordinals[interest] = cursor.ordinal + 1
                model.results[interest].append(Kept(cursor, payload))
                self.committed.append((channel_id, interest, cursor))
        assert done.results == sum(ordinals.values())
        self.positions.append((done.position, len(self.committed)))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        channel_id, model = self.some(data)
        self.do(self.store.record_failure(channel_id, Failure(model.last + 1, 1, 2, "why")))

    @rule(data=st.data(), back=st.integers(0, 4), kept=st.integers(0, 3))
    def retain_by_age(self, data: st.DataObject, back: int, kept: int) -> None:
        channel_id, model = self.some(data)
        upto = Cursor(self.store.epoch, model.last - back, LAST_ORDINAL)
        for interest in model.interests.values():
            # By execution, whatever the epoch.
            old = [each.cursor for each in model.results[interest] if each.cursor.execution <= upto.execution]
            if old:
                model.lose(interest, old[-1])
        self.do(self.store.retain(channel_id, ended_before_us=upto.execution * 100 + 1, executions=kept))
        self.check_counts(channel_id, model)

    @rule(data=st.data())
    def retain_one_execution(self, data: st.DataObject) -> None:
        channel_id, model = self.some(data)
        live = [each.cursor for interest in model.interests.values() for each in model.results[interest]]
        newest = max((cursor.execution for cursor in live), default=0)
        for interest in model.interests.values():
            old = [each.cursor for each in model.results[interest] if each.cursor.execution < newest]
            if old:
                model.lose(interest, old[-1])
        self.do(self.store.retain(channel_id, max_bytes=0))
        self.check_counts(channel_id, model)

    @rule(data=st.data(), back=st.integers(0, 3), ordinal=st.sampled_from([0, 1, LAST_ORDINAL]))
    def trim(self, data: st.DataObject, back: int, ordinal: int) -> None:
        channel_id, model = self.some(data)
        if model.interests:
            chosen = data.draw(st.lists(st.sampled_from(sorted(model.interests.values())), unique=True))
            below = Cursor(self.store.epoch, model.last - back, ordinal)
            expected = sum(model.lose(interest, below) for interest in chosen)
            assert self.do(self.store.trim(channel_id, dict.fromkeys(chosen, below))) == expected

    @rule(data=st.data(), broker=st.sampled_from(BROKERS), ordinal=st.sampled_from([0, LAST_ORDINAL]))
    def acknowledge_and_trim(self, data: st.DataObject, broker: BrokerName, ordinal: int) -> None:
        channel_id, model = self.some(data)
        cursor = Cursor(self.store.epoch, model.last, ordinal)
        held = {sub.interest for sub in model.subs.values() if sub.broker == broker}
        self.do(self.store.acknowledge(broker, dict.fromkeys(held, cursor)))
        for interest in held:
            model.acknowledged[interest, broker] = max(cursor, model.acknowledged[interest, broker])

        async def lowest() -> dict[int, Cursor]:
            return {key: low async for page in self.store.lowest_acknowledged(channel_id) for key, low in page.items()}

        below = self.do(lowest())
        for interest in model.interests.values():
            low = min(model.acknowledged[interest, each] for each in model.holders(interest))
            some = [each.cursor for each in model.results[interest] if each.cursor <= low]
            assert (interest in below) == bool(some)
        self.do(self.store.trim(channel_id, below))
        for interest in below:
            model.lose(interest, min(model.acknowledged[interest, each] for each in model.holders(interest)))

    @rule()
    def renew_epoch(self) -> None:
        before = self.store.epoch
        assert self.do(self.store.renew_epoch()) > before

    @rule()
    def open_again(self) -> None:
        self.do(self.store.close())
        self.do(self.store.open())

    @rule(data=st.data(), limit=st.sampled_from([1, 2, 100]))
    def follow_changes(self, data: st.DataObject, limit: int) -> None:
        channel_id, model = self.some(data)
        more = True
        while more:
            changes = self.do(self.store.interest_changes(channel_id, model.change, limit=limit))
            assert changes is not None
            model.known |= dict(changes.added)
            for id_ in changes.removed:
                model.known.pop(id_, None)
            model.change, more = changes.change, changes.more
        assert model.known == {interest: text for text, interest in model.interests.items()}

    @rule(data=st.data(), broker=st.sampled_from(BROKERS), limit=st.sampled_from([1, 3, 1000]))
    def catch_up(self, data: st.DataObject, broker: BrokerName, limit: int) -> None:
        position, index = data.draw(st.sampled_from(self.positions))
        told: dict[int, Cursor] = {}
        more = True
        while more:
            page = self.do(self.store.new_results(position, broker=broker, limit=limit))
            assert all(item.broker == broker for item in page.items)
            told |= {item.interest: item.cursor for item in page.items}
            assert not page.more or page.position > position
            position, more = page.position, page.more
        later = self.committed[index:]
        newest = {interest: cursor for _, interest, cursor in later if (interest, cursor) not in self.deleted}
        held = {
            interest: model
            for model in self.channels.values()
            for interest in model.interests.values()
            if broker in model.holders(interest)
        }
        for interest, cursor in told.items():
            assert interest in held
            assert newest[interest] == cursor
        for interest, model in held.items():
            if model.results[interest] and interest in newest:
                assert told[interest] == model.results[interest][-1].cursor

    @rule(
        chunk_bytes=st.sampled_from([1, 500, 1 << 20]),
        limit=st.none() | st.integers(1, 4),
        limit_bytes=st.none() | st.integers(1, 500),
        back=st.integers(0, 3),
    )
    def fetch_all(self, chunk_bytes: int, limit: int | None, limit_bytes: int | None, back: int) -> None:
        expected: list[tuple[Cursor | None, list[tuple[Cursor, bytes]]]] = []
        ranges = []
        for model in self.channels.values():
            after = Cursor(self.store.epoch, model.last - back, 0) if back else START
            for interest in model.interests.values():
                ranges.append(Range(interest, after, None, limit, limit_bytes))
                later = [(each.cursor, each.payload) for each in model.results[interest] if each.cursor > after]
                lost = model.lost.get(interest)
                some: list[tuple[Cursor, bytes]] = []
                for each_one in later[:limit]:
                    some.append(each_one)
                    if limit_bytes is not None and sum(len(it) + RESULT_BYTES for _, it in some) >= limit_bytes:
                        break
                expected.append((lost if lost is not None and lost > after else None, some))
        got: list[tuple[Cursor | None, list[tuple[Cursor, bytes]]]] = [(None, []) for _ in ranges]

        async def read() -> None:
            async for chunk in self.store.fetch(ranges, chunk_bytes=chunk_bytes):
                for part in chunk:
                    gap, results = got[part.range]
                    assert part.known
                    results += [(result.cursor, result.payload) for result in part.results]
                    got[part.range] = (gap or part.gap, results)

        self.do(read())
        assert got == expected

    @invariant()
    def channels_are_as_in_the_model(self) -> None:
        assert self.do(self.store.channel_ids()) == sorted(self.channels)
        for channel_id, model in self.channels.items():
            state = self.do(self.store.state(channel_id))
            assert (state.last_execution, state.interests, state.subscriptions) == (
                model.last,
                len(model.interests),
                len(model.subs),
            )
            listed = {each.id: each for each in self.do(self.store.subscriptions(channel_id))}
            assert {id_: (each.parameters, each.broker, each.interest, each.since) for id_, each in listed.items()} == {
                id_: (sub.text, sub.broker, sub.interest, sub.since) for id_, sub in model.subs.items()
            }

    def check_counts(self, channel_id: int, model: ChannelStoreModel) -> None:
        """After retention nothing is counted that is not seen, and the rows are in order among themselves."""
        state = self.do(self.store.state(channel_id))
        assert state.results == sum(len(model.results[interest]) for interest in model.interests.values())
        assert self.do(self.store.read(faults_in_rows)) == []


def faults_in_rows(connection: sqlite3.Connection) -> list[str]:
    checks = {
        "a payload's holder is gone": "SELECT r.id FROM results r LEFT JOIN results s ON s.id = r.same_as "
        "WHERE r.payload IS NULL AND s.payload IS NULL",
        "a result belongs to no execution": "SELECT r.id FROM results r WHERE NOT EXISTS "
        "(SELECT 1 FROM executions e WHERE r.id BETWEEN e.first AND e.last AND e.number = r.place >> 28)",
        "an execution counts wrongly": "SELECT e.number FROM executions e WHERE stored <> "
        "(SELECT count(*) FROM results r WHERE r.id BETWEEN e.first AND e.last) OR live > stored OR live < 0",
        "a channel counts bytes wrongly": "SELECT c.id FROM channels c WHERE result_bytes <> "
        "(SELECT coalesce(sum(bytes), 0) FROM executions e WHERE e.channel_id = c.id)",
        "a channel counts results wrongly": "SELECT c.id FROM channels c WHERE results <> "
        "(SELECT coalesce(sum(live), 0) FROM executions e WHERE e.channel_id = c.id)",
        "a hold counts wrongly": "SELECT h.interest FROM holds h WHERE subscriptions <> (SELECT count(*) "
        "FROM subscriptions s WHERE s.interest = h.interest AND s.broker = h.broker)",
        "an orphan": "SELECT id FROM interests WHERE id NOT IN (SELECT interest FROM holds)",
    }
    return [fault for fault, sql in checks.items() if connection.execute(sql).fetchone() is not None]


StoreAndDictionaries.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_the_store_says_what_the_dictionaries_say = StoreAndDictionaries.TestCase
