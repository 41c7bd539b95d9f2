"""Backup and restore: what comes back is what was there, whatever goes on meanwhile; whatever is damaged is refused."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tocsin
from tocsin.cli.backup import size_text
from tocsin.cli.main import main
from tocsin.cluster import holder
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, MANIFEST, Manifest
from tocsin.cluster.backup.restoring import restore, unused
from tocsin.cluster.backup.writing import write_backup
from tocsin.cluster.intake.log import IntakeLog
from tocsin.cluster.lock import FolderLock
from tocsin.pipeline.datasets import commits
from tocsin.pipeline.datasets import upkeep as upkeep_module
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.cursors import Range
from tocsin.store import saved_broker
from tocsin.store.channel_rows import Broker, Committed, Execution, Wanted
from tocsin.store.sqlite import SqliteStore
from tocsin.store.sqlite_broker import SqliteBrokerStore
from tocsin.store.sqlite_channels import SqliteChannelStore
from tocsin.wire.errors import (
    ConflictError,
    InputError,
    NotFoundError,
    StorageFullError,
    StoreError,
    UnavailableError,
)

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
KEYS = (("id",),)
STORES: Any = {"open_store": SqliteStore, "open_channels": SqliteChannelStore}


def rows(*numbers: int, word: str = "x") -> pa.Table:
    return pa.table({"id": list(numbers), "word": [word] * len(numbers)}, schema=SCHEMA)


def content(table: DatasetTable, number: int | None = None) -> dict[int, str]:
    snapshot = table.snapshot() if number is None else table.as_of_commit(number)
    found: dict[int, str] = {}
    for path in snapshot.files:
        for row in pq.read_table(path).to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                found[row["id"]] = row["word"]
    return found


class Data:
    """A data folder with a catalog and tables, without a cluster around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder / CATALOG)
        self.tables: dict[str, DatasetTable] = {}

    async def create(self, name: str) -> DatasetTable:
        self.tables[name] = DatasetTable.create(self.folder / "datasets" / name, SCHEMA, KEYS, history=100)
        async with self.store.transaction() as tx:
            await tx.add_entry("dataset", "Default", name, {"folder": name})
        return self.tables[name]

    async def back_up(self, to: Path, **options: Any) -> Manifest:
        return await write_backup(self.store, self.tables, to, data=self.folder, **options)

    def reopened(self, name: str, folder: Path) -> DatasetTable:
        return DatasetTable.open(folder / "datasets" / name, SCHEMA, KEYS, history=100)


@pytest.fixture
async def data(tmp_path: Path) -> Any:
    made = Data(tmp_path / "data")
    await made.store.open()
    table = await made.create("reports")
    table.insert(rows(1, 2, 3))
    table.upsert(rows(2, word="y"))
    await made.create("empty")
    yield made
    await made.store.close()


@pytest.fixture(params=["saved", "saved.tar"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


async def facts(folder: Path) -> dict[str, Any]:
    store = SqliteStore(folder / CATALOG)
    await store.open()
    try:
        return {**await store.facts(), "entries": [entry.name for entry in await store.entries()]}
    finally:
        await store.close()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name or ".restoring" in path.name)


# ---------------------------------------------------------------- what comes back


async def test_a_restored_folder_has_the_catalog_the_rows_and_their_history(
    data: Data, target: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    manifest = await data.back_up(target, on_progress=lambda *both: seen.append(both))
    assert seen[-1][0] == seen[-1][1] == 2 * manifest.size_bytes
    assert manifest.summary()["datasets"] == 2
    assert manifest.summary()["rows"] == 3
    assert {dataset.folder: (dataset.commit, dataset.rows) for dataset in manifest.datasets} == {
        "reports": (2, 3),
        "empty": (0, 0),
    }
    new = tmp_path / "new" / "data"
    assert await restore(target, new, **STORES) == manifest
    table = data.reopened("reports", new)
    assert (table.number, content(table)) == (2, {1: "x", 2: "y", 3: "x"})
    assert content(table, 1) == {1: "x", 2: "x", 3: "x"}
    assert content(data.reopened("empty", new)) == {}
    assert table.insert(rows(4)).number == 3
    before, after = await data.store.facts(), await facts(new)
    assert manifest.epoch == before["epoch"] < after["epoch"]
    assert (after["created_at"], after["entries"]) == (before["created_at"], ["reports", "empty"])
    assert leftovers(tmp_path) == leftovers(new.parent) == []
    assert list((data.folder / "scratch").iterdir()) == []
    assert sorted(path.name for path in new.iterdir()) == [CATALOG, "datasets"]


@pytest.mark.parametrize("properties", [commits._PROPERTIES, {}], ids=["new", "old"])
async def test_a_wide_dataset_is_saved_and_brought_back_also_after_a_restart(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    monkeypatch.setattr(commits, "_PROPERTIES", properties)
    monkeypatch.setattr(upkeep_module, "_CHECKPOINT_EVERY", 2)
    schema = pa.schema([*SCHEMA, *((f"more{each}", pa.int64()) for each in range(60))])
    folder = data.folder / "datasets" / "wide"
    table = DatasetTable.create(folder, schema, KEYS, history=100)
    for number in range(1, 4):
        table.insert(pa.Table.from_pylist([{"id": number, "word": "x"}], schema=schema))
    assert upkeep_module.upkeep(table).checkpoint is not None
    table.upsert(pa.Table.from_pylist([{"id": 2, "word": "y"}], schema=schema))
    table.close()
    data.tables["wide"] = DatasetTable.open(folder, schema, KEYS, history=100)
    manifest = await data.back_up(target)
    assert [(mark.commit, mark.rows) for mark in manifest.datasets if mark.folder == "wide"] == [(4, 3)]
    await restore(target, tmp_path / "new", **STORES)
    back = DatasetTable.open(tmp_path / "new" / "datasets" / "wide", schema, KEYS, history=100)
    assert content(back) == {1: "x", 2: "y", 3: "x"}
    assert content(back, 2) == {1: "x", 2: "x"}
    assert back.log.state == data.tables["wide"].log.state


async def test_records_that_were_acknowledged_and_have_not_landed_are_saved(
    data: Data, target: Path, tmp_path: Path
) -> None:
    log = IntakeLog.open(data.folder / "intake" / "somefeed", segment_bytes=200)
    for each in range(20):
        await log.append(b"record %d" % each, 1)
    await data.back_up(target)
    await log.close()
    await restore(target, tmp_path / "new", **STORES)
    again = IntakeLog.open(tmp_path / "new" / "intake" / "somefeed")
    found = again.read(0, max_rows=100, max_bytes=1 << 20)
    assert [one.payload for one in found] == [b"record %d" % each for each in range(20)]
    await again.close()


async def test_modules_of_functions_in_python_are_saved(data: Data, target: Path, tmp_path: Path) -> None:
    (data.folder / "python" / "package").mkdir(parents=True)
    (data.folder / "python" / "one.py").write_text("def f(x): return x")
    (data.folder / "python" / "package" / "two.py").write_text("TWO = 2")
    await data.back_up(target)
    await restore(target, tmp_path / "new", **STORES)
    assert (tmp_path / "new" / "python" / "one.py").read_text() == "def f(x): return x"
    assert (tmp_path / "new" / "python" / "package" / "two.py").read_text() == "TWO = 2"


# ---------------------------------------------------------------- channels


class BusyChannels(SqliteChannelStore):
    """A channel on `reports` that goes on while it is saved, and right after."""

    table: DatasetTable
    channel_id: int

    async def begin(self, table: DatasetTable) -> None:
        self.table = table
        await self.open()
        self.channel_id = await self.add_channel()
        await self.subscribe(self.channel_id, [Wanted('["x"]', Broker("v", "b"), "mine")], created_us=1)

    async def execute(self) -> Committed:
        """One more row, and an execution that has read it."""
        state = await self.state(self.channel_id)
        number = state.last_execution + 1
        vector = {"reports": self.table.insert(rows(100 + number)).number}
        (subscription,) = await self.subscriptions(self.channel_id)
        done = Execution(number=number, started_us=number, ended_us=number, vector=vector)
        return await self.commit_execution(self.channel_id, done, [subscription.interest], [b"%d" % number])

    async def backup_to(self, path: Path) -> None:
        await super().backup_to(path)
        await self.execute()


async def test_channels_are_saved_with_positions_that_the_datasets_have_and_get_a_new_epoch(
    data: Data, target: Path, tmp_path: Path
) -> None:
    channels = BusyChannels(data.folder / CHANNELS)
    await channels.begin(data.tables["reports"])
    before = (await channels.execute()).position
    manifest = await data.back_up(target, channels=channels)
    meanwhile = (await channels.execute()).position
    epoch, channel_id = channels.epoch, channels.channel_id
    await channels.close()
    await restore(target, tmp_path / "new", **STORES)

    back = SqliteChannelStore(tmp_path / "new" / CHANNELS)
    await back.open()
    try:
        state = await back.state(channel_id)
        (held,) = (mark for mark in manifest.datasets if mark.folder == "reports")
        assert state.vector["reports"] < held.commit
        assert state.last_execution == 1
        assert back.epoch > epoch
        (subscription,) = await back.subscriptions(channel_id)
        ((fetched,),) = [one async for one in back.fetch([Range(subscription.interest, subscription.since)])]
        assert [one.payload for one in fetched.results] == [b"1"]
        done = Execution(number=2, started_us=2, ended_us=2, vector={"reports": held.commit})
        after = (await back.commit_execution(channel_id, done, [subscription.interest], [b"again"])).position
        # What was given out between the backup and the restore stands before all that comes now.
        assert before < meanwhile < after
    finally:
        await back.close()


async def test_brokers_whose_files_lie_in_the_data_folder_are_saved_while_they_run(
    data: Data, target: Path, tmp_path: Path
) -> None:
    names = ["broker-Default.broker1.db", "broker-Default.broker2.db"]
    brokers = [SqliteBrokerStore(data.folder / name) for name in names]
    for number, store in enumerate(brokers):
        await store.open()
        await store.set_fact("who", str(number))
    (data.folder / "broker-new.db").touch()  # One that is just being started.
    manifest = await data.back_up(target, save_brokers=lambda held: saved_broker.save_all(data.folder, held))
    assert (manifest.brokers, manifest.summary()["brokers"]) == (names, 2)
    for store in brokers:
        await store.set_fact("who", "changed since")
        await store.close()
    await restore(target, tmp_path / "new", **STORES, settle_broker=saved_broker.settle)
    for number, name in enumerate(names):
        back = SqliteBrokerStore(tmp_path / "new" / name)
        await back.open()
        assert await back.fact("who") == str(number)
        await back.close()
    assert not (tmp_path / "new" / "broker-new.db").exists()


async def test_a_backup_from_before_there_were_channels_can_be_brought_back(
    data: Data, target: Path, tmp_path: Path
) -> None:
    await data.back_up(target)
    await restore(target, tmp_path / "new", **STORES)
    assert not (tmp_path / "new" / CHANNELS).exists()


async def test_an_empty_cluster_can_be_saved_and_brought_back(target: Path, tmp_path: Path) -> None:
    data = Data(tmp_path / "data")
    await data.store.open()
    await data.back_up(target)
    await data.store.close()
    (tmp_path / "new").mkdir()
    manifest = await restore(target, tmp_path / "new", **STORES)
    assert manifest.datasets == ()
    assert (await facts(tmp_path / "new"))["entries"] == []


async def test_nobody_else_may_read_a_backup(data: Data, target: Path) -> None:
    await data.back_up(target)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (target, *files))


async def test_a_backup_is_one_moment_while_commits_and_upkeep_go_on(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "_CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(upkeep_module, "_CLEAN_UP_EVERY", 3)
    table = data.tables["reports"]
    stop = threading.Event()
    number = 0

    def work() -> None:
        nonlocal number
        while not stop.is_set():
            number += 1
            table.upsert(rows(number % 20, 100 + number, word=str(number)))
            upkeep_module.upkeep(table)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        manifests: list[Manifest] = []
        while len(manifests) < 4 or number <= 4:  # however slow the machine is, some commits come between
            manifests.append(await data.back_up(target.with_name(f"{len(manifests)}{target.name}")))
    finally:
        stop.set()
        worker.join()
    for turn, manifest in enumerate(manifests):
        new = tmp_path / f"new{turn}"
        await restore(target.with_name(f"{turn}{target.name}"), new, **STORES)
        restored = data.reopened("reports", new)
        (mark,) = (dataset for dataset in manifest.datasets if dataset.folder == "reports")
        assert restored.number == mark.commit
        assert len(content(restored)) == restored.row_count == mark.rows
        # Commit 3 was the first of the worker; each added one row with its own number.
        assert max((key - 100 for key in content(restored) if key > 100), default=0) == mark.commit - 2


async def test_a_dataset_dropped_while_it_is_copied_is_in_the_backup(data: Data, target: Path, tmp_path: Path) -> None:
    dropped = threading.Event()

    def drop(done_bytes: int, _: int) -> None:
        if not dropped.is_set():
            dropped.set()
            shutil.rmtree(data.folder / "datasets" / "reports")

    await data.back_up(target, on_progress=drop)
    await restore(target, tmp_path / "new", **STORES)
    assert content(data.reopened("reports", tmp_path / "new")) == {1: "x", 2: "y", 3: "x"}


async def test_tables_are_looked_up_while_creation_stands_still(data: Data, target: Path, tmp_path: Path) -> None:
    @asynccontextmanager
    async def standstill() -> Any:
        await data.create("late")
        yield

    manifest = await data.back_up(target, standstill=standstill())
    assert {dataset.folder for dataset in manifest.datasets} == {"reports", "empty", "late"}


async def test_a_dataset_without_its_table_is_not_passed_over(data: Data, target: Path, tmp_path: Path) -> None:
    del data.tables["empty"]
    with pytest.raises(UnavailableError, match=r"the dataset Default\.empty changed meanwhile"):
        await data.back_up(target)
    assert not target.exists()
    assert list((data.folder / "scratch").iterdir()) == []


async def test_a_disk_without_hard_links_is_copied(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    await data.back_up(target)
    await restore(target, tmp_path / "new", **STORES)
    assert content(data.reopened("reports", tmp_path / "new")) == {1: "x", 2: "y", 3: "x"}


# ---------------------------------------------------------------- what is refused


async def test_a_backup_never_overwrites_and_never_lies_in_the_data(data: Data, target: Path, tmp_path: Path) -> None:
    target.write_text("mine")
    with pytest.raises(ConflictError, match="exists already"):
        await data.back_up(target)
    assert target.read_text() == "mine"
    with pytest.raises(InputError, match="lies in the data folder"):
        await data.back_up(data.folder / target.name)
    with pytest.raises(InputError, match="there is no folder"):
        await data.back_up(tmp_path / "no" / target.name)


async def test_a_data_folder_in_use_is_not_touched(data: Data, target: Path, tmp_path: Path) -> None:
    await data.back_up(target)
    with pytest.raises(ConflictError, match="is not empty"):
        await restore(target, data.folder, **STORES)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError, match="is not a folder"):
        await restore(target, tmp_path / "file", **STORES)
    with pytest.raises(InputError, match="mount point"):
        unused(_EmptyMount(tmp_path / "mounted"))
    assert content(data.tables["reports"]) == {1: "x", 2: "y", 3: "x"}


class _EmptyMount(type(Path())):  # type: ignore[misc]
    def absolute(self) -> Any:
        self.mkdir()
        return self

    def is_mount(self) -> bool:
        return True


async def test_a_folder_that_came_into_use_meanwhile_is_not_overwritten(
    data: Data, target: Path, tmp_path: Path
) -> None:
    await data.back_up(target)
    new = tmp_path / "new"

    def begin(*_: int) -> None:
        new.mkdir(exist_ok=True)
        (new / "lock").touch()

    with pytest.raises(ConflictError, match="began to use"):
        await restore(target, new, **STORES, on_progress=begin)
    assert [path.name for path in new.iterdir()] == ["lock"]
    assert leftovers(tmp_path) == []


async def test_a_full_disk_leaves_nothing(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await data.back_up(target)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFullError):
        await data.back_up(tmp_path / "second", on_progress=full)
    with pytest.raises(StorageFullError):
        await restore(target, tmp_path / "new", **STORES, on_progress=full)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", target.name]


async def test_a_cancelled_backup_or_restore_leaves_nothing(data: Data, target: Path, tmp_path: Path) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def wait(*_: int) -> None:
        begun.set()
        assert cancelled.wait(20)

    async def cancel(work: Any) -> None:
        task = asyncio.create_task(work)
        assert await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        begun.clear()
        cancelled.clear()

    await cancel(data.back_up(target, on_progress=wait))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    await data.back_up(target)
    await cancel(restore(target, tmp_path / "new", **STORES, on_progress=wait))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", target.name]


# ---------------------------------------------------------------- damage


def flip(path: Path, at: int | None = None) -> None:
    changed = bytearray(path.read_bytes())
    place = len(changed) // 2 if at is None else at
    changed[place] ^= 0x01
    path.write_bytes(changed)


async def refused(source: Path, new: Path) -> str:
    with pytest.raises(StoreError) as caught:
        await restore(source, new, **STORES)
    assert not new.exists()
    assert leftovers(new.parent) == []
    return caught.value.message


async def test_every_file_that_is_damaged_shorter_or_missing_is_named(data: Data, tmp_path: Path) -> None:
    good = tmp_path / "saved"
    manifest = await data.back_up(good)

    def shorten(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-2])

    def lengthen(path: Path) -> None:
        path.write_bytes(path.read_bytes() + b"x")

    def link(path: Path) -> None:
        shutil.copyfile(path, tmp_path / "elsewhere")
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")

    harms: tuple[Callable[[Path], None], ...] = (flip, shorten, lengthen, Path.unlink, link)
    for name in [*(mark.path for mark in manifest.files), MANIFEST]:
        for harm in harms:
            bad = tmp_path / "bad"
            shutil.copytree(good, bad)
            harm(bad / name)
            message = await refused(bad, tmp_path / "new")
            assert name in message
            shutil.rmtree(bad)


async def test_a_tar_with_any_byte_changed_is_refused_or_restores_the_same(data: Data, tmp_path: Path) -> None:
    good, bad = tmp_path / "saved.tar", tmp_path / "bad.tar"
    manifest = await data.back_up(good)
    size_bytes = good.stat().st_size
    intact = 0
    for place in range(0, size_bytes, size_bytes // 150):
        shutil.copyfile(good, bad)
        flip(bad, place)
        new = tmp_path / "new"
        try:
            # Padding between members means nothing.
            assert await restore(bad, new, **STORES) == manifest
            shutil.rmtree(new)
            intact += 1
        except StoreError:
            assert not new.exists()
    assert intact < 75


async def test_a_truncated_tar_is_refused_wherever_it_ends(data: Data, tmp_path: Path) -> None:
    good, bad = tmp_path / "saved.tar", tmp_path / "bad.tar"
    await data.back_up(good)
    whole = good.read_bytes()
    with tarfile.open(good) as tar:
        end = max(member.offset_data + member.size for member in tar)
        begins = [member.offset for member in tar]
    for length in {0, 1, 511, end - 1, end // 2, *begins}:
        bad.write_bytes(whole[:length])
        assert str(bad) in await refused(bad, tmp_path / "new")


def rewritten(good: Path, bad: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A backup whose manifest was changed by somebody who knows how checksums work."""
    shutil.copytree(good, bad)
    from tocsin.cluster.backup.manifest import _digest

    body = json.loads((bad / MANIFEST).read_text())
    del body["sha256"]
    change(body)
    (bad / MANIFEST).write_text(json.dumps({**body, "sha256": _digest(body)}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(format=2), "has the format 2, newer than this program knows"),
        (lambda body: body.update(format="1"), "has the format 1, newer"),
        (lambda body: body["files"][0].update(path="../evil"), "does not belong into a data folder: '../evil'"),
        (lambda body: body["files"][0].update(path="/etc/evil"), "does not belong into a data folder"),
        (lambda body: body["files"][0].update(path="datasets/a/../../../evil"), "does not belong into a data folder"),
        (lambda body: body["files"][0].update(path="lock"), "does not belong into a data folder"),
        (lambda body: body["datasets"][0].update(folder=".."), "does not belong into a data folder"),
        (lambda body: body.update(files=[]), "names no catalog.sqlite"),
        (lambda body: body.update(files=3), "manifest.json cannot be read"),
        (lambda body: body.update(files=body["files"][:2]), "is incomplete: the table datasets/"),
        (lambda body: body["datasets"][1].update(version=1), "is at version 2 instead of 1"),
        (lambda body: body["datasets"].append({**body["datasets"][0], "folder": "gone"}), "the table datasets/gone"),
    ],
)
async def test_a_manifest_that_asks_for_the_wrong_thing_is_refused(
    data: Data, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    await data.back_up(tmp_path / "saved")
    rewritten(tmp_path / "saved", tmp_path / "bad", change)
    assert said in await refused(tmp_path / "bad", tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/tmp/evil", tarfile.REGTYPE), ("evil", tarfile.SYMTYPE), ("evil", tarfile.LNKTYPE),
     ("evil", tarfile.DIRTYPE), ("evil", tarfile.FIFOTYPE), (CATALOG, tarfile.REGTYPE)],
)  # fmt: skip
async def test_a_tar_that_would_reach_elsewhere_is_refused(data: Data, tmp_path: Path, name: str, kind: bytes) -> None:
    await data.back_up(tmp_path / "saved.tar")
    with tarfile.open(tmp_path / "saved.tar", "a") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    assert f"holds what no backup does: {name!r}" in await refused(tmp_path / "saved.tar", tmp_path / "new")


async def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no backup"):
        await restore(tmp_path / "nothing", tmp_path / "new", **STORES)
    (tmp_path / "folder").mkdir()
    assert "is no backup, or an incomplete one" in await refused(tmp_path / "folder", tmp_path / "new")
    (tmp_path / "file").write_text("hello")
    assert "not a backup" in await refused(tmp_path / "file", tmp_path / "new")


# ---------------------------------------------------------------- crashes

CRASH = """
import asyncio, sys
from pathlib import Path
from tests.unit.test_backup import KEYS, SCHEMA, STORES
from tocsin.cluster.backup.restoring import restore, unused
from tocsin.cluster.backup.writing import write_backup
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.store.sqlite import SqliteStore

async def run(doing, folder, other):
    if doing == "restore":
        return await restore(other, folder, **STORES)
    store = SqliteStore(folder / "catalog.sqlite")
    await store.open()
    tables = {name: DatasetTable.open(folder / "datasets" / name, SCHEMA, KEYS) for name in ("reports", "empty")}
    await write_backup(store, tables, other, data=folder)

asyncio.run(run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
"""


def crash(point: str, *arguments: object) -> int:
    environment = {**os.environ, "TOCSIN_CRASH_AT": point, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", CRASH, *map(str, arguments)]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


async def test_a_crash_before_the_end_leaves_nothing_under_the_final_name(
    data: Data, target: Path, tmp_path: Path
) -> None:
    await data.store.close()
    assert crash("backup.copied", "backup", data.folder, target) == -signal.SIGKILL
    assert not target.exists()
    (left,) = leftovers(tmp_path)
    assert left.startswith(target.name)
    await data.store.open()
    await data.back_up(target)
    new = tmp_path / "new"
    assert crash("restore.verified", "restore", new, target) == -signal.SIGKILL
    assert not new.exists()
    assert [name.split(".")[0] for name in leftovers(tmp_path)] == ["new", "saved"]
    await restore(target, new, **STORES)
    assert content(data.reopened("reports", new)) == {1: "x", 2: "y", 3: "x"}


# ---------------------------------------------------------------- the command line


SUMMARY = {
    "created_at": "2026-11-15T08:30:00.123456+00:00", "epoch": 1, "tocsin": "0", "datasets": 1, "rows": 12_345,
    "files": 7, "size_bytes": 1_234_567, "checked": True,
}  # fmt: skip
TOLD = "1 dataset, 12,345 rows, 1.2 MB in 7 files of 2026-11-15T08:30:00; every checksum agrees\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def compose(monkeypatch: pytest.MonkeyPatch) -> Any:
    calls: list[tuple[Any, ...]] = []

    async def done(settings: Any, path: Path, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
        on_progress(1, 2)
        calls.append((settings.data, path))
        return SUMMARY

    fake: Any = ModuleType("tocsin.compose")
    fake.offline_backup = fake.restore = done
    fake.folder_holder = lambda settings: holder.find(settings.data)
    fake.calls = calls
    monkeypatch.setitem(sys.modules, "tocsin.compose", fake)
    monkeypatch.setattr(tocsin, "compose", fake, raising=False)
    monkeypatch.delenv("TOCSIN_URL", raising=False)
    return fake


def test_without_a_cluster_the_folder_is_read(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert run("backup", "b.tar", "--data", "data") == 0
    assert capsys.readouterr().out == f"backup written to {tmp_path}/b.tar: {TOLD}"
    assert run("restore", "b.tar", "--data", "new") == 0
    assert capsys.readouterr().out == f"restored into new: {TOLD}"
    assert compose.calls == [(Path("data"), tmp_path / "b.tar"), (Path("new"), tmp_path / "b.tar")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("backup", "b.tar", "--data", "nowhere"), "there is no data folder nowhere"),
        (("backup", "b.tar", "--data", "x", "--url", "y"), "cannot be given together"),
        (("backup", "b.tar", "--url", "http://127.0.0.1:1"), "no cluster answers"),
    ],
)
def test_what_cannot_be_saved_is_said_in_one_line(
    compose: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(*arguments) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err


async def test_a_cluster_on_the_folder_is_asked_at_its_address(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((await request.json(), request.headers.get("Authorization")))
        if len(asked) > 1:
            error = {"code": "conflict", "message": "it exists already", "hint": "choose"}
            return web.json_response({"error": error}, status=409)
        return web.json_response(SUMMARY)

    app = web.Application()
    app.router.add_post("/v1/backup", answer)
    monkeypatch.setenv("TOCSIN_TOKEN", "tocsin_secret")
    monkeypatch.chdir(tmp_path)
    async with TestServer(app) as server:
        lock = await FolderLock.take(tmp_path / "data")
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 1
        assert "which does not serve" in capsys.readouterr().err
        lock.release()
        lock = await FolderLock.take(tmp_path / "data", address=str(server.make_url("")))
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 0
        assert capsys.readouterr().out == f"backup written to {tmp_path}/b: {TOLD}"
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 1
        assert capsys.readouterr().err == "error: it exists already\nhint: choose\n"
        lock.release()
    assert asked == [({"to": f"{tmp_path}/b"}, "Bearer tocsin_secret")] * 2
    assert compose.calls == []
    assert holder.find(tmp_path / "data") is None


def test_progress_is_shown_to_whoever_looks(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("restore", "b.tar", "--data", str(tmp_path)) == 0
    assert "restoring" in capsys.readouterr().err


def test_sizes_are_written_for_people() -> None:
    assert [size_text(size) for size in (0, 999, 1_000, 1_234_567, 5 * 10**12)] == [
        "0 B", "999 B", "1.0 KB", "1.2 MB", "5.0 TB",
    ]  # fmt: skip


def test_an_unreadable_lock_still_tells_that_somebody_holds_the_folder(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "lock").write_text("{")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder.find(tmp_path) == holder.Holder(None, None)
    assert holder.find(tmp_path) is None
    assert holder.find(tmp_path / "none") is None
