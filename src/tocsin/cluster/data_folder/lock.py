"""A data folder belongs to one process at a time.

The lock is the operating system's (`flock`), so it ends with its holder however that ends. The file says who holds it,
for the message to whoever comes second; and which Java process works for the holder, because that one outlives a killed
holder for a moment and may still be writing: the next holder waits for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from tocsin.store.private_folder import make_private
from tocsin.wire.errors import ConflictError, InputError, UnavailableError

LOCK_NAME: Final = "lock"

_CLOCK_S = 5.0
_LOOK_EVERY_S = 0.05
_TRIES = 6
READ_LIMIT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process for good: a pid alone is given out again after a while."""

    pid: int
    created_s: float

    @staticmethod
    def of(pid: int) -> ProcessMark:
        return ProcessMark(pid, psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            # Its start is told relative to the clock, which may have been set since: better to wait once in vain for
            # a stranger than to overlook the one that still writes.
            same = abs(process.create_time() - self.created_s) < _CLOCK_S
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "created_s": self.created_s}


@dataclass(slots=True)
class FolderLock:
    """The hold on one data folder, from `take` to `release`."""

    folder: Path
    _descriptor: int
    _address: str | None = None
    _children: list[ProcessMark] = field(default_factory=list)

    @staticmethod
    async def take(
        folder: Path, *, address: str | None = None, wait_s: float = 60.0, say: Callable[[str], None] = lambda _: None
    ) -> FolderLock:
        """Hold the folder, made if need be. `address`: where the holder can be reached, if it serves.

        Refused with `ConflictError` while another process holds it. What a dead holder left running is waited for, and
        said so; `UnavailableError` when it has not ended after `wait_s`.
        """
        descriptor = _open(folder)
        try:
            if not await _locked(descriptor):
                raise _held(folder, _read(descriptor))
            left = _children_of(_read(descriptor))
            await _wait_for(left, wait_s, say)
            lock = FolderLock(folder, descriptor, address)
            lock._write()
        except BaseException:
            os.close(descriptor)
            raise
        return lock

    def record_child(self, pid: int) -> None:
        """A process that works on the folder for the holder and may outlive it. Those that have ended are forgotten."""
        with suppress(psutil.NoSuchProcess):
            living = [child for child in self._children if child.is_alive()]
            self._children = [*living, ProcessMark.of(pid)]
            self._write()

    def release(self) -> None:
        """Let go. What is written stays: a child may still be ending, and the next holder must wait for it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        said = {"pid": os.getpid(), "address": self._address, "children": [one.to_json() for one in self._children]}
        # In place: a new file under the same name would be another lock.
        content = json.dumps(said).encode() + b"\n"
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


def _open(folder: Path) -> int:
    try:
        make_private(folder)
        return os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise InputError(
            f"the data folder {folder} cannot be used: {exc.strerror}", hint="choose another with --data"
        ) from None


async def _locked(descriptor: int) -> bool:
    """Whether the lock is ours now. Tried for a moment: one who only looks whether somebody holds it does so too."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_LOOK_EVERY_S)
        else:
            return True
    return False


def _read(descriptor: int) -> dict[str, Any]:
    """What the file says; nothing if its writer died over it."""
    try:
        said = json.loads(os.pread(descriptor, READ_LIMIT_BYTES, 0))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _children_of(said: dict[str, Any]) -> list[ProcessMark]:
    try:
        return [ProcessMark(int(one["pid"]), float(one["created_s"])) for one in said.get("children", [])]
    except (TypeError, KeyError, ValueError):
        return []


def _held(folder: Path, said: dict[str, Any]) -> ConflictError:
    who = f"process {said['pid']}" if said.get("pid") else "another process"
    where = f" at {said['address']}" if said.get("address") else ""
    return ConflictError(
        f"the data folder {folder} is in use by {who}{where}",
        hint="use that one, stop it first, or choose another folder with --data",
    )


async def _wait_for(left: list[ProcessMark], wait_s: float, say: Callable[[str], None]) -> None:
    alive = [one for one in left if one.is_alive()]
    if not alive:
        return
    pids = ", ".join(str(one.pid) for one in alive)
    say(f"waiting for process {pids}, left by a cluster that was killed, to end")
    try:
        async with asyncio.timeout(wait_s):
            # They are no children of ours: nobody tells us when they end.
            while any(one.is_alive() for one in alive):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise UnavailableError(
            f"process {pids}, left by a cluster that was killed, still works on the data folder after {wait_s:g} s",
            hint=f"end it with: kill {pids.replace(', ', ' ')}",
        ) from None
