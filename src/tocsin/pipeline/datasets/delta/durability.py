"""Syncs files to survive a power cut, and names the files of a dataset's log."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOG_FOLDER: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
# EFBIG: the file would exceed the size limit of the process.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# delta-rs reports the system's error as text.
_FULL_TEXTS: Final = (
    "no space left on device", "os error 28", "disk quota exceeded", "os error 122", "storagefull", "os error 27",
)  # fmt: skip


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


def entry_path(folder: Path, version: int) -> Path:
    return folder / LOG_FOLDER / f"{version:020d}.json"


def checkpoint_path(folder: Path, version: int) -> Path:
    return folder / LOG_FOLDER / f"{version:020d}.checkpoint.parquet"


def log_versions(folder: Path) -> tuple[list[int], list[int]]:
    """The versions that have a log entry, and those that have a checkpoint, each ascending."""
    entries: list[int] = []
    checkpoints: list[int] = []
    try:
        names = [path.name for path in (folder / LOG_FOLDER).iterdir()]
    except FileNotFoundError:
        return [], []
    for name in names:
        if match := _ENTRY.fullmatch(name):
            entries.append(int(match[1]))
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints.append(int(match[1]))
    return sorted(entries), sorted(checkpoints)


def remove_files(paths: Iterable[Path]) -> int:
    """Removes the files that exist. Returns their number."""
    removed = 0
    for path in paths:
        try:
            path.unlink()
            removed += 1
        except FileNotFoundError:
            continue
    return removed
