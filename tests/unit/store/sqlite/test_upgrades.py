"""A store of an older version becomes one of the present version, wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tocsin
from tocsin.store.cluster.sqlite_store import CLUSTER_UPGRADES, SqliteStore
from tocsin.store.sqlite.file import Upgrade, pending_upgrades
from tocsin.wire.errors import StorageFullError, StoreError

SOURCE = Path(tocsin.__file__).parents[1]
NOW = CLUSTER_UPGRADES[-1].version

# A made-up future: a table, then a column filled from what is there.
FUTURE = (
    *CLUSTER_UPGRADES,
    Upgrade(NOW + 1, "notes", {"sqlite": ("CREATE TABLE notes (text TEXT)", "INSERT INTO notes VALUES ('one')")}),
    Upgrade(
        NOW + 2,
        "the length of each body",
        {
            "sqlite": (
                "ALTER TABLE entries ADD COLUMN body_bytes INTEGER NOT NULL DEFAULT 0",
                "UPDATE entries SET body_bytes = length(body)",
            )
        },
    ),
)
BROKEN = (*FUTURE[:-1], Upgrade(NOW + 2, "fails half-way", {"sqlite": ("DROP TABLE notes", "DROP TABLE nowhere")}))


async def old_store(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "T", {"text": "x" * 10})
    await store.close()


def look(path: Path, sql: str) -> object:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def tables(path: Path) -> object:
    return look(path, "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY name")


def test_a_store_lacks_exactly_the_versions_after_its_own() -> None:
    assert [step.version for step in pending_upgrades(0, FUTURE)] == list(range(1, NOW + 3))
    assert [step.version for step in pending_upgrades(NOW, FUTURE)] == [NOW + 1, NOW + 2]
    assert pending_upgrades(NOW + 2, FUTURE) == []


async def test_an_empty_file_gets_every_version(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.touch()
    store = SqliteStore(path, chain=FUTURE)
    await store.open()
    assert store.schema_version == NOW + 2
    assert "epoch" in await store.facts()
    await store.close()


async def test_an_older_store_is_upgraded_step_by_step_and_keeps_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await old_store(path)
    store = SqliteStore(path)
    await store.open()
    before = await store.facts()
    await store.close()

    store = SqliteStore(path, chain=FUTURE)
    await store.open()
    assert store.schema_version == NOW + 2
    assert [(entry.name, entry.id) for entry in await store.entries()] == [("T", 1)]
    assert await store.facts() == before, "an upgrade is not a new life: the epoch stays"
    await store.close()
    assert look(path, "SELECT text FROM notes") == [("one",)]
    assert look(path, "SELECT body_bytes FROM entries") == [(len('{"text":"xxxxxxxxxx"}'),)]

    store = SqliteStore(path, chain=FUTURE)
    await store.open()
    await store.close()
    assert look(path, "SELECT text FROM notes") == [("one",)], "an upgrade ran twice"


async def test_a_store_from_the_future_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path, chain=FUTURE)
    await store.open()
    await store.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"version {NOW + 2}, and this Tocsin knows versions up to {NOW}") as caught:
        await SqliteStore(path).open()
    assert caught.value.hint is not None
    assert "newer Tocsin" in caught.value.hint
    assert path.read_bytes() == before


async def test_a_step_that_fails_undoes_the_steps_before_it(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await old_store(path)
    before = tables(path)
    with pytest.raises(StoreError, match="nowhere"):
        await SqliteStore(path, chain=BROKEN).open()
    assert tables(path) == before
    store = SqliteStore(path)
    await store.open()
    assert store.schema_version == NOW
    assert len(await store.entries()) == 1
    await store.close()


async def test_an_upgrade_without_room_leaves_the_old_version(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await old_store(path)
    large = Upgrade(
        NOW + 1, "large", {"sqlite": ("CREATE TABLE t (b BLOB)", "INSERT INTO t VALUES (zeroblob(9000000))")}
    )
    with pytest.raises(StorageFullError):
        await SqliteStore(path, chain=(*CLUSTER_UPGRADES, large), max_bytes=100_000).open()
    store = SqliteStore(path)
    await store.open()
    assert store.schema_version == NOW
    await store.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from tocsin.store.cluster.sqlite_store import CLUSTER_UPGRADES, SqliteStore
from tocsin.store.sqlite.file import Upgrade

step = Upgrade(CLUSTER_UPGRADES[-1].version + 1, "notes", {"sqlite": ("CREATE TABLE notes (text TEXT)",)})
asyncio.run(SqliteStore(Path(sys.argv[1]), chain=(*CLUSTER_UPGRADES, step)).open())
"""


@pytest.mark.parametrize("made_before", [True, False])
async def test_kill_during_an_upgrade_leaves_the_old_version_and_the_next_start_upgrades(
    tmp_path: Path, made_before: bool
) -> None:
    path = tmp_path / "store.sqlite"
    if made_before:
        await old_store(path)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TOCSIN_CRASH_AT": "store.upgrade.before"}
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert look(path, "PRAGMA user_version") == [(NOW if made_before else 0,)]
    store = SqliteStore(path, chain=FUTURE)
    await store.open()
    assert store.schema_version == NOW + 2
    assert [entry.name for entry in await store.entries()] == (["T"] if made_before else [])
    await store.close()
