"""A cluster whose datasets are in a bucket: statements, feeds, DROP, lost folders, check, backup and restore."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from deltalake import DeltaTable

from tests.support.s3_server import S3Server, list_objects
from tests.support.sparkless_process import Parts, opened
from tocsin import compose
from tocsin.cluster.backup.manifest import DATASETS
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.settings import Settings
from tocsin.storage.s3 import Bucket, S3Folder
from tocsin.wire.errors import ConflictError, InputError, StoreError, UnavailableError

pytestmark = pytest.mark.cluster

CREATE = """
CREATE DATAVERSE v; USE v;
CREATE TYPE T AS CLOSED {id: int64, said: string};
CREATE DATASET D(T) PRIMARY KEY id;
CREATE DATASET E(T) PRIMARY KEY id;
INSERT INTO D [{"id": 1, "said": "a"}, {"id": 2, "said": "a"}];
UPSERT INTO D {"id": 2, "said": "b"};
"""


class Storage:
    """A place in a bucket, and a cluster's settings for it."""

    def __init__(self, server: S3Server, prefix: str = "tocsin/one", bucket: str | None = None) -> None:
        self.server = server
        self.bucket = bucket or server.new_bucket()
        self.url = f"s3://{self.bucket}/{prefix}"
        self.folder = S3Folder(Bucket(self.bucket, server.options), prefix)
        server.know(self.folder.bucket)

    @property
    def flags(self) -> dict[str, Any]:
        return {"cluster.storage.url": self.url, "cluster.storage.options": self.server.options}

    def settings(self, data: Path) -> Settings:
        return Settings.load(None, {}, {"data": data, **self.flags})

    def names(self) -> list[str]:
        """The names of all objects below the prefix."""
        return [path.removeprefix(f"{self.bucket}/{self.folder.prefix}/") for path in list_objects(self.folder)]


@pytest.fixture
def storage(s3_server: S3Server) -> Storage:
    return Storage(s3_server)


def content(parts: Parts, name: str = "D") -> dict[int, str]:
    return {row["id"]: row["said"] for row in parts.rows(parts.catalog.catalog.dataset("v", name))}


async def test_datasets_are_in_the_bucket_and_all_else_in_the_data_folder(tmp_path: Path, storage: Storage) -> None:
    data = tmp_path / "data"
    async with opened(data, **storage.flags) as parts:
        await parts.run(CREATE)
        assert content(parts) == {1: "a", 2: "b"}
        location = parts.table("D").log.folder
    assert not (data / "datasets").exists()
    assert {name.split("/")[0] for name in storage.names()} == {"datasets", "storage-owner"}
    async with opened(data, **storage.flags) as parts:
        assert content(parts) == {1: "a", 2: "b"}
        assert parts.table("D").number == 2
        await parts.run("USE v; INSERT INTO D {'id': 3, 'said': 'c'};")
    outside = DeltaTable(location.delta_uri, storage_options=location.delta_options)
    assert outside.to_pyarrow_table().num_rows == 3
    assert location.url.startswith(f"{storage.url}/datasets/")


async def test_a_feed_lands_in_the_bucket_exactly_once(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run(
            CREATE + 'CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T", "format": "json"};'
            "CONNECT FEED F TO DATASET E; START FEED F;"
        )
        for first in (10, 20, 30):
            body = b"\n".join(orjson.dumps({"id": each, "said": "f"}) for each in range(first, first + 5))
            await parts.feeds.accept("v.F", body, None, visible=True)
        assert len(content(parts, "E")) == 15
    async with opened(tmp_path / "data", **storage.flags) as parts:
        assert len(content(parts, "E")) == 15


async def test_a_dropped_dataset_leaves_no_object(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run(CREATE)
        kept = parts.table("E").log.folder.name
        await parts.run("DROP DATASET v.D;")
        assert {name.split("/")[1] for name in storage.names() if "/" in name} == {kept}


async def test_an_unknown_dataset_is_set_aside_in_the_bucket(
    tmp_path: Path, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    async with opened(data, **storage.flags) as parts:
        await parts.run(CREATE)
        unknown = parts.table("D").log.folder
        files = {name.rpartition("/")[2] for name in storage.names() if unknown.name in name}
        async with parts.store.transaction() as transaction:
            await transaction.remove_entry("dataset", "v", "D")
    report = await asyncio.to_thread(compose.check, storage.settings(data), deep=False, on_progress=lambda *_: None)
    assert [note["path"] for note in report["notes"]] == [unknown.url]
    async with opened(data, **storage.flags) as parts:
        assert content(parts, "E") == {}
    assert f"a dataset with the fields id, said: {len(files)} files" in capsys.readouterr().err
    lost = [name for name in storage.names() if name.startswith("lost/")]
    assert {name.rpartition("/")[2] for name in lost} == files
    assert not any(unknown.name in name for name in storage.names() if name.startswith("datasets/"))
    report = await asyncio.to_thread(compose.check, storage.settings(data), deep=False, on_progress=lambda *_: None)
    assert [note["problem"] for note in report["notes"]] == ["was set aside"]


async def test_a_prefix_belongs_to_one_cluster(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run("CREATE DATAVERSE v;")
    before = storage.names()
    with pytest.raises(ConflictError, match="belongs to another cluster"):
        async with opened(tmp_path / "other", **storage.flags):
            pass
    assert storage.names() == before
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run(CREATE.replace("CREATE DATAVERSE v;", ""))
    async with opened(tmp_path / "saving") as parts:
        await compose._back_up(
            parts.settings, parts.store, parts.channel_store, parts.catalog, parts.tables, tmp_path / "saved"
        )
    with pytest.raises(ConflictError):
        await compose.restore(storage.settings(tmp_path / "new"), tmp_path / "saved", lambda *_: None)


async def test_data_in_the_bucket_without_a_catalog_refuse_to_start(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run(CREATE)
    with pytest.raises(StoreError, match=f"holds data .*{storage.url}/datasets"):
        async with opened(tmp_path / "other", **storage.flags):
            pass


async def test_check_finds_damage_in_the_bucket(tmp_path: Path, storage: Storage) -> None:
    data = tmp_path / "data"
    async with opened(data, **storage.flags) as parts:
        await parts.run(CREATE)
        folder = parts.table("D").log.folder
        (name,) = [file.name for file in parts.table("D").log.state.files.values()]

    def check() -> dict[str, Any]:
        return dict(compose.check(storage.settings(data), deep=True, on_progress=lambda *_: None))

    report = await asyncio.to_thread(check)
    assert (report["status"], report["checked"]["datasets"]) == ("clean", 2)
    assert report["checked"]["files"] > 4
    whole = folder.read(name)
    folder.put(name, whole[:50] + b"?" + whole[51:])
    report = await asyncio.to_thread(check)
    assert [finding["path"] for finding in report["damaged"]] == [folder.locate(name)]
    folder.put(name, whole)
    assert not any(storage.server.options[key] in str(report) for key in ("access_key_id", "secret_access_key"))


@pytest.mark.parametrize("form", ["saved", "saved.tar"])
async def test_a_backup_is_restored_to_another_place_of_the_bucket(tmp_path: Path, storage: Storage, form: str) -> None:
    data, saved = tmp_path / "data", tmp_path / form
    async with opened(data, **storage.flags) as parts:
        await parts.run(CREATE)
        summary = await compose._back_up(
            storage.settings(data), parts.store, parts.channel_store, parts.catalog, parts.tables, saved
        )
        assert (summary["datasets"], summary["rows"]) == (2, 2)
        await parts.run("USE v; DELETE FROM D;")
        upkeep(parts.table("D"))
    other = Storage(storage.server, "tocsin/two", storage.bucket)
    restored = tmp_path / "restored"
    await compose.restore(other.settings(restored), saved, lambda *_: None)
    assert not (restored / DATASETS).exists()
    async with opened(restored, **other.flags) as parts:
        assert content(parts) == {1: "a", 2: "b"}
        past = parts.table("D").as_of_commit(1)
        assert len(past.files) == 1
        await parts.run("USE v; INSERT INTO D {'id': 9, 'said': 'c'};")
    # And to a folder, without a bucket.
    local = tmp_path / "local"
    await compose.restore(Settings.load(None, {}, {"data": local}), saved, lambda *_: None)
    async with opened(local) as parts:
        assert content(parts) == {1: "a", 2: "b"}
    with pytest.raises(ConflictError, match="has datasets already"):
        await compose.restore(other.settings(tmp_path / "again"), saved, lambda *_: None)
    assert not (tmp_path / "again").exists()


async def test_a_backup_of_a_folder_is_restored_to_a_bucket_or_not_at_all(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data") as parts:
        await parts.run(CREATE)
        await compose._back_up(
            parts.settings, parts.store, parts.channel_store, parts.catalog, parts.tables, tmp_path / "saved"
        )
    (victim,) = sorted((tmp_path / "saved").rglob("part-*.parquet"))[-1:]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match="damaged"):
        await compose.restore(storage.settings(tmp_path / "new"), tmp_path / "saved", lambda *_: None)
    assert storage.names() == []
    victim.write_bytes(whole)
    await compose.restore(storage.settings(tmp_path / "new"), tmp_path / "saved", lambda *_: None)
    async with opened(tmp_path / "new", **storage.flags) as parts:
        assert content(parts) == {1: "a", 2: "b"}


async def test_upkeep_of_a_dataset_in_the_bucket_shortens_its_log(tmp_path: Path, storage: Storage) -> None:
    async with opened(tmp_path / "data", **storage.flags) as parts:
        await parts.run(CREATE)
        await parts.run("USE v; DROP DATASET E; CREATE DATASET E(T) PRIMARY KEY id WITH {'history': 2};")
        for each in range(70):
            await parts.run(f"USE v; UPSERT INTO E {{'id': {each % 7}, 'said': '{each}'}};")
        table = parts.table("E")
        round_ = upkeep(table)
        assert round_.checkpoint is not None
        assert round_.removed_data_files > 0
    async with opened(tmp_path / "data", **storage.flags) as parts:
        assert content(parts, "E") == {each: str(63 + each) for each in range(7)}


async def test_a_bucket_that_is_missing_or_does_not_answer_is_told_before_the_start(
    tmp_path: Path, storage: Storage
) -> None:
    settings = Settings.load(
        None, {}, {"data": tmp_path / "data", **storage.flags, "cluster.storage.url": "s3://no-such-bucket/x"}
    )
    with pytest.raises(InputError, match="there is no bucket no-such-bucket"):
        async with compose.cluster(settings):
            pass
    options = {**storage.server.options, "endpoint": "http://127.0.0.1:9", "secret_access_key": "s3cret-key"}
    settings = Settings.load(
        None, {}, {"data": tmp_path / "data", "cluster.storage.url": storage.url, "cluster.storage.options": options}
    )
    with pytest.raises(UnavailableError, match="does not answer") as refused:
        async with compose.cluster(settings):
            pass
    assert "s3cret-key" not in str(refused.value)
