"""One process per data folder, whatever became of the last one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tocsin.cluster.data_folder.lock import FolderLock, ProcessMark
from tocsin.wire.errors import ConflictError, InputError, UnavailableError

# Holds the folder and a child of its own, says so, and waits to be killed.
HOLDER = """
import asyncio, subprocess, sys
from pathlib import Path
from tocsin.cluster.data_folder.lock import FolderLock
async def main():
    lock = await FolderLock.take(Path(sys.argv[1]), address="http://127.0.0.1:1234")
    child = subprocess.Popen(["sleep", "60"])
    lock.record_child(child.pid)
    print(child.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    with process:
        yield process, child
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        return ProcessMark.of(pid).is_alive()
    except psutil.NoSuchProcess:
        return False


async def test_a_second_process_is_refused_and_told_who_holds_the_folder(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], int]
) -> None:
    with pytest.raises(ConflictError) as refused:
        await FolderLock.take(tmp_path)
    assert f"process {holder[0].pid}" in refused.value.message
    assert "http://127.0.0.1:1234" in refused.value.message
    assert refused.value.hint


async def test_after_a_kill_the_next_waits_for_what_the_dead_one_left_and_then_starts(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], int]
) -> None:
    process, child = holder
    process.kill()
    process.wait()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        os.kill(child, signal.SIGKILL)

    lock = await FolderLock.take(tmp_path, wait_s=30, say=say)
    assert str(child) in said[0]
    assert not _is_running(child)
    lock.release()


async def test_the_wait_is_bounded_and_names_the_process(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], int]
) -> None:
    process, child = holder
    process.kill()
    process.wait()
    with pytest.raises(UnavailableError, match=f"process {child}"):
        await FolderLock.take(tmp_path, wait_s=0.1)
    # The refused one let go again, and the next still knows whom to wait for.
    with pytest.raises(UnavailableError, match=f"process {child}"):
        await FolderLock.take(tmp_path, wait_s=0.1)


async def test_one_who_only_looks_for_a_moment_does_not_stop_the_next_holder(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        taking = asyncio.create_task(FolderLock.take(tmp_path))
        await asyncio.sleep(0)
        fcntl.flock(looked_at, fcntl.LOCK_UN)
        (await taking).release()


async def test_a_stranger_with_the_same_pid_is_not_waited_for(tmp_path: Path) -> None:
    stranger = {"pid": os.getpid(), "created_s": ProcessMark.of(os.getpid()).created_s - 3_600}
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "address": None, "children": [stranger]}))
    (await FolderLock.take(tmp_path, wait_s=0.1)).release()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"children": 3}', '{"children": [{"pid": "x"}]}', "\0" * 9]
)
async def test_a_lock_file_that_was_half_written_does_not_matter(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    lock = await FolderLock.take(tmp_path, address="http://x", wait_s=0.1)
    assert json.loads((tmp_path / "lock").read_text()) == {"pid": os.getpid(), "address": "http://x", "children": []}
    lock.release()


async def test_a_folder_is_made_and_can_be_held_again_after_release(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock = await FolderLock.take(folder, address="http://one")
    with pytest.raises(ConflictError, match="http://one"):
        await FolderLock.take(folder)
    lock.release()
    lock.release()
    (await FolderLock.take(folder)).release()


async def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        await FolderLock.take(tmp_path / "file" / "data")


async def test_what_a_clean_end_leaves_running_is_waited_for_too(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        lock = await FolderLock.take(tmp_path)
        lock.record_child(child.pid)
        lock.release()
        with pytest.raises(UnavailableError):
            await FolderLock.take(tmp_path, wait_s=0.1)
        child.kill()
    (await FolderLock.take(tmp_path, wait_s=0.1)).release()
