# ruff: noqa: PT012 - a transaction is a block of statements
"""A transaction of the cluster's store happens whole or not at all, and alone."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster_store_contents import NOON, contents, names
from tocsin.store.cluster.interface import ClusterStore, StoreTransaction
from tocsin.wire.errors import StorageFullError


async def test_an_exception_undoes_the_whole_transaction(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {"v": 1})
    before = await contents(store)
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Gone", {})
            await tx.replace_entry("type", "Default", "Kept", {"v": 2})
            await tx.set_fact("gone", 1)
            await tx.add_token("gone", "e" * 64, "admin", NOON)
            raise ZeroDivisionError
    assert not tx.is_committed
    assert await contents(store) == before


async def test_a_cancellation_undoes_the_whole_transaction_and_frees_the_store(store: ClusterStore) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Gone", {})
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.entries() == []
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Next", {})
    assert await names(store) == ["Next"]


async def test_a_cancellation_at_any_step_leaves_all_or_nothing_and_committed_tells_which(store: ClusterStore) -> None:
    outcomes = set()
    for steps in range(60):
        seen: list[StoreTransaction] = []

        async def work(number: int, seen: list[StoreTransaction]) -> None:
            async with store.transaction() as tx:
                seen.append(tx)
                await tx.add_entry("type", "a", str(number), {})
                await tx.add_entry("type", "b", str(number), {})

        task = asyncio.create_task(work(steps, seen))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        there = [entry.dataverse for entry in await store.entries() if entry.name == str(steps)]
        committed = bool(seen) and seen[0].is_committed
        assert there == (["a", "b"] if committed else [])
        assert task.cancelled() or committed
        outcomes.add(committed)
    assert False in outcomes


async def test_a_cancellation_during_the_commit_comes_after_it(store: ClusterStore) -> None:
    """The last step of the block cancels its own task, so that the next wait, the commit's, is the one cancelled."""

    seen: list[StoreTransaction] = []

    async def work() -> None:
        async with store.transaction() as tx:
            seen.append(tx)
            await tx.add_entry("type", "Default", "Kept", {})
            task.cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].is_committed
    assert await names(store) == ["Kept"]


async def test_transactions_run_one_after_the_other(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.set_fact("count", 0)

    async def increment() -> None:
        async with store.transaction() as tx:
            count = (await tx.facts())["count"]
            await asyncio.sleep(0)
            await tx.set_fact("count", count + 1)

    await asyncio.gather(*(increment() for _ in range(50)))
    assert (await store.facts())["count"] == 50


async def test_readers_see_the_last_committed_state_and_do_not_wait(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Old", {})
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "New", {})
        assert await names(store) == ["Old"]
        assert [entry.name for entry in await tx.entries()] == ["Old", "New"]
        assert await tx.entry("type", "Default", "New") is not None
        assert await store.entry("type", "Default", "New") is None
    assert await names(store) == ["Old", "New"]


async def test_a_second_transaction_inside_the_first_is_refused_rather_than_waited_for(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {})
        with pytest.raises(RuntimeError, match="already"):
            async with store.transaction():
                pass
    assert await names(store) == ["Kept"]


async def test_a_transaction_that_is_over_takes_nothing_more(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        pass
    with pytest.raises(RuntimeError, match="over"):
        await tx.add_entry("type", "Default", "Late", {})
    assert await store.entries() == []


async def test_swallowing_a_failure_inside_the_block_commits_nothing(small_store: ClusterStore) -> None:
    store = small_store
    with pytest.raises(StorageFullError):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Before", {})
            with pytest.raises(StorageFullError):
                await tx.add_entry("type", "Default", "Large", {"text": "x" * 1_000_000})
            with pytest.raises(StorageFullError):
                await tx.add_entry("type", "Default", "After", {})
    assert await store.entries() == []


async def test_closing_waits_for_the_running_transaction(store: ClusterStore) -> None:
    inside = asyncio.Event()
    go_on = asyncio.Event()

    async def work() -> None:
        async with store.transaction() as tx:
            inside.set()
            await go_on.wait()
            await tx.add_entry("type", "Default", "Kept", {})

    task = asyncio.create_task(work())
    await inside.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(task, closing)
    await store.open()
    assert await names(store) == ["Kept"]
