"""Repairs a dataset's log after a crash, before the dataset is opened.

A commit syncs its log entry before it renames it into place (`delta_log`). delta-rs does not: it makes the first entry
of a table and the checkpoints, and in earlier versions it made all entries. After a power cut the newest entry or
checkpoint may therefore lack its content. Every commit is synced before the next begins, so only the newest entry can
be torn, no entry before it has a checksum, and it was never acknowledged. Recovery moves it to the folder `_lost` of
the dataset. All other damage concerns acknowledged data: recovery raises an error that names the file and changes
nothing. The same holds for a read that fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

from tocsin import faults
from tocsin.pipeline.datasets.delta import log_entries
from tocsin.pipeline.datasets.delta.log_files import checkpoint_name, entry_name, log_of, parse_log_names
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import DRAFT_SUFFIX
from tocsin.wire.errors import StoreError

# Readers of Delta tables skip folders whose names begin with an underscore.
LOST_FOLDER: Final = "_lost"
LAST_CHECKPOINT: Final = "_last_checkpoint"
_PARQUET_MAGIC: Final = b"PAR1"

_log = structlog.get_logger("tocsin.datasets")


def damage_error(folder: StorageFolder, name: str, why: str) -> StoreError:
    return StoreError(
        f"the dataset's log is damaged: {log_of(folder).locate(name)} {why}",
        hint="nothing was changed; bring the file back from a copy of the disk, or restore a backup; "
        "tocsin check names all that is damaged",
    )


def recover_log(folder: StorageFolder, *, created: bool) -> bool:
    """Returns whether a file was torn. Raises OSError if the disk cannot be read, StoreError if the log is damaged.

    `created`: the CREATE of the dataset has succeeded, so that its first entry was synced.
    """
    logs = log_of(folder)
    names = logs.list_names()
    if not names:
        return False
    entries, checkpoints = parse_log_names(names)
    torn = _torn_checkpoint(folder, entries, checkpoints)
    base = max((version for version in checkpoints if checkpoint_name(version) not in torn), default=-1)
    torn += _torn_entry(folder, entries, base, created=created)
    # Drafts of entries have this suffix until they are complete (storage.local); readers ignore them.
    # `_last_checkpoint` is a hint, which readers can do without.
    unneeded = [name for name in names if name.endswith(DRAFT_SUFFIX)]
    if LAST_CHECKPOINT in names and (torn or not _is_whole(logs.read(LAST_CHECKPOINT))):
        unneeded.append(LAST_CHECKPOINT)
    for name in torn:
        set_aside(folder, name)
    if logs.remove(unneeded) or torn:
        logs.sync()
    return bool(torn)


def _is_whole(content: bytes) -> bool:
    return log_entries.classify_entry(content) is log_entries.EntryState.WHOLE


def _torn_entry(folder: StorageFolder, entries: list[int], base: int, *, created: bool) -> list[str]:
    """The newest entry, if a power cut tore it. Reads the entries after the checkpoint of the version `base`."""
    logs = log_of(folder)
    for index, version in enumerate(version for version in entries if version > base):
        name = entry_name(version)
        if version != base + 1 + index:
            raise damage_error(folder, entry_name(base + 1 + index), "is missing, and later ones are there")
        state = log_entries.classify_entry(logs.read(name))
        if state is log_entries.EntryState.TORN and can_be_torn(folder, version, entries, created=created):
            return [name]
        if state is not log_entries.EntryState.WHOLE:
            raise damage_error(folder, name, "is not as it was written")
    return []


def can_be_torn(folder: StorageFolder, version: int, entries: Sequence[int], *, created: bool = True) -> bool:
    """Whether a power cut may have left this entry as it is, and not damage. `entries`: the versions of the log.

    A Tocsin that writes checksums syncs each entry before it gets its name. After an entry with a checksum, an empty or
    cut entry is therefore an acknowledged commit that lost its content. An object store never shows a part of a file.
    """
    if not folder.has_conditional_put or version != entries[-1] or (created and version == 0):
        return False
    logs = log_of(folder)
    return not any(log_entries.has_checksum(logs.read(entry_name(earlier))) for earlier in reversed(entries[:-1]))


def _torn_checkpoint(folder: StorageFolder, entries: list[int], checkpoints: list[int]) -> list[str]:
    """The newest checkpoint, if it is torn and nothing is lost without it.

    Log entries are removed only after a later checkpoint was synced: the content of a torn checkpoint is still in the
    log.
    """
    if not checkpoints or _is_whole_checkpoint(folder, checkpoints[-1], entries):
        return []
    newest = checkpoint_name(checkpoints[-1])
    before = max(checkpoints[:-1], default=-1)
    if set(range(before + 1, checkpoints[-1] + 1)) <= set(entries):
        return [newest]
    raise damage_error(folder, newest, "is not as it was written, and the entries that it stands for are removed")


def _is_whole_checkpoint(folder: StorageFolder, version: int, entries: list[int]) -> bool:
    logs, name = log_of(folder), checkpoint_name(version)
    if not is_whole_parquet(logs, name):
        return False
    marks = (log_entries.read_checkpoint_mark(logs.read(entry_name(entry))) for entry in entries if entry > version)
    expected = next((digest for mark in marks if mark is not None for of, digest in [mark] if of == version), None)
    return expected is None or log_entries.compute_digest(logs, name) == expected


def set_aside(folder: StorageFolder, name: str) -> None:
    """Moves a file of the log to the folder `_lost` of the dataset, under a new name."""
    logs, lost = log_of(folder), folder.child(LOST_FOLDER)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    taken = set(lost.list_names())
    target, tries = f"{stamp}-{name}", 1
    while target in taken:
        tries += 1
        target = f"{stamp}-{tries}-{name}"
    logs.move_file(name, lost, target)
    faults.reach("recovery.set-aside")
    folder.sync()
    _log.warning(
        "a damaged file of a dataset's log is set aside: no acknowledged commit needs it",
        path=logs.locate(name), now=lost.locate(target),
    )  # fmt: skip


def list_files_set_aside(folder: StorageFolder) -> set[str]:
    """The data files that entries in `_lost` name: they stay, so that the lost commit is complete there.

    An entry that is not whole may name any data file: all of them stay.
    """
    lost = folder.child(LOST_FOLDER)
    entries = [lost.read(name) for name in lost.list_names() if name.endswith(".json")]
    if not all(_is_whole(content) for content in entries):
        return {name for name in folder.list_names() if name.endswith(".parquet")}
    return {name for content in entries for name in log_entries.list_added_files(content)}


def is_whole_parquet(folder: StorageFolder, name: str) -> bool:
    """Whether the file ends as a Parquet file does."""
    with folder.open_input(name) as file:
        size_bytes = file.size()
        return bool(size_bytes >= 12 and file.read_at(4, size_bytes - 4) == _PARQUET_MAGIC)
