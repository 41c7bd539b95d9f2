"""A start removes what an intent names, and nothing else: what an older catalog does not know, it sets aside.

A start that is killed while it sets something aside is made again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.dataset_files import entry_path, path_of
from tests.support.older_logs import remove_checksums
from tests.support.real_processes import environment
from tests.support.sparkless_process import opened
from tests.support.waiting import WITHIN_S
from tocsin import compose, faults
from tocsin.cluster.catalog.catalog import Put
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import dataset_ref
from tocsin.cluster.data_folder.clock_guard import RECORD, ClockRecord
from tocsin.cluster.data_folder.lost_folder import LOST
from tocsin.pipeline.datasets.delta.delta_log import TableClock
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.settings import Settings
from tocsin.storage.local import LocalFolder
from tocsin.store.channels.rows import Execution
from tocsin.store.cluster.sqlite_store import CLUSTER_UPGRADES
from tocsin.wire.errors import StoreError, UnavailableError

VISITS = [point for point in faults.POINTS if point.startswith("lost.")]
TORN = [point for point in faults.POINTS if point.startswith("recovery.")]
TYPE = "CREATE DATAVERSE v; CREATE TYPE v.T AS { id: int };"
FEED = """
CREATE FEED v.F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED v.F TO DATASET v.D;
START FEED v.F;
"""


def dataset(name: str) -> str:
    return f'CREATE DATASET v.{name}(T) PRIMARY KEY id; INSERT INTO v.{name} {{"id": 1}};'


def copied_catalog(data: Path, to: Path) -> None:
    """As a plain copy of the file without its log would be, once it was checkpointed."""
    with closing(sqlite3.connect(data / "catalog.sqlite")) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def put_back(data: Path, catalog: Path) -> None:
    for path in data.glob("catalog.sqlite*"):
        path.unlink()
    shutil.copyfile(catalog, data / "catalog.sqlite")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def data_newer_than_catalog(data: Path) -> Path:
    """A cluster that made a dataset, a feed and a channel after the copy of its catalog that is returned."""
    older = data.parent / "older.sqlite"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("C"))
        copied_catalog(data, older)
        await parts.run(dataset("D") + FEED)
        await parts.feeds.accept("v.F", json.dumps({"id": 7}).encode(), None, visible=True)
        channel_id = await parts.channel_store.add_channel()
        await parts.channel_store.commit_execution(channel_id, Execution(1, 1, 1, {}, 1), (), ())
    return older


def lost(data: Path, kind: str) -> list[Path]:
    return sorted(path for path in (data / LOST).glob("*") if path.name.partition("-")[2].startswith(kind))


async def test_what_an_older_catalog_does_not_know_is_set_aside_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    put_back_from = await data_newer_than_catalog(data)
    before = {path.name: contents(path) for path in (data / "datasets").iterdir()}
    logs = {path.name: contents(path) for path in (data / "intake").iterdir()}
    put_back(data, put_back_from)
    async with opened(data) as parts:
        assert [entry.name for entry in parts.catalog.catalog.datasets] == ["C"]
        assert parts.table("C").past.state.rows == 1
        assert await parts.channel_store.channel_ids() == []
        kept = {entry.folder for entry in parts.catalog.catalog.datasets}
        assert {path.name for path in (data / "datasets").iterdir()} == kept
        assert list((data / "intake").iterdir()) == []
    found = {path.name.rpartition("-")[2]: contents(path) for path in lost(data, "dataset-")}
    assert found == {name: content for name, content in before.items() if name not in kept}
    assert len(found) == 2, "the dataset, and the one of the records that the feed refused"
    assert {path.name.rpartition("-")[2]: contents(path) for path in lost(data, "feed-")} == logs
    (copy,) = lost(data, "channels.db")
    with closing(sqlite3.connect(copy)) as channels:
        assert channels.execute("SELECT last_execution FROM channels").fetchall() == [(1,)]
    told = capsys.readouterr().err
    for path in (data / LOST).iterdir():
        assert str(path) in told
    assert "a dataset with the fields id" in told
    # The catalog of the same time brought back with its folders, all is as it was.
    async with opened(data) as parts:
        await parts.run("CREATE TYPE v.U AS { id: int }")
    assert len(list((data / LOST).iterdir())) == 4, "told once"


async def test_what_was_set_aside_earlier_is_never_replaced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data):
        pass
    for _ in range(2):
        (data / "datasets" / "mine").mkdir()
        (data / "datasets" / "mine" / "notes").write_text("a")
        async with opened(data, set_aside=True):
            pass
    assert [path.read_text() for path in (data / LOST).rglob("notes")] == ["a", "a"]


async def test_what_cannot_be_set_aside_stays_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("D"))
    strange = data / "datasets" / "mine"
    strange.mkdir()
    (data / LOST).touch()  # a file in the place of the folder
    async with opened(data) as parts:
        assert parts.table("D").past.state.rows == 1
    assert strange.is_dir()
    assert f"{strange}" in capsys.readouterr().err


@pytest.mark.parametrize("emptied", [False, True])
async def test_data_without_a_catalog_refuse_to_start_and_lose_nothing(tmp_path: Path, emptied: bool) -> None:
    data = tmp_path / "data"
    await data_newer_than_catalog(data)
    whole = contents(data / "datasets") | contents(data / "intake")
    (data / "catalog.sqlite").rename(tmp_path / "kept.sqlite")
    if emptied:
        await compose.SqliteStore(data / "catalog.sqlite").open()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"catalog\.sqlite") as refused:
            async with opened(data):
                pass
        assert f"tocsin up --set-aside --data {data} " in (refused.value.hint or "")
        assert contents(data / "datasets") | contents(data / "intake") == whole
    assert (data / "catalog.sqlite").exists() == emptied, "an empty one would be in the way of the one brought back"
    put_back(data, tmp_path / "kept.sqlite")
    async with opened(data) as parts:
        assert parts.table("D").past.state.rows == 2


async def test_an_operator_begins_anew_and_the_data_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await data_newer_than_catalog(data)
    whole = contents(data / "datasets")
    (data / "catalog.sqlite").unlink()
    async with opened(data, set_aside=True) as parts:
        assert not parts.catalog.catalog.datasets
        await parts.run(TYPE + dataset("C"))
    assert sum(len(contents(path)) for path in lost(data, "dataset-")) == len(whole)
    async with opened(data) as parts:
        assert parts.table("C").past.state.rows == 1


async def with_channels(data: Path, *names: str) -> tuple[list[int], int]:
    """A cluster with these channels; their numbers, and its epoch."""
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("D"))
        numbers = []
        for name in names:
            number = await parts.channel_store.add_channel()
            await parts.channel_store.commit_execution(number, Execution(1, 1, 1, {}, 1), (), ())
            await parts.catalog.apply([Put(channel_entry(name, number))])
            numbers.append(number)
        return numbers, parts.channel_store.epoch


def channel_entry(name: str, number: int) -> ChannelEntry:
    return ChannelEntry(
        "v", name, number, True, False, None, (), (), "SELECT VALUE d FROM v.D d WHERE is_new(d)", None,
        datetime(2026, 11, 15, tzinfo=UTC), None, None, (dataset_ref("v", "D"),),
    )  # fmt: skip


def lose_channels(data: Path) -> None:
    for path in data.glob("channels.db*"):
        path.unlink()


@pytest.mark.parametrize("emptied", [False, True])
async def test_channels_without_their_store_refuse_to_start(tmp_path: Path, emptied: bool) -> None:
    data = tmp_path / "data"
    await with_channels(data, "a", "b")
    (data / "channels.db").rename(tmp_path / "kept.db")
    lose_channels(data)
    if emptied:
        async with compose.opened_channel_store(Settings.load(None, {}, {"data": data})):
            pass
    for _ in range(2):
        with pytest.raises(StoreError, match=r"v\.a, v\.b.*channels\.db") as refused:
            async with opened(data):
                pass
        assert "put channels.db back together with its -wal file" in (refused.value.hint or "")
        assert f"tocsin up --set-aside --data {data} begins" in (refused.value.hint or "")
    assert (data / "channels.db").exists() == emptied, "an empty one would be in the way of the one brought back"
    lose_channels(data)
    (tmp_path / "kept.db").rename(data / "channels.db")
    async with opened(data) as parts:
        assert len(await parts.channel_store.channel_ids()) == 2


async def test_a_store_that_lost_one_channel_refuses_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await with_channels(data, "a")
    async with opened(data) as parts:
        await parts.channel_store.backup_to(tmp_path / "older.db")
        number = await parts.channel_store.add_channel()
        await parts.catalog.apply([Put(channel_entry("later", number))])
    lose_channels(data)
    (tmp_path / "older.db").rename(data / "channels.db")
    with pytest.raises(StoreError, match=r"\(v\.later\)"):
        async with opened(data):
            pass


async def test_channels_that_begin_anew_have_new_numbers_and_a_later_epoch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (first, second), epoch = await with_channels(data, "a", "b")
    lose_channels(data)
    # As if the machine's clock had been set back by a day since.
    ahead_us = (time.time_ns() // 1_000) + 86_400 * 10**6
    (data / RECORD).write_text(json.dumps(asdict(ClockRecord(ahead_us, ahead_us, 1, "an earlier boot"))))
    async with opened(data, set_aside=True) as parts:
        numbers = [entry.channel_id for entry in parts.catalog.catalog.channels]
        assert min(numbers) > max(first, second)
        assert await parts.channel_store.channel_ids() == sorted(numbers)
        assert parts.channel_store.epoch >= (ahead_us // 1_000) << 10 > epoch
        assert await parts.store.removals() == []
    async with opened(data) as parts:
        assert sorted(entry.channel_id for entry in parts.catalog.catalog.channels) == sorted(numbers)


async def test_commit_times_go_on_from_those_that_a_killed_cluster_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("D"))
        table = parts.table("D")
    # The clock was half a minute ahead, and this commit was not on record yet.
    ahead_us = time.time_ns() // 1_000 + 30 * 10**6
    clock = TableClock(now_us=lambda: ahead_us)
    ahead = DatasetTable.open(table.log.folder, table.schema, table.keys, clock=clock)
    ahead.delete_all()
    ahead.close()
    async with opened(data) as parts:
        await parts.run(dataset("E"))
        assert parts.table("E").log.state.at_us > ahead_us


async def test_a_data_folder_of_an_older_tocsin_opens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("D") + FEED)
        await parts.feeds.accept("v.F", b'{"id": 7}', None, visible=True)
        entries = sorted((path_of(parts.table("D").log.folder) / "_delta_log").glob("*.json"))
    (data / "catalog.sqlite").rename(tmp_path / "newer.sqlite")
    older = compose.SqliteStore(data / "catalog.sqlite", chain=CLUSTER_UPGRADES[:1])
    await older.open()
    await older.close()
    with closing(sqlite3.connect(data / "catalog.sqlite", isolation_level=None)) as catalog:
        catalog.execute("ATTACH ? AS newer", (str(tmp_path / "newer.sqlite"),))
        catalog.execute("INSERT INTO entries SELECT * FROM newer.entries")
    for path in entries:
        first, *others = path.read_text().splitlines()
        info = json.loads(first)
        for key in ("tocsin.check", "tocsin.actions"):
            info["commitInfo"].pop(key, None)
        path.write_text("\n".join([json.dumps(info), *others]))
    async with opened(data) as parts:
        assert parts.table("D").past.state.rows == 2
        await parts.feeds.accept("v.F", b'{"id": 8}', None, visible=True)
        await parts.run("DROP FEED v.F; DROP DATASET v.D;")
        assert list((data / "datasets").iterdir()) == []
        assert list((data / "intake").iterdir()) == []
        assert await parts.store.removals() == []
    assert not (data / LOST).exists()


async def test_a_dropped_dataset_stays_for_outside_readers_also_over_restarts(tmp_path: Path) -> None:
    data, now = tmp_path / "data", datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
    waiting = {"cluster.datasets.outside_readers_s": 3_600}

    async def folders(at: datetime) -> int:
        async with opened(data, clock=lambda: at, **waiting):
            return len(list((data / "datasets").iterdir()))

    async with opened(data, clock=lambda: now, **waiting) as parts:
        await parts.run(TYPE + dataset("D") + "DROP DATASET v.D;" + dataset("D"))
        assert parts.table("D").past.state.rows == 1
        assert len(list((data / "datasets").iterdir())) == 2
    assert await folders(now + timedelta(seconds=3_599)) == 2
    assert await folders(now + timedelta(seconds=3_600)) == 1
    assert not (data / LOST).exists()
    async with opened(data, clock=lambda: now, **waiting) as parts:
        assert parts.table("D").past.state.rows == 1


async def test_upkeep_removes_what_was_dropped_when_its_time_has_come(tmp_path: Path) -> None:
    data, clock = tmp_path / "data", [datetime(2026, 11, 16, 12, 0, tzinfo=UTC)]
    flags = {"cluster.datasets.outside_readers_s": 60, "cluster.datasets.upkeep_period_s": 0.01}
    async with opened(data, clock=lambda: clock[0], **flags) as parts:
        await parts.run(TYPE + dataset("D") + "DROP DATASET v.D;")
        assert len(list((data / "datasets").iterdir())) == 1
        clock[0] += timedelta(seconds=61)
        async with asyncio.timeout(WITHIN_S):
            while list((data / "datasets").iterdir()) or await parts.store.removals():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("point", VISITS)
async def test_a_start_killed_while_it_sets_aside_goes_on_with_the_next(point: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    older = await data_newer_than_catalog(data)
    whole = sum(len(contents(data / folder)) for folder in ("datasets", "intake"))
    put_back(data, older)
    process = await asyncio.to_thread(killed_at, point, data)
    assert process.returncode == -signal.SIGKILL, process.stderr
    async with opened(data) as parts:
        assert parts.table("C").past.state.rows == 1
    kept = contents(data / "datasets")
    set_aside = lost(data, "dataset-") + lost(data, "feed-")
    assert len(set_aside) == 3
    assert len(kept) + sum(len(contents(path)) for path in set_aside) == whole


@pytest.mark.parametrize("point", TORN)
async def test_a_start_killed_while_it_sets_a_torn_entry_aside_goes_on_with_the_next(
    point: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("C") + 'INSERT INTO v.C {"id": 2}')
        entry = entry_path(parts.table("C").log.folder, 2)
    remove_checksums(LocalFolder(entry.parents[1]))
    torn = entry.read_bytes()[:50]
    entry.write_bytes(torn)
    process = await asyncio.to_thread(killed_at, point, data)
    assert process.returncode == -signal.SIGKILL, process.stderr
    async with opened(data) as parts:
        assert parts.table("C").past.state.rows == 1
        await parts.run('INSERT INTO v.C {"id": 2}')
    assert [path.read_bytes() for path in entry.parents[1].glob("_lost/*")] == [torn]


def killed_at(point: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.cluster.test_lost_folder_crash", str(data)],
        env=environment(TOCSIN_CRASH_AT=point), capture_output=True, text=True, check=False,
    )  # fmt: skip


async def test_a_damaged_dataset_refuses_and_the_others_go_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("C") + dataset("D") + FEED)
        entry = entry_path(parts.table("C").log.folder, 1)
    whole = entry.read_bytes()
    entry.write_bytes(whole.replace(b"tocsin.at", b"tocsin.au"))
    async with opened(data) as parts:
        for _ in range(2):
            with pytest.raises(StoreError, match=entry.name) as refused:
                await parts.run('INSERT INTO v.C {"id": 2}')
        assert "copy of the disk" in (refused.value.hint or "")
        await parts.run('INSERT INTO v.D {"id": 2}')
        await parts.feeds.accept("v.F", b'{"id": 7}', None, visible=True)
        assert parts.table("D").past.state.rows == 3
        entry.write_bytes(whole)
        await parts.run('INSERT INTO v.C {"id": 2}')


async def test_a_lost_log_of_a_feed_is_told_and_not_begun_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(TYPE + dataset("D") + FEED)
        await parts.feeds.accept("v.F", b'{"id": 7}', None, visible=True)
        (folder,) = (data / "intake").iterdir()
    shutil.rmtree(folder)
    async with opened(data) as parts:
        with pytest.raises(UnavailableError, match="intake log"):
            await parts.feeds.accept("v.F", b'{"id": 8}', None, visible=True)
        with pytest.raises(StoreError, match=str(folder)) as refused:
            await parts.run("START FEED v.F")
        assert not folder.exists()
        # What the hint says is what helps.
        assert f"touch {folder / 'begin-anew'}" in (refused.value.hint or "")
        folder.mkdir()
        (folder / "begin-anew").touch()
        await parts.run("START FEED v.F")
        await parts.feeds.accept("v.F", b'{"id": 8}', None, visible=True)
        assert sorted(row["id"] for row in parts.rows(parts.catalog.catalog.dataset("v", "D"))) == [1, 7, 8]
    assert sorted(path.suffix for path in folder.iterdir()) == [".log"]


async def _start(data: Path) -> None:
    async with opened(data) as parts:
        for entry in parts.catalog.catalog.datasets:
            parts.tables.table(entry)


if __name__ == "__main__":
    asyncio.run(_start(Path(sys.argv[1])))
