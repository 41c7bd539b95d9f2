"""Upkeep of a dataset: compaction, checkpoints, retention and clean-up keep it fast and small.

Upkeep consumes no commit numbers and does not change what a readable state shows (except that retention removes rows
by age, in all states). The long part of each step reads and writes files beside the writers; only the exchange in the
log takes the write lock. If a writer changed the files of a step meanwhile, the step is dropped and tried again later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tocsin import faults
from tocsin.clock import span_us
from tocsin.durable_files import is_full_disk
from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.data_files import LARGEST_FILE_BYTES, DataFile
from tocsin.pipeline.datasets.delta.log_entries import compute_digest
from tocsin.pipeline.datasets.delta.log_files import checkpoint_name, entry_name, log_of, open_delta
from tocsin.pipeline.datasets.delta.log_recovery import LAST_CHECKPOINT
from tocsin.pipeline.datasets.delta.tombstones import LOG_ENTRIES_MAX, LogFiles
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.rules.model.columns import AT
from tocsin.wire.errors import StorageFullError

# A file climbs one tier per compaction, so a row is rewritten a few times in its life, not once per commit.
TIERS_BYTES: Final = (256 << 10, 2 << 20, 16 << 20, LARGEST_FILE_BYTES)
# Commits that replace rows rewrite each touched file, so files stay smaller there.
_TIERS_IF_REWRITTEN: Final = TIERS_BYTES[:-1]

# A checkpoint costs more the more entries and tombstones are kept for outside readers, so the number of checkpoints
# within that time is limited.
_CHECKPOINTS_KEPT: Final = 100
_CHECKPOINTS_APART: Final = 100

# Rows may live this much longer than retention says, so that a file is not rewritten for every row in it.
_RETENTION_SLACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class UpkeepLimits:
    files_per_compaction: int = 16
    checkpoint_every: int = 20  # entries; opening the table replays the entries since the last checkpoint
    clean_up_every: int = 64  # entries


_USUAL: Final = UpkeepLimits()


@dataclass(frozen=True, slots=True)
class UpkeepRound:
    """What one round of upkeep did."""

    compacted_files: int = 0
    expired_rows: int = 0
    checkpoint: int | None = None
    removed_data_files: int = 0
    removed_log_files: int = 0
    removed_early: int = 0  # among these, files removed before the promised time of outside readers was over


def is_upkeep_due(table: DatasetTable, limits: UpkeepLimits = _USUAL) -> bool:
    """Returns whether `upkeep` would find work; cheap."""
    return not table.is_closed and (
        _is_clean_up_due(table, limits)
        or table.log.has_other_properties()
        or _is_checkpoint_due(table, limits)
        or bool(_crowded(table, limits))
        or bool(_expiring(table))
    )


def upkeep(table: DatasetTable, limits: UpkeepLimits = _USUAL) -> UpkeepRound:
    """Does one round of upkeep. Safe at any time beside readers and writers; a second concurrent call waits."""
    with table.upkeeping:
        try:
            with table.writing:
                table.refresh()
            if table.log.has_other_properties():
                with table.writing:
                    table.exchange(table.log.describe, ())
            expired = _expire(table)
            compacted = sum(_compact(table, files) for files in _crowded(table, limits))
            checkpoint = _checkpoint(table, limits)
            cleaned = clean_up(table) if _is_clean_up_due(table, limits) else UpkeepRound()
            return replace(cleaned, compacted_files=compacted, expired_rows=expired, checkpoint=checkpoint)
        except Exception as error:
            if is_full_disk(error):
                clean_up(table, for_room=True)  # removing files frees space, and needs none
                raise StorageFullError("the disk is full: upkeep will be tried again") from error
            raise


# ---- compaction


def _crowded(table: DatasetTable, limits: UpkeepLimits) -> list[list[DataFile]]:
    """Groups of files to be joined, the oldest rows first."""
    state = table.past.state
    if len(state.files) < limits.files_per_compaction:
        return []
    groups = []
    below = 0
    for tier in TIERS_BYTES if state.last_rewrite == 0 else _TIERS_IF_REWRITTEN:
        files = [file for file in state.files.values() if below <= file.size_bytes < tier]
        if len(files) >= limits.files_per_compaction:
            groups.append(_fitting_one_file(sorted(files, key=lambda file: (file.first_commit, file.last_commit))))
        below = tier
    return groups


def _fitting_one_file(files: list[DataFile]) -> list[DataFile]:
    total_bytes = 0
    for index, file in enumerate(files):
        total_bytes += file.size_bytes
        if total_bytes > LARGEST_FILE_BYTES and index >= 2:
            return files[:index]
    return files


def _compact(table: DatasetTable, sources: Sequence[DataFile]) -> int:
    """Joins these files into one. Returns how many were joined."""
    pieces = (piece for source in sources for piece in table.data.read(source.name))
    written = table.data.write(pieces, as_one=True)
    return len(sources) if _exchange(table, written, sources, "compact") else 0


def _exchange(table: DatasetTable, written: list[DataFile], sources: Sequence[DataFile], step: str) -> bool:
    """Puts the new file in place of the old files, unless a writer has changed them meanwhile."""
    names = [source.name for source in sources]
    with table.writing:
        table.refresh()
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
    latest_us = table.clock.age_us() - span_us(table.retention_s * (1 + _RETENTION_SLACK))
    return [file for file in table.past.state.files.values() if file.first_at_us < latest_us]


def _expire(table: DatasetTable) -> int:
    """Removes the rows that are older than the retention. Returns their number."""
    expired = 0
    for file in _expiring(table):
        before_us = table.clock.age_us() - span_us(table.retention_s or 0)
        if file.last_at_us < before_us:
            expired += file.rows if _exchange(table, [], [file], "retention") else 0
            continue
        written = table.data.write(_younger(table, file, before_us), as_one=True)
        ats_us = table.data.read_columns(file.name, [AT]).column(AT).cast(pa.int64()).to_numpy()
        expired_hashes = keyed.hashes(table.lookup.keys_in(file.name))[ats_us < before_us]
        with table.writing:
            if not _exchange(table, written, [file], "retention"):
                continue
            index = table.lookup.loaded
            if index is not None and written:
                index.replaced(expired_hashes, [written[0].name] * len(expired_hashes), None)
        expired += len(expired_hashes)
    return expired


def _younger(table: DatasetTable, file: DataFile, before_us: int) -> Iterator[pa.Table]:
    for piece in table.data.read(file.name):
        ats_us = piece.column(AT).cast(pa.int64()).to_numpy()
        yield piece.filter(pa.array(ats_us >= before_us))


# ---- the log


def _is_checkpoint_due(table: DatasetTable, limits: UpkeepLimits) -> bool:
    kept_entries = len(table.log_files.entries) if table.log_files is not None else 0
    interval = max(limits.checkpoint_every, kept_entries // _CHECKPOINTS_KEPT)
    return table.past.state.version - table.log.checkpoint_version >= interval


def _checkpoint(table: DatasetTable, limits: UpkeepLimits) -> int | None:
    """Writes a checkpoint of the state, so that opening the table need not replay the whole log."""
    if not _is_checkpoint_due(table, limits):
        return None
    logs = log_of(table.log.folder)
    delta = open_delta(table.log.folder)
    version: int = delta.version()
    delta.create_checkpoint()
    faults.reach("dataset.checkpoint.written")
    logs.sync_file(checkpoint_name(version))
    logs.sync_file(LAST_CHECKPOINT)
    logs.sync()
    digest = compute_digest(logs, checkpoint_name(version))
    with table.writing:
        table.log.checkpointed(version, digest)
    if table.log_files is not None:
        table.log_files.checkpoints.append(version)
    return version


# ---- clean-up


def _is_clean_up_due(table: DatasetTable, limits: UpkeepLimits) -> bool:
    age_us = table.clock.age_us()
    return (
        table.leftovers
        or table.cleaned_at_version + limits.clean_up_every <= table.past.state.version
        or table.past.has_expired_files(age_us)
        or (table.log_files is not None and table.log_files.has_expired(age_us - table.outside_readers.keep_us))
    )


def clean_up(table: DatasetTable, *, for_room: bool = False) -> UpkeepRound:
    """Removes the files that neither a readable state nor an outside reader needs.

    `for_room`: the disk is full, so files that are kept only for outside readers go as well.
    """
    data_files = _remove_leftovers(table) if table.leftovers else 0
    unneeded, early = table.past.take_unneeded_files(table.clock, for_room=for_room)
    for name in unneeded:
        data_files += table.data.remove([name])
        faults.reach("dataset.cleanup.data-removed")
    log_files, early_log_files = _trim_log(table)
    table.cleaned_at_version = table.past.state.version
    return UpkeepRound(
        removed_data_files=data_files, removed_log_files=log_files, removed_early=early + early_log_files
    )


def _remove_leftovers(table: DatasetTable) -> int:
    """Removes data files of a crash, which no state names. Holds the write lock: a writer may have begun a file."""
    with table.writing:
        table.refresh()
        needed = table.past.kept_files() | table.log.list_files_to_leave()
        removed = table.data.remove(name for name in table.data.names() if name not in needed)
        table.leftovers = False
        return removed


def _trim_log(table: DatasetTable) -> tuple[int, int]:
    """Removes the beginning of the log. Returns how many files went, and how many of them before their time."""
    folder = table.log.folder
    if table.log_files is None:
        table.log_files = LogFiles(folder)
    log = table.log_files
    log.extend_to(table.past.state.version, table.clock.now_us())
    needed_here = table.past.keep_log_from()
    in_time = log.needed_since(table.clock.age_us() - table.outside_readers.keep_us)
    at_most = log.needed_within(LOG_ENTRIES_MAX)
    base_here, base = (
        max((version for version in log.checkpoints if version <= needed), default=None)
        for needed in (needed_here, min(needed_here, max(in_time, at_most)))
    )
    if base_here is not None:
        table.past.trim(base_here)
    if base is None:
        return 0, 0
    # Entries go before older checkpoints, the oldest first: what remains after a crash can be read from `base`.
    entries = log.take_before(base)
    checkpoints = [version for version in log.checkpoints if version < base]
    # An outside reader may have begun with any checkpoint of its time, and every reader begins with the last.
    checkpoints += _crowding(base, [version for version in log.checkpoints[:-1] if base < version < in_time])
    for name in [*map(entry_name, entries), *map(checkpoint_name, checkpoints)]:
        log_of(folder).remove([name])
        faults.reach("dataset.cleanup.log-removed")
    log.checkpoints = [version for version in log.checkpoints if version not in checkpoints]
    return len(entries) + len(checkpoints), sum(version >= in_time for version in entries)


def _crowding(base: int, checkpoints: Sequence[int]) -> list[int]:
    """The checkpoints after `base` that are closer together than necessary."""
    last = base
    crowding = []
    for version in checkpoints:
        if version - last < _CHECKPOINTS_APART:
            crowding.append(version)
        else:
            last = version
    return crowding
