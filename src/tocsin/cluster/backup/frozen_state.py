"""Freezes everything durable, quickly, by hard links.

Data files and log entries never change once they exist. A second name for each (a hard link) is therefore enough to
keep them, whatever upkeep or DROP do meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tocsin.cluster.backup.manifest import DATASETS, INTAKE, PYTHON, DatasetState
from tocsin.cluster.backup.progress import explain_os_errors
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, log_versions
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.wire.errors import UnavailableError

_ATTEMPTS: Final = 10
_LOG_FILE: Final = re.compile(r"(\d{20})\.(?!.*\.tmp$).+")
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})


class BackupTable(Protocol):
    """The part of a dataset's table that a backup needs."""

    def snapshot(self) -> Snapshot: ...

    def needed_log_version(self) -> int: ...


def hold_all(tables: Mapping[str, BackupTable], data: Path, held: Path) -> list[DatasetState]:
    """Freezes everything but the stores in the folder `held`. Returns the state of each dataset there."""
    # A feed's log must begin before and end after the position of its datasets. While datasets are frozen, records may
    # land (the log's begin is trimmed) and others may arrive (its end grows). So freeze the log's files before the
    # datasets, and the new ones after.
    _hold_files(data / INTAKE, held / INTAKE, _link)
    states = _hold(tables, data / DATASETS, held / DATASETS)
    _hold_files(data / INTAKE, held / INTAKE, _link)
    _hold_files(data / PYTHON, held / PYTHON, shutil.copyfile)  # copy: people edit these files in place
    return states


def _hold_files(folder: Path, held: Path, hold: Callable[[Path, Path], Any]) -> None:
    with explain_os_errors(held):
        for path in sorted(folder.rglob("*")):
            target = held / path.relative_to(folder)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the log was trimmed just now: its records have landed
                    hold(path, target)


def _hold(tables: Mapping[str, BackupTable], datasets: Path, held: Path) -> list[DatasetState]:
    with explain_os_errors(held):
        return [_hold_table(name, tables[name], datasets / name, held / name) for name in sorted(tables)]


def _hold_table(name: str, table: BackupTable, folder: Path, held: Path) -> DatasetState:
    for _ in range(_ATTEMPTS):
        snapshot = table.snapshot()
        files = [os.path.relpath(path, folder) for path in snapshot.files]
        try:
            (held / LOG_FOLDER).mkdir(parents=True)
            _hold_log(folder, held, table.needed_log_version(), snapshot.version)
            for file in files:
                _link(folder / file, held / file)
            _hold_past(folder, held)
            rows = check_table(held, snapshot.version, files)
            return DatasetState(name, snapshot.number, snapshot.version, rows)
        except (FileNotFoundError, IncompleteBackupError):
            # Upkeep replaced log entries by a checkpoint between the snapshot and the links: try again.
            shutil.rmtree(held)
    raise UnavailableError(f"the dataset in {folder} could not be held still", hint="try again")


def _hold_log(folder: Path, held: Path, needed_version: int, last_version: int) -> None:
    # Skip what is kept only for readers outside: it may be an hour of entries and files that the backup does not need.
    before = [version for version in log_versions(folder)[1] if version <= min(needed_version, last_version)]
    first_version = max(before, default=0)
    # Skip `_last_checkpoint`: it may already name a later one, and readers find the checkpoints without it.
    for path in (folder / LOG_FOLDER).iterdir():
        match = _LOG_FILE.fullmatch(path.name)
        if match is not None and first_version <= int(match[1]) <= last_version:
            _link(path, held / LOG_FOLDER / path.name)


def _hold_past(folder: Path, held: Path) -> None:
    """Links the files of past states, as far as they exist; a dataset does not offer states whose files are gone."""
    for entry in (held / LOG_FOLDER).glob("*.json"):
        for line in entry.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                path = action.get(kind, {}).get("path")
                if path is not None and not (held / path).exists():
                    with suppress(FileNotFoundError):
                        _link(folder / path, held / path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


class IncompleteBackupError(Exception):
    """The table cannot be opened in the expected state."""


def check_table(folder: Path, commit: int, files: list[str] | None = None) -> int:
    """Checks that the table opens at this version with these files, all present. Returns its number of rows."""
    try:
        table = DeltaTable(str(folder))
        actions = pa.table(table.get_add_actions(flatten=True))
    except (DeltaError, OSError, ValueError) as error:
        raise IncompleteBackupError(f"cannot be opened: {str(error).splitlines()[0]}") from None
    if table.version() != commit:
        raise IncompleteBackupError(f"is at version {table.version()} instead of {commit}")
    paths = [str(path) for path in actions.column("path").to_pylist()]
    if files is not None and set(paths) != set(files):
        raise IncompleteBackupError("has other files than it should")
    missing = next((path for path in paths if not (folder / path).is_file()), None)
    if missing is not None:
        raise IncompleteBackupError(f"has lost its file {missing}")
    return sum(rows or 0 for rows in actions.column("num_records").to_pylist())
