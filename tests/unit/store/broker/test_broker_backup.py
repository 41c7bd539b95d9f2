"""A broker's store saved while it is used, and brought back whole or not at all."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.rules.model.cursors import START, Cursor
from tocsin.store.broker import broker_backup
from tocsin.store.broker.rows import FrontendRequest, NewBackendRow
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, NotFoundError, StoreError, UnavailableError


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


async def filled(path: Path, users: int = 20) -> SqliteBrokerStore:
    """Open, with some in it."""
    store = SqliteBrokerStore(path)
    await store.open()
    (application,) = await store.applications()
    for each in range(users):
        one = await store.add_subscriber(application.id, f"user {each}", password="#" * 50, created_us=1)
        backend = NewBackendRow(each + 1, "v.c", f"[{each}]", f"s{each}", START)
        (made,) = await store.subscribe([FrontendRequest(one.id, each + 1)], backends=[backend], created_us=1)
        await store.acknowledge({made.frontend.id: Cursor(7, each, 0)})
    return store


async def contents(store: SqliteBrokerStore) -> object:
    (application,) = await store.applications()
    frontends = [subscription async for page in store.frontends() for subscription in page]
    return await store.subscribers(application.id), frontends, await store.fact(broker_backup.CHECKSUM)


async def test_a_store_is_saved_while_it_is_used_and_brought_back_as_it_was(tmp_path: Path) -> None:
    store, saved, new = await filled(tmp_path / "broker-a.db"), tmp_path / "saved", tmp_path / "new" / "broker-b.db"
    before = await contents(store)
    writing = asyncio.create_task(_acknowledging(store))
    for number in range(5):
        await broker_backup.save(store.path, tmp_path / f"{number}")
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await broker_backup.save(store.path, saved)
    after = await contents(store)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    await store.close()
    await broker_backup.restore_broker(saved, new)
    again = SqliteBrokerStore(new)
    await again.open()
    assert await contents(again) == after != before
    await again.close()
    assert sorted(path.name for path in new.parent.iterdir()) == ["broker-b.db", "broker-b.db.lock"]
    for number in range(5):
        await broker_backup.settle(tmp_path / f"{number}")


async def _acknowledging(store: SqliteBrokerStore) -> None:
    number = 100
    while True:
        number += 1
        await store.acknowledge({each: Cursor(7, number, 0) for each in range(1, 21)})


async def test_whatever_changed_in_a_saved_file_is_found(tmp_path: Path) -> None:
    store = await filled(tmp_path / "broker-a.db", users=3)
    await broker_backup.save(store.path, tmp_path / "saved")
    await store.close()
    whole = (tmp_path / "saved").read_bytes()
    # Also where SQLite itself finds nothing wrong with it.
    place = whole.index(b"user 1") + 5
    bad = {
        "changed": whole[:place] + b"9" + whole[place + 1 :],
        "short": whole[: len(whole) // 2],
        "none": b"hello" * 99,
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError):
            await broker_backup.restore_broker(tmp_path / name, tmp_path / "new" / "broker-a.db")
        assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".lock"]
    # A store that was copied by hand says nothing of itself.
    with pytest.raises(StoreError, match="is no backup"):
        await broker_backup.restore_broker(tmp_path / "broker-a.db", tmp_path / "new" / "broker-a.db")


async def test_nothing_is_overwritten_and_a_broker_that_runs_is_left_alone(tmp_path: Path) -> None:
    store = await filled(tmp_path / "broker-a.db", users=1)
    await broker_backup.save(store.path, tmp_path / "saved")
    with pytest.raises(ConflictError, match="exists already"):
        await broker_backup.save(store.path, tmp_path / "saved")
    with pytest.raises(UnavailableError, match="in use by process"):
        await broker_backup.restore_broker(tmp_path / "saved", store.path)
    await store.close()
    with pytest.raises(ConflictError, match="exists already"):
        await broker_backup.restore_broker(tmp_path / "saved", store.path)
    with pytest.raises(NotFoundError):
        await broker_backup.save(tmp_path / "broker-x.db", tmp_path / "more")
    with pytest.raises(NotFoundError):
        await broker_backup.restore_broker(tmp_path / "nothing", tmp_path / "broker-x.db")


async def test_the_log_of_a_deleted_store_is_not_applied_to_a_restored_one(tmp_path: Path) -> None:
    store = await filled(tmp_path / "broker-a.db", users=1)
    await broker_backup.save(store.path, tmp_path / "saved")
    log = (tmp_path / "broker-a.db-wal").read_bytes()
    await store.close()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "broker-a.db-wal").write_bytes(log)
    with pytest.raises(ConflictError, match=r"broker-a\.db-wal exists already"):
        await broker_backup.restore_broker(tmp_path / "saved", tmp_path / "new" / "broker-a.db")


def test_the_command_line_saves_a_broker_and_brings_it_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def made() -> None:
        await (await filled(tmp_path / "broker-Default.east.db")).close()

    asyncio.run(made())
    saved = str(tmp_path / "monday.db")
    assert run("broker", "backup", saved, "--name", "east", "--data", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"backup of the broker Default.east written to {saved}; its checksum agrees\n"
    assert run("broker", "restore", saved, "--name", "west", "--data", str(tmp_path / "new")) == 0
    assert "restored the broker Default.west from a backup of Default.east into" in capsys.readouterr().out
    # Who names none means the one that was saved, wherever the file lies now.
    assert run("broker", "restore", saved, "--data", str(tmp_path / "new")) == 0
    assert f"restored the broker Default.east into {tmp_path / 'new'};" in capsys.readouterr().out
    assert (tmp_path / "new" / "broker-Default.east.db").exists()
    assert (tmp_path / "new" / "broker-Default.west.db").exists()
    assert run("broker", "restore", saved, "--name", "west", "--data", str(tmp_path / "new")) == 1
    assert "exists already" in capsys.readouterr().err
    assert run("broker", "backup", saved + "2", "--name", "nobody", "--data", str(tmp_path)) == 1
    assert "there is no broker's file" in capsys.readouterr().err
