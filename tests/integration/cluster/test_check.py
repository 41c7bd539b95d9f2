"""`tocsin check` names every damaged thing of a data folder, and nothing of a healthy one, also beside a cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.real_processes import tocsin
from tests.support.small_tables import EAGER
from tests.support.sparkless_process import Parts, opened
from tocsin import compose
from tocsin.cli.commands.check import format_findings
from tocsin.cluster.data_folder.inspection.feeds import inspect_notes
from tocsin.cluster.data_folder.inspection.inspection import CHECKED, NOT_CHECKED
from tocsin.cluster.feeds.adapters.file_reader import after_last
from tocsin.cluster.feeds.adapters.seen_items import SeenItems
from tocsin.cluster.feeds.batches import pack_batch
from tocsin.cluster.intake import segments
from tocsin.cluster.intake.frames import LogEntry
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.rules.model.types import ObjectType
from tocsin.settings import Settings
from tocsin.store.broker.sqlite.store import SqliteBrokerStore

SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE T AS { id: int, said: string? };
CREATE DATASET D(T) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED F TO DATASET D;
START FEED F;
CREATE FEED Polled
  WITH {"adapter-name": "url_adapter", "url": "http://127.0.0.1:9/", "period": "PT1H", "type-name": "T"};
CREATE FEED Files WITH {"adapter-name": "localfs", "path": "/nowhere", "format": "json", "type-name": "T"};
"""
ROWS = 2_000


def folder_of(parts: Parts, name: str) -> Path:
    catalog = parts.catalog.catalog
    if name == "D":
        return parts.settings.data / "datasets" / catalog.dataset("v", name).folder
    return parts.settings.data / "intake" / catalog.feed("v", name).folder


async def make(data: Path) -> dict[str, Path]:
    """A data folder with something of every kind; where each thing lies."""
    async with opened(data) as parts:
        await parts.run(SETUP)
        rows = json.dumps([{"id": each, "said": f"row {each}"} for each in range(ROWS)])
        await parts.run(f"INSERT INTO v.D {rows}")
        await asyncio.to_thread(upkeep, parts.table("D"), EAGER)
        for each in range(3):
            await parts.run(f'UPSERT INTO v.D {{"id": {each}, "said": "again"}}')
            await parts.feeds.accept("v.F", json.dumps({"id": ROWS + each}).encode(), None, visible=True)
        dataset, feed = folder_of(parts, "D"), folder_of(parts, "F")
        polled, files = folder_of(parts, "Polled"), folder_of(parts, "Files")
    polled.mkdir()
    seen = SeenItems.open(polled)
    item = pack_batch([DecodedRecord(0, {})], ObjectType(()), [bytes(16)])
    seen.recall(LogEntry(0, 1, item, None, b"", 0.0))
    seen.keep(1)
    for kind in ("sources/0", "offsets", "commits"):
        for number in range(3):
            note = files / kind / str(number)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text('v1\n{"logOffset": 0}\n')
    broker = SqliteBrokerStore(data / "broker-Default.b.db")
    await broker.open()
    await broker.close()
    return {"dataset": dataset, "feed": feed, "polled": polled, "files": files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    data = tmp_path_factory.mktemp("made") / "data"
    return data, asyncio.run(make(data))


@pytest.fixture
def places(made: tuple[Path, dict[str, Path]], tmp_path: Path) -> dict[str, Path]:
    """A copy of the folder, to be damaged."""
    source, found = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    return {"data": data, **{name: data / path.relative_to(source) for name, path in found.items()}}


def check(data: Path, *, deep: bool = False) -> dict[str, Any]:
    settings = Settings.load(None, {}, {"data": data})
    return dict(compose.check(settings, deep=deep, on_progress=lambda _done, _all, _what: None))


def tree(data: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(data)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in data.rglob("*")
        if path.is_file()
    }


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0x10
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def spoil_page(path: Path) -> None:
    """The beginning of SQLite's second page, where it says what kind of page it is."""
    content = bytearray(path.read_bytes())
    size_bytes = int.from_bytes(content[16:18], "big")
    content[size_bytes : size_bytes + 8] = b"\xff" * 8
    path.write_bytes(content)


def entry(place: dict[str, Path], which: int) -> Path:
    return sorted((place["dataset"] / "_delta_log").glob("*[0-9].json"))[which]


def checkpoint(place: dict[str, Path]) -> Path:
    return max((place["dataset"] / "_delta_log").glob("*.checkpoint.parquet"))


def data_file(place: dict[str, Path]) -> Path:
    """The largest, which the newest state names."""
    actions = pa.table(DeltaTable(str(place["dataset"])).get_add_actions()).to_pylist()
    return place["dataset"] / max(actions, key=lambda action: action["size_bytes"])["path"]


def segment(place: dict[str, Path]) -> Path:
    return min(place["feed"].glob("*.log"))


def word(old: bytes, new: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new)) and None


DAMAGE: dict[str, tuple[Callable[[dict[str, Path]], Path], Callable[[Path], Any]]] = {
    "the catalog cut": (lambda place: place["data"] / "catalog.sqlite", cut),
    "the catalog's page": (lambda place: place["data"] / "catalog.sqlite", spoil_page),
    "the catalog gone": (lambda place: place["data"] / "catalog.sqlite", Path.unlink),
    "the catalog's entry": (lambda place: place["data"] / "catalog.sqlite", word(b'"history":', b'"hjstory":')),
    "the channels' store": (lambda place: place["data"] / "channels.db", spoil_page),
    "the channels' store cut": (lambda place: place["data"] / "channels.db", cut),
    "a broker's store": (lambda place: place["data"] / "broker-Default.b.db", spoil_page),
    "the catalog emptied": (lambda place: place["data"] / "catalog.sqlite", empty),
    "the channels' store emptied": (lambda place: place["data"] / "channels.db", empty),
    "a broker's store emptied": (lambda place: place["data"] / "broker-Default.b.db", empty),
    "a log entry's file": (lambda place: entry(place, -1), word(b'"path":"part-', b'"path":"pa2t-')),
    "a log entry's number": (lambda place: entry(place, -2), word(b'"appId":"tocsin.at"', b'"appId":"tocsin.au"')),
    "a log entry gone": (lambda place: entry(place, -2), Path.unlink),
    "a checkpoint's bit": (checkpoint, flip),
    "a checkpoint cut": (checkpoint, cut),
    "a data file gone": (data_file, Path.unlink),
    "a data file cut": (data_file, cut),
    "a data file's footer": (data_file, lambda path: flip(path, 0.99)),
    "a dataset gone": (lambda place: place["dataset"], shutil.rmtree),
    "a feed's record": (segment, lambda path: flip(path, 0.3)),
    "a feed's head": (segment, lambda path: flip(path, 0.01)),
    "a feed's log gone": (lambda place: place["feed"], shutil.rmtree),
    "what a polled feed saw": (lambda place: place["polled"] / "seen", flip),
    "the record of the clock": (lambda place: place["data"] / "clock.json", cut),
    "Spark's notes": (lambda place: place["files"] / "offsets" / "1", lambda path: path.write_text("v1\n{")),
}


@pytest.mark.parametrize("which", DAMAGE)
def test_each_damaged_thing_is_named_with_its_remedy(places: dict[str, Path], which: str) -> None:
    find, damage = DAMAGE[which]
    path = find(places)
    damage(path)
    found = check(places["data"])
    assert found["status"] == "damaged"
    named = [finding for finding in found["damaged"] if Path(finding["path"]) in (path, *path.parents)]
    assert named, found["damaged"]
    assert all(finding["problem"] and finding["remedy"] and finding["what"] for finding in found["damaged"])


def test_without_a_readable_catalog_the_folders_are_looked_at_all_the_same(places: dict[str, Path]) -> None:
    damaged = [places["data"] / "catalog.sqlite", data_file(places), segment(places)]
    cut(damaged[0])
    damaged[1].unlink()
    flip(damaged[2], 0.3)
    named = {Path(finding["path"]) for finding in check(places["data"])["damaged"]}
    assert {damaged[0], damaged[1], damaged[2].parent} <= named


def test_a_flipped_bit_among_the_rows_is_found_by_a_deep_check(places: dict[str, Path]) -> None:
    path = data_file(places)
    flip(path, 0.2)
    assert check(places["data"])["status"] == "clean"
    found = check(places["data"], deep=True)
    assert [finding["path"] for finding in found["damaged"]] == [str(path)]
    assert found["damaged"][0]["what"] == "dataset v.D"


def test_a_healthy_folder_is_clean_and_left_as_it_is(places: dict[str, Path]) -> None:
    before = tree(places["data"])
    found = check(places["data"], deep=True)
    assert (found["status"], found["damaged"], found["notes"]) == ("clean", [], [])
    assert found["checked"]["datasets"] == 4, "each feed has one for the records that it refused"
    assert found["checked"]["feeds"] == 3
    assert found["checked"]["stores"] == 3
    for path in places["data"].iterdir():
        beside_a_store = path.name.removesuffix("-wal").removesuffix("-shm").removesuffix(".lock")
        assert any(fnmatch(beside_a_store, name) for name in CHECKED | NOT_CHECKED.keys()), path
    assert tree(places["data"]) == before


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (100, "begins at position 100, and the dataset v.D is at 3: what lies between is missing there"),
        (0, "ends at position 0, and its datasets are at 3"),
    ],
)
def test_a_log_of_another_time_than_its_datasets_is_damage(places: dict[str, Path], first: int, problem: str) -> None:
    for path in places["feed"].glob("*.log"):
        path.unlink()
    segments.create(places["feed"], first, 0)
    found = check(places["data"])
    assert [(finding["path"], finding["what"], finding["problem"]) for finding in found["damaged"]] == [
        (str(places["feed"]), "feed v.F", problem)
    ]
    assert "one backup" in found["damaged"][0]["remedy"]


def test_notes_that_end_before_what_has_landed_are_damage(places: dict[str, Path]) -> None:
    end = after_last(Checkpoint(places["files"]))
    assert list(inspect_notes(places["files"], "feed v.Files", landed=end)) == []
    (found,) = inspect_notes(places["files"], "feed v.Files", landed=end + 1)
    assert (found.severity, found.path) == ("damaged", places["files"])


def test_what_was_set_aside_is_listed_and_is_no_damage(places: dict[str, Path]) -> None:
    (places["data"] / "lost" / "20261116T120000Z-dataset-x").mkdir(parents=True)
    (places["dataset"] / "_lost").mkdir()
    (places["dataset"] / "_lost" / "20261116T120000Z-1.json").touch()
    (places["data"] / "datasets" / "strange").mkdir()
    found = check(places["data"])
    assert found["status"] == "clean"
    assert sorted(Path(finding["path"]).name for finding in found["notes"]) == [
        "20261116T120000Z-1.json", "20261116T120000Z-dataset-x", "strange",
    ]  # fmt: skip
    for note in found["notes"]:
        if "_lost" not in note["path"]:
            assert "put the newer one in place before you start" in note["remedy"]
            assert "docs/operations.md" in note["remedy"]
    *_, last = format_findings(found)
    assert last.endswith("nothing is damaged; 3 things need a look\n")
    *_, last = format_findings({**found, "notes": found["notes"][:1]})
    assert last.endswith("nothing is damaged; 1 thing needs a look\n")


def test_stores_of_a_killed_cluster_are_read_with_their_logs_and_stay_as_they_are(places: dict[str, Path]) -> None:
    catalog = places["data"] / "catalog.sqlite"
    with closing(sqlite3.connect(catalog, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("UPDATE entries SET body = '{' WHERE name = 'D'")
        # As kill -9 leaves them: the file, and its log.
        killed = places["data"].parent / "killed"
        killed.mkdir()
        for name in ("catalog.sqlite", "catalog.sqlite-wal"):
            shutil.copyfile(places["data"] / name, killed / name)
    before = tree(killed)
    found = check(killed)
    assert found["status"] == "damaged"
    assert tree(killed) == before


def test_the_command_says_what_it_found_and_ends_with_a_status(places: dict[str, Path]) -> None:
    well = tocsin("check", "--data", str(places["data"]))
    assert (well.returncode, well.stderr) == (0, "")
    assert "all is well" in well.stdout
    assert "not covered: values in the SQLite stores" in well.stdout
    path = data_file(places)
    flip(path, 0.2)
    quick = tocsin("check", "--quick", "--data", str(places["data"]))
    assert quick.returncode == 0
    assert "without the contents of data files (--quick)" in quick.stdout
    assert "nothing is damaged in what was read" in quick.stdout
    found = tocsin("check", "--data", str(places["data"]))
    assert (found.returncode, str(path) in found.stdout) == (1, True), "a flipped bit is found without asking for it"
    path.unlink()
    told = tocsin("check", "--data", str(places["data"]))
    assert told.returncode == 1
    assert str(path) in told.stdout
    assert "restore a backup" in told.stdout
    said = tocsin("check", "--data", str(places["data"]), "--format", "json")
    assert said.returncode == 1
    assert [finding["path"] for finding in json.loads(said.stdout)["damaged"]] == [str(path)]
    nowhere = tocsin("check", "--data", str(places["data"] / "none"))
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert "there is no data folder" in nowhere.stderr


CHECKS = 4


async def test_beside_a_cluster_at_work_nothing_is_called_damaged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(SETUP)
        done = asyncio.Event()
        counts = {"changes": 0, "records": 0}

        async def change() -> None:
            while not done.is_set():
                number = counts["changes"]
                await parts.run(f'UPSERT INTO v.D {{"id": {number % 50}, "said": "{number}"}}')
                counts["changes"] += 1

        async def publish() -> None:
            while not done.is_set():
                await parts.feeds.accept("v.F", b'{"id": %d}' % (1_000 + counts["records"]), None, visible=False)
                counts["records"] += 1

        async def define() -> None:
            while not done.is_set():
                await parts.run("CREATE DATASET v.E(T) PRIMARY KEY id; DROP DATASET v.E;")

        async def keep_up() -> None:
            while not done.is_set():
                await asyncio.to_thread(upkeep, parts.table("D"), EAGER)
                await asyncio.sleep(0.02)

        working = [asyncio.create_task(work()) for work in (change, publish, define, keep_up)]
        try:
            for place in range(CHECKS):
                # In a process of its own, as it is meant to run: locks of SQLite's are a process's.
                words = ["check", "--data", str(data), "--format", "json", *(["--quick"] if place % 2 else [])]
                done_check = await asyncio.to_thread(tocsin, *words)
                assert done_check.returncode == 0, done_check.stdout + done_check.stderr
                assert json.loads(done_check.stdout)["notes"] == []
        finally:
            done.set()
            await asyncio.gather(*working)
        assert counts["changes"] > 0
        assert counts["records"] > 0


def test_a_find_that_a_second_look_does_not_confirm_is_none() -> None:
    from tocsin.cluster.data_folder.inspection.findings import Finding, confirm_findings

    once = Finding("damaged", Path("a"), "a", "gone for a moment")
    always = Finding("damaged", Path("b"), "b", "gone")
    looks: Iterator[list[Finding]] = iter([[once, always], [always], [always], [always]])
    assert confirm_findings(lambda: next(looks), pause=lambda _seconds: None) == [always]
