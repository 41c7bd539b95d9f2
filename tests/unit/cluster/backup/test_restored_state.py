"""What comes back is what was there at one moment, whatever went on meanwhile."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.example_backup import KEYS, SCHEMA, STORES, Data, content, facts, leftovers, rows
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, Manifest
from tocsin.cluster.backup.restore import restore
from tocsin.cluster.intake.log import IntakeLog
from tocsin.pipeline.datasets.delta import delta_log
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, upkeep
from tocsin.rules.model.cursors import Range
from tocsin.storage.local import LocalFolder
from tocsin.store.broker import broker_backup
from tocsin.store.broker.rows import SESSION_KEY
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.rows import BackendRequest, BrokerName, CommittedExecution, Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.wire.errors import UnavailableError


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


async def test_what_is_only_kept_for_readers_outside_is_not_saved(data: Data, target: Path, tmp_path: Path) -> None:
    folder = data.folder / "datasets" / "kept"
    table = DatasetTable.create(
        LocalFolder(folder), SCHEMA, KEYS, history=2, outside_readers=OutsideReaders(keep_s=3600.0)
    )
    for word in "abcdefgh":
        table.upsert(pa.Table.from_pylist([{"id": 1, "word": word}], schema=SCHEMA))
        upkeep(table, UpkeepLimits(checkpoint_every=2))
    assert len(table.data.names()) == 8
    data.tables["kept"] = table
    await data.back_up(target)
    await restore(target, tmp_path / "new", **STORES)
    restored = tmp_path / "new" / "datasets" / "kept"
    assert len(list(restored.glob("*.parquet"))) < 5
    back = DatasetTable.open(LocalFolder(restored), SCHEMA, KEYS, history=2)
    assert content(back) == {1: "h"}
    assert back.as_of_commit(7).number == 7


@pytest.mark.parametrize("properties", [delta_log.table_properties, lambda *_: {}], ids=["new", "old"])
async def test_a_wide_dataset_is_saved_and_brought_back_also_after_a_restart(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: Any
) -> None:
    monkeypatch.setattr(delta_log, "table_properties", properties)
    schema = pa.schema([*SCHEMA, *((f"more{each}", pa.int64()) for each in range(60))])
    folder = data.folder / "datasets" / "wide"
    table = DatasetTable.create(LocalFolder(folder), schema, KEYS, history=100)
    for number in range(1, 4):
        table.insert(pa.Table.from_pylist([{"id": number, "word": "x"}], schema=schema))
    assert upkeep(table, UpkeepLimits(checkpoint_every=2)).checkpoint is not None
    table.upsert(pa.Table.from_pylist([{"id": 2, "word": "y"}], schema=schema))
    table.close()
    data.tables["wide"] = DatasetTable.open(LocalFolder(folder), schema, KEYS, history=100)
    manifest = await data.back_up(target)
    assert [(mark.commit, mark.rows) for mark in manifest.datasets if mark.folder == "wide"] == [(4, 3)]
    await restore(target, tmp_path / "new", **STORES)
    back = DatasetTable.open(LocalFolder(tmp_path / "new" / "datasets" / "wide"), schema, KEYS, history=100)
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
    assert [result.payload for result in found] == [b"record %d" % each for each in range(20)]
    await again.close()


async def test_modules_of_functions_in_python_are_saved(data: Data, target: Path, tmp_path: Path) -> None:
    (data.folder / "python" / "package").mkdir(parents=True)
    (data.folder / "python" / "one.py").write_text("def f(x): return x")
    (data.folder / "python" / "package" / "two.py").write_text("TWO = 2")
    await data.back_up(target)
    await restore(target, tmp_path / "new", **STORES)
    assert (tmp_path / "new" / "python" / "one.py").read_text() == "def f(x): return x"
    assert (tmp_path / "new" / "python" / "package" / "two.py").read_text() == "TWO = 2"


class BusyChannels(SqliteChannelStore):
    """A channel on `reports` that goes on while it is saved, and right after."""

    table: DatasetTable
    channel_id: int

    async def begin(self, table: DatasetTable) -> None:
        self.table = table
        await self.open()
        self.channel_id = await self.add_channel()
        await self.subscribe(self.channel_id, [BackendRequest('["x"]', BrokerName("v", "b"), "mine")], created_us=1)

    async def execute(self) -> CommittedExecution:
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
        ((fetched,),) = [part async for part in back.fetch([Range(subscription.interest, subscription.since)])]
        assert [result.payload for result in fetched.results] == [b"1"]
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
        await store.set_fact(SESSION_KEY, "signs tokens of people who came after the backup, too")
    (data.folder / "broker-new.db").touch()  # One that is just being started.
    manifest = await data.back_up(target, save_brokers=lambda held: broker_backup.save_all(data.folder, held))
    assert (manifest.brokers, manifest.summary()["brokers"]) == (names, 2)
    for store in brokers:
        await store.set_fact("who", "changed since")
        await store.close()
    await restore(target, tmp_path / "new", **STORES, settle_broker=broker_backup.settle)
    for number, name in enumerate(names):
        back = SqliteBrokerStore(tmp_path / "new" / name)
        await back.open()
        assert await back.fact("who") == str(number)
        assert await back.fact(SESSION_KEY) is None
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


async def test_a_backup_is_one_moment_while_commits_and_upkeep_go_on(data: Data, target: Path, tmp_path: Path) -> None:
    table = data.tables["reports"]
    stop = threading.Event()
    number = 0

    def work() -> None:
        nonlocal number
        while not stop.is_set():
            number += 1
            table.upsert(rows(number % 20, 100 + number, word=str(number)))
            upkeep(table, UpkeepLimits(checkpoint_every=3, clean_up_every=3))

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
        assert len(content(restored)) == restored.past.state.rows == mark.rows
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
    async def backup_barrier() -> Any:
        await data.create("late")
        yield

    manifest = await data.back_up(target, backup_barrier=backup_barrier())
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
