"""The segment files of an intake log, each named by its first position.

A segment gets its name only when its header is on the disk and the segment before it is whole and synced. Therefore
only the newest segment can end in a torn write.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import structlog

from tocsin import faults
from tocsin.cluster.data_folder.lost_folder import TAIL, LostFolder
from tocsin.cluster.intake import frames
from tocsin.durable_files import NO_ROOM, sync_folder, write_synced
from tocsin.wire.errors import StorageFullError, StoreError, TocsinError

_NAME: Final = re.compile(r"(\d{20})\.log")
_UNFINISHED: Final = ".new"
# A reader starts at the nearest mark below its position and scans from there.
_MARK_EVERY_BYTES: Final = 64 << 10
_READ_BYTES: Final = 256 << 10
_RESTORE: Final = "the log was left as it is; bring the file back from a copy of the disk"

_log = structlog.get_logger("tocsin.cluster")


def _damage_error(path: Path, where_bytes: int, why: str) -> StoreError:
    return StoreError(f"the intake log {path} is damaged at byte {where_bytes}: {why}", hint=_RESTORE)


def explain_os_errors_of_log(problem: OSError, folder: Path) -> TocsinError:
    if problem.errno in NO_ROOM:
        return StorageFullError(
            f"there is no room left for the intake log {folder}",
            hint="make room on the disk; nothing that was acknowledged is lost",
        )
    return StoreError(f"the intake log {folder} cannot be used: {problem.strerror or problem}")


class Segment:
    """One file: which positions it holds, how much of it is synced, and marks to find a position by."""

    __slots__ = (
        "_marked_offsets", "_marked_positions", "before_bytes", "doubt", "end", "first", "path", "salt", "size_bytes",
    )  # fmt: skip

    def __init__(self, path: Path, first: int, salt: int, before_bytes: int) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.salt = salt
        self.before_bytes = before_bytes
        """The frame bytes in all segments before this one."""
        self.size_bytes = frames.SEGMENT_HEAD_BYTES
        self.doubt: str | None = None
        """What is wrong with the bytes after the end, if they may have been acknowledged."""
        self._marked_positions: list[int] = []
        self._marked_offsets: list[int] = []

    @property
    def frames_bytes(self) -> int:
        return self.size_bytes - frames.SEGMENT_HEAD_BYTES

    def grow(self, first: int, rows: int, size_bytes: int) -> None:
        """Records that an entry was written at the end, and synced."""
        if not self._marked_offsets or self.size_bytes - self._marked_offsets[-1] >= _MARK_EVERY_BYTES:
            self._marked_positions.append(first)
            self._marked_offsets.append(self.size_bytes)
        self.end = first + rows
        self.size_bytes += size_bytes

    def _near(self, position: int) -> tuple[int, int]:
        """Returns an offset from which to scan for the position, and the position at that offset."""
        index = bisect_right(self._marked_positions, position) - 1
        if index < 0:
            return frames.SEGMENT_HEAD_BYTES, self.first
        return self._marked_offsets[index], self._marked_positions[index]

    def read(self, position: int, size_bytes: int) -> Iterator[tuple[int, frames.LogEntry]]:
        """Yields the entries from the one that holds the position on, each with its offset, up to the given size."""
        offset, expected = self._near(position)
        with self.path.open("rb", buffering=_READ_BYTES) as file:
            file.seek(offset)
            while offset < size_bytes:
                try:
                    frame = frames.read_frame(file, size_bytes - offset, self.salt)
                except frames.DamagedBytesError as problem:
                    raise _damage_error(self.path, offset, str(problem)) from None
                if frame.entry.first != expected:
                    raise _damage_error(self.path, offset, f"there is position {frame.entry.first}, not {expected}")
                if frame.entry.end > position:
                    yield offset, frame.entry
                offset += frame.size_bytes
                expected = frame.entry.end


def _find_segments(folder: Path) -> list[int]:
    """Returns the first positions of the segments in the folder. Deletes unfinished segments of a crash."""
    firsts = []
    for path in list(folder.iterdir()):
        if path.suffix == _UNFINISHED:
            path.unlink()
        elif name := _NAME.fullmatch(path.name):
            firsts.append(int(name[1]))
    return sorted(firsts)


def path_of(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}.log"


def create(folder: Path, first: int, before_bytes: int) -> Segment:
    """Creates an empty segment. It is durable, name included, when this returns."""
    path, salt = path_of(folder, first), frames.new_salt()
    unfinished = path.with_suffix(_UNFINISHED)
    try:
        write_synced(unfinished, frames.segment_head(first, salt))
        faults.reach("intake.segment.written")
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    faults.reach("intake.segment.rolled")
    sync_folder(folder)
    return Segment(path, first, salt, before_bytes)


def recover_segments(folder: Path, start: int, take: Callable[[frames.LogEntry], None]) -> Iterator[Segment]:
    """Yields the log's segments in order, each after `take` has seen its entries. Creates a missing log at `start`.

    A torn write at the end of the last segment is still in the file; `writer` cuts it off.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        firsts = _find_segments(folder)
        # A crash may have happened after a rename or a deletion and before its sync.
        sync_folder(folder)
        if not firsts:
            yield create(folder, start, 0)
        before_bytes, end = 0, None
        for first in firsts:
            if end is not None and end != first:
                raise StoreError(
                    f"the intake log {folder} has a gap: the positions from {end} to {first} are missing", hint=_RESTORE
                )
            segment = _open_segment(folder, first, before_bytes)
            for entry in _entries(segment, newest=first == firsts[-1]):
                take(entry)
            before_bytes += segment.frames_bytes
            end = segment.end
            yield segment
    except OSError as problem:
        raise explain_os_errors_of_log(problem, folder) from problem


def _open_segment(folder: Path, first: int, before_bytes: int) -> Segment:
    path = path_of(folder, first)
    with path.open("rb") as file:
        try:
            version, salt, stored_first = frames.read_segment_head(file.read(frames.SEGMENT_HEAD_BYTES))
        except frames.DamagedBytesError as problem:
            raise _damage_error(path, 0, str(problem)) from None
    if version > frames.VERSION:
        raise StoreError(
            f"the intake log {path} was written by a newer Tocsin (format {version}, this one knows {frames.VERSION})",
            hint="start the newer one",
        )
    if stored_first != first:
        raise _damage_error(path, 0, f"it begins at position {stored_first}, its name says {first}")
    return Segment(path, first, salt, before_bytes)


def _entries(segment: Segment, *, newest: bool, warn: bool = True) -> Iterator[frames.LogEntry]:
    size_bytes = segment.path.stat().st_size
    with segment.path.open("rb", buffering=_READ_BYTES) as file:
        file.seek(frames.SEGMENT_HEAD_BYTES)
        while segment.size_bytes < size_bytes:
            offset = segment.size_bytes
            try:
                frame = frames.read_frame(file, size_bytes - offset, segment.salt)
            except frames.DamagedBytesError as problem:
                if not newest or _was_synced(segment, offset):
                    raise _damage_error(segment.path, offset, str(problem)) from None
                if not isinstance(problem, frames.CutShortError) and any(_read_tail(segment)):
                    segment.doubt = str(problem)
                elif warn:
                    _log.warning(
                        "an unfinished write at the end of the intake log is cut off",
                        file=str(segment.path), at_bytes=offset, cut_bytes=size_bytes - offset,
                    )  # fmt: skip
                return
            if frame.entry.first != segment.end or frame.entry.rows < 1:
                raise _damage_error(segment.path, offset, f"there is position {frame.entry.first}, not {segment.end}")
            segment.grow(frame.entry.first, frame.entry.rows, frame.size_bytes)
            yield frame.entry


def _read_tail(segment: Segment) -> bytes:
    """Returns the bytes after the last whole frame."""
    with segment.path.open("rb") as file:
        file.seek(segment.size_bytes)
        return file.read()


def _was_synced(segment: Segment, offset: int) -> bool:
    """Whether a whole frame after this offset says that the bytes at the offset were synced before it was written."""
    tail = _read_tail(segment)
    reader = BytesIO(tail)
    start = tail.find(frames.FRAME_MAGIC)
    while start >= 0:
        reader.seek(start)
        try:
            if frames.read_frame(reader, len(tail) - start, segment.salt).synced_bytes > offset:
                return True
        except frames.DamagedBytesError:
            pass
        start = tail.find(frames.FRAME_MAGIC, start + 1)
    return False


def find_first(folder: Path) -> int | None:
    """Returns the first position of a log that another process may be writing to; None if there is no log."""
    return min((int(name[1]) for path in folder.glob("*.log") if (name := _NAME.fullmatch(path.name))), default=None)


@dataclass(frozen=True, slots=True)
class _InspectedLog:
    end: int
    """The position after the last whole entry."""
    doubt: str | None
    """What is wrong with the bytes after it, if they may have been acknowledged."""


def inspect(folder: Path) -> _InspectedLog:
    """Reads a log that another process may be writing to, without changes.

    Raises StoreError for damage, and FileNotFoundError if segments were deleted meanwhile because they had landed.
    """
    firsts = sorted(int(name[1]) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name)))
    end: int | None = None
    doubt: str | None = None
    for first in firsts:
        if end is not None and end != first:
            raise StoreError(
                f"the intake log {folder} has a gap: the positions from {end} to {first} are missing", hint=_RESTORE
            )
        segment = _open_segment(folder, first, 0)
        # A write may be under way after the last whole frame.
        for _ in _entries(segment, newest=first == firsts[-1], warn=False):
            pass
        end = segment.end
        if segment.doubt is not None:
            doubt = f"{segment.path.name}, byte {segment.size_bytes}: {segment.doubt}"
    return _InspectedLog(end or 0, doubt)


def writer(segment: Segment, lost: LostFolder | None, sync: Callable[[int], None]) -> SegmentWriter:
    """Returns a writer that continues after the last whole frame.

    It cuts off what comes after that frame. What may have been acknowledged is copied to the lost folder before;
    without a lost folder it is refused as damage.
    """
    try:
        if segment.doubt is not None:
            if lost is None:
                raise _damage_error(segment.path, segment.size_bytes, segment.doubt)
            tail = _read_tail(segment)
            copy = lost.store_copy(tail, f"{TAIL}-{segment.path.parent.name}-{segment.path.name}-{segment.size_bytes}")
            _log.error(
                "the end of the intake log fails its check: an unfinished write, or acknowledged records that were "
                "damaged; it is set aside",
                file=str(segment.path), at_bytes=segment.size_bytes, cut_bytes=len(tail), now=str(copy),
                reason=segment.doubt,
            )  # fmt: skip
            segment.doubt = None
        return SegmentWriter(segment, sync)
    except OSError as problem:
        raise explain_os_errors_of_log(problem, segment.path) from problem


class SegmentWriter:
    """Writes at the synced end of the newest segment. The next write overwrites what a failed write left."""

    def __init__(self, segment: Segment, sync: Callable[[int], None]) -> None:
        """Cuts off everything after the known end, and syncs everything before it.

        After a crash of the process alone, the last frames may only be in the page cache. Landing them before they are
        on the disk could leave the datasets ahead of the log.
        """
        self._sync = sync
        self._handle = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        self._end_bytes = segment.size_bytes
        self._uncut = os.fstat(self._handle).st_size > segment.size_bytes
        self._broken: OSError | None = None
        try:
            self.settle()
            self._sync(self._handle)
        except BaseException:
            self.close()
            raise

    def write(self, content: bytes) -> None:
        """Writes the content; it is on the disk when this returns. If this raises, none of it counts."""
        self.settle()
        self._uncut = True
        offset, view = self._end_bytes, memoryview(content)
        while view:
            written = os.pwrite(self._handle, view, offset)
            offset, view = offset + written, view[written:]
        faults.reach("intake.append.written")
        self._flush()
        self._uncut = False
        self._end_bytes = offset
        faults.reach("intake.append.synced")

    def settle_quietly(self) -> None:
        """Cuts off a failed write now if possible; otherwise the next write does it."""
        try:
            self.settle()
        except OSError:
            return

    def settle(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._uncut:
            os.ftruncate(self._handle, self._end_bytes)
            faults.reach("intake.append.cut")
            self._flush()
            self._uncut = False

    def _flush(self) -> None:
        try:
            self._sync(self._handle)
        except OSError as problem:
            if problem.errno not in NO_ROOM:
                # After a failed sync the kernel drops the dirty pages: a second sync would succeed without writing
                # them.
                self._broken = problem
                # Truncate, because readers may still see those pages: after a restart, refused entries would look
                # stored.
                with suppress(OSError):
                    os.ftruncate(self._handle, self._end_bytes)
            raise

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
