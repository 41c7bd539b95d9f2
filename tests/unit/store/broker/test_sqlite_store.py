"""What is particular to a broker's store in an SQLite file: who waits together shares one commit."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin.rules.model.cursors import START, Cursor
from tocsin.store.broker.rows import FrontendRequest, FrontendRow, NewBackendRow
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, StoreError, UnavailableError


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = SqliteBrokerStore(tmp_path / "broker.db", busy_timeout_s=0.05)
    await store.open()
    yield store
    await store.close()


async def held(store: SqliteBrokerStore, count: int) -> list[FrontendRow]:
    ann = await store.add_subscriber(1, "ann", password="#", created_us=1)
    backends = [NewBackendRow(n, "v.c", f"[{n}]", "s", START) for n in range(1, count + 1)]
    wanted = [FrontendRequest(ann.id, each.interest) for each in backends]
    return [made.frontend for made in await store.subscribe(wanted, backends=backends, created_us=1)]


async def test_whoever_holds_a_store_is_named_to_whoever_comes_second(store: SqliteBrokerStore) -> None:
    with pytest.raises(UnavailableError, match=f"in use by process {os.getpid()}"):
        await SqliteBrokerStore(store.path).open()


async def test_a_thousand_who_wait_together_share_a_few_commits(store: SqliteBrokerStore) -> None:
    frontends = await held(store, 100)
    before = store.commits
    await asyncio.gather(
        *(store.acknowledge({each.id: Cursor(7, execution, 0)}) for execution in range(10) for each in frontends),
        *(store.set_fact(f"fact {n}", "x") for n in range(100)),
    )
    assert store.commits - before <= 3
    kept = [each async for chunk in store.frontends() for each in chunk]
    assert {each.marker for each in kept} == {Cursor(7, 9, 0)}
    assert await store.fact("fact 99") == "x"


async def test_acknowledgements_of_one_commit_are_written_once_per_frontend(store: SqliteBrokerStore) -> None:
    (one, two) = await held(store, 2)
    said: list[str] = []
    store.writer().set_trace_callback(said.append)
    await asyncio.gather(
        *(store.acknowledge({one.id: Cursor(7, n, 0), two.id: Cursor(7, 9 - n, 0)}) for n in range(10))
    )
    assert len([each for each in said if each.startswith("UPDATE markers")]) == 2
    assert said.count("COMMIT") == 1


async def test_when_the_commit_fails_all_who_share_it_are_told_and_the_next_succeeds(store: SqliteBrokerStore) -> None:
    (one,) = await held(store, 1)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcomes = await asyncio.gather(
        store.acknowledge({one.id: Cursor(7, 1, 0)}),
        store.acknowledge({one.id: Cursor(7, 2, 0)}),
        store.set_fact("key", "x"),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [UnavailableError] * 3
    other.execute("ROLLBACK")
    other.close()
    assert await store.fact("key") is None
    await store.acknowledge({one.id: Cursor(7, 1, 0)})
    assert [each.marker async for chunk in store.frontends() for each in chunk] == [Cursor(7, 1, 0)]


@pytest.mark.parametrize("broken", [lambda _: 1 // 0, lambda writer: writer.execute("SELECT * FROM nothing")])
async def test_a_fault_in_one_write_leaves_the_others_of_its_commit_alone(
    store: SqliteBrokerStore, broken: Callable[[sqlite3.Connection], Any]
) -> None:
    def half(writer: sqlite3.Connection) -> Any:
        writer.execute("INSERT INTO facts VALUES ('half', 'x')")
        return broken(writer)

    outcomes = await asyncio.gather(
        store.set_fact("before", "x"),
        store.write(half),
        store.first_fact("after", "x"),
        store.add_subscriber(1, "ann", password="#", created_us=1),
        store.add_subscriber(1, "ann", password="#", created_us=1),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], ZeroDivisionError | StoreError)
    assert isinstance(outcomes[4], ConflictError)
    assert [await store.fact(name) for name in ("before", "half", "after")] == ["x", None, "x"]


async def test_who_stops_waiting_for_a_shared_commit_takes_nobody_along(store: SqliteBrokerStore) -> None:
    (one, two) = await held(store, 2)
    tasks = [asyncio.create_task(store.acknowledge({each.id: Cursor(7, 1, 0)})) for each in (one, two)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [asyncio.CancelledError, type(None)]
    # A cancellation is raised when the write is over.
    assert {each.marker async for chunk in store.frontends() for each in chunk} == {Cursor(7, 1, 0)}


async def test_a_full_batch_leaves_the_rest_for_the_next_commit(tmp_path: Path) -> None:
    store = SqliteBrokerStore(tmp_path / "small.db", commit_writes=4)
    await store.open()
    before = store.commits
    await asyncio.gather(*(store.set_fact(str(n), "x") for n in range(10)))
    assert store.commits - before == 3
    await store.close()
