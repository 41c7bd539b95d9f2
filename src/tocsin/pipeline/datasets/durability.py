"""What makes a file survive a power cut, and a log that was torn by one readable again.

delta-rs renames its log entries and checkpoints into place but does not sync them, so after a power cut the last of
each may be there without its content. Every commit is synced before the next one begins; therefore only the newest
entry can be torn, nobody was ever told of it, and dropping it leaves exactly what was acknowledged.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOG_FOLDER: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PARQUET_MAGIC: Final = b"PAR1"
# EFBIG: the process may not write files as large as this one would be.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# delta-rs reports what the system said as text.
_FULL_TEXTS: Final = (
    "no space left on device", "os error 28", "disk quota exceeded", "os error 122", "storagefull", "os error 27",
)  # fmt: skip


def sync_file(path: Path | str) -> None:
    """The file's content is on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path | str) -> None:
    """The names in this folder are on the disk when this returns."""
    sync_file(path)


def is_full_disk(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, says that the disk (or the quota) is full."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        text = str(error).lower()
        if any(said in text for said in _FULL_TEXTS):
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
        if found := _ENTRY.fullmatch(name):
            entries.append(int(found[1]))
        elif found := _CHECKPOINT.fullmatch(name):
            checkpoints.append(int(found[1]))
    return sorted(entries), sorted(checkpoints)


def remove_files(paths: Iterable[Path]) -> int:
    """Remove what is there; how many were."""
    removed = 0
    for path in paths:
        try:
            path.unlink()
            removed += 1
        except FileNotFoundError:
            continue
    return removed


def mend_log(folder: Path) -> bool:
    """Drop what a crash left half-written in the log: temporary files, a torn newest entry, a torn newest checkpoint.

    Returns whether anything was dropped. Must run before anything else opens the table.
    """
    log = folder / LOG_FOLDER
    if not log.is_dir():
        return False
    torn = [path for path in log.iterdir() if path.suffix == ".tmp"]
    entries, checkpoints = log_versions(folder)
    if entries and not _is_whole_entry(entry_path(folder, entries[-1])):
        torn.append(entry_path(folder, entries[-1]))
    if checkpoints and not _is_whole_parquet(checkpoint_path(folder, checkpoints[-1])):
        # Log entries go only after a later checkpoint was synced: without this one, all it said is still there.
        torn += [checkpoint_path(folder, checkpoints[-1]), log / "_last_checkpoint"]
    last = log / "_last_checkpoint"
    if last.exists() and last not in torn and not _is_whole_entry(last):
        torn.append(last)
    if not torn:
        return False
    remove_files(torn)
    sync_folder(log)
    return True


def _is_whole_entry(path: Path) -> bool:
    try:
        lines = path.read_bytes().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, OSError):
        return False


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == _PARQUET_MAGIC
