"""What keeps a dataset quick and small while it lives: compaction, checkpoints, retention, clean-up.

None of it consumes a commit number or changes what a state that can be asked for shows (retention ends rows by age, in
all states). The long part of each step reads and writes files beside the writers; only the exchange in the log takes a
turn among them, and a step whose files a writer changed meanwhile is dropped and tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from tocsin import faults
from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.datafiles import LARGEST_FILE_BYTES, DataFile
from tocsin.pipeline.datasets.durability import (
    LOG_FOLDER,
    checkpoint_path,
    entry_path,
    is_full_disk,
    log_versions,
    sync_file,
    sync_folder,
)
from tocsin.pipeline.datasets.log_entries import compute_digest
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.columns import AT
from tocsin.wire.errors import StorageFullError

# A file climbs one tier per compaction, so a row is rewritten a few times in its life, not once per commit.
TIERS_BYTES: Final = (256 << 10, 2 << 20, 16 << 20, LARGEST_FILE_BYTES)
# Where commits replace rows, each touched file is written anew: there files stay smaller.
_TIERS_IF_REWRITTEN: Final = TIERS_BYTES[:-1]
FILES_PER_COMPACTION: Final = 16

# delta-rs pays per log entry since the last checkpoint with every commit: 20 is where both together cost least.
_CHECKPOINT_EVERY: Final = 20
_CHECKPOINTS_APART: Final = 100
_CLEAN_UP_EVERY: Final = 64

# Rows may live this much longer than retention says, so that a file is not rewritten for every row in it.
_RETENTION_SLACK: Final = 0.1
_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Done:
    """What one round of upkeep did."""

    compacted_files: int = 0
    expired_rows: int = 0
    checkpoint: int | None = None
    removed_data_files: int = 0
    removed_log_files: int = 0


def is_due(table: DatasetTable) -> bool:
    return (
        table.leftovers
        or table.past.state.version - table.log.checkpoint_version >= _CHECKPOINT_EVERY
        or bool(_crowded(table))
        or bool(_expiring(table))
        or table.cleaned_at_version + _CLEAN_UP_EVERY <= table.past.state.version
    )


def upkeep(table: DatasetTable) -> Done:
    """One round. Safe at any time beside readers and writers; a second one at the same time waits."""
    with table.upkeeping:
        try:
            expired = _expire(table)
            compacted = sum(_compact(table, files) for files in _crowded(table))
            checkpoint = _checkpoint(table)
            data_files = log_files = 0
            if table.leftovers or table.cleaned_at_version + _CLEAN_UP_EVERY <= table.past.state.version:
                data_files, log_files = clean_up(table)
            return Done(compacted, expired, checkpoint, data_files, log_files)
        except Exception as error:
            if is_full_disk(error):
                clean_up(table)  # it only removes, and room is what is wanted
                raise StorageFullError("the disk is full: upkeep will be tried again") from error
            raise


# ---- compaction


def _crowded(table: DatasetTable) -> list[list[DataFile]]:
    """Groups of files to be joined, the oldest rows first."""
    state = table.past.state
    if len(state.files) < FILES_PER_COMPACTION:
        return []
    groups = []
    below = 0
    for tier in TIERS_BYTES if state.last_rewrite == 0 else _TIERS_IF_REWRITTEN:
        files = [file for file in state.files.values() if below <= file.size_bytes < tier]
        if len(files) >= FILES_PER_COMPACTION:
            groups.append(_fitting_one_file(sorted(files, key=lambda file: (file.first_commit, file.last_commit))))
        below = tier
    return groups


def _fitting_one_file(files: list[DataFile]) -> list[DataFile]:
    total_bytes = 0
    for place, file in enumerate(files):
        total_bytes += file.size_bytes
        if total_bytes > LARGEST_FILE_BYTES and place >= 2:
            return files[:place]
    return files


def _compact(table: DatasetTable, sources: Sequence[DataFile]) -> int:
    """Join these files into one; how many were joined."""
    pieces = (piece for source in sources for piece in table.data.read(source.name))
    written = table.data.write(pieces, largest_bytes=_UNLIMITED)
    return len(sources) if _exchange(table, written, sources, "compact") else 0


def _exchange(table: DatasetTable, written: list[DataFile], sources: Sequence[DataFile], step: str) -> bool:
    """Put the new file in the place of the old ones, unless a writer was quicker."""
    names = [source.name for source in sources]
    with table.writing:
        if any(name not in table.log.state.files for name in names):
            table.data.remove(file.name for file in written)
            return False
        table.exchange(lambda: table.log.maintain(written, sources, step=step), written)
        index = table.lookup.loaded
        if index is not None:
            index.moved(names, written[0].name if written else None)
        return True


# ---- retention


def _expiring(table: DatasetTable) -> list[DataFile]:
    if table.retention_s is None:
        return []
    latest_us = time.time_ns() // 1000 - int(table.retention_s * (1 + _RETENTION_SLACK) * 1e6)
    return [file for file in table.past.state.files.values() if file.first_at_us < latest_us]


def _expire(table: DatasetTable) -> int:
    """End the rows that are older than the retention; how many."""
    expired = 0
    for file in _expiring(table):
        before_us = time.time_ns() // 1000 - int((table.retention_s or 0) * 1e6)
        if file.last_at_us < before_us:
            expired += file.rows if _exchange(table, [], [file], "retention") else 0
            continue
        written = table.data.write(_younger(table, file, before_us), largest_bytes=_UNLIMITED)
        ats_us = table.data.read_columns(file.name, [AT]).column(AT).cast(pa.int64()).to_numpy()
        gone = keyed.hashes(table.lookup.keys_in(file.name))[ats_us < before_us]
        with table.writing:
            if not _exchange(table, written, [file], "retention"):
                continue
            index = table.lookup.loaded
            if index is not None and written:
                index.replaced(gone, [written[0].name] * len(gone), None)
        expired += len(gone)
    return expired


def _younger(table: DatasetTable, file: DataFile, before_us: int) -> Iterator[pa.Table]:
    for piece in table.data.read(file.name):
        ats_us = piece.column(AT).cast(pa.int64()).to_numpy()
        yield piece.filter(pa.array(ats_us >= before_us))


# ---- the log


def _checkpoint(table: DatasetTable) -> int | None:
    """Write the state down in one place, so that neither opening nor committing replays the log."""
    if table.past.state.version - table.log.checkpoint_version < _CHECKPOINT_EVERY:
        return None
    folder = table.log.folder
    delta = DeltaTable(str(folder))  # its own: the writers' goes on meanwhile
    version: int = delta.version()
    delta.create_checkpoint()
    faults.reach("dataset.checkpoint.written")
    sync_file(checkpoint_path(folder, version))
    sync_file(folder / LOG_FOLDER / "_last_checkpoint")
    sync_folder(folder / LOG_FOLDER)
    digest = compute_digest(checkpoint_path(folder, version))
    with table.writing:
        table.log.checkpointed(version, digest)
    return version


# ---- clean-up


def clean_up(table: DatasetTable) -> tuple[int, int]:
    """Remove the files that no state that can be asked for needs: (data files, log files)."""
    data_files = _remove_leftovers(table) if table.leftovers else 0
    unneeded = table.past.unneeded_files()
    for name in unneeded:
        data_files += table.data.remove([name])
        faults.reach("dataset.cleanup.data-removed")
    table.past.forget(unneeded)
    log_files = _trim_log(table)
    table.cleaned_at_version = table.past.state.version
    return data_files, log_files


def _remove_leftovers(table: DatasetTable) -> int:
    """Data files that a crash left: no state mentions them. No writer may be at work, it may have begun one."""
    with table.writing:
        kept = table.past.kept_files() | table.log.list_files_to_leave()
        removed = table.data.remove(name for name in table.data.names() if name not in kept)
        table.leftovers = False
        return removed


def _trim_log(table: DatasetTable) -> int:
    folder = table.log.folder
    entries, checkpoints = log_versions(folder)
    needed = table.past.keep_log_from()
    base = max((version for version in checkpoints if version <= needed), default=None)
    if base is None:
        return 0
    # Entries go before older checkpoints, the oldest first: whatever remains after a crash can be read from `base`.
    unneeded = [entry_path(folder, version) for version in entries if version < base]
    unneeded += [checkpoint_path(folder, version) for version in checkpoints if version < base]
    unneeded += [checkpoint_path(folder, version) for version in _crowding(base, checkpoints)]
    for path in unneeded:
        path.unlink()
        faults.reach("dataset.cleanup.log-removed")
    table.past.trim(base)
    return len(unneeded)


def _crowding(base: int, checkpoints: Sequence[int]) -> list[int]:
    """Checkpoints between the first and the last that stand closer than they need to."""
    between = [version for version in checkpoints if version > base][:-1]
    last = base
    crowding = []
    for version in between:
        if version - last < _CHECKPOINTS_APART:
            crowding.append(version)
        else:
            last = version
    return crowding
