"""What is particular to a channel store in an SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tocsin.rules.model.cursors import LAST_ORDINAL, START, Cursor, Position, Range
from tocsin.store.channels.epochs import Epochs, end_of
from tocsin.store.channels.rows import BackendRequest, BrokerClaim, BrokerName, Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.channels.sqlite.upgrades import CHANNEL_UPGRADES
from tocsin.wire.errors import LimitError

BROKER = BrokerName("Default", "b")


@pytest.fixture
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Its limits can be given as an indirect parameter."""
    store = SqliteChannelStore(tmp_path / "channels.db", **getattr(request, "param", {}))
    await store.open()
    yield store
    await store.close()


async def test_a_thousand_ranges_take_a_handful_of_statements(store: SqliteChannelStore) -> None:
    channel_id = await store.add_channel()
    made = await store.subscribe(channel_id, [BackendRequest(f"[{n}]", BROKER) for n in range(1_000)], created_us=1)
    interests = [each.interest for each in made]
    await store.commit_execution(channel_id, Execution(1, 1, 2, {}), interests, [b"x"] * 1_000)
    said: list[str] = []
    readers = store.layout.readers
    every_reader = threading.Barrier(readers)

    def trace(reader: sqlite3.Connection) -> None:
        every_reader.wait(10)
        reader.set_trace_callback(said.append)

    await asyncio.gather(*(store.read(trace) for _ in range(readers)))
    results = [
        each
        async for chunk in store.fetch([Range(interest, START) for interest in interests])
        for part in chunk
        for each in part.results
    ]
    assert len(results) == 1_000
    assert len([sql for sql in said if "FROM" in sql]) <= 5, said


@pytest.mark.parametrize("store", [{"former_kept": 3}], indirect=True)
async def test_changes_that_are_too_long_ago_send_the_reader_to_all_interests(store: SqliteChannelStore) -> None:
    channel_id = await store.add_channel()
    await store.subscribe(channel_id, [BackendRequest(f"[{n}]", BROKER, f"{n}") for n in range(10)], created_us=1)
    early = (await store.state(channel_id)).change
    await store.unsubscribe(channel_id, [f"{n}" for n in range(5)])
    middle = (await store.state(channel_id)).change
    await store.unsubscribe(channel_id, ["5", "6"])
    assert await store.interest_changes(channel_id, early) is not None
    await store.retain(channel_id)
    assert await store.interest_changes(channel_id, early) is None
    late = await store.interest_changes(channel_id, middle)
    assert late is not None
    assert len(late.removed) == 2
    chunks = [chunk async for chunk in store.interests(channel_id)]
    assert [chunk.parameters for chunk in chunks] == [["[7]", "[8]", "[9]"]]


@pytest.mark.parametrize("store", [{"chunk_interests": 2}], indirect=True)
async def test_all_interests_come_in_chunks_of_one_state_and_its_changes(store: SqliteChannelStore) -> None:
    channel_id = await store.add_channel()
    await store.subscribe(channel_id, [BackendRequest(f"[{n}]", BROKER, f"{n}") for n in range(6)], created_us=1)
    known: dict[int, str] = {}
    change = 0
    async for chunk in store.interests(channel_id):
        if not known:
            await store.unsubscribe(channel_id, ["0", "3"])
            await store.subscribe(channel_id, [BackendRequest("[new]", BROKER)], created_us=1)
        assert len(chunk.ids) <= 2
        known |= dict(zip(chunk.ids, chunk.parameters, strict=True))
        change = chunk.change
    changes = await store.interest_changes(channel_id, change)
    assert changes is not None
    known |= dict(changes.added)
    for id_ in changes.removed:
        known.pop(id_, None)
    assert sorted(known.values()) == ["[1]", "[2]", "[4]", "[5]", "[new]"]


def test_cursors_of_all_lives_are_ordered_as_the_results_they_stand_for() -> None:
    # Lives 10 (executions 1-3), 20 (none), 30 (from 4 on).
    epochs = Epochs.of([(30, end_of(3) + 1), (10, end_of(0) + 1), (20, end_of(3) + 1)])
    there = [Cursor(10, n, m) for n in (1, 2, 3) for m in (0, 1)] + [Cursor(30, n, m) for n in (4, 5) for m in (0, 1)]
    assert [epochs.cursor(epochs.place(cursor)) for cursor in there] == there
    strange = [
        Cursor(epoch, execution, ordinal)
        for epoch in (0, 5, 10, 15, 20, 25, 30, 35)
        for execution in (0, 1, 3, 4, 9)
        for ordinal in (0, 1, LAST_ORDINAL)
    ]
    for asked in (*there, *strange):
        after = [cursor for cursor in there if epochs.place(cursor) > epochs.place(asked)]
        # A cursor of a later life that the store does not know passes over nothing of the present one.
        known = asked if asked.epoch <= 30 else Cursor(30, 0, 0)
        assert after == [cursor for cursor in there if cursor > known], asked


async def test_a_store_of_the_version_before_goes_on_with_its_holds_and_its_registrations(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = SqliteChannelStore(path, chain=CHANNEL_UPGRADES[:2])
    await old.open()
    await old.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for sql in (
            "INSERT INTO counters VALUES ('channel', 1), ('broker', 2), ('interest', 2)",
            "INSERT INTO channels (id, interests, subscriptions, change) VALUES (1, 2, 3, 2)",
            "INSERT INTO channel_epochs SELECT 1, epoch, 1 FROM epochs",
            "INSERT INTO brokers VALUES (1, 'v', 'ours'), (2, 'v', 'made')",
            "INSERT INTO interests VALUES (1, 1, '[1]', 1, 0), (2, 1, '[2]', 2, 0)",
            """INSERT INTO subscriptions VALUES (1, 'broker:x', 1, 1, 0, 5), (1, 'broker:y', 2, 1, 0, 5),
                (1, 'somebody', 1, 2, 0, 5)""",
            "INSERT INTO holds VALUES (1, 1, 1, 0), (1, 2, 1, 0), (2, 1, 1, 0)",
            "INSERT INTO registrations SELECT 'v', 'ours', NULL, 's1', epoch, 0 FROM epochs",
            "INSERT INTO registrations SELECT 'v', 'made', NULL, 's2', epoch, 0 FROM epochs",
            "INSERT INTO registrations SELECT 'v', 'owned', 'east', 's3', epoch, 0 FROM epochs",
        ):
            raw.execute(sql)
    store = SqliteChannelStore(path)
    await store.open()
    made, ours, owned = [await store.registration(BrokerName("v", name)) for name in ("made", "ours", "owned")]
    assert made is not None
    assert ours is not None
    assert owned is not None
    # What a broker's process has registered is somebody's; what a statement made may be claimed.
    assert (made.owner, ours.owner, owned.owner) == (None, "", "east")
    assert (await store.register(ours.broker, "x", owner="bob")).owner == "bob"
    assert (await store.claim(ours.broker, BrokerClaim("store", None, True), "new")).generation is not None
    assert {subscription.id: subscription.application for subscription in await store.subscriptions(1)} == {
        "broker:x": "", "broker:y": "", "somebody": "",
    }  # fmt: skip
    await store.commit_execution(1, Execution(1, 1, 2, {}), [1, 2], [b"a", b"b"])
    assert len((await store.new_results(Position(0, 0), broker=ours.broker)).items) == 2
    with pytest.raises(LimitError):
        await store.subscribe(1, [BackendRequest("[3]", ours.broker)], created_us=1, interests_at_most=2)
    await store.unsubscribe(1, ["broker:x", "broker:y", "somebody"])
    assert (await store.state(1)).interests == 0
    await store.close()
