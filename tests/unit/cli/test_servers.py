"""`tocsin up` and `tocsin token`, with what they start replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

import tocsin
from tests.support.waiting import WITHIN_S
from tocsin.cli.main import main
from tocsin.settings import Settings
from tocsin.wire.errors import NotFoundError

# `tocsin up` with the real server, lock and command line around the fake executor.
UP = """
import sys
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from tests.support.fake_cluster import FakeCredentials, FakeStatements
from tocsin.cluster.http.routes import cluster_application
from tocsin.cluster.data_folder.lock import FolderLock
from tocsin.serving.application import serve

@asynccontextmanager
async def cluster(settings, address):
    lock = await FolderLock.take(settings.data, address=address)
    yield SimpleNamespace(app=cluster_application(settings.cluster, FakeStatements(), FakeCredentials()))
    lock.release()

def serve_cluster(settings, on_ready, *_beside, **_options):
    http = settings.cluster.http
    return serve(lambda address: cluster(settings, address), host=http.host, port=http.port, on_ready=on_ready)

compose = sys.modules["tocsin.compose"] = ModuleType("tocsin.compose")
compose.serve_cluster = serve_cluster
import tocsin
tocsin.compose = compose
from tocsin.cli.main import main
main(sys.argv[1:])
"""


@contextmanager
def up(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The process. It is killed where a test leaves it running: one that fails must not wait for it for ever."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parents[3])])
    command, pipes = (
        [sys.executable, "-c", UP, "up", *arguments],
        {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
    )
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def test_up_prints_one_line_when_ready_and_ends_with_0_on_sigterm(tmp_path: Path) -> None:
    with up("--data", str(tmp_path), "--port", "0") as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("tocsin cluster ready at http://127.0.0.1:")
        assert ready.endswith(f" (data: {tmp_path})\n")
        with up("--data", str(tmp_path), "--port", "0") as second:
            out, err = second.communicate(timeout=WITHIN_S)
            assert (second.returncode, out) == (1, "")
            assert f"is in use by process {process.pid} at {ready.split()[4]}" in err
            assert "Traceback" not in err
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_up_starts_again_by_itself_after_a_kill(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with up("--data", str(tmp_path), "--port", "0") as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("tocsin cluster ready at")
            process.send_signal(number)


@pytest.mark.parametrize(
    "arguments", [("--port", "99999"), ("--host", "no.such.host.invalid"), ("--config", "/no/such/file"), ("--wrong",)]
)
def test_up_refuses_what_it_cannot_do_without_a_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with up("--data", str(tmp_path), *arguments) as process:
        out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode in (1, 2)
    assert out == ""
    assert err
    assert "Traceback" not in err


@dataclass(frozen=True)
class KeptToken:
    id: int
    name: str
    role: str
    created_at: datetime
    revoked_at: datetime | None = None
    feeds: tuple[str, ...] = ()


class FakeTokens:
    def __init__(self) -> None:
        self.kept: dict[int, KeptToken] = {}

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[KeptToken, str]:
        made_at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        token = KeptToken(len(self.kept) + 1, name, role, made_at, feeds=tuple(feeds))
        self.kept[token.id] = token
        return token, f"tocsin_{name}"

    async def list(self) -> Sequence[KeptToken]:
        return tuple(self.kept.values())

    async def revoke(self, identity: int) -> KeptToken:
        if identity not in self.kept:
            raise NotFoundError(f"there is no token {identity}", hint="tocsin token list")
        self.kept[identity] = replace(self.kept[identity], revoked_at=datetime(2026, 1, 3, tzinfo=UTC))
        return self.kept[identity]


def token(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["token", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("command", [("create", "ada"), ("list",), ("revoke", "1")])
def test_tokens_are_not_made_in_a_new_folder_that_nobody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert token(*command) == 1
    assert f"{tmp_path / 'tocsin-data'} is no data folder" in (said := capsys.readouterr().err)
    assert "--data FOLDER" in said
    assert list(tmp_path.iterdir()) == []
    named = tmp_path / "named"
    # The first token may be needed before the first start.
    assert token(*command, "--data", str(named)) == (0 if command[0] == "create" else 1)
    assert named.exists() is (command[0] == "create")


def test_tokens_are_made_listed_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = FakeTokens()
    folders: list[Path] = []

    @asynccontextmanager
    async def opened(settings: Settings, *, make_folder: bool) -> AsyncIterator[FakeTokens]:
        folders.append(settings.data)
        assert not make_folder or settings.data == tmp_path
        yield tokens

    compose = ModuleType("tocsin.compose")
    compose.tokens = opened  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tocsin.compose", compose)
    monkeypatch.setattr(tocsin, "compose", compose, raising=False)

    assert token("create", "ada", "--role", "admin", "--data", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert out == "tocsin_ada\n"  # Alone, so that a shell can take it.
    assert "not shown again" in err
    assert token("create", "bob") == 0
    assert token("create", "eve", "--role", "emperor") == 2
    capsys.readouterr()
    assert token("revoke", "2") == 0
    assert capsys.readouterr().out == "token 2 of bob is revoked\n"
    assert token("revoke", "9") == 1
    assert capsys.readouterr().err == "error: there is no token 9\nhint: tocsin token list\n"
    assert token("create", "east", "--role", "broker", "--feeds", "v.A,v.B") == 0
    capsys.readouterr()
    assert token("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ID  NAME  ROLE    CREATED              REVOKED              FEEDS",
        "1   ada   admin   2026-01-02 03:04:05",
        "2   bob   writer  2026-01-02 03:04:05  2026-01-03 00:00:00",
        "3   east  broker  2026-01-02 03:04:05                       v.A v.B",
    ]
    assert folders[0] == tmp_path
