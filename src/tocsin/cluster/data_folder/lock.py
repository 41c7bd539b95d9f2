"""Locks a data folder, so that one process at a time works on it.

The lock is the operating system's (`flock`), so it ends with its owner, however the owner ends. The file names the
owner, for the error message that a second process shows. It also names the owner's Java process: that one outlives a
killed owner for a moment and may still be writing, so the next owner waits for it.
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

_LOCK_NAME: Final = "lock"
_CLOCK_S = 5.0
_LOOK_EVERY_S = 0.05
_TRIES = 6
_READ_LIMIT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Identifies a process for ever by pid and start time; the system reuses a pid alone."""

    pid: int
    created_s: float

    @staticmethod
    def of(pid: int) -> ProcessMark:
        return ProcessMark(pid, psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            # The start time is relative to the wall clock, which may have been set since. Tolerate a difference:
            # waiting for an unrelated process is better than overlooking a process that still writes.
            is_same = abs(process.create_time() - self.created_s) < _CLOCK_S
            return is_same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "created_s": self.created_s}


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The owner. `address` is None if it serves nobody, such as another command that works on the folder."""

    pid: int | None
    address: str | None


def find_owner(folder: Path) -> LockOwner | None:
    """Returns the process that owns the folder now, or None, without taking its lock."""
    try:
        descriptor = os.open(folder / _LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the data folder {folder} cannot be used: {error.strerror}") from None
    try:
        # Take a shared lock, so that two processes that only look do not see each other as owners.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        content = _read(descriptor)
        return LockOwner(content.get("pid"), content.get("address"))
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class FolderLock:
    """The lock on one data folder, from `take` to `release`."""

    folder: Path
    _descriptor: int
    _address: str | None = None
    _children: list[ProcessMark] = field(default_factory=list)

    @staticmethod
    async def take(
        folder: Path, *, address: str | None = None, wait_s: float = 60.0, say: Callable[[str], None] = lambda _: None
    ) -> FolderLock:
        """Takes the lock, and creates the folder if necessary. `address` is where the owner serves, if it does.

        Raises `ConflictError` while another process owns the lock. Waits for processes that a dead owner left running,
        and says so; raises `UnavailableError` if they have not ended after `wait_s`.
        """
        descriptor = _open(folder)
        try:
            if not await _take_lock(descriptor):
                raise _conflict(folder, _read(descriptor))
            left_behind = _children_of(_read(descriptor))
            await _wait_for(left_behind, wait_s, say)
            lock = FolderLock(folder, descriptor, address)
            lock._write()
        except BaseException:
            os.close(descriptor)
            raise
        return lock

    def record_child(self, pid: int) -> None:
        """Records a process that works for the owner and may outlive it. Forgets processes that have ended."""
        with suppress(psutil.NoSuchProcess):
            living = [child for child in self._children if child.is_alive()]
            self._children = [*living, ProcessMark.of(pid)]
            self._write()

    def release(self) -> None:
        """Releases the lock. The content stays: the next owner must wait for a child that is still ending."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        content_fields = {
            "pid": os.getpid(),
            "address": self._address,
            "children": [child.to_json() for child in self._children],
        }
        # Write in place: a new file under the same name would be another lock.
        content = json.dumps(content_fields).encode() + b"\n"
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


def _open(folder: Path) -> int:
    try:
        make_private(folder)
        return os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise InputError(
            f"the data folder {folder} cannot be used: {exc.strerror}", hint="choose another with --data"
        ) from None


async def _take_lock(descriptor: int) -> bool:
    """Whether this process got the lock. Retries for a moment, because `find_owner` also takes it briefly."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_LOOK_EVERY_S)
        else:
            return True
    return False


def _read(descriptor: int) -> dict[str, Any]:
    """Parses the file; returns an empty dict if its writer died while writing."""
    try:
        owner = json.loads(os.pread(descriptor, _READ_LIMIT_BYTES, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _children_of(owner: dict[str, Any]) -> list[ProcessMark]:
    try:
        return [ProcessMark(int(child["pid"]), float(child["created_s"])) for child in owner.get("children", [])]
    except (TypeError, KeyError, ValueError):
        return []


def _conflict(folder: Path, owner: dict[str, Any]) -> ConflictError:
    process = f"process {owner['pid']}" if owner.get("pid") else "another process"
    where = f" at {owner['address']}" if owner.get("address") else ""
    return ConflictError(
        f"the data folder {folder} is in use by {process}{where}",
        hint="use that one, stop it first, or choose another folder with --data",
    )


async def _wait_for(left: list[ProcessMark], wait_s: float, say: Callable[[str], None]) -> None:
    alive = [process for process in left if process.is_alive()]
    if not alive:
        return
    pids = ", ".join(str(process.pid) for process in alive)
    say(f"waiting for process {pids}, left by a cluster that was killed, to end")
    try:
        async with asyncio.timeout(wait_s):
            # These are not children of this process, so no signal announces their end.
            while any(process.is_alive() for process in alive):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise UnavailableError(
            f"process {pids}, left by a cluster that was killed, still works on the data folder after {wait_s:g} s",
            hint=f"end it with: kill {pids.replace(', ', ' ')}",
        ) from None
