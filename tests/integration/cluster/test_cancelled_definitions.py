"""A client that leaves while its definition is being made: it was made wholly, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataset_histories import seen
from tests.support.sparkless_process import Parts, opened
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.store.cluster.sqlite_store import SqliteTransaction

MADE = "CREATE DATAVERSE v; CREATE TYPE v.T AS { id: int, said: string };"
CREATE = "CREATE DATASET v.D(T) PRIMARY KEY id"
INSERT = 'INSERT INTO v.D {"id": 1, "said": "a"}'


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with opened(tmp_path / "data") as made:
        await made.run(MADE)
        yield made


async def cancelled_after(
    parts: Parts, script: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, nth: int = 1
) -> None:
    """Run the script; its task is cancelled when this method has done its work for the nth time, but has not returned
    yet."""
    calls = itertools.count(1)
    loop = asyncio.get_running_loop()
    original: Callable[..., Any] = getattr(owner, name)
    delivered = threading.Event()

    def cancelling(*arguments: Any) -> Any:
        result = original(*arguments)
        if next(calls) != nth:
            return result
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(delivered.set)
        assert delivered.wait(10)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, cancelling)
        task = asyncio.ensure_future(parts.run(script))
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelled_during_the_catalogs_commit_the_dataset_is_made(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first commit of a CREATE is its intent.
    await cancelled_after(parts, CREATE, monkeypatch, SqliteTransaction, "commit", nth=2)
    await parts.run(INSERT)
    assert seen(parts).rows == {"D": {1: "a"}}
    assert await parts.store.removals() == []


async def test_cancelled_when_only_the_intent_is_recorded_nothing_is_left(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(parts)
    await cancelled_after(parts, CREATE, monkeypatch, SqliteTransaction, "commit")
    assert seen(parts) == before
    await parts.run(f"{CREATE}; {INSERT}")
    assert seen(parts).rows == {"D": {1: "a"}}


async def test_cancelled_before_the_catalog_knows_it_nothing_is_left(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(parts)
    await cancelled_after(parts, CREATE, monkeypatch, DatasetTables, "create")
    assert seen(parts) == before
    await parts.run(f"{CREATE}; {INSERT}")


async def test_cancelled_during_the_catalogs_commit_the_dataset_is_dropped(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(parts)
    await parts.run(f"{CREATE}; {INSERT}")
    await cancelled_after(parts, "DROP DATASET v.D", monkeypatch, SqliteTransaction, "commit")
    assert seen(parts) == before


async def test_two_who_make_the_same_dataset_if_it_does_not_exist_leave_one(parts: Parts) -> None:
    create = CREATE.replace("v.D(T)", "v.D(T) IF NOT EXISTS")
    done = await asyncio.gather(*(parts.run(create) for _ in range(5)))
    assert sorted(item[0].get("existed", False) for item in done) == [False, True, True, True, True]
    await parts.run(INSERT)
    assert seen(parts).rows == {"D": {1: "a"}}
