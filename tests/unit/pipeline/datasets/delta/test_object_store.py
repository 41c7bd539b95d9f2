"""A dataset on an object store: delta-rs puts the entries, and a lost answer loses or doubles nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from tests.support.lossy_proxy import LossyProxy, lossy_proxy
from tests.support.s3_server import S3Server, running_s3_server
from tests.support.small_tables import EAGER, KEYS, SCHEMA, content, reopened, rows
from tocsin.cluster.data_folder.inspection.datasets import DatasetInspection
from tocsin.cluster.data_folder.inspection.findings import InspectionReport
from tocsin.pipeline.datasets.delta.log_entries import EntryState, classify_entry, has_checksum
from tocsin.pipeline.datasets.delta.log_files import entry_name, log_of, log_versions
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage.interface import StorageFolder
from tocsin.storage.s3 import Bucket, S3Folder
from tocsin.wire.errors import StoreError, TocsinError, UnavailableError

pytestmark = pytest.mark.cluster


@pytest.fixture
def folder(s3_server: S3Server) -> S3Folder:
    return s3_server.new_folder()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[LossyProxy]:
    with lossy_proxy(s3_server.port) as made:
        yield made


@pytest.fixture
def lossy_table(s3_server: S3Server, proxy: LossyProxy) -> DatasetTable:
    """A table whose requests go through the proxy."""
    folder = s3_server.new_folder()
    options = {**folder.bucket.options, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    return DatasetTable.create(S3Folder(Bucket(folder.bucket.name, options), folder.prefix), SCHEMA, KEYS)


def entries(folder: StorageFolder) -> list[bytes]:
    return [log_of(folder).read(entry_name(version)) for version in log_versions(folder)[0]]


def findings(folder: StorageFolder) -> list[str]:
    inspection = DatasetInspection(folder, "dataset v.D", InspectionReport(folder), deep=True)  # type: ignore[arg-type]
    return [f"{finding.severity} {finding.path} {finding.problem}" for finding in inspection.find_damage()]


def test_every_entry_of_a_busy_life_is_whole_and_our_changes_have_checksums(table: DatasetTable) -> None:
    for each in range(12):
        table.upsert(rows(each, each + 1, said="ü\n"), positions={"feed ä": each})
        if each % 5 == 4:
            table.delete(rows(each))
            upkeep(table, EAGER)
    table = reopened(table, outside_readers=OutsideReaders(keep_s=60.0))
    upkeep(table)
    table.insert(rows(100))
    states = {classify_entry(content) for content in entries(table.log.folder)}
    assert states == {EntryState.WHOLE}
    checked = [content for content in entries(table.log.folder) if b'"tocsin.commit"' in content]
    assert checked
    assert all(has_checksum(content) for content in checked)
    assert findings(table.log.folder) == []
    table = reopened(table, outside_readers=OutsideReaders(keep_s=60.0))
    assert table.past.state.rows == 12
    assert table.position("feed ä") == 11
    delta = DeltaTable(table.log.folder.delta_uri, storage_options=table.log.folder.delta_options)
    assert delta.metadata().configuration["delta.logRetentionDuration"] == "interval 60 seconds"
    assert delta.to_pyarrow_table().num_rows == 12


@pytest.mark.parametrize("change", ["insert", "upsert", "delete", "load"])
def test_a_commit_whose_answer_is_lost_was_made_once(lossy_table: DatasetTable, proxy: LossyProxy, change: str) -> None:
    table = lossy_table
    table.insert(rows(1, 2))
    proxy.lose_answers(r"^PUT .*_delta_log/\d+\.json")
    if change == "insert":
        commit = table.insert(rows(3), positions={"feed": 7})
    elif change == "upsert":
        commit = table.upsert(rows(2, 3, said="b"), positions={"feed": 7})
    elif change == "delete":
        commit = table.delete(rows(1), positions={"feed": 7})
    else:
        commit = table.load(iter(rows(3).to_batches()), positions={"feed": 7})
    assert len(proxy.lost) == 1, "delta-rs did not lose an answer"
    assert commit.number == 2
    assert table.position("feed") == 7
    assert log_versions(table.log.folder)[0] == [0, 1, 2]
    made = content(table.snapshot())
    table = reopened(table)
    assert content(table.snapshot()) == made
    assert table.upsert(rows(9)).number == 3


def test_a_store_that_stops_answering_leaves_a_change_made_or_not(tmp_path: Path) -> None:
    with running_s3_server(tmp_path / "own") as server:
        folder = server.new_folder()
        table = DatasetTable.create(folder, SCHEMA, KEYS)
        table.insert(rows(1))
        server.kill()
        with pytest.raises(UnavailableError, match="does not answer"):
            table.insert(rows(2))
        with pytest.raises(UnavailableError, match="does not answer"):
            DatasetTable.open(folder, SCHEMA, KEYS)
        assert table.past.state.rows == 1
        server.start()
        assert table.insert(rows(3)).number == 2
        assert content(reopened(table).snapshot()) == {1: "a", 3: "a"}
        assert findings(folder) == []


def test_the_commit_of_another_program_is_told_and_not_overwritten(table: DatasetTable) -> None:
    folder = table.log.folder
    table.insert(rows(1), positions={"feed": 7})
    write_deltalake(folder.delta_uri, rows(2), mode="append", schema_mode="merge", storage_options=folder.delta_options)
    with capture_logs() as logs:
        assert table.upsert(rows(1, 3, said="b"), positions={"feed": 8}).number == 2
    assert [entry["version"] for entry in logs if "another program" in entry["event"]] == [2]
    assert content(table.snapshot()) == {1: "b", 2: "a", 3: "b"}
    assert content(reopened(table).snapshot()) == {1: "b", 2: "a", 3: "b"}


def test_of_two_writers_each_commit_is_made_once(folder: S3Folder) -> None:
    """Two processes on one table, which the lock of the data folder forbids, still overwrite nothing."""
    tables = [DatasetTable.create(folder, SCHEMA, KEYS), DatasetTable.open(folder, SCHEMA, KEYS)]
    errors: list[BaseException] = []

    def write(table: DatasetTable, first: int) -> None:
        try:
            for each in range(first, first + 10):
                table.insert(rows(each))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(table, 100 * place)) for place, table in enumerate(tables)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = content(DatasetTable.open(folder, SCHEMA, KEYS).snapshot())
    assert all(isinstance(error, TocsinError) for error in errors)
    if not errors:
        assert set(made) == {*range(10), *range(100, 110)}
    assert findings(folder) == []
    assert log_versions(folder)[0] == list(range(len(made) + 1))


def test_a_damaged_entry_is_named_and_the_dataset_refuses(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.insert(rows(2))
    logs, name = log_of(table.log.folder), entry_name(2)
    whole = logs.read(name)
    for damage in (b"", whole[:100], whole.replace(b'"path":"part-', b'"path":"pbrt-')):
        logs.put(name, damage)
        with pytest.raises(StoreError, match=name):
            reopened(table)
        assert any(name in finding for finding in findings(table.log.folder))
    logs.put(name, whole)
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a"}


def test_a_data_file_that_is_lost_or_damaged_is_found(table: DatasetTable) -> None:
    table.insert(rows(*range(20)))
    (name,) = table.data.names()
    whole = table.log.folder.read(name)
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    table.log.folder.put(name, bytes(damaged))
    assert [name in finding for finding in findings(table.log.folder)] == [True]
    table.log.folder.remove([name])
    assert "is missing" in findings(table.log.folder)[0]
    table.log.folder.put(name, whole)
    assert findings(table.log.folder) == []
