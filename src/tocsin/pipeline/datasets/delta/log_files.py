"""Names and removes the files of a dataset's log.

Names are made and parsed in one place, because a wrong one would hide or delete a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOG_FOLDER: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


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
