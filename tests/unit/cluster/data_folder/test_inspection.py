"""What `tocsin check` finds by comparing the parts of a data folder with each other."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataset_files import entry_path
from tests.support.small_tables import KEYS, SCHEMA, rows
from tocsin.cli.commands.check import check
from tocsin.cluster.catalog.catalog import CatalogStore, Put
from tocsin.cluster.catalog.entries import BrokerEntry, ChannelEntry, DatasetEntry, DataverseEntry, TypeEntry
from tocsin.cluster.data_folder.lost_folder import TAIL, LostFolder
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType
from tocsin.storage.local import LocalFolder
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.rows import Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore

COMMITS = 3
TYPE = ObjectType((Field("id", t.BIGINT),), True)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Of a dataset with two channels: one has read all of it, and another that is gone; one the first commit."""
    data = tmp_path / "data"
    (data / "datasets").mkdir(parents=True)
    table = DatasetTable.create(LocalFolder(data / "datasets" / "d"), SCHEMA, KEYS)
    for number in range(COMMITS):
        table.insert(rows(number))
    table.close()
    store, channels = SqliteStore(data / "catalog.sqlite"), SqliteChannelStore(data / "channels.db")
    await store.open()
    await channels.open()
    catalog = CatalogStore(store)
    await catalog.load()
    dataset = DatasetEntry("v", "D", "v.T", TYPE, KEYS, False, True, "d", 1, None)
    await catalog.apply([Put(DataverseEntry("v")), Put(TypeEntry("v", "T", TYPE, "")), Put(dataset)])
    for name, vector in (("all", {"d": COMMITS, "gone": 9}), ("some", {"d": 1})):
        channel_id = await channels.add_channel()
        await channels.commit_execution(channel_id, Execution(1, 1, 1, vector, 1), (), ())
        entry = ChannelEntry(
            "v", name, channel_id, True, False, None, (), (), "select 1", None, datetime(2026, 11, 15, tzinfo=UTC),
            None, None, (dataset.ref,),
        )  # fmt: skip
        await catalog.apply([Put(entry)])
    await channels.close()
    await store.close()
    return data


def checked(data: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    status = check(data=data, form="json")
    return status, json.loads(capsys.readouterr().out)["damaged"]


def test_channels_that_have_read_what_is_there_are_no_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(folder, capsys) == (0, [])


def test_commits_that_a_channel_has_read_and_that_are_gone_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = folder / "datasets" / "d"
    whole = entry_path(LocalFolder(dataset), COMMITS).read_bytes()
    entry_path(LocalFolder(dataset), COMMITS).unlink()
    status, (found,) = checked(folder, capsys)
    assert (status, found["path"], found["what"]) == (1, str(dataset / "_delta_log"), "dataset v.D")
    assert found["problem"] == "ends at commit 2, and the channel v.all has read up to commit 3"
    assert "copy of the disk before the cluster starts" in found["remedy"]
    entry_path(LocalFolder(dataset), COMMITS).write_bytes(whole)
    assert checked(folder, capsys) == (0, [])


@pytest.mark.parametrize(
    ("word", "damage"), [(b'"tocsin.actions":3', b'"tocsin.actions":7'), (b'"WRITE"', b'"WRI\0E"')]
)
def test_a_newest_entry_that_was_whole_is_named_and_no_note(
    folder: Path, capsys: pytest.CaptureFixture[str], word: bytes, damage: bytes
) -> None:
    entry = entry_path(LocalFolder(folder / "datasets" / "d"), COMMITS)
    entry.write_bytes(entry.read_bytes().replace(word, damage))
    status, found = checked(folder, capsys)
    assert status == 1
    assert (str(entry), "is not as it was written") in [(finding["path"], finding["problem"]) for finding in found]


def test_the_end_of_a_feeds_log_that_was_set_aside_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = LostFolder(folder, lambda: datetime(2026, 11, 16, tzinfo=UTC))
    place = lost.store_copy(b"precious", f"{TAIL}-81bc-00000000000000000000.log-28")
    assert place.read_bytes() == b"precious"
    assert check(data=folder, form="json") == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note["path"] == str(place)
    assert note["problem"] == "was cut off the end of a feed's log, because it failed its check"
    assert "publish them again" in note["remedy"]


@pytest.mark.parametrize("vector", ["{", "[]", '{"d": "x"}'])
def test_a_vector_that_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str], vector: str) -> None:
    with closing(sqlite3.connect(folder / "channels.db", isolation_level=None)) as channels:
        channels.execute("UPDATE channels SET vector = ? WHERE id = 1", (vector,))
    status, (found,) = checked(folder, capsys)
    assert (status, found["path"]) == (1, str(folder / "channels.db"))


@pytest.mark.parametrize("name", ["catalog.sqlite", "channels.db", "broker-v.b.db"])
def test_an_empty_store_beside_data_is_damage(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (folder / name).write_bytes(b"")
    status, (found,) = checked(folder, capsys)
    assert (status, found["path"]) == (1, str(folder / name))
    assert found["problem"] == "is empty (0 bytes), and there are data"
    assert f"restore BACKUP --data {folder if name.startswith('broker') else 'NEW'}" in found["remedy"]


def test_an_empty_store_with_a_log_is_damage_even_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "catalog.sqlite").touch()
    (tmp_path / "catalog.sqlite-wal").write_bytes(b"entries")
    status, (found,) = checked(tmp_path, capsys)
    assert (status, found["path"]) == (1, str(tmp_path / "catalog.sqlite"))


def test_a_store_whose_creation_was_interrupted_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "catalog.sqlite").touch()
    assert check(data=tmp_path, form="text") == 0
    said = capsys.readouterr().out
    assert "is empty (0 bytes): its creation was interrupted" in said
    assert "all is well" not in said


async def add_broker(data: Path, *, known: bool) -> Path:
    """Opens and closes a broker's store in the folder; a `known` broker has also registered with the cluster."""
    path = data / "broker-v.b.db"
    broker = SqliteBrokerStore(path)
    await broker.open()
    await broker.close()
    if known:
        store = SqliteStore(data / "catalog.sqlite")
        await store.open()
        catalog = CatalogStore(store)
        await catalog.load()
        await catalog.apply([Put(BrokerEntry("v", "b", None))])
        await store.close()
    return path


async def test_a_deleted_store_of_a_broker_that_ran_in_the_folder_is_damage(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = await add_broker(folder, known=True)
    assert checked(folder, capsys) == (0, [])
    path.unlink()
    status, (found,) = checked(folder, capsys)
    assert (status, found["path"], found["what"]) == (1, str(path), "the store of the broker v.b")
    assert "tocsin broker restore BACKUP" in found["remedy"]
    path.with_name(f"{path.name}.lock").unlink()
    assert checked(folder, capsys) == (0, []), "a broker may run elsewhere"


async def test_a_broker_that_the_catalog_has_forgotten_needs_no_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (await add_broker(folder, known=False)).unlink()
    assert checked(folder, capsys) == (0, [])


async def test_a_deleted_store_in_a_folder_of_a_broker_alone_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = await add_broker(tmp_path, known=False)
    assert checked(tmp_path, capsys) == (0, [])
    path.unlink()
    status, (found,) = checked(tmp_path, capsys)
    assert (status, found["path"]) == (1, str(path))
