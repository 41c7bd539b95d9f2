"""Feeds of files in a whole cluster: what arrives in a folder lands once, and what cannot be read is set aside."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.feed_crash_points import Place
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import WITHIN_S, wait_until
from tocsin import compose
from tocsin.cluster.catalog.refs import feed_ref
from tocsin.cluster.feeds.adapters import file_reader as watching_module
from tocsin.cluster.feeds.adapters.files import FileFeed
from tocsin.cluster.feeds.landing import Landing
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.settings import Settings
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StorageFullError, TocsinError


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> Place:
    made = Place(cluster, dataverse)
    made.run("CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "incoming"
    made.mkdir()
    return made


def feed(path: object, format_: str = "json", name: str = "F", **more: str) -> str:
    options = {"adapter-name": "localfs", "path": f"localhost://{path}", "type-name": "T", "format": format_}
    return f"CREATE FEED {name} WITH {json.dumps({**options, 'period': '0.1', **more})};"


def start(place: Place, path: object, format_: str = "json", **more: str) -> None:
    place.run(f"{feed(path, format_, **more)} CONNECT FEED F TO DATASET D; START FEED F")


def arrive(path: Path, content: str | bytes) -> Path:
    """As a file should: whole, under its name, at once."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    return unfinished.rename(path)


def said(*ids: int, what: str = "a") -> str:
    return "".join(json.dumps({"id": one, "said": what}) + "\n" for one in ids)


def holds(place: Place, expected: dict[Any, Any], dataset: str = "D") -> None:
    wait_until(lambda: place.held(dataset) == expected, f"{dataset} holds {expected}", within_s=WITHIN_S)


def refused(what: Callable[[], object], kind: type[TocsinError], words: str) -> None:
    with pytest.raises(kind) as raised:
        what()
    assert words in f"{raised.value.message} {raised.value.hint or ''}"


# ---------------------------------------------------------------- what arrives


def test_files_that_are_there_and_files_that_arrive_land(place: Place, folder: Path) -> None:
    arrive(folder / "a.json", said(1, 2))
    start(place, folder)
    holds(place, {1: "a", 2: "a"})
    (folder / "deeper").mkdir()
    arrive(folder / "deeper" / "b [1] #%20ü.json", gzip.compress(said(3).encode()))
    holds(place, {1: "a", 2: "a", 3: "a"})


def test_a_file_is_taken_once_although_it_changes(place: Place, folder: Path) -> None:
    start(place, folder)
    arrive(folder / "a.json", said(1))
    holds(place, {1: "a"})
    arrive(folder / "a.json", said(1, 2, what="b"))
    arrive(folder / "c.json", said(3))
    holds(place, {1: "a", 3: "a"})


@pytest.mark.parametrize(
    ("format_", "content"),
    [
        ("json", '[{"id": 1,\n "said": "a"},\n {"id": 2, "said": "b"}]'),
        ("adm", '{"id": 1, "said": "a"} {"id": 2,\n"said": "b"}'),
        ("csv", "said,id\na,1\nb,2\n"),
        ("delimited-text", "1,a\n2,b\n"),
        ("xml", "<all><one id='1'><said>a</said></one><one id='2'><said>b</said></one></all>"),
    ],
)
def test_every_format_lands(place: Place, folder: Path, format_: str, content: str) -> None:
    start(place, folder, format_)
    arrive(folder / "x", content)
    holds(place, {1: "a", 2: "b"})


def test_parquet_lands(place: Place, folder: Path) -> None:
    start(place, folder, "parquet")
    pq.write_table(pa.table({"id": [1, 2], "said": ["a", "b"]}), folder / ".x")
    (folder / ".x").rename(folder / "x.parquet")
    holds(place, {1: "a", 2: "b"})


def test_several_folders_files_and_patterns_may_be_named(place: Place, tmp_path: Path) -> None:
    for name in ("one", "two", "odd [x]", "three-a", "three-b"):
        (tmp_path / name).mkdir()
    arrive(tmp_path / "single.json", said(1))
    named = f"{tmp_path}/one, {tmp_path}/two,{tmp_path}/odd [x], {tmp_path}/three-*, localhost://{tmp_path}/single.json"
    start(place, named)
    for number, name in enumerate(("one", "two", "odd [x]", "three-a", "three-b"), 2):
        arrive(tmp_path / name / "x.json", said(number))
    holds(place, dict.fromkeys(range(1, 7), "a"))


def test_hidden_files_wait_and_old_ones_do_not_matter_less(place: Place, folder: Path) -> None:
    start(place, folder)
    arrive(folder / "new.json", said(1))
    holds(place, {1: "a"})
    for name in ("_SUCCESS", ".half"):
        (folder / name).write_text(said(9))
    old = arrive(folder / ".old", said(2))
    os.utime(old, (1, 1))
    old.rename(folder / "old.json")
    holds(place, {1: "a", 2: "a"})


def test_records_go_into_several_datasets_and_through_a_function(place: Place, folder: Path) -> None:
    place.run(
        'CREATE DATASET E(T) PRIMARY KEY id; CREATE FUNCTION loud(r) { {"id": r.id, "said": upper(r.said)} };'
        f"{feed(folder)} CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET E APPLY FUNCTION loud; START FEED F"
    )
    arrive(folder / "x.json", said(1))
    holds(place, {1: "a"})
    holds(place, {1: "A"}, "E")


def test_more_records_than_land_at_once_all_land(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "GROUP_ROWS", 7)
    for number in range(15):
        arrive(folder / f"{number}.json", said(2 * number, 2 * number + 1))
    start(place, folder)
    holds(place, dict.fromkeys(range(30), "a"))


# ---------------------------------------------------------------- what is refused


def test_a_record_that_does_not_fit_is_set_aside_with_its_place(place: Place, folder: Path) -> None:
    start(place, folder)
    arrive(folder / "x.json", said(1) + '{"id": "no", "said": "b"}\n{"id": 2\n' + said(3))
    holds(place, {1: "a", 3: "a"})
    broken, unfit = place.rejected()
    assert (unfit["field"], unfit["record"]) == ("id", '{"id":"no","said":"b"}')
    assert unfit["reason"].startswith(f"{folder}/x.json, line 2: expected a bigint")
    assert (broken["field"], broken["record"].strip()) == ("", '{"id": 2')
    assert broken["reason"].startswith(f"{folder}/x.json, line 3: is not JSON")


@pytest.mark.parametrize(
    ("format_", "content", "reason"),
    [
        ("json", gzip.compress(said(*range(50)).encode())[:-30], "it is not gzip, or damaged"),
        ("parquet", b"PAR1 but not really", "it is not Parquet, or damaged"),
        ("csv", b"id,id\n1,2\n", "its header names the column id twice"),
        ("xml", b"<all><one>", "is not XML"),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_and_blocks_nothing(
    place: Place, folder: Path, format_: str, content: bytes, reason: str
) -> None:
    start(place, folder, format_)
    arrive(folder / "x", content)
    wait_until(lambda: bool(place.rejected()), "the file is set aside", within_s=WITHIN_S)
    (aside,) = place.rejected()
    assert aside["reason"].startswith(f"{folder}/x")
    assert reason in aside["reason"]


def test_a_file_that_is_gone_before_it_is_read_is_set_aside(
    cluster: LocalCluster, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Checkpoint.sync

    def lose(checkpoint: Any) -> None:
        sync(checkpoint)
        (folder / "a.json").unlink(missing_ok=True)

    monkeypatch.setattr(Checkpoint, "sync", lose)
    arrive(folder / "a.json", said(1))
    arrive(folder / "b.json", said(2))
    start(place, folder)
    holds(place, {2: "a"})
    assert [one["reason"] for one in place.rejected()] == [f"there is no file {folder}/a.json"]


# ---------------------------------------------------------------- statements


def test_a_stopped_feed_goes_on_where_it_was(place: Place, folder: Path) -> None:
    start(place, folder)
    arrive(folder / "a.json", said(1))
    holds(place, {1: "a"})
    place.run("STOP FEED F")
    (folder / "a.json").unlink()
    arrive(folder / "b.json", said(2))
    place.run("START FEED F")
    holds(place, {1: "a", 2: "a"})
    assert place.rejected() == []


def test_a_feed_that_is_stopped_amid_a_batch_finishes_its_file_and_goes_on_with_the_next(
    cluster: LocalCluster, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not look again at what it has finished."""
    monkeypatch.setattr(watching_module, "GROUP_ROWS", 1)
    stopping: list[Any] = []
    land = Landing.land

    def stop_after_the_first(self: Landing, entries: Any) -> int:
        if not stopping:
            feed_ = cluster.cluster.feeds._started.find(feed_ref(place.dataverse, "F"))
            assert isinstance(feed_, FileFeed)
            assert feed_._watch is not None
            stopping.append(feed_._watch.finish())
        return land(self, entries)

    monkeypatch.setattr(Landing, "land", stop_after_the_first)
    for number in range(3):
        arrive(folder / f"{number}.json", said(10 * number, 10 * number + 1))
    start(place, folder)
    wait_until(lambda: len(place.held()) == 2, "the first file lands", within_s=WITHIN_S)
    place.run("STOP FEED F")
    assert place.held() == {0: "a", 1: "a"}
    (folder / "0.json").unlink()
    place.run("START FEED F")
    holds(place, dict.fromkeys((0, 1, 10, 11, 20, 21), "a"))
    assert place.rejected() == []


def test_a_feed_goes_on_where_whoever_stops_it_gives_up(
    cluster: LocalCluster, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, go_on = threading.Event(), threading.Event()
    land = Landing.land

    def slowly(self: Landing, entries: Any) -> int:
        landing.set()
        go_on.wait()
        return land(self, entries)

    async def give_up() -> None:
        stopping = asyncio.create_task(cluster._run(f"USE {place.dataverse}; STOP FEED F", stream=False))
        running = cluster.cluster.feeds._started.find(feed_ref(place.dataverse, "F"))
        assert isinstance(running, FileFeed)
        while running._watch is None or not running._watch.is_ending:
            await asyncio.sleep(0.01)
        stopping.cancel()
        go_on.set()
        await asyncio.gather(stopping, return_exceptions=True)

    with monkeypatch.context() as patched:
        patched.setattr(Landing, "land", slowly)
        start(place, folder)
        arrive(folder / "a.json", said(1))
        assert landing.wait(WITHIN_S)
        cluster.wait(give_up())
    arrive(folder / "b.json", said(2))
    holds(place, {1: "a", 2: "a"})


def test_a_dataset_that_is_connected_later_gets_what_comes_later(place: Place, folder: Path) -> None:
    place.run("CREATE DATASET E(T) PRIMARY KEY id")
    start(place, folder)
    arrive(folder / "a.json", said(1))
    holds(place, {1: "a"})
    place.run("CONNECT FEED F TO DATASET E")
    arrive(folder / "b.json", said(2))
    holds(place, {2: "a"}, "E")
    place.run("DISCONNECT FEED F FROM DATASET D")
    arrive(folder / "c.json", said(3))
    holds(place, {2: "a", 3: "a"}, "E")
    assert place.held() == {1: "a", 2: "a"}


def test_a_dropped_feed_leaves_nothing_and_a_new_one_begins_anew(
    cluster: LocalCluster, place: Place, folder: Path
) -> None:
    arrive(folder / "a.json", said(1))
    start(place, folder)
    holds(place, {1: "a"})
    (entry,) = (one for one in cluster.cluster.catalog.catalog.feeds if one.dataverse == place.dataverse)
    notes = cluster.settings.data / "intake" / entry.folder
    assert (notes / "offsets").is_dir()
    place.run("DROP FEED F; DELETE FROM D")
    assert not notes.exists()
    start(place, folder)
    holds(place, {1: "a"})


def test_requests_are_told_that_it_takes_files(place: Place, folder: Path) -> None:
    start(place, folder)
    refused(lambda: place.send({"id": 1, "said": "a"}), ConflictError, "takes files, not requests")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": ""}, "path: must name a file or a folder"),
        ({"path": "incoming"}, "path: must be absolute"),
        ({"path": "localhost://incoming"}, "after the host the path must be absolute"),
        ({"path": "/a,/b/../a/c"}, ""),
        ({"path": "/a, /a/b"}, "path: /a/b is in /a"),
        ({"period": "soon"}, "period: must be a duration"),
        ({"period": "PT0.01S"}, "period: must be from"),
        ({"format": "geojson"}, "format: must be one of json, adm, csv, delimited-text, xml, parquet"),
        ({"sockets": "127.0.0.1:1"}, "unknown option sockets"),
        ({"delimiter": ";"}, "unknown option delimiter"),
    ],
)
def test_options_that_make_no_sense_are_refused(place: Place, options: dict[str, str], words: str) -> None:
    given = {"adapter-name": "localfs", "path": "/data", "type-name": "T", **options}
    if not words:
        place.run(f"CREATE FEED F WITH {json.dumps(given)}")
        return
    refused(lambda: place.run(f"CREATE FEED F WITH {json.dumps(given)}"), InputError, words)


def test_a_feed_of_a_folder_that_is_not_there_is_not_started(place: Place, tmp_path: Path) -> None:
    place.run(f"{feed(tmp_path / 'none')} CONNECT FEED F TO DATASET D")
    refused(lambda: place.run("START FEED F"), NotFoundError, f"there is no file or folder {tmp_path}/none")


# ---------------------------------------------------------------- when something fails


def test_what_cannot_land_is_tried_again(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [StorageFullError("there is no room"), RuntimeError("unforeseen")]
    land = Landing.land

    def fail_twice(self: Landing, entries: Any) -> int:
        if failures:
            raise failures.pop()
        return land(self, entries)

    monkeypatch.setattr(Landing, "land", fail_twice)
    start(place, folder)
    arrive(folder / "a.json", said(1))
    holds(place, {1: "a"})


def test_a_feed_that_cannot_land_can_be_stopped_and_loses_nothing(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(_self: Landing, _entries: Any) -> int:
        tried.append(1)
        raise StorageFullError("there is no room")

    with monkeypatch.context() as patched:
        patched.setattr(Landing, "land", fail)
        start(place, folder)
        arrive(folder / "a.json", said(1))
        wait_until(lambda: bool(tried), "it has tried", within_s=WITHIN_S)
        place.run("STOP FEED F")
    place.run("START FEED F")
    holds(place, {1: "a"})


def test_notes_that_a_power_cut_tore_are_mended(cluster: LocalCluster, place: Place, folder: Path) -> None:
    place.run("CREATE TYPE K AS OPEN { key: uuid }; CREATE DATASET Every(K) PRIMARY KEY key AUTOGENERATED;")
    place.run(f"{feed(folder)} CONNECT FEED F TO DATASET Every; START FEED F")
    arrive(folder / "a.json", said(1))
    wait_until(lambda: every(place) == [1], "the first file is there", within_s=WITHIN_S)
    place.run("STOP FEED F")
    (entry,) = (one for one in cluster.cluster.catalog.catalog.feeds if one.dataverse == place.dataverse)
    notes = cluster.settings.data / "intake" / entry.folder
    last = Checkpoint(notes).last_batch
    for name in (f"commits/{last}", f"offsets/{last + 1}", f"sources/0/{last + 1}", f"sources/0/.{last + 1}.crc"):
        (notes / name).parent.mkdir(exist_ok=True)
        (notes / name).write_bytes(b"")
    arrive(folder / "b.json", said(2))
    place.run("START FEED F")
    wait_until(lambda: is_whole(place, [1, 2]), "the second file is there", within_s=WITHIN_S)


# ---------------------------------------------------------------- restarts and backups


class Alone:
    """A cluster of its own, for tests that stop it."""

    def __init__(self, spark: SparkSession, data: Path) -> None:
        self._spark = spark
        self.data = data

    def __enter__(self) -> Place:
        self._cluster = LocalCluster(self._spark, self.data)
        return Place(self._cluster, "v")

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def backup(self, to: Path) -> None:
        self._cluster.wait(self._cluster.cluster.back_up(to))


SETUP = "CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id;"
EVERY = "CREATE TYPE K AS OPEN { key: uuid }; CREATE DATASET Every(K) PRIMARY KEY key AUTOGENERATED;"


def every(place: Place) -> list[int]:
    found: list[int] = place.rows("SELECT VALUE e.id FROM Every e ORDER BY e.id")
    return found


def is_whole(place: Place, ids: list[int]) -> bool:
    """Whether they are all there; none is ever there twice."""
    found = every(place)
    assert len(found) == len(set(found))
    return found == ids


def test_a_started_feed_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path, folder: Path) -> None:
    alone = Alone(spark, tmp_path / "data")
    with alone as place:
        place._cluster.run("CREATE DATAVERSE v")
        place.run(f"{SETUP} {EVERY} {feed(folder)} CONNECT FEED F TO DATASET Every; START FEED F")
        arrive(folder / "a.json", said(1, 2))
        wait_until(lambda: every(place) == [1, 2], "the first file is there", within_s=WITHIN_S)
    arrive(folder / "b.json", said(3))
    with alone as place:
        wait_until(lambda: every(place) == [1, 2, 3], "the second file is there", within_s=WITHIN_S)


async def _restore(source: Path, data: Path) -> None:
    await compose.restore(Settings.load(None, {}, {"data": data}), source, lambda *_: None)


async def test_a_backup_amid_arrivals_loses_no_file_and_doubles_none(
    spark: SparkSession, tmp_path: Path, folder: Path
) -> None:
    alone = Alone(spark, tmp_path / "data")
    ids = list(range(24))

    def story() -> None:
        with alone as place:
            place._cluster.run("CREATE DATAVERSE v")
            place.run(f"{SETUP} {EVERY} {feed(folder)} CONNECT FEED F TO DATASET Every; START FEED F")
            for one in ids:
                arrive(folder / f"{one}.json", said(one))
                if one in (8, 16):
                    wait_until(lambda: bool(every(place)), "something has landed", within_s=WITHIN_S)
                    alone.backup(tmp_path / f"backup-{one}")
            wait_until(lambda: every(place) == ids, "all have landed", within_s=WITHIN_S)

    await asyncio.to_thread(story)
    for one in (8, 16):
        await _restore(tmp_path / f"backup-{one}", tmp_path / f"restored-{one}")
        restored = Alone(spark, tmp_path / f"restored-{one}")

        def check(restored: Alone = restored, later: int = 1_000 + one) -> None:
            with restored as place:
                wait_until(lambda: is_whole(place, ids), "all are there", within_s=WITHIN_S)
                arrive(folder / f"{later}.json", said(later))
                ids.append(later)
                wait_until(lambda: is_whole(place, ids), "and the later one", within_s=WITHIN_S)

        await asyncio.to_thread(check)
