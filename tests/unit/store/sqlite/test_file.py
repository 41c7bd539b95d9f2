"""What all stores in SQLite files have in common, whatever is in them."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.support.store_backends import opened
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.errors import StoreError

KINDS: list[Any] = [SqliteStore, SqliteChannelStore, SqliteBrokerStore]


@pytest.mark.parametrize("kind", KINDS)
def test_the_versions_are_numbered_from_one_without_a_gap(kind: Any) -> None:
    chain = kind.layout.chain
    assert [step.version for step in chain] == list(range(1, chain[-1].version + 1))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_waits_for_the_disk(tmp_path: Path, kind: Any) -> None:
    async with opened(kind(tmp_path / "store.db")) as store:
        assert await store.call(lambda: store.writer().execute("PRAGMA synchronous").fetchone()[0]) == 2, "not FULL"
        assert await store.read(lambda reader: reader.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"


@pytest.mark.parametrize("kind", KINDS)
async def test_only_the_owner_can_read_the_file_and_its_log(tmp_path: Path, kind: Any) -> None:
    async with opened(kind(tmp_path / "store.db")):
        files = {file.name: file.stat().st_mode & 0o077 for file in tmp_path.iterdir()}
    assert files.keys() >= {"store.db", "store.db-shm", "store.db-wal"}
    assert set(files.values()) == {0}


@pytest.mark.parametrize(("first", "second"), list(permutations(KINDS, 2)))
async def test_one_store_is_not_taken_for_the_other(tmp_path: Path, first: Any, second: Any) -> None:
    path = tmp_path / "store.db"
    async with opened(first(path)):
        pass
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a store of Tocsin's"):
        await second(path).open()
    assert path.read_bytes() == before
    # Whoever was refused lets go of it.
    async with opened(first(path)):
        pass
