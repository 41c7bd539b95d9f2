"""Repairs a dataset's log after a crash, before the dataset is opened.

A commit syncs its log entry before it renames it into place (`delta_log`). delta-rs does not: it makes the first entry
of a table and the checkpoints, and in earlier versions it made all entries. After a power cut the newest entry or
checkpoint may therefore lack its content. Every commit is synced before the next begins, so only the newest entry can
be torn, no entry before it has a checksum, and it was never acknowledged. Recovery moves it to the folder `_lost` of
the dataset. All other damage concerns acknowledged data: recovery raises an error that names the file and changes
nothing. The same holds for a read that fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from tocsin import faults
from tocsin.durable_files import sync_folder
from tocsin.pipeline.datasets.delta import log_entries
from tocsin.pipeline.datasets.delta.log_files import LOG_FOLDER, checkpoint_path, entry_path, log_versions, remove_files
from tocsin.wire.errors import StoreError

# Readers of Delta tables skip folders whose names begin with an underscore.
LOST_FOLDER: Final = "_lost"
LAST_CHECKPOINT: Final = "_last_checkpoint"
_PARQUET_MAGIC: Final = b"PAR1"

_log = structlog.get_logger("tocsin.datasets")


def damage_error(path: Path, why: str) -> StoreError:
    return StoreError(
        f"the dataset's log is damaged: {path} {why}",
        hint="nothing was changed; bring the file back from a copy of the disk, or restore a backup; "
        "tocsin check names all that is damaged",
    )


def recover_log(folder: Path, *, created: bool) -> bool:
    """Returns whether a file was torn. Raises OSError if the disk cannot be read, StoreError if the log is damaged.

    `created`: the CREATE of the dataset has succeeded, so that its first entry was synced.
    """
    logs = folder / LOG_FOLDER
    if not logs.is_dir():
        return False
    torn = _torn_checkpoint(folder)
    entries, checkpoints = log_versions(folder)
    base = max((version for version in checkpoints if checkpoint_path(folder, version) not in torn), default=-1)
    torn += _torn_entry(folder, entries, base, created=created)
    # Drafts of entries have this suffix until they are complete (log_writer); readers ignore them. `_last_checkpoint`
    # is a hint, which readers can do without.
    unneeded = [path for path in logs.iterdir() if path.suffix == ".tmp"]
    last = logs / LAST_CHECKPOINT
    if last.exists() and (torn or log_entries.classify_entry(last.read_bytes()) is not log_entries.EntryState.WHOLE):
        unneeded.append(last)
    for path in torn:
        set_aside(folder, path)
    if remove_files(unneeded) or torn:
        sync_folder(logs)
    return bool(torn)


def _torn_entry(folder: Path, entries: list[int], base: int, *, created: bool) -> list[Path]:
    """The newest entry, if a power cut tore it. Reads the entries after the checkpoint of the version `base`."""
    for index, version in enumerate(version for version in entries if version > base):
        path = entry_path(folder, version)
        if version != base + 1 + index:
            raise damage_error(entry_path(folder, base + 1 + index), "is missing, and later ones are there")
        state = log_entries.classify_entry(path.read_bytes())
        if state is log_entries.EntryState.TORN and can_be_torn(folder, version, entries, created=created):
            return [path]
        if state is not log_entries.EntryState.WHOLE:
            raise damage_error(path, "is not as it was written")
    return []


def can_be_torn(folder: Path, version: int, entries: Sequence[int], *, created: bool = True) -> bool:
    """Whether a power cut may have left this entry as it is, and not damage. `entries`: the versions of the log.

    A Tocsin that writes checksums syncs each entry before it gets its name. After an entry with a checksum, an empty or
    cut entry is therefore an acknowledged commit that lost its content.
    """
    if version != entries[-1] or (created and version == 0):
        return False
    return not any(
        log_entries.has_checksum(entry_path(folder, earlier).read_bytes()) for earlier in reversed(entries[:-1])
    )


def _torn_checkpoint(folder: Path) -> list[Path]:
    """The newest checkpoint, if it is torn and nothing is lost without it.

    Log entries are removed only after a later checkpoint was synced: the content of a torn checkpoint is still in the
    log.
    """
    entries, checkpoints = log_versions(folder)
    if not checkpoints or _is_whole_checkpoint(folder, checkpoints[-1], entries):
        return []
    newest = checkpoint_path(folder, checkpoints[-1])
    before = max(checkpoints[:-1], default=-1)
    if set(range(before + 1, checkpoints[-1] + 1)) <= set(entries):
        return [newest]
    raise damage_error(newest, "is not as it was written, and the entries that it stands for are removed")


def _is_whole_checkpoint(folder: Path, version: int, entries: list[int]) -> bool:
    path = checkpoint_path(folder, version)
    if not is_whole_parquet(path):
        return False
    marks = (
        log_entries.read_checkpoint_mark(entry_path(folder, entry).read_bytes()) for entry in entries if entry > version
    )
    expected = next((digest for mark in marks if mark is not None for of, digest in [mark] if of == version), None)
    return expected is None or log_entries.compute_digest(path) == expected


def set_aside(folder: Path, path: Path) -> None:
    """Moves a file of the dataset to its folder `_lost`, under a new name."""
    lost = folder / LOST_FOLDER
    lost.mkdir(mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target, tries = lost / f"{stamp}-{path.name}", 1
    while os.path.lexists(target):
        tries += 1
        target = lost / f"{stamp}-{tries}-{path.name}"
    path.rename(target)
    faults.reach("recovery.set-aside")
    sync_folder(lost)
    sync_folder(folder)
    _log.warning(
        "a damaged file of a dataset's log is set aside: no acknowledged commit needs it",
        path=str(path), now=str(target),
    )  # fmt: skip


def list_files_set_aside(folder: Path) -> set[str]:
    """The data files that entries in `_lost` name: they stay, so that the lost commit is complete there.

    An entry that is not whole may name any data file: all of them stay.
    """
    entries = [path.read_bytes() for path in (folder / LOST_FOLDER).glob("*.json")]
    if any(log_entries.classify_entry(content) is not log_entries.EntryState.WHOLE for content in entries):
        return {path.name for path in folder.glob("*.parquet")}
    return {name for content in entries for name in log_entries.list_added_files(content)}


def is_whole_parquet(path: Path) -> bool:
    """Whether the file ends as a Parquet file does."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == _PARQUET_MAGIC
