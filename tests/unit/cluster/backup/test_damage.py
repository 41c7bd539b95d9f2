"""Whatever is damaged in a backup is found, named and refused."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.example_backup import STORES, Data, leftovers
from tocsin.cluster.backup.manifest import CATALOG, MANIFEST, digest_of
from tocsin.cluster.backup.restore import restore
from tocsin.wire.errors import NotFoundError, StoreError


def flip(path: Path, at: int | None = None) -> None:
    changed = bytearray(path.read_bytes())
    place = len(changed) // 2 if at is None else at
    changed[place] ^= 0x01
    path.write_bytes(changed)


async def refused(source: Path, new: Path) -> str:
    with pytest.raises(StoreError) as caught:
        await restore(source, new, **STORES)
    assert not new.exists()
    assert leftovers(new.parent) == []
    return caught.value.message


async def test_every_file_that_is_damaged_shorter_or_missing_is_named(data: Data, tmp_path: Path) -> None:
    good = tmp_path / "saved"
    manifest = await data.back_up(good)

    def shorten(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-2])

    def lengthen(path: Path) -> None:
        path.write_bytes(path.read_bytes() + b"x")

    def link(path: Path) -> None:
        shutil.copyfile(path, tmp_path / "elsewhere")
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")

    harms: tuple[Callable[[Path], None], ...] = (flip, shorten, lengthen, Path.unlink, link)
    for name in [*(mark.path for mark in manifest.files), MANIFEST]:
        for harm in harms:
            bad = tmp_path / "bad"
            shutil.copytree(good, bad)
            harm(bad / name)
            message = await refused(bad, tmp_path / "new")
            assert name in message
            shutil.rmtree(bad)


async def test_a_tar_with_any_byte_changed_is_refused_or_restores_the_same(data: Data, tmp_path: Path) -> None:
    good, bad = tmp_path / "saved.tar", tmp_path / "bad.tar"
    manifest = await data.back_up(good)
    size_bytes = good.stat().st_size
    intact = 0
    for place in range(0, size_bytes, size_bytes // 150):
        shutil.copyfile(good, bad)
        flip(bad, place)
        new = tmp_path / "new"
        try:
            # Padding between members means nothing.
            assert await restore(bad, new, **STORES) == manifest
            shutil.rmtree(new)
            intact += 1
        except StoreError:
            assert not new.exists()
    assert intact < 75


async def test_a_truncated_tar_is_refused_wherever_it_ends(data: Data, tmp_path: Path) -> None:
    good, bad = tmp_path / "saved.tar", tmp_path / "bad.tar"
    await data.back_up(good)
    whole = good.read_bytes()
    with tarfile.open(good) as tar:
        end = max(member.offset_data + member.size for member in tar)
        begins = [member.offset for member in tar]
    for length in {0, 1, 511, end - 1, end // 2, *begins}:
        bad.write_bytes(whole[:length])
        assert str(bad) in await refused(bad, tmp_path / "new")


def rewritten(good: Path, bad: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A backup whose manifest was changed by somebody who knows how checksums work."""
    shutil.copytree(good, bad)
    body = json.loads((bad / MANIFEST).read_text())
    del body["sha256"]
    change(body)
    (bad / MANIFEST).write_text(json.dumps({**body, "sha256": digest_of(body)}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(format=2), "has the format 2, newer than this program knows"),
        (lambda body: body.update(format="1"), "has the format 1, newer"),
        (lambda body: body["files"][0].update(path="../evil"), "does not belong into a data folder: '../evil'"),
        (lambda body: body["files"][0].update(path="/etc/evil"), "does not belong into a data folder"),
        (lambda body: body["files"][0].update(path="datasets/a/../../../evil"), "does not belong into a data folder"),
        (lambda body: body["files"][0].update(path="lock"), "does not belong into a data folder"),
        (lambda body: body["datasets"][0].update(folder=".."), "does not belong into a data folder"),
        (lambda body: body.update(files=[]), "names no catalog.sqlite"),
        (lambda body: body.update(files=3), "manifest.json cannot be read"),
        (lambda body: body.update(files=body["files"][:2]), "is incomplete: the table datasets/"),
        (lambda body: body["datasets"][1].update(version=1), "is at version 2 instead of 1"),
        (lambda body: body["datasets"].append({**body["datasets"][0], "folder": "gone"}), "the table datasets/gone"),
    ],
)
async def test_a_manifest_that_asks_for_the_wrong_thing_is_refused(
    data: Data, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    await data.back_up(tmp_path / "saved")
    rewritten(tmp_path / "saved", tmp_path / "bad", change)
    assert said in await refused(tmp_path / "bad", tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/tmp/evil", tarfile.REGTYPE), ("evil", tarfile.SYMTYPE), ("evil", tarfile.LNKTYPE),
     ("evil", tarfile.DIRTYPE), ("evil", tarfile.FIFOTYPE), (CATALOG, tarfile.REGTYPE)],
)  # fmt: skip
async def test_a_tar_that_would_reach_elsewhere_is_refused(data: Data, tmp_path: Path, name: str, kind: bytes) -> None:
    await data.back_up(tmp_path / "saved.tar")
    with tarfile.open(tmp_path / "saved.tar", "a") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member, io.BytesIO())
    assert f"holds what no backup does: {name!r}" in await refused(tmp_path / "saved.tar", tmp_path / "new")


async def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no backup"):
        await restore(tmp_path / "nothing", tmp_path / "new", **STORES)
    (tmp_path / "folder").mkdir()
    assert "is no backup, or an incomplete one" in await refused(tmp_path / "folder", tmp_path / "new")
    (tmp_path / "file").write_text("hello")
    assert "not a backup" in await refused(tmp_path / "file", tmp_path / "new")
