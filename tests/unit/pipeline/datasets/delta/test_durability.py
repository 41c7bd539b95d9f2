"""A commit is on the disk when its call returns, or nothing of it ever was."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.support.dataset_files import checkpoint_path, entry_path
from tests.support.small_tables import KEYS, SCHEMA, content, full_disk, reopened, rows
from tocsin.pipeline.datasets.delta import log_files
from tocsin.pipeline.datasets.delta.log_writers import LinkedLog
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage import local
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import ConflictError, NotFoundError, StorageFullError, StoreError, UnavailableError


def full_disk_as_delta_says(*_: object, **__: object) -> None:
    raise DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)")


@pytest.mark.parametrize("change", ["insert", "upsert", "delete", "load"])
@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (local, "sync_file", full_disk),
        (local, "sync_open", full_disk),
        (local, "sync_folder", full_disk),
        (LinkedLog, "put", full_disk_as_delta_says),
    ],
)
def test_a_full_disk_is_told_and_changes_nothing(
    table: DatasetTable, change: str, place: Any, name: str, fault: Any
) -> None:
    table.insert(rows(1, 2), positions={"feed": 1})
    before, state = table.data.names(), table.past.state

    def try_it() -> None:
        if change == "insert":
            table.insert(rows(3), positions={"feed": 2})
        elif change == "upsert":
            table.upsert(rows(2, 3, said="b"), positions={"feed": 2})
        elif change == "delete":
            table.delete(rows(1))
        else:
            table.load(iter(rows(3).to_batches()), positions={"feed": 2})

    # The first call meets the full disk, the others work.
    answers = iter([fault, *([getattr(place, name)] * 9)])

    def failing_once(*args: Any, **options: Any) -> Any:
        return next(answers)(*args, **options)

    with mock.patch.object(place, name, failing_once), pytest.raises(StorageFullError):
        try_it()
    assert table.data.names() == before
    assert content(table.snapshot()) == {1: "a", 2: "a"}
    assert table.number == 1
    assert table.position("feed") == 1
    assert table.log.state.version == state.version
    try_it()
    assert table.number == 2
    assert DeltaTable(str(table.log.folder)).version() == 2


def test_an_entry_that_is_not_whole_is_damage_and_costs_no_file(table: DatasetTable) -> None:
    """An entry gets its name when it is synced: a power cut leaves it whole, or not there."""
    table.insert(rows(1))
    table.insert(rows(2))
    entry = entry_path(table.log.folder, 2)
    whole = entry.read_bytes()
    for left in (b"", b"\0" * 100, whole[:50]):
        table.close()
        entry.write_bytes(left)
        with pytest.raises(StoreError, match="damaged"):
            reopened(table)
        entry.write_bytes(whole)
        table = reopened(table)
        assert content(table.snapshot()) == {1: "a", 2: "a"}
        assert len(table.data.names()) == 2


def test_a_checkpoint_that_a_power_cut_tore_is_not_needed(table: DatasetTable) -> None:
    for each in range(30):
        table.insert(rows(each))
    assert upkeep(table).checkpoint is not None
    _, checkpoints = log_files.log_versions(table.log.folder)
    checkpoint_path(table.log.folder, checkpoints[-1]).write_bytes(b"")
    table = reopened(table)
    assert len(content(table.snapshot())) == 30


def test_other_engines_read_the_table_as_delta(table: DatasetTable) -> None:
    table.insert(rows(1, 2))
    table.upsert(rows(2, 3, said="b"))
    delta = DeltaTable(str(table.log.folder))
    assert {(row["id"], row["said"], row["_commit"]) for row in delta.to_pyarrow_table().to_pylist()} == {
        (1, "a", 1),
        (2, "b", 2),
        (3, "b", 2),
    }
    assert delta.history()[0]["tocsin.commit"] == 2


def test_a_position_is_committed_with_its_rows_or_alone(table: DatasetTable) -> None:
    assert table.position("feed") is None
    table.insert(rows(1), positions={"feed": 10, "other": 3})
    assert table.insert(rows(), positions={"feed": 11}).number == 2
    assert table.insert(rows()).number == 2
    table = reopened(table)
    assert (table.position("feed"), table.position("other"), table.position("none")) == (11, 3, None)


def test_a_closed_table_says_so(table: DatasetTable) -> None:
    table.close()
    with pytest.raises(UnavailableError):
        table.insert(rows(1))


def test_a_folder_holds_one_table(table: DatasetTable, tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        DatasetTable.create(table.log.folder, SCHEMA, KEYS)
    with pytest.raises(NotFoundError):
        DatasetTable.open(LocalFolder(tmp_path / "none"), SCHEMA, KEYS)
