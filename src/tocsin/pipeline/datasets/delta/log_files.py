"""Names the files of a dataset's log.

Names are made and parsed in one place, because a wrong one would hide or delete a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from deltalake import DeltaTable

from tocsin.storage.interface import StorageFolder

LOG_FOLDER: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


def log_of(folder: StorageFolder) -> StorageFolder:
    """The folder of a dataset's log."""
    return folder.child(LOG_FOLDER)


def entry_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def log_versions(folder: StorageFolder) -> tuple[list[int], list[int]]:
    """The versions of a dataset that have a log entry, and those that have a checkpoint, each ascending."""
    return parse_log_names(log_of(folder).list_names())


def parse_log_names(names: Iterable[str]) -> tuple[list[int], list[int]]:
    """Like `log_versions`, of these files."""
    entries: list[int] = []
    checkpoints: list[int] = []
    for name in names:
        if match := _ENTRY.fullmatch(name):
            entries.append(int(match[1]))
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints.append(int(match[1]))
    return sorted(entries), sorted(checkpoints)


def open_delta(folder: StorageFolder) -> DeltaTable:
    """Opens the table in its newest version."""
    return DeltaTable(folder.delta_uri, storage_options=folder.delta_options)
