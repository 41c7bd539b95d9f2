"""What a data folder holds is nobody else's to read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin import compose, compose_broker
from tocsin.cluster.data_folder.lock import FolderLock
from tocsin.settings import Settings
from tocsin.store.private_folder import make_private
from tocsin.wire.errors import InputError


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_new_data_folder_is_private_whoever_makes_it(tmp_path: Path) -> None:
    (await FolderLock.take(tmp_path / "by" / "cluster")).release()
    async with compose.tokens(Settings.load(None, {}, {"data": tmp_path / "by" / "tokens"}), make_folder=True):
        pass
    settings = Settings.load(None, {}, {"data": tmp_path / "by" / "broker"})
    async with compose_broker.broker(settings, "http://127.0.0.1:1"):
        pass
    assert {path.name: mode(path) for path in (tmp_path / "by").iterdir()} == dict.fromkeys(
        ("cluster", "tokens", "broker"), 0o700
    )
    # What lies above it is not ours to change.
    assert mode(tmp_path / "by") == 0o755


@pytest.mark.parametrize("held", [[], ["python"], ["lock", "datasets", "scratch"], ["broker-Default.b.db"]])
def test_one_that_is_open_is_closed(tmp_path: Path, held: list[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in held:
        (data / name).mkdir()
    make_private(data)
    assert mode(data) == 0o700
    make_private(data)


@pytest.mark.parametrize("wrong", ["of others", "sticky"])
def test_one_that_is_not_ours_to_close_is_refused(tmp_path: Path, wrong: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    if wrong == "sticky":
        shared.chmod(0o1777)
    else:
        (shared / "letters").mkdir()
    before = mode(shared)
    with pytest.raises(InputError, match="open to other users") as refused:
        make_private(shared)
    assert "chmod 700" in str(refused.value.hint)
    assert mode(shared) == before


async def test_a_cluster_tells_why_it_does_not_start_in_a_shared_folder(tmp_path: Path) -> None:
    (tmp_path / "shared" / "letters").mkdir(parents=True)
    with pytest.raises(InputError, match="open to other users"):
        await FolderLock.take(tmp_path / "shared")
