"""Syncs files so that they survive a power cut, and tells when the disk is full.

A file survives a power cut only if its content and its name in the folder are both synced. A full disk is told apart
from other errors, because a client may repeat its request when there is room again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Literal

# EFBIG: the file would exceed the size limit of the process.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Some systems have no fdatasync, which skips metadata that only matters to observers of the file.
sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)
# delta-rs reports the system's error as text.
_FULL_TEXTS: Final = (
    "no space left on device", "os error 28", "disk quota exceeded", "os error 122", "storagefull", "os error 27",
)  # fmt: skip


def sync_open(file: BinaryIO) -> None:
    """Flushes the content of an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_file(path: Path | str) -> None:
    """Flushes the content of a file to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path | str) -> None:
    """Flushes the names in a folder to the disk."""
    sync_file(path)


def write_synced(path: Path, content: bytes, mode: Literal["wb", "xb"] = "wb") -> None:
    """Writes the content to the disk. If that fails, no file is left; the caller syncs the folder."""
    try:
        with path.open(mode) as file:
            file.write(content)
            sync_open(file)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def is_full_disk(error: BaseException | None) -> bool:
    """Whether this error, or one of its causes, says that the disk (or the quota) is full."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        text = str(error).lower()
        if any(full_text in text for full_text in _FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False
