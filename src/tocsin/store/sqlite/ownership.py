"""Locks a store file for one process at a time, which may therefore cache its content.

The lock is the operating system's (`flock`) on a file beside the store, so it ends when its holder ends, even by kill.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tocsin.wire.errors import StoreError, UnavailableError


class Ownership:
    def __init__(self, path: Path) -> None:
        self._path = path
        # The lock is on a separate file: closing the store's file would end the locks that SQLite has on it.
        self._lock = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Takes the lock. Raises UnavailableError while another process has it, RuntimeError if this object has it."""
        if self._descriptor is not None:
            raise RuntimeError(f"the store {self._path} is open already")
        try:
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"the store {self._path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise UnavailableError(
                f"the store {self._path} is in use by {f'process {holder}' if holder else 'another process'}",
                hint="stop that one first, or choose another name or folder",
            ) from error
        # The process id is for the error message of a second process. A full disk must not make this fail.
        content = f"{os.getpid()}\n".encode()
        try:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        except OSError:
            os.ftruncate(descriptor, 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Releases the lock. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
