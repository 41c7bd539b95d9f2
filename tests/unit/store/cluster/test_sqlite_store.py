"""What can go wrong with an SQLite file in particular, and what the store says then."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tocsin
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.store.sqlite.errors import translate_sqlite_error
from tocsin.wire.errors import StorageFullError, StoreError, UnavailableError

SOURCE = Path(tocsin.__file__).parents[1]


async def filled(path: Path, entries: int = 50) -> None:
    store = SqliteStore(path)
    await store.open()
    async with store.transaction() as tx:
        for number in range(entries):
            await tx.add_entry("type", "Default", f"n{number}", {"text": "x" * 1000})
    await store.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"{}", b"\0" * 5000])
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.sqlite is damaged, or is not a store"):
        await SqliteStore(path).open()
    assert path.read_bytes() == content


async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a store of Tocsin's"):
        await SqliteStore(path).open()
    assert path.read_bytes() == before


async def test_a_damaged_page_is_reported_and_not_copied_into_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await filled(path)
    data = bytearray(path.read_bytes())
    # The pages after the first hold the tables: the schema can be read, the entries cannot.
    data[3 * 4096 : -4096] = os.urandom(len(data) - 4 * 4096)
    path.write_bytes(data)
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(StoreError, match="damaged") as caught:
        await store.entries()
    assert "backup" in str(caught.value)
    with pytest.raises(StoreError, match="damaged"):
        await store.backup_to(tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
    await store.close()


async def test_a_file_locked_by_another_process_is_said_to_be_and_works_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await filled(path, 1)
    store = SqliteStore(path, busy_timeout_s=0.05)
    await store.open()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="locked by another process") as caught:
            async with store.transaction():
                pass
        assert caught.value.retry
        assert len(await store.entries()) == 1
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Next", {})
    await store.close()


async def test_a_file_locked_whole_cannot_be_opened_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    await filled(path, 1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match="locked by another process"):
            await SqliteStore(path, busy_timeout_s=0.05).open()


async def test_a_folder_in_place_of_the_file_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="directory"):
        await SqliteStore(tmp_path).open()


async def test_a_store_that_failed_to_open_can_be_opened_once_the_reason_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    store = SqliteStore(path)
    with pytest.raises(StoreError):
        await store.open()
    path.unlink()
    await store.open()
    assert await store.entries() == []
    with pytest.raises(RuntimeError, match="open already"):
        await store.open()
    await store.close()


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.errors import StorageFullError

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    try:
        async with store.transaction() as tx:
            for number in range(8):
                await tx.add_entry("type", "Default", f"n{number}", {"text": "x" * 1_000_000})
    except StorageFullError as full:
        print(full.message)
    try:
        await store.backup_to(Path(sys.argv[1] + ".copy"))
    except StorageFullError as full:
        print("backup:", full.message)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Next", {})
    await store.close()

asyncio.run(main())
"""


async def test_a_write_the_kernel_refuses_for_room_is_a_full_disk_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"there is no room left for the store {path}"
    store = SqliteStore(path)
    await store.open()
    assert [entry.name for entry in await store.entries()] == ["Kept", "Next"]
    await store.close()


def test_sqlites_own_word_for_a_full_disk_is_understood(tmp_path: Path) -> None:
    problem = sqlite3.OperationalError("database or disk is full")
    problem.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert isinstance(translate_sqlite_error(problem, tmp_path / "store.sqlite"), StorageFullError)
