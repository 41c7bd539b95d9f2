"""Freezes everything durable, quickly: by hard links, or by pins where the storage has no links.

Data files and log entries never change once they exist. A second name for each (a hard link) is therefore enough to
keep them, whatever upkeep or DROP do meanwhile. On an object store the log is copied, which is small, and the data
files are pinned: upkeep leaves them where they are until they are in the backup.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError

from tocsin.cluster.backup.manifest import DATASETS, INTAKE, PYTHON, DatasetState
from tocsin.cluster.backup.progress import explain_os_errors
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, log_of, log_versions, open_delta
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import UnavailableError

_ATTEMPTS: Final = 10
_LOG_FILE: Final = re.compile(r"(\d{20})\.(?!.*\.tmp$).+")


class BackupTable(Protocol):
    """The part of a dataset's table that a backup needs."""

    def snapshot(self) -> Snapshot: ...

    def needed_log_version(self) -> int: ...

    def pin(self, snapshot: Snapshot) -> AbstractContextManager[Snapshot]: ...


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A data file that stays in its storage until it is in the backup."""

    folder: StorageFolder
    name: str
    size_bytes: int

    def open(self) -> BinaryIO:
        file: BinaryIO = self.folder.open_input(self.name)
        return file


class FrozenState:
    """What `hold_all` froze: files in the folder `held`, and `pinned` files by their names in the backup. The pins end
    with `close`.
    """

    def __init__(self, held: Path) -> None:
        self.held = held
        self.pinned: dict[str, PinnedFile] = {}
        self.datasets: list[DatasetState] = []
        self._pins = ExitStack()

    def pin(self, table: BackupTable, files: Mapping[str, PinnedFile], snapshot: Snapshot) -> None:
        paths = tuple(file.folder.spark_path(file.name) for file in files.values())
        self._pins.enter_context(table.pin(Snapshot(paths, snapshot.number, snapshot.version, snapshot.rows_up_to)))
        self.pinned |= files

    def close(self) -> None:
        self._pins.close()


def hold_all(tables: Mapping[str, BackupTable], data: Path, datasets: StorageFolder, frozen: FrozenState) -> None:
    """Freezes everything but the stores. Their folder is `frozen.held`."""
    held = frozen.held
    # A feed's log must begin before and end after the position of its datasets. While datasets are frozen, records may
    # land (the log's begin is trimmed) and others may arrive (its end grows). So freeze the log's files before the
    # datasets, and the new ones after.
    _hold_files(data / INTAKE, held / INTAKE, _link)
    with explain_os_errors(held):
        for name in sorted(tables):
            frozen.datasets.append(_hold_table(name, tables[name], datasets.child(name), frozen))
    _hold_files(data / INTAKE, held / INTAKE, _link)
    _hold_files(data / PYTHON, held / PYTHON, shutil.copyfile)  # copy: people edit these files in place


def _hold_files(folder: Path, held: Path, hold: Callable[[Path, Path], Any]) -> None:
    with explain_os_errors(held):
        for path in sorted(folder.rglob("*")):
            target = held / path.relative_to(folder)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the log was trimmed just now: its records have landed
                    hold(path, target)


def _hold_table(name: str, table: BackupTable, folder: StorageFolder, frozen: FrozenState) -> DatasetState:
    held = frozen.held / DATASETS / name
    for _ in range(_ATTEMPTS):
        snapshot = table.snapshot()
        with table.pin(snapshot):
            files = [path.rpartition("/")[2] for path in snapshot.files]
            pinned: dict[str, PinnedFile] = {}
            try:
                (held / LOG_FOLDER).mkdir(parents=True)
                _hold_log(folder, held, table.needed_log_version(), snapshot.version)
                if not _link_data(folder, held, files):
                    sizes = {file.name: file.size_bytes for file in folder.list_files()}
                    named = [*files, *(file for file in _list_past(held) if file in sizes)]
                    pinned = {file: PinnedFile(folder, file, sizes[file]) for file in named if file in sizes}
                rows = check_table(LocalFolder(held), snapshot.version, files, set(pinned))
            except (FileNotFoundError, IncompleteBackupError):
                # Upkeep replaced log entries by a checkpoint between the snapshot and the links: try again.
                shutil.rmtree(held)
                continue
            frozen.pin(table, {f"{DATASETS}/{name}/{file}": pin for file, pin in pinned.items()}, snapshot)
            return DatasetState(name, snapshot.number, snapshot.version, rows)
    raise UnavailableError(f"the dataset in {folder.url} could not be held still", hint="try again")


def _hold_log(folder: StorageFolder, held: Path, needed_version: int, last_version: int) -> None:
    # Skip what is kept only for readers outside: it may be an hour of entries and files that the backup does not need.
    before = [version for version in log_versions(folder)[1] if version <= min(needed_version, last_version)]
    first_version = max(before, default=0)
    logs = log_of(folder)
    # Skip `_last_checkpoint`: it may already name a later one, and readers find the checkpoints without it.
    for name in logs.list_names():
        match = _LOG_FILE.fullmatch(name)
        if match is not None and first_version <= int(match[1]) <= last_version:
            target = held / LOG_FOLDER / name
            if not logs.hold(name, target):
                target.write_bytes(logs.read(name))


def _link_data(folder: StorageFolder, held: Path, files: list[str]) -> bool:
    """Links the files of the current state and, as far as they exist, those of past states; a dataset does not offer
    states whose files are gone. Returns False if the storage has no links.
    """
    if not all(folder.hold(file, held / file) for file in files):
        return False
    for file in _list_past(held):
        if not (held / file).exists():
            with suppress(FileNotFoundError):
                if not folder.hold(file, held / file):
                    return False
    return True


def _list_past(held: Path) -> list[str]:
    """The data files that the entries of the held log name."""
    names: dict[str, None] = {}
    for entry in (held / LOG_FOLDER).glob("*.json"):
        for line in entry.read_text(encoding="utf-8").split("\n"):
            action = json.loads(line) if line else {}
            for kind in ("add", "remove"):
                path = action.get(kind, {}).get("path")
                if path is not None:
                    names[path] = None
    return list(names)


def _link(source: Path, target: Path) -> None:
    LocalFolder(source.parent).hold(source.name, target)


class IncompleteBackupError(Exception):
    """The table cannot be opened in the expected state."""


def check_table(
    folder: StorageFolder, commit: int, files: list[str] | None = None, elsewhere: Container[str] = frozenset()
) -> int:
    """Checks that the table opens at this version with these files, all present. Returns its number of rows.

    `elsewhere` are data files that are not in this folder, but are known to exist.
    """
    try:
        table = open_delta(folder)
        actions = pa.table(table.get_add_actions(flatten=True))
    except (DeltaError, OSError, ValueError) as error:
        raise IncompleteBackupError(f"cannot be opened: {str(error).splitlines()[0]}") from None
    if table.version() != commit:
        raise IncompleteBackupError(f"is at version {table.version()} instead of {commit}")
    paths = [str(path) for path in actions.column("path").to_pylist()]
    if files is not None and set(paths) != set(files):
        raise IncompleteBackupError("has other files than it should")
    present = set(folder.list_names())
    missing = next((path for path in paths if path not in present and path not in elsewhere), None)
    if missing is not None:
        raise IncompleteBackupError(f"has lost its file {missing}")
    return sum(rows or 0 for rows in actions.column("num_records").to_pylist())
