"""A backup or restore that cannot be leaves everything as it was."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.example_backup import STORES, Data, content, leftovers
from tocsin.cluster.backup.restore import check_unused, restore
from tocsin.wire.errors import ConflictError, InputError, StorageFullError


async def test_a_backup_never_overwrites_and_never_lies_in_the_data(data: Data, target: Path, tmp_path: Path) -> None:
    target.write_text("mine")
    with pytest.raises(ConflictError, match="exists already"):
        await data.back_up(target)
    assert target.read_text() == "mine"
    with pytest.raises(InputError, match="lies in the data folder"):
        await data.back_up(data.folder / target.name)
    with pytest.raises(InputError, match="there is no folder"):
        await data.back_up(tmp_path / "no" / target.name)


async def test_a_data_folder_in_use_is_not_touched(data: Data, target: Path, tmp_path: Path) -> None:
    await data.back_up(target)
    with pytest.raises(ConflictError, match="is not empty"):
        await restore(target, data.folder, **STORES)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError, match="is not a folder"):
        await restore(target, tmp_path / "file", **STORES)
    with pytest.raises(InputError, match="mount point"):
        check_unused(_EmptyMount(tmp_path / "mounted"))
    assert content(data.tables["reports"]) == {1: "x", 2: "y", 3: "x"}


class _EmptyMount(type(Path())):  # type: ignore[misc]
    def absolute(self) -> Any:
        self.mkdir()
        return self

    def is_mount(self) -> bool:
        return True


async def test_a_folder_that_came_into_use_meanwhile_is_not_overwritten(
    data: Data, target: Path, tmp_path: Path
) -> None:
    await data.back_up(target)
    new = tmp_path / "new"

    def begin(*_: int) -> None:
        new.mkdir(exist_ok=True)
        (new / "lock").touch()

    with pytest.raises(ConflictError, match="began to use"):
        await restore(target, new, **STORES, on_progress=begin)
    assert [path.name for path in new.iterdir()] == ["lock"]
    assert leftovers(tmp_path) == []


async def test_a_full_disk_leaves_nothing(
    data: Data, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await data.back_up(target)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFullError):
        await data.back_up(tmp_path / "second", on_progress=full)
    with pytest.raises(StorageFullError):
        await restore(target, tmp_path / "new", **STORES, on_progress=full)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", target.name]


async def test_a_cancelled_backup_or_restore_leaves_nothing(data: Data, target: Path, tmp_path: Path) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def wait(*_: int) -> None:
        begun.set()
        assert cancelled.wait(20)

    async def cancel(work: Any) -> None:
        task = asyncio.create_task(work)
        assert await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        begun.clear()
        cancelled.clear()

    await cancel(data.back_up(target, on_progress=wait))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    await data.back_up(target)
    await cancel(restore(target, tmp_path / "new", **STORES, on_progress=wait))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", target.name]
