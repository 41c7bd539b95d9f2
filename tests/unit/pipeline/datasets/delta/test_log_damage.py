"""A dataset's log that cannot be read, was torn or was damaged: nothing acknowledged goes without a word."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.dataset_files import checkpoint_path, entry_path, path_of
from tests.support.older_logs import remove_checksums, without_checksum
from tests.support.small_tables import KEYS, SCHEMA, content, reopened, rows
from tocsin.cluster.data_folder.inspection.datasets import DatasetInspection
from tocsin.cluster.data_folder.inspection.findings import InspectionReport
from tocsin.pipeline.datasets.delta import delta_log
from tocsin.pipeline.datasets.delta.log_entries import EntryState, classify_entry
from tocsin.pipeline.datasets.delta.log_files import log_versions
from tocsin.pipeline.datasets.delta.log_recovery import LOST_FOLDER
from tocsin.pipeline.datasets.delta.tombstones import OutsideReaders
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import StoreError, UnavailableError


@contextmanager
def unreadable(path: Path, number: int) -> Iterator[None]:
    """The system answers a read of this file with an error."""
    read = Path.read_bytes

    def failing(self: Path) -> bytes:
        if self == path:
            raise OSError(number, os.strerror(number), str(path))
        return read(self)

    with mock.patch.object(Path, "read_bytes", failing):
        yield


def lost(table: DatasetTable) -> list[bytes]:
    return [path.read_bytes() for path in sorted((path_of(table.log.folder) / LOST_FOLDER).glob("*"))]


def log_of(table: DatasetTable) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (path_of(table.log.folder) / "_delta_log").iterdir()}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM, errno.ESTALE])
def test_a_read_that_fails_is_an_error_and_no_torn_entry(table: DatasetTable, number: int) -> None:
    for each in (1, 2, 3):
        table.insert(rows(each))
    before = log_of(table)
    with unreadable(entry_path(table.log.folder, 3), number), pytest.raises(UnavailableError, match="cannot be read"):
        reopened(table)
    assert log_of(table) == before
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a", 3: "a"}
    assert not lost(table)


def flips(whole: bytes) -> Iterator[bytes]:
    """All that one bit can make of it."""
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            yield bytes(damaged)


def findings(table: DatasetTable) -> list[tuple[str, Path]]:
    inspection = DatasetInspection(
        table.log.folder, "dataset v.D", InspectionReport(path_of(table.log.folder)), deep=False
    )
    return [(finding.severity, Path(finding.path)) for finding in inspection.find_damage()]


def test_an_entry_without_a_checksum_torn_anywhere_is_set_aside(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.insert(rows(2), positions={"feed": 3})
    remove_checksums(table.log.folder)
    entry = entry_path(table.log.folder, 2)
    whole = entry.read_bytes()
    assert classify_entry(whole) is EntryState.WHOLE
    states = {length: classify_entry(whole[:length] + bytes(100)) for length in range(len(whole))}
    assert EntryState.WHOLE not in states.values()
    # In doubt an entry is refused, not given up: where a cut looks as an end does.
    doubtful = [length for length, state in states.items() if state is EntryState.DAMAGED]
    assert all(whole[:length].endswith(b"}}") for length in doubtful)
    assert len(doubtful) < len(whole) // 100
    for torn in (b"", whole[:100] + bytes(100), whole[: len(whole) // 2], whole[:-1]):
        table.close()
        entry.write_bytes(torn)
        table = reopened(table)
        assert content(table.snapshot()) == {1: "a"}
        assert lost(table)[-1] == torn or torn in lost(table)
    assert len(lost(table)) == 4, "each has a name of its own"
    upkeep(table)
    assert len(table.data.names()) == 2, "the file that a torn entry names stays beside it"
    for path in sorted((path_of(table.log.folder) / LOST_FOLDER).glob("*"))[1:]:
        path.unlink()
    table = reopened(table)
    upkeep(table)
    assert len(table.data.names()) == 2, "an empty entry may have named any file"
    table.insert(rows(3))
    assert content(reopened(table).snapshot()) == {1: "a", 3: "a"}


def test_an_entry_with_a_checksum_was_whole_once_and_is_never_torn(table: DatasetTable) -> None:
    table.insert(rows(1), positions={"feed": 3})
    whole = entry_path(table.log.folder, 1).read_bytes()
    marked = whole.index(b'"tocsin.actions":') + len(b'"tocsin.actions":')
    for length in range(len(whole)):
        for left in (whole[:length], whole[:length] + bytes(512)):
            assert classify_entry(left) is (EntryState.TORN if length < marked else EntryState.DAMAGED), length
    hole = whole[:40] + bytes(40) + whole[80:]
    assert {classify_entry(each) for each in (whole + bytes(512), hole)} == {EntryState.DAMAGED}


def test_no_flipped_bit_takes_a_commit_back(table: DatasetTable) -> None:
    table.insert(rows(1))
    table.upsert(rows(1, 2, said="b @ c"), positions={"feed": 3})
    made, whole = (entry_path(table.log.folder, version).read_bytes() for version in (0, 2))
    states = [classify_entry(damaged) for damaged in flips(whole)]
    assert EntryState.TORN not in states
    # The rest lies in words that nobody reads: which program wrote the entry, and when.
    assert states.count(EntryState.DAMAGED) > len(states) * 0.9
    for unchecked in (made, without_checksum(whole)):
        assert all(classify_entry(damaged) is not EntryState.TORN for damaged in flips(unchecked))


@pytest.mark.parametrize("length", [0, 1, 60])
@pytest.mark.parametrize("filling", [b"", bytes(512)])
@pytest.mark.parametrize("commits", [0, 2])
def test_a_commit_whose_entry_lost_its_content_is_named_and_the_dataset_refuses(
    table: DatasetTable, length: int, filling: bytes, commits: int
) -> None:
    for each in range(commits):
        table.insert(rows(each))
    entry = entry_path(table.log.folder, commits)
    whole = entry.read_bytes()
    assert b'"tocsin.actions":' not in whole[:length]
    entry.write_bytes(whole[:length] + filling)
    assert ("damaged", entry) in findings(table)
    with pytest.raises(StoreError, match=entry.name) as refused:
        reopened(table)
    assert "copy of the disk" in (refused.value.hint or "")
    assert not lost(table)
    assert len(table.data.names()) == commits
    entry.write_bytes(whole)
    assert findings(table) == []
    assert content(reopened(table).snapshot()) == dict.fromkeys(range(commits), "a")


@pytest.mark.parametrize(
    ("word", "damage"),
    [(b"b @ c", b"b\0@ c"), (b"b @ c", b"b \0 c"), (b'"tocsin.actions":7', b'"tocsin.actions":?'),
     (b'"tocsin.actions":7', b'"tocsin.actions":5'), (b'"tocsin.actions":', b'"tocsin.actionr":'),
     (b'"tocsin.check":', b'"tocsin.cheak":'), (b'{"commitInfo":', b'{"commitInfn":'),
     (b'"tocsin"}}\n', b'"tocsin"}}\x0b')],
)  # fmt: skip
def test_a_flipped_bit_of_the_newest_entry_is_named_and_the_dataset_refuses(
    table: DatasetTable, word: bytes, damage: bytes
) -> None:
    table.insert(rows(1))
    table.upsert(rows(1, 2, said="b @ c"), positions={"feed": 3})
    entry = entry_path(table.log.folder, 2)
    whole = entry.read_bytes()
    assert word in whole
    assert sum((item ^ other).bit_count() for item, other in zip(word, damage, strict=True)) == 1
    entry.write_bytes(whole.replace(word, damage, 1))
    assert ("damaged", entry) in findings(table)
    with pytest.raises(StoreError, match=entry.name):
        reopened(table)
    assert not lost(table)
    entry.write_bytes(whole)
    assert findings(table) == []
    assert content(reopened(table).snapshot()) == {1: "b @ c", 2: "b @ c"}


def described(content: bytes) -> list[Any]:
    """What an entry says of the table itself."""
    said = [json.loads(line) for line in content.decode("utf-8", "surrogateescape").split("\n") if line]
    return [action[kind] for action in said for kind in ("metaData", "protocol") if kind in action]


def test_no_flipped_bit_changes_unseen_what_a_table_says_of_itself(tmp_path: Path) -> None:
    table = DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS)
    table = reopened(table, outside_readers=OutsideReaders(keep_s=7.0))
    upkeep(table)
    for version, kinds in ((0, 2), (1, 1)):
        whole = entry_path(table.log.folder, version).read_bytes()
        assert classify_entry(whole) is EntryState.WHOLE
        assert len(described(whole)) == kinds
        unseen = [damaged for damaged in flips(whole) if classify_entry(damaged) is EntryState.WHOLE]
        assert all(described(damaged) == described(whole) for damaged in unseen)


def test_a_flipped_bit_anywhere_in_a_data_file_is_found_by_a_deep_look(table: DatasetTable) -> None:
    table.insert(rows(*range(20)))
    (name,) = table.data.names()
    path = path_of(table.log.folder) / name
    whole = path.read_bytes()
    inspection = DatasetInspection(
        table.log.folder, "dataset v.D", InspectionReport(path_of(table.log.folder)), deep=True
    )
    places = [*range(0, len(whole), 7), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert [(finding.severity, finding.path) for finding in inspection.find_damage()] == [("damaged", str(path))], (
            place
        )
    path.write_bytes(whole)
    assert list(inspection.find_damage()) == []


def test_a_data_file_of_an_older_tocsin_has_no_checksum_and_its_pages_are_read(table: DatasetTable) -> None:
    table.insert(rows(1, 2, 3))
    (name,) = table.data.names()
    older = path_of(table.log.folder) / f"part-{'0' * 32}.parquet"
    older.write_bytes((path_of(table.log.folder) / name).read_bytes())
    entry = entry_path(table.log.folder, 1)
    entry.write_bytes(without_checksum(entry.read_bytes()).replace(name.encode(), older.name.encode()))
    inspection = DatasetInspection(
        table.log.folder, "dataset v.D", InspectionReport(path_of(table.log.folder)), deep=True
    )
    assert list(inspection.find_damage()) == []
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a", 3: "a"}


def test_rows_that_are_damaged_get_no_new_file(table: DatasetTable) -> None:
    table.insert(rows(*range(20)))
    (name,) = table.data.names()
    path = path_of(table.log.folder) / name
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        end = column.data_page_offset + column.total_compressed_size
    damaged = bytearray(path.read_bytes())
    damaged[end - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=name):
        table.upsert(rows(3, said="b"))
    assert table.data.names() == {name}
    assert table.number == 1


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_damaged_entry_is_named_and_the_dataset_refuses(table: DatasetTable, version: int) -> None:
    for each in (1, 2, 3):
        table.insert(rows(each))
    entry = entry_path(table.log.folder, version)
    whole = entry.read_bytes()
    entry.write_bytes(whole.replace(b'"path":"part-', b'"path":"pbrt-'))
    before = log_of(table)
    for _ in range(2):
        with pytest.raises(StoreError, match=entry.name) as refused:
            reopened(table)
        assert "copy of the disk" in (refused.value.hint or "")
    assert log_of(table) == before
    entry.write_bytes(whole)
    assert content(reopened(table).snapshot()) == {1: "a", 2: "a", 3: "a"}


def test_an_entry_that_is_gone_between_others_is_named(table: DatasetTable) -> None:
    for each in (1, 2, 3):
        table.insert(rows(each))
    entry_path(table.log.folder, 2).unlink()
    with pytest.raises(StoreError, match=entry_path(table.log.folder, 2).name):
        reopened(table)


def test_a_torn_checkpoint_is_set_aside_and_one_that_is_needed_is_an_error(table: DatasetTable) -> None:
    for each in range(30):
        table.insert(rows(each))
    upkeep(table)
    version = log_versions(table.log.folder)[1][-1]
    checkpoint = checkpoint_path(table.log.folder, version)
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-10])
    table = reopened(table)
    assert len(content(table.snapshot())) == 30
    assert lost(table) == [whole[:-10]]
    table.close()
    # Where the entries are trimmed, the checkpoint was synced long ago.
    checkpoint.write_bytes(whole[:-10])
    entry_path(table.log.folder, 0).unlink()
    with pytest.raises(StoreError, match=checkpoint.name):
        reopened(table)
    assert checkpoint.read_bytes() == whole[:-10]


def test_a_flipped_bit_in_a_checkpoint_is_found_when_the_dataset_is_opened(table: DatasetTable) -> None:
    for each in range(30):
        table.insert(rows(each))
    upkeep(table)
    table.insert(rows(30))
    checkpoint = checkpoint_path(table.log.folder, log_versions(table.log.folder)[1][-1])
    whole = checkpoint.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    checkpoint.write_bytes(damaged)
    table = reopened(table)
    assert len(content(table.snapshot())) == 31
    assert lost(table) == [bytes(damaged)]
    table.close()
    checkpoint.write_bytes(damaged)
    entry_path(table.log.folder, 0).unlink()
    with pytest.raises(StoreError, match=checkpoint.name):
        reopened(table)
    checkpoint.write_bytes(whole)
    assert len(content(reopened(table).snapshot())) == 31


def test_every_entry_of_a_busy_life_is_whole(table: DatasetTable) -> None:
    for each in range(40):
        table.upsert(rows(each, each + 1, said="ü\n"), positions={"feed ä": each})
        if each % 10 == 9:
            table.delete(rows(each))
            upkeep(table)
    table.delete_all()
    entries = log_versions(table.log.folder)[0]
    assert {classify_entry(entry_path(table.log.folder, version).read_bytes()) for version in entries} == {
        EntryState.WHOLE
    }
    assert reopened(table).past.state.rows == 0


def test_ends_of_lines_within_texts_end_no_line_of_the_log(table: DatasetTable) -> None:
    said = "a\u2028b\x85c\x0bd"
    table.insert(rows(1, said=said))
    table.upsert(rows(1, said=said + "e"))
    table = reopened(table, history=10)
    assert content(table.snapshot()) == {1: said + "e"}
    upkeep(table)
    assert findings(table) == []


def test_an_entry_of_an_older_tocsin_has_no_checksum_and_is_read(table: DatasetTable) -> None:
    table.insert(rows(1))
    entry = entry_path(table.log.folder, 1)
    entry.write_bytes(without_checksum(entry.read_bytes()))
    assert content(reopened(table).snapshot()) == {1: "a"}


@pytest.mark.parametrize("left", [None, b"", b"no footer at all"])
def test_a_data_file_that_must_be_looked_into_and_is_lost_or_damaged_is_told(
    tmp_path: Path, left: bytes | None
) -> None:
    """Of a table that says nothing of its statistics, and a record so wide that delta-rs lists none of our columns."""
    wide = [(f"f{each}", pa.string()) for each in range(40)]
    schema = pa.schema([("id", pa.int64()), ("zone", pa.struct([("x", pa.float64())])), *wide])
    with mock.patch.object(delta_log, "table_properties", return_value={}):
        table = DatasetTable.create(LocalFolder(tmp_path / "wide"), schema, KEYS)
    table.insert(pa.Table.from_pylist([{"id": 1}], schema=schema))
    (name,) = table.data.names()
    path = path_of(table.log.folder) / name
    whole = path.read_bytes()
    path.unlink() if left is None else path.write_bytes(left)
    with pytest.raises(StoreError) as refused:
        reopened(table)
    assert "tocsin check" in (refused.value.hint or "")
    path.write_bytes(whole)
    assert reopened(table).past.state.rows == 1
