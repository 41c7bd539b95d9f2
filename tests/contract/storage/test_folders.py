"""What every storage promises (`storage.interface`)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tocsin.storage.interface import StorageFolder


def write(folder: StorageFolder, name: str, content: bytes) -> None:
    folder.make()
    with folder.create(f"draft-{name}") as draft:
        draft.sink.write(content)
        draft.publish(name)
    folder.sync()


def test_a_folder_that_does_not_exist_is_empty(folder: StorageFolder) -> None:
    none = folder.child("none")
    assert not none.exists()
    assert (none.list_names(), none.list_files(), none.list_children()) == ([], [], [])
    assert none.size_of("x") is None
    assert none.remove(["x"]) == 0
    assert none.remove_all()
    for look in (none.read, none.open_input):
        with pytest.raises(FileNotFoundError):
            look("x")


def test_a_file_is_read_as_it_was_written(folder: StorageFolder) -> None:
    content = os.urandom(100_000)
    write(folder, "a", content)
    assert folder.exists()
    assert folder.read("a") == content
    with folder.open_input("a") as file:
        assert file.size() == 100_000
        assert file.read_at(10, 5_000) == content[5_000:5_010]
        file.seek(99_990)
        assert file.read() == content[-10:]
    assert folder.size_of("a") == 100_000


def test_names_files_and_children_are_told_apart(folder: StorageFolder) -> None:
    write(folder, "b.parquet", b"12345")
    write(folder, "a", b"")
    write(folder.child("deeper"), "c", b"1")
    assert sorted(folder.list_names()) == ["a", "b.parquet"]
    assert {file.name: file.size_bytes for file in folder.list_files()} == {"a": 0, "b.parquet": 5}
    assert all(file.modified_us > 1_600_000_000_000_000 for file in folder.list_files())
    assert folder.list_children() == ["a", "b.parquet", "deeper"]
    assert folder.child("deeper").list_names() == ["c"]
    assert folder.total_size() == (3, 6)
    assert folder.child("deeper").name == "deeper"


def test_a_draft_is_read_back_and_gets_the_name_of_its_content(folder: StorageFolder) -> None:
    folder.make()
    with folder.create("part-1.parquet") as draft:
        with pq.ParquetWriter(draft.sink, pa.schema([("id", pa.int64())])) as writer:
            writer.write_table(pa.table({"id": [1, 2]}))
        size_bytes = draft.sink.tell()
        with draft.read_back() as content:
            assert content.size() == size_bytes
            assert "part-2.parquet" not in folder.list_names()
        draft.publish("part-2.parquet")
    assert folder.list_names() == ["part-2.parquet"]
    with folder.open_input("part-2.parquet") as source:
        assert pq.read_table(source).column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_draft_that_is_not_published_was_never_there(folder: StorageFolder, is_written: bool) -> None:
    folder.make()

    def fail() -> None:
        with folder.create("draft") as draft:
            if is_written:
                draft.sink.write(b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with folder.create("draft") as draft:
        draft.sink.write(b"1")
    assert folder.list_names() == []


def test_a_small_file_is_replaced_as_a_whole(folder: StorageFolder) -> None:
    folder.make()
    for content in (b"a" * 1000, b"b", b""):
        folder.put("x", content)
        folder.sync()
        assert folder.read("x") == content
    assert folder.list_names() == ["x"]


def test_of_many_puts_of_one_name_one_succeeds(folder: StorageFolder) -> None:
    if not folder.has_conditional_put:
        pytest.skip("delta-rs makes the commits of this storage")
    folder.make()
    won: list[int] = []

    def put(number: int) -> None:
        try:
            folder.put_if_absent("x", b"%d" % number)
            won.append(number)
        except FileExistsError:
            return

    threads = [threading.Thread(target=put, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert folder.read("x") == b"%d" % won[0]
    assert folder.list_names() == ["x"]


def test_removed_files_are_counted_and_gone(folder: StorageFolder) -> None:
    for name in ("a", "b", "c"):
        write(folder, name, b"1")
    assert folder.remove(["a", "none", "c"]) == 2
    folder.sync()
    assert folder.list_names() == ["b"]


def test_a_folder_is_removed_with_all_that_it_contains_and_nothing_else(folder: StorageFolder) -> None:
    write(folder.child("d"), "a", b"1")
    write(folder.child("d").child("deeper"), "b", b"1")
    write(folder.child("dd"), "a", b"1")
    assert folder.child("d").remove_all()
    assert not folder.child("d").exists()
    assert folder.list_children() == ["dd"]
    assert folder.child("dd").read("a") == b"1"


def test_a_file_moves_to_another_folder(folder: StorageFolder) -> None:
    write(folder, "a", b"123")
    folder.move_file("a", folder.child("_lost"), "later-a")
    assert folder.list_names() == []
    assert folder.child("_lost").read("later-a") == b"123"


def test_a_folder_moves_with_all_that_it_contains(folder: StorageFolder) -> None:
    write(folder.child("d"), "a", b"1")
    write(folder.child("d").child("deeper"), "b", b"22")
    folder.child("lost").make()
    folder.child("d").move_to(folder.child("lost").child("d-2"))
    assert not folder.child("d").exists()
    moved = folder.child("lost").child("d-2")
    assert (moved.read("a"), moved.child("deeper").read("b")) == (b"1", b"22")
    assert moved.total_size() == (2, 3)


def test_a_file_moves_as_a_folder_does(folder: StorageFolder) -> None:
    write(folder, "stray", b"1")
    folder.child("lost").make()
    folder.child("stray").move_to(folder.child("lost").child("stray-2"))
    assert folder.child("lost").read("stray-2") == b"1"
    assert folder.list_names() == []


def test_a_held_file_outlives_its_removal(folder: StorageFolder, tmp_path: Path) -> None:
    write(folder, "a", b"123")
    target = tmp_path / "held"
    if not folder.hold("a", target):
        pytest.skip("this storage cannot give a file a second name")
    assert folder.hold("a", target), "to hold it again does no harm"
    folder.remove(["a"])
    assert target.read_bytes() == b"123"


def test_delta_rs_reads_and_writes_the_folder(folder: StorageFolder) -> None:
    folder.make()
    for each in (1, 2):
        write_deltalake(folder.delta_uri, pa.table({"id": [each]}), mode="append", storage_options=folder.delta_options)
    table = DeltaTable(folder.delta_uri, storage_options=folder.delta_options)
    assert table.version() == 1
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == [1, 2]
    assert len([name for name in folder.child("_delta_log").list_names() if name.endswith(".json")]) == 2


def test_texts_name_the_place_and_no_secret(folder: StorageFolder) -> None:
    child = folder.child("d")
    assert child.url == f"{folder.url}/d"
    assert child.locate("x") == f"{folder.url}/d/x"
    assert child.spark_path("x").endswith("/some/prefix/d/x")
    assert child == folder.child("d")
    secrets = [value for key, value in (folder.delta_options or {}).items() if "KEY" in key.upper()]
    shown = f"{child} {child!r} {child.url} {child.locate('x')} {child.spark_path()}"
    assert not any(secret in shown for secret in secrets)
