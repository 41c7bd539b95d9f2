"""A file that belongs to one process at a time, which may therefore remember what is in it.

The lock is the operating system's (`flock`) on a file beside it, so it ends with its holder however that ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tocsin.wire.errors import StoreError, UnavailableError


class Ownership:
    def __init__(self, path: Path) -> None:
        self._path = path
        # Not the file itself: to close it once would end the locks that SQLite has on it.
        self._lock = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """UnavailableError while somebody else has it. RuntimeError when it is ours already."""
        if self._descriptor is not None:
            raise RuntimeError(f"the store {self._path} is open already")
        try:
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise StoreError(f"the store {self._path} cannot be used: {problem.strerror}") from problem
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise UnavailableError(
                f"the store {self._path} is in use by {f'process {holder}' if holder else 'another process'}",
                hint="stop that one first, or choose another name or folder",
            ) from problem
        # For the message to whoever comes second. Not worth a failure where there is no room.
        content = f"{os.getpid()}\n".encode()
        try:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        except OSError:
            os.ftruncate(descriptor, 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
