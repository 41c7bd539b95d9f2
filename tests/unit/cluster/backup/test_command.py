"""tocsin backup and tocsin restore."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tocsin
from tocsin.cli.commands.backup import size_text
from tocsin.cli.main import main
from tocsin.cluster.data_folder.lock import FolderLock, LockOwner, find_owner

SUMMARY = {
    "created_at": "2026-11-15T08:30:00.123456+00:00", "epoch": 1, "tocsin": "0", "datasets": 1, "rows": 12_345,
    "files": 7, "size_bytes": 1_234_567, "checked": True,
}  # fmt: skip
TOLD = "1 dataset, 12,345 rows, 1.2 MB in 7 files of 2026-11-15T08:30:00; every checksum agrees\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def compose(monkeypatch: pytest.MonkeyPatch) -> Any:
    calls: list[tuple[Any, ...]] = []

    async def done(settings: Any, path: Path, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
        on_progress(1, 2)
        calls.append((settings.data, path))
        return SUMMARY

    fake: Any = ModuleType("tocsin.compose")
    fake.offline_backup = fake.restore = done
    fake.folder_holder = lambda settings: find_owner(settings.data)
    fake.calls = calls
    monkeypatch.setitem(sys.modules, "tocsin.compose", fake)
    monkeypatch.setattr(tocsin, "compose", fake, raising=False)
    monkeypatch.delenv("TOCSIN_URL", raising=False)
    return fake


def test_without_a_cluster_the_folder_is_read(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert run("backup", "b.tar", "--data", "data") == 0
    assert capsys.readouterr().out == f"backup written to {tmp_path}/b.tar: {TOLD}"
    assert run("restore", "b.tar", "--data", "new") == 0
    assert capsys.readouterr().out == f"restored into new: {TOLD}"
    assert compose.calls == [(Path("data"), tmp_path / "b.tar"), (Path("new"), tmp_path / "b.tar")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("backup", "b.tar", "--data", "nowhere"), "there is no data folder nowhere"),
        (("backup", "b.tar", "--data", "x", "--url", "y"), "cannot be given together"),
        (("backup", "b.tar", "--url", "http://127.0.0.1:1"), "no cluster answers"),
    ],
)
def test_what_cannot_be_saved_is_said_in_one_line(
    compose: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(*arguments) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err


async def test_a_cluster_on_the_folder_is_asked_at_its_address(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((await request.json(), request.headers.get("Authorization")))
        if len(asked) > 1:
            error = {"code": "conflict", "message": "it exists already", "hint": "choose"}
            return web.json_response({"error": error}, status=409)
        return web.json_response(SUMMARY)

    app = web.Application()
    app.router.add_post("/v1/backup", answer)
    monkeypatch.setenv("TOCSIN_TOKEN", "tocsin_secret")
    monkeypatch.chdir(tmp_path)
    async with TestServer(app) as server:
        lock = await FolderLock.take(tmp_path / "data")
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 1
        assert "which does not serve" in capsys.readouterr().err
        lock.release()
        lock = await FolderLock.take(tmp_path / "data", address=str(server.make_url("")))
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 0
        assert capsys.readouterr().out == f"backup written to {tmp_path}/b: {TOLD}"
        assert await asyncio.to_thread(run, "backup", "b", "--data", "data") == 1
        assert capsys.readouterr().err == "error: it exists already\nhint: choose\n"
        lock.release()
    assert asked == [({"to": f"{tmp_path}/b"}, "Bearer tocsin_secret")] * 2
    assert compose.calls == []
    assert find_owner(tmp_path / "data") is None


def test_progress_is_shown_to_whoever_looks(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows no bar
    assert run("restore", "b.tar", "--data", str(tmp_path)) == 0
    assert "restoring" in capsys.readouterr().err


def test_sizes_are_written_for_people() -> None:
    assert [size_text(size) for size in (0, 999, 1_000, 1_234_567, 5 * 10**12)] == [
        "0 B", "999 B", "1.0 KB", "1.2 MB", "5.0 TB",
    ]  # fmt: skip


def test_an_unreadable_lock_still_tells_that_somebody_holds_the_folder(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "lock").write_text("{")
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert find_owner(tmp_path) == LockOwner(None, None)
    assert find_owner(tmp_path) is None
    assert find_owner(tmp_path / "none") is None
