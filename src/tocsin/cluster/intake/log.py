"""The durable, replayable log behind a feed: an acknowledged record survives a crash, because it is in this log.

    append ─▶ queue ─▶ writer thread: one write and one sync per group ─▶ acknowledged, readable
                                                           landing reads ─▶ landed ─▶ old segments are deleted

An append returns when its entry is on the disk (group commit: appends that wait share one sync). Offsets count records
and never go back. Landing reads from an offset on and then reports how far the datasets are; the log keeps everything
above that offset.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from tocsin import faults
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.intake import segments as files
from tocsin.cluster.intake.append_queue import (
    AppendedRange,
    Outcome,
    PendingAppend,
    ReadWaiter,
    check_room,
    check_size,
    group_appends,
    settle,
)
from tocsin.cluster.intake.frames import (
    FRAME_HEAD_BYTES,
    SEGMENT_HEAD_BYTES,
    LogEntry,
    LogObserver,
    encode_key,
    frame_parts,
)
from tocsin.cluster.intake.idempotency_keys import RememberedAnswer, RememberedKeys
from tocsin.cluster.intake.recent_entries import RecentEntries, within
from tocsin.cluster.intake.segments import Segment, SegmentWriter
from tocsin.durable_files import sync_data, sync_folder
from tocsin.wire.errors import StoreError, TocsinError, UnavailableError

__all__ = ["AppendedRange", "IntakeLog", "LogEntry"]

_log = structlog.get_logger("tocsin.cluster")


class IntakeLog:
    """One log in one folder of one process. Event loops append and wait; any thread may read and call `landed`."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        segment_bytes: int = 64 << 20,
        limit_bytes: int = 1 << 30,
        remember_s: float = 600.0,
        remember_bytes: int = 64 << 20,
        recent_bytes: int = 8 << 20,
        landed: int | None = None,
        observer: LogObserver | None = None,
        lost: LostFolder | None = None,
        clock: Callable[[], float] = time.time,
        age_clock: Callable[[], float] | None = None,
        sync: Callable[[int], None] = sync_data,
    ) -> IntakeLog:
        """Opens the log in the folder, or creates it. Cuts off a torn write of a crash; other damage raises a
        `StoreError`. If the last write may be torn or damaged, it goes to the lost folder (`lost`); without one it
        counts as damage.

        `landed` is the position of the datasets. A new log begins there. A log that ends before it, or begins after it,
        has lost entries and is refused. `remember_bytes` bounds the remembered idempotency keys with their answers (the
        oldest are forgotten early), `recent_bytes` the entries in memory for the next read. The observer (`observer`)
        sees every entry, and no segment is deleted before the observer has saved what it needs of it. Keys expire by
        the `age_clock`, which may stand still; it defaults to `clock`. `sync` flushes a file to the disk.
        """
        keys, recent = RememberedKeys(remember_s, remember_bytes), RecentEntries(recent_bytes)
        log = cls(folder, segment_bytes=segment_bytes, limit_bytes=limit_bytes, keys=keys, recent=recent, clock=clock)
        log._observer = observer
        log._sync = sync
        log._age_clock = age_clock or clock
        log._recover(landed, lost)
        log._thread.start()
        return log

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        limit_bytes: int,
        keys: RememberedKeys,
        recent: RecentEntries,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._age_clock = clock
        # Guards all fields below. Held for moments only, never during disk I/O.
        self._lock = threading.Lock()
        self._keys = keys
        self._segments: list[Segment] = []
        self._end = 0
        self._total_bytes = 0
        self._landed = 0
        self._landed_bytes = 0
        self._recent = recent
        self._waiting: list[PendingAppend] = []
        self._waiting_bytes = 0
        self._handed = False
        self._under_way: dict[str, PendingAppend] = {}
        self._read_waiters: set[ReadWaiter] = set()
        self._closed = False
        self._observer: LogObserver | None = None
        self._sync = sync_data
        # Used by the writer thread only.
        self._writer: SegmentWriter
        self._groups: queue.SimpleQueue[list[PendingAppend] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"intake {folder.name}", daemon=True)
        # Serializes `landed`.
        self._trimming = threading.Lock()

    # ------------------------------------------------------------ state

    @property
    def end(self) -> int:
        """The position after the last entry."""
        return self._end

    @property
    def first(self) -> int:
        """The first position that can still be read."""
        with self._lock:
            return self._segments[0].first

    @property
    def size_bytes(self) -> int:
        """The size of the log on the disk."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._segments)

    @property
    def unlanded_bytes(self) -> int:
        """The bytes of frames that are not yet in the datasets."""
        with self._lock:
            return self._total_bytes - self._landed_bytes

    # ------------------------------------------------------------ appending

    async def append(self, payload: bytes, rows: int, *, key: str | None = None, answer: bytes = b"") -> AppendedRange:
        """Appends a payload of this many records. It is on the disk when this returns; entries keep the order of the
        calls.

        A known idempotency key, even from before a restart, appends nothing and returns the answer of its first
        request; while that request is under way, its outcome. Raises `LimitError` (429) as backpressure while too much
        has not landed or the disk is slow, and `StorageFullError` when the disk is full. Then nothing is stored, and
        the caller may retry.
        """
        if rows < 1:
            raise ValueError(f"an entry holds at least one record, not {rows}")
        encoded_key = encode_key(key)
        size_bytes = FRAME_HEAD_BYTES + len(encoded_key or b"") + len(answer) + len(payload)
        check_size(size_bytes, encoded_key, self._limit_bytes)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendedRange] = loop.create_future()
        with self._lock:
            self._check_open()
            if key is not None:
                if (remembered := self._keys.find(key, self._age_clock())) is not None:
                    return AppendedRange(remembered.position, remembered.answer, repeated=True)
                pending = self._under_way.get(key)
            else:
                pending = None
            if pending is not None:
                pending.waiting.append((future, True))
            else:
                check_room(size_bytes, self._total_bytes - self._landed_bytes, self._waiting_bytes, self._limit_bytes)
                pending = PendingAppend(payload, rows, key, encoded_key, answer, size_bytes, [(future, False)])
                self._waiting.append(pending)
                self._waiting_bytes += size_bytes
                if key is not None:
                    self._under_way[key] = pending
                if not self._handed:
                    # Hand over in the next turn of the loop, so that other appends of this turn join the group.
                    self._handed = True
                    loop.call_soon(self._hand_over)
        return await future

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the feed's log is closed")

    def _hand_over(self) -> None:
        with self._lock:
            self._handed = False
            waiting, self._waiting = self._waiting, []
        if waiting:
            self._groups.put(waiting)

    # ------------------------------------------------------------ reading

    def read(self, after: int, *, max_rows: int, max_bytes: int) -> list[LogEntry]:
        """Returns whole entries, beginning with the one that holds this position; at least one if there is any.

        Returns only entries that are on the disk. Recent entries come from memory.
        """
        with self._lock:
            self._check_held(after)
            if (recent := self._recent.since(after, max_rows, max_bytes)) is not None:
                return recent
            # Each segment is synced up to this size; the writer may be writing after it.
            readable = [(segment, segment.size_bytes) for segment in self._segments if segment.end > after]
        return list(within(self._read_stored(readable, after), max_rows, max_bytes))

    def _read_stored(self, known: list[tuple[Segment, int]], after: int) -> Iterator[LogEntry]:
        for segment, size_bytes in known:
            try:
                for _, entry in segment.read(after, size_bytes):
                    yield entry
            except OSError as problem:
                with self._lock:
                    # `landed` may have passed the segment's end and deleted it during this read
                    self._check_held(after)
                raise files.explain_os_errors_of_log(problem, segment.path) from problem

    def _check_held(self, position: int) -> None:
        if not self._segments[0].first <= position <= self._end:
            raise StoreError(
                f"the intake log {self._folder} holds the positions {self._segments[0].first} to {self._end}, "
                f"not {position}",
                hint="log and datasets are not of the same time: restore both from one backup",
            )

    async def wait(self, after: int) -> None:
        """Returns when there is an entry after this position."""
        with self._lock:
            if self._end > after:
                return
            self._check_open()
            sleeper = ReadWaiter(after, asyncio.get_running_loop().create_future())
            self._read_waiters.add(sleeper)
        try:
            await sleeper.woken
        finally:
            with self._lock:
                self._read_waiters.discard(sleeper)

    # ------------------------------------------------------------ trimming

    def record_landed(self, position: int) -> None:
        """Records that everything below the position is durable in its datasets, and deletes segments that are not
        needed.

        A segment is needed until all of it has landed and every key in it has expired. Deletes files, so it must not
        run on an event loop.
        """
        with self._trimming:
            with self._lock:
                if position > self._landed:
                    self._check_held(position)
            if position > self._landed:
                landed_bytes = self._bytes_before(position)
                with self._lock:
                    self._landed, self._landed_bytes = position, landed_bytes
                    self._recent.drop(position)
            self._trim()

    def _bytes_before(self, position: int) -> int:
        """Returns how many bytes of frames lie before the entry that holds the position."""
        with self._lock:
            if position == self._end:
                return self._total_bytes
            if (bytes_known := self._recent.bytes_before(position)) is not None:
                return bytes_known
            segment = next(segment for segment in self._segments if segment.end > position)
            size_bytes = segment.size_bytes
        offset, _ = next(segment.read(position, size_bytes))
        return segment.before_bytes + offset - SEGMENT_HEAD_BYTES

    def _trim(self) -> None:
        with self._lock:
            self._keys.forget(self._clock(), self._age_clock())
            oldest = self._keys.oldest
            needed = self._landed if oldest is None else min(self._landed, oldest)
            # Keep the newest segment: its name guarantees that positions do not go back.
            unneeded = [segment for segment in self._segments[:-1] if segment.end <= needed]
        if unneeded and self._observer is not None:
            try:
                self._observer.keep(unneeded[-1].end)
            except OSError as problem:
                # Landing has succeeded nevertheless; the next call deletes the segments.
                _log.warning("the intake log cannot be trimmed", folder=str(self._folder), reason=str(problem))
                return
        for segment in unneeded:
            try:
                segment.path.unlink(missing_ok=True)
                faults.reach("intake.trim.removed")
                # Sync after each file: after a power cut the remaining segments have no gap.
                sync_folder(self._folder)
            except OSError as problem:
                raise files.explain_os_errors_of_log(problem, self._folder) from problem
            with self._lock:
                self._segments.remove(segment)

    # ------------------------------------------------------------ the writer thread

    def _run(self) -> None:
        ending = False
        while not ending:
            pending: list[PendingAppend] = []
            next_group = self._groups.get()
            with suppress(queue.Empty):
                while next_group is not None:
                    pending += next_group
                    next_group = self._groups.get_nowait()
                ending = True
            for group in group_appends(pending):
                self._commit(group)

    def _commit(self, group: list[PendingAppend]) -> None:
        try:
            self._roll_if_full()
            entries = self._write(group)
        except OSError as problem:
            self._writer.settle_quietly()
            self._refuse(group, files.explain_os_errors_of_log(problem, self._folder))
        except Exception as problem:
            # A bug, or no memory. The callers must get an error, and the thread must survive.
            _log.exception("the intake log failed", folder=str(self._folder))
            self._writer.settle_quietly()
            self._refuse(group, StoreError(f"the intake log {self._folder} failed: {problem!r}"))
        else:
            self._publish(group, entries)
            # The callers have their answers, so roll the segment now. If that fails, the next group tries again.
            with suppress(OSError):
                self._roll_if_full()

    def _write(self, group: list[PendingAppend]) -> list[LogEntry]:
        segment = self._segments[-1]
        first, at_s = self._end, self._clock()
        entries: list[LogEntry] = []
        parts: list[bytes] = []
        for pending in group:
            entry = LogEntry(first, pending.rows, pending.payload, pending.key, pending.answer, at_s)
            parts += frame_parts(entry, pending.encoded_key, segment.size_bytes, segment.salt)
            entries.append(entry)
            first += pending.rows
        self._writer.write(b"".join(parts))
        return entries

    def _publish(self, group: list[PendingAppend], entries: list[LogEntry]) -> None:
        outcomes: list[Outcome] = []
        with self._lock:
            segment = self._segments[-1]
            for pending, entry in zip(group, entries, strict=True):
                self._recent.add(entry, self._total_bytes)
                segment.grow(entry.first, entry.rows, pending.size_bytes)
                self._total_bytes += pending.size_bytes
                self._waiting_bytes -= pending.size_bytes
                self._recall(entry)
                if pending.key is not None:
                    self._under_way.pop(pending.key, None)
                for future, repeated in pending.waiting:
                    outcomes.append((future, AppendedRange(entry.end, entry.answer, repeated)))
            self._end = entries[-1].end
            self._keys.forget(entries[-1].at_s, self._age_clock())
            outcomes += [(sleeper.woken, None) for sleeper in self._read_waiters if sleeper.after < self._end]
        settle(outcomes)

    def _refuse(self, group: list[PendingAppend], error: TocsinError) -> None:
        with self._lock:
            for pending in group:
                self._waiting_bytes -= pending.size_bytes
                if pending.key is not None:
                    self._under_way.pop(pending.key, None)
        settle((future, error) for pending in group for future, _ in pending.waiting)

    def _roll_if_full(self) -> None:
        last = self._segments[-1]
        if last.size_bytes < self._segment_bytes or last.end == last.first:
            return
        # Cut off a failed write first: only the newest segment may end in one.
        self._writer.settle()
        segment = files.create(self._folder, last.end, self._total_bytes)
        writer = files.SegmentWriter(segment, self._sync)
        with self._lock:
            self._segments.append(segment)
        self._writer.close()
        self._writer = writer

    # ------------------------------------------------------------ opening and closing

    def _recover(self, landed: int | None, lost: LostFolder | None) -> None:
        for segment in files.recover_segments(self._folder, landed or 0, self._recall):
            self._total_bytes += segment.frames_bytes
            self._segments.append(segment)
        self._landed = self._segments[0].first
        self._end = self._segments[-1].end
        self._keys.forget(self._clock(), self._age_clock())
        if landed is not None:
            self._check_held(landed)
            self._landed, self._landed_bytes = landed, self._bytes_before(landed)
        self._writer = files.writer(self._segments[-1], lost, self._sync)

    def _recall(self, entry: LogEntry) -> None:
        if self._observer is not None:
            self._observer.recall(entry)
        if entry.key is not None:
            self._keys.add(entry.key, RememberedAnswer(entry.first, entry.end, entry.answer, entry.at_s))

    async def close(self) -> None:
        """Finishes the pending appends and closes the files. Callers of `wait` get an UnavailableError."""
        with self._lock:
            first_time, self._closed = not self._closed, True
            outcomes: list[Outcome] = [
                (sleeper.woken, UnavailableError("the feed's log is closed")) for sleeper in self._read_waiters
            ]
        if first_time:
            self._hand_over()
            self._groups.put(None)
            settle(outcomes)
        await asyncio.to_thread(self._thread.join)
        self._writer.close()
