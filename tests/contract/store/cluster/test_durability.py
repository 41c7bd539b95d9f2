# ruff: noqa: PT012 - a transaction is a block of statements
"""What the cluster's store has committed outlives closing, full disks and backups, and its epoch only grows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.cluster_store_contents import NOON, contents, names
from tests.support.store_backends import StoreBackend, opened
from tocsin.store.cluster.interface import ClusterStore, Removal, next_epoch
from tocsin.wire.errors import ConflictError, StorageFullError, UnavailableError


async def test_what_was_committed_is_there_after_opening_again(
    backend: StoreBackend[ClusterStore], store: ClusterStore
) -> None:
    async with store.transaction() as tx:
        await tx.add_entry(
            "dataset", "Default", "Reports", {"keys": [["id"]], "deep": {"a": [1, 2.5, None, True, "ü"]}}
        )
        await tx.set_fact("answer", {"is": 42})
        await tx.add_token("ops", "d" * 64, "admin", NOON)
        await tx.add_removal(Removal("dataset", "a", NOON))
    assert tx.is_committed
    before = await contents(store)
    await store.close()
    async with opened(backend.store()) as again:
        assert await contents(again) == before
        assert before["entries"][0].body == {"keys": [["id"]], "deep": {"a": [1, 2.5, None, True, "ü"]}}
        assert before["facts"]["answer"] == {"is": 42}
        assert before["tokens"][0].created_at == NOON


async def test_a_full_disk_is_said_clearly_and_loses_nothing(
    backend: StoreBackend[ClusterStore], small_store: ClusterStore
) -> None:
    store = small_store
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {})
    with pytest.raises(StorageFullError, match="no room"):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Small", {})
            await tx.add_entry("type", "Default", "Large", {"text": "x" * 1_000_000})
    assert not tx.is_committed
    assert await names(store) == ["Kept"]
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Fits", {})
    await store.close()
    async with opened(backend.store()) as again:
        assert await names(again) == ["Kept", "Fits"]


async def test_a_closed_store_says_so(store: ClusterStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(UnavailableError, match="not open"):
        await store.entries()
    with pytest.raises(UnavailableError, match="not open"):
        async with store.transaction():
            pass
    with pytest.raises(UnavailableError, match="not open"):
        _ = store.schema_version
    await store.open()
    assert await store.entries() == []


async def test_a_backup_made_during_a_transaction_holds_the_last_committed_state(
    backend: StoreBackend[ClusterStore], store: ClusterStore, tmp_path: Path
) -> None:
    async with store.transaction() as tx:
        for number in range(300):
            await tx.add_entry("type", "Default", f"n{number}", {"text": "x" * 2000})
        await tx.add_token("ops", "a" * 64, "admin", NOON)
    before = await contents(store)
    target = tmp_path / "copy.backup"
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Uncommitted", {})
        await store.backup_to(target)
    assert len(await store.entries()) == 301
    assert target.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy.backup"]
    async with opened(backend.of_backup(target)) as copy:
        assert await contents(copy) == before


async def test_a_backup_never_overwrites_a_file(store: ClusterStore, tmp_path: Path) -> None:
    target = tmp_path / "copy.backup"
    target.write_text("mine")
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    assert target.read_text() == "mine"


def test_an_epoch_never_goes_back() -> None:
    first = next_epoch(None, NOON)
    # Stores that are older have an epoch of milliseconds.
    assert int(NOON.timestamp() * 1000) < next_epoch(int(NOON.timestamp() * 1000), NOON) < 2**53
    assert next_epoch(first, NOON) > first
    assert next_epoch(first, NOON - timedelta(days=1)) > first
    assert next_epoch(None, NOON + timedelta(seconds=2)) > first


def test_two_lives_of_one_backup_share_no_epoch_whatever_the_clock_says() -> None:
    backup = next_epoch(None, NOON)
    lives = {next_epoch(backup, NOON - timedelta(days=1)) for _ in range(20)}
    assert len(lives) > 18
