"""The files of an intake log, each named by the position it begins at.

A segment appears under its name only when its head is on the disk, and the one before it is whole and synced by then.
Therefore only the newest can end in a torn write.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final

import structlog

from tocsin import faults
from tocsin.cluster.intake.frames import (
    FRAME_MAGIC,
    SEGMENT_HEAD_BYTES,
    VERSION,
    DamagedBytesError,
    LogEntry,
    new_salt,
    read_frame,
    read_segment_head,
    segment_head,
)
from tocsin.pipeline.datasets.delta.durability import NO_ROOM, sync_folder
from tocsin.wire.errors import StorageFullError, StoreError, TocsinError

_NAME: Final = re.compile(r"(\d{20})\.log")
_UNFINISHED: Final = ".new"
# A reader finds its place by the nearest mark below and reads on from there.
_MARK_EVERY_BYTES: Final = 64 << 10
_READ_BYTES: Final = 256 << 10
_RESTORE: Final = "the log was left as it is; bring the file back from a copy of the disk"

# Not everywhere; it leaves out times that nobody asks for.
_sync = getattr(os, "fdatasync", os.fsync)
_log = structlog.get_logger("tocsin.cluster")


def damaged(path: Path, where_bytes: int, why: str) -> StoreError:
    return StoreError(f"the intake log {path} is damaged at byte {where_bytes}: {why}", hint=_RESTORE)


def explained(problem: OSError, folder: Path) -> TocsinError:
    if problem.errno in NO_ROOM:
        return StorageFullError(
            f"there is no room left for the intake log {folder}",
            hint="make room on the disk; nothing that was acknowledged is lost",
        )
    return StoreError(f"the intake log {folder} cannot be used: {problem.strerror or problem}")


class Segment:
    """One file: which positions it holds, how much of it is synced, and marks to find a position by."""

    __slots__ = ("_marked_offsets", "_marked_positions", "before_bytes", "end", "first", "path", "salt", "size_bytes")

    def __init__(self, path: Path, first: int, salt: int, before_bytes: int) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.salt = salt
        self.before_bytes = before_bytes
        """How many bytes of frames lie in the segments before it."""
        self.size_bytes = SEGMENT_HEAD_BYTES
        self._marked_positions: list[int] = []
        self._marked_offsets: list[int] = []

    @property
    def frames_bytes(self) -> int:
        return self.size_bytes - SEGMENT_HEAD_BYTES

    def grow(self, first: int, rows: int, size_bytes: int) -> None:
        """An entry was written behind the others, and synced."""
        if not self._marked_offsets or self.size_bytes - self._marked_offsets[-1] >= _MARK_EVERY_BYTES:
            self._marked_positions.append(first)
            self._marked_offsets.append(self.size_bytes)
        self.end = first + rows
        self.size_bytes += size_bytes

    def near(self, position: int) -> tuple[int, int]:
        """A place to read from, to find the entry that holds the position: where that is, and the position there."""
        at = bisect_right(self._marked_positions, position) - 1
        if at < 0:
            return SEGMENT_HEAD_BYTES, self.first
        return self._marked_offsets[at], self._marked_positions[at]

    def read(self, position: int, size_bytes: int) -> Iterator[tuple[int, LogEntry]]:
        """The entries from the one that holds the position on, each with its place, as far as the given size."""
        offset, expected = self.near(position)
        with self.path.open("rb", buffering=_READ_BYTES) as file:
            file.seek(offset)
            while offset < size_bytes:
                try:
                    frame = read_frame(file, size_bytes - offset, self.salt)
                except DamagedBytesError as problem:
                    raise damaged(self.path, offset, str(problem)) from None
                if frame.entry.first != expected:
                    raise damaged(self.path, offset, f"there is position {frame.entry.first}, not {expected}")
                if frame.entry.end > position:
                    yield offset, frame.entry
                offset += frame.size_bytes
                expected = frame.entry.end


def found(folder: Path) -> list[int]:
    """The positions at which the segments in the folder begin. What a crash left unfinished is removed."""
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
    """A new, empty segment; durable, name included, when this returns."""
    path, salt = path_of(folder, first), new_salt()
    unfinished = path.with_suffix(_UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            file.write(segment_head(first, salt))
            file.flush()
            os.fsync(file.fileno())
        faults.reach("intake.segment.written")
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    faults.reach("intake.segment.rolled")
    sync_folder(folder)
    return Segment(path, first, salt, before_bytes)


def recovered(folder: Path, start: int, take: Callable[[LogEntry], None]) -> Iterator[Segment]:
    """The log's segments in order, each after `take` saw its entries; a log that is not there begins at `start`.

    What an interrupted write left behind the last one's known end is still in the file: a `SegmentWriter` cuts it off.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        firsts = found(folder)
        # A crash may have come between a segment's rename, or another's removal, and this.
        sync_folder(folder)
        if not firsts:
            yield create(folder, start, 0)
        before_bytes, end = 0, None
        for first in firsts:
            if end is not None and end != first:
                raise StoreError(
                    f"the intake log {folder} has a gap: the positions from {end} to {first} are missing", hint=_RESTORE
                )
            segment = _opened(folder, first, before_bytes)
            for entry in _entries(segment, newest=first == firsts[-1]):
                take(entry)
            before_bytes += segment.frames_bytes
            end = segment.end
            yield segment
    except OSError as problem:
        raise explained(problem, folder) from problem


def _opened(folder: Path, first: int, before_bytes: int) -> Segment:
    path = path_of(folder, first)
    with path.open("rb") as file:
        try:
            version, salt, said = read_segment_head(file.read(SEGMENT_HEAD_BYTES))
        except DamagedBytesError as problem:
            raise damaged(path, 0, str(problem)) from None
    if version > VERSION:
        raise StoreError(
            f"the intake log {path} was written by a newer Tocsin (format {version}, this one knows {VERSION})",
            hint="start the newer one",
        )
    if said != first:
        raise damaged(path, 0, f"it begins at position {said}, its name says {first}")
    return Segment(path, first, salt, before_bytes)


def _entries(segment: Segment, *, newest: bool, warn: bool = True) -> Iterator[LogEntry]:
    size_bytes = segment.path.stat().st_size
    with segment.path.open("rb", buffering=_READ_BYTES) as file:
        file.seek(SEGMENT_HEAD_BYTES)
        while segment.size_bytes < size_bytes:
            offset = segment.size_bytes
            try:
                frame = read_frame(file, size_bytes - offset, segment.salt)
            except DamagedBytesError as problem:
                if not newest or _was_synced(segment, offset):
                    raise damaged(segment.path, offset, str(problem)) from None
                if warn:
                    _log.warning(
                        "an unfinished write at the end of the intake log is cut off",
                        file=str(segment.path), at_bytes=offset, cut_bytes=size_bytes - offset,
                    )  # fmt: skip
                return
            if frame.entry.first != segment.end or frame.entry.rows < 1:
                raise damaged(segment.path, offset, f"there is position {frame.entry.first}, not {segment.end}")
            segment.grow(frame.entry.first, frame.entry.rows, frame.size_bytes)
            yield frame.entry


def _was_synced(segment: Segment, offset: int) -> bool:
    """Whether a whole frame behind this place says that the place was synced before it was written."""
    with segment.path.open("rb") as file:
        file.seek(offset)
        tail = file.read()
    reader = BytesIO(tail)
    at = tail.find(FRAME_MAGIC)
    while at >= 0:
        reader.seek(at)
        try:
            if read_frame(reader, len(tail) - at, segment.salt).synced_bytes > offset:
                return True
        except DamagedBytesError:
            pass
        at = tail.find(FRAME_MAGIC, at + 1)
    return False


def find_first(folder: Path) -> int | None:
    """The position at which a log begins that another process may be writing to; None where there is none."""
    return min((int(name[1]) for path in folder.glob("*.log") if (name := _NAME.fullmatch(path.name))), default=None)


def inspect(folder: Path) -> int:
    """Reads a log that another process may be writing to, and changes nothing; the position after the last whole entry.

    StoreError where it is damaged; FileNotFoundError where files went meanwhile, since all in them had landed.
    """
    firsts = sorted(int(name[1]) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name)))
    end: int | None = None
    for first in firsts:
        if end is not None and end != first:
            raise StoreError(
                f"the intake log {folder} has a gap: the positions from {end} to {first} are missing", hint=_RESTORE
            )
        segment = _opened(folder, first, 0)
        # Behind the last whole frame a write may be on its way.
        for _ in _entries(segment, newest=first == firsts[-1], warn=False):
            pass
        end = segment.end
    return end or 0


def writer(segment: Segment) -> SegmentWriter:
    """Ready to write behind the last frame that is known to be whole."""
    try:
        return SegmentWriter(segment)
    except OSError as problem:
        raise explained(problem, segment.path) from problem


class SegmentWriter:
    """Writes behind the synced end of the newest segment. A failed write leaves nothing in front of the next one."""

    def __init__(self, segment: Segment) -> None:
        """Cuts off what lies behind the known end, and makes sure that all before it is on the disk.

        After a crash of the process alone, the last frames may be in the system's memory only. Landing them before they
        are safe could leave the datasets ahead of the log.
        """
        self._handle = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        self._end_bytes = segment.size_bytes
        self._uncut = os.fstat(self._handle).st_size > segment.size_bytes
        self._broken: OSError | None = None
        try:
            self.settle()
            _sync(self._handle)
        except BaseException:
            self.close()
            raise

    def write(self, content: bytes) -> None:
        """On the disk when this returns; where it raises, nothing of it counts."""
        self.settle()
        self._uncut = True
        at, view = self._end_bytes, memoryview(content)
        while view:
            written = os.pwrite(self._handle, view, at)
            at, view = at + written, view[written:]
        faults.reach("intake.append.written")
        self._flush()
        self._uncut = False
        self._end_bytes = at
        faults.reach("intake.append.synced")

    def settle_quietly(self) -> None:
        """Cut off a failed write now if that goes; the next write does it otherwise."""
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
            _sync(self._handle)
        except OSError as problem:
            if problem.errno not in NO_ROOM:
                # What the system could not write it forgets: a second try would succeed without having written.
                self._broken = problem
                # But it may still show it to whoever reads: a restarted process would take what was refused for kept.
                with suppress(OSError):
                    os.ftruncate(self._handle, self._end_bytes)
            raise

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
