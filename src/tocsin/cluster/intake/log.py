"""The durable, replayable log behind a feed: what makes "acknowledged" mean kept.

    append ─▶ waiting ─▶ writer thread: one write and one sync for all that wait ─▶ acknowledged, readable
                                                            landing reads ─▶ landed ─▶ old segments go

An append returns when its entry is on the disk. Entries have positions, which count records and never go back. Landing
reads from a position on and says afterwards how far all is safe in the datasets; until then the log keeps it.
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
from tocsin.cluster.intake import segments as files
from tocsin.cluster.intake.append_queue import (
    AppendedRange,
    Outcome,
    PendingAppend,
    ReadWaiter,
    grouped,
    tell,
)
from tocsin.cluster.intake.frames import (
    FRAME_HEAD_BYTES,
    SEGMENT_HEAD_BYTES,
    LogEntry,
    encode_key,
    frame_parts,
)
from tocsin.cluster.intake.idempotency_keys import RememberedAnswer, RememberedKeys
from tocsin.cluster.intake.limits import check_room, check_size
from tocsin.cluster.intake.log_observer import LogObserver
from tocsin.cluster.intake.recent_entries import RecentEntries, within
from tocsin.cluster.intake.segments import Segment, SegmentWriter
from tocsin.pipeline.datasets.delta.durability import sync_folder
from tocsin.wire.errors import StoreError, TocsinError, UnavailableError

__all__ = ["AppendedRange", "IntakeLog", "LogEntry"]

_log = structlog.get_logger("tocsin.cluster")


class IntakeLog:
    """One log, one folder, one process. Appends and waits come from event loops, reads and `landed` from any thread."""

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
        witness: LogObserver | None = None,
        clock: Callable[[], float] = time.time,
        age_clock: Callable[[], float] | None = None,
    ) -> IntakeLog:
        """The log in the folder, made if need be. A write that a crash tore is cut off; other damage is a `StoreError`.

        `landed` is how far the datasets are: a new log begins there, and one that ends before it, or begins behind it,
        has lost something and is refused. `remember_bytes` bounds the remembered keys with their answers (the oldest
        are forgotten early where more come), `recent_bytes` the entries that are kept in memory for the next read. The
        `witness` sees every entry, and no segment goes before it has kept what it knows of it. Keys are forgotten by
        the `age_clock`, which may stand still (the `clock` where there is none).
        """
        keys, recent = RememberedKeys(remember_s, remember_bytes), RecentEntries(recent_bytes)
        log = cls(folder, segment_bytes=segment_bytes, limit_bytes=limit_bytes, keys=keys, recent=recent, clock=clock)
        log._witness = witness
        log._age_clock = age_clock or clock
        log._recover(landed)
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
        # Guards all that follows; held for moments only, never over the disk.
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
        self._sleepers: set[ReadWaiter] = set()
        self._closed = False
        self._witness: LogObserver | None = None
        # The writer thread's own.
        self._writer: SegmentWriter
        self._groups: queue.SimpleQueue[list[PendingAppend] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"intake {folder.name}", daemon=True)
        # One `landed` at a time.
        self._trimming = threading.Lock()

    # ------------------------------------------------------------ what there is

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
        """What the log takes on the disk."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._segments)

    @property
    def unlanded_bytes(self) -> int:
        """How much of it is not yet in the datasets."""
        with self._lock:
            return self._total_bytes - self._landed_bytes

    # ------------------------------------------------------------ in

    async def append(self, payload: bytes, rows: int, *, key: str | None = None, answer: bytes = b"") -> AppendedRange:
        """Keep the payload, which holds this many records: on the disk when this returns, in the order of the calls.

        A key that came before, also before a restart, appends nothing and gets the answer of its first request; while
        that one is still on its way, its outcome. `LimitError` (429) while too much has not landed or the disk is slow,
        `StorageFullError` when there is no room: then nothing was kept, and the same append may be tried again.
        """
        if rows < 1:
            raise ValueError(f"an entry holds at least one record, not {rows}")
        encoded_key = encode_key(key)
        size_bytes = FRAME_HEAD_BYTES + len(encoded_key or b"") + len(answer) + len(payload)
        check_size(size_bytes, encoded_key, self._limit_bytes)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[AppendedRange] = loop.create_future()
        with self._lock:
            self._check_open()
            if key is not None:
                if (kept := self._keys.find(key, self._age_clock())) is not None:
                    return AppendedRange(kept.position, kept.answer, repeated=True)
                asked = self._under_way.get(key)
            else:
                asked = None
            if asked is not None:
                asked.waiting.append((done, True))
            else:
                check_room(size_bytes, self._total_bytes - self._landed_bytes, self._waiting_bytes, self._limit_bytes)
                asked = PendingAppend(payload, rows, key, encoded_key, answer, size_bytes, [(done, False)])
                self._waiting.append(asked)
                self._waiting_bytes += size_bytes
                if key is not None:
                    self._under_way[key] = asked
                if not self._handed:
                    # Whoever else appends in this turn of the loop comes along.
                    self._handed = True
                    loop.call_soon(self._hand_over)
        return await done

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the feed's log is closed")

    def _hand_over(self) -> None:
        with self._lock:
            self._handed = False
            waiting, self._waiting = self._waiting, []
        if waiting:
            self._groups.put(waiting)

    # ------------------------------------------------------------ out

    def read(self, after: int, *, max_rows: int, max_bytes: int) -> list[LogEntry]:
        """The entries from the one that holds this position on: whole ones, and at least one if there is one.

        Only what is on the disk. Entries of late come from memory.
        """
        with self._lock:
            self._check_held(after)
            if (recent := self._recent.since(after, max_rows, max_bytes)) is not None:
                return recent
            # Up to here each is synced; the writer may be at work behind it.
            known = [(segment, segment.size_bytes) for segment in self._segments if segment.end > after]
        return list(within(self._stored(known, after), max_rows, max_bytes))

    def _stored(self, known: list[tuple[Segment, int]], after: int) -> Iterator[LogEntry]:
        for segment, size_bytes in known:
            try:
                for _, entry in segment.read(after, size_bytes):
                    yield entry
            except OSError as problem:
                with self._lock:
                    self._check_held(after)  # it may have gone while this one read: `landed` passed its end
                raise files.explained(problem, segment.path) from problem

    def _check_held(self, position: int) -> None:
        if not self._segments[0].first <= position <= self._end:
            raise StoreError(
                f"the intake log {self._folder} holds the positions {self._segments[0].first} to {self._end}, "
                f"not {position}",
                hint="log and datasets are not of the same time: restore both from one backup",
            )

    async def wait(self, after: int) -> None:
        """Returns when there is something to read after this position."""
        with self._lock:
            if self._end > after:
                return
            self._check_open()
            sleeper = ReadWaiter(after, asyncio.get_running_loop().create_future())
            self._sleepers.add(sleeper)
        try:
            await sleeper.woken
        finally:
            with self._lock:
                self._sleepers.discard(sleeper)

    # ------------------------------------------------------------ landed

    def landed(self, position: int) -> None:
        """Everything below is in its datasets, and their files are on the disk. Segments that nobody needs any more go.

        A segment is needed until all of it has landed and every key in it is forgotten. Removes files: not for a loop.
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
        """How many bytes of frames lie before the entry that holds the position."""
        with self._lock:
            if position == self._end:
                return self._total_bytes
            if (known := self._recent.bytes_before(position)) is not None:
                return known
            segment = next(segment for segment in self._segments if segment.end > position)
            size_bytes = segment.size_bytes
        offset, _ = next(segment.read(position, size_bytes))
        return segment.before_bytes + offset - SEGMENT_HEAD_BYTES

    def _trim(self) -> None:
        with self._lock:
            self._keys.forget(self._clock(), self._age_clock())
            oldest = self._keys.oldest
            needed = self._landed if oldest is None else min(self._landed, oldest)
            # Never the newest: its name is the promise that positions do not go back.
            gone = [segment for segment in self._segments[:-1] if segment.end <= needed]
        if gone and self._witness is not None:
            try:
                self._witness.keep(gone[-1].end)
            except OSError as problem:
                # What landed has landed all the same: they go another time.
                _log.warning("the intake log cannot be trimmed", folder=str(self._folder), reason=str(problem))
                return
        for segment in gone:
            try:
                segment.path.unlink(missing_ok=True)
                faults.reach("intake.trim.removed")
                # Before the next one: whatever a power cut leaves has no hole.
                sync_folder(self._folder)
            except OSError as problem:
                raise files.explained(problem, self._folder) from problem
            with self._lock:
                self._segments.remove(segment)

    # ------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        ending = False
        while not ending:
            asked: list[PendingAppend] = []
            more = self._groups.get()
            with suppress(queue.Empty):
                while more is not None:
                    asked += more
                    more = self._groups.get_nowait()
                ending = True
            for group in grouped(asked):
                self._commit(group)

    def _commit(self, group: list[PendingAppend]) -> None:
        try:
            self._roll_if_full()
            entries = self._write(group)
        except OSError as problem:
            self._writer.settle_quietly()
            self._refuse(group, files.explained(problem, self._folder))
        except Exception as problem:
            # A bug, or no memory: whoever waits must hear of it, and the thread must live.
            with suppress(Exception):
                _log.exception("the intake log failed", folder=str(self._folder))
            self._writer.settle_quietly()
            self._refuse(group, StoreError(f"the intake log {self._folder} failed: {problem!r}"))
        else:
            self._publish(group, entries)
            # Those who wait have their answer: now is the time for housework. The next group tries again.
            with suppress(OSError):
                self._roll_if_full()

    def _write(self, group: list[PendingAppend]) -> list[LogEntry]:
        segment = self._segments[-1]
        first, at_s = self._end, self._clock()
        entries: list[LogEntry] = []
        parts: list[bytes] = []
        for asked in group:
            entry = LogEntry(first, asked.rows, asked.payload, asked.key, asked.answer, at_s)
            parts += frame_parts(entry, asked.encoded_key, segment.size_bytes, segment.salt)
            entries.append(entry)
            first += asked.rows
        self._writer.write(b"".join(parts))
        return entries

    def _publish(self, group: list[PendingAppend], entries: list[LogEntry]) -> None:
        outcomes: list[Outcome] = []
        with self._lock:
            segment = self._segments[-1]
            for asked, entry in zip(group, entries, strict=True):
                self._recent.add(entry, self._total_bytes)
                segment.grow(entry.first, entry.rows, asked.size_bytes)
                self._total_bytes += asked.size_bytes
                self._waiting_bytes -= asked.size_bytes
                self._recall(entry)
                if asked.key is not None:
                    self._under_way.pop(asked.key, None)
                for done, repeated in asked.waiting:
                    outcomes.append((done, AppendedRange(entry.end, entry.answer, repeated)))
            self._end = entries[-1].end
            self._keys.forget(entries[-1].at_s, self._age_clock())
            outcomes += [(sleeper.woken, None) for sleeper in self._sleepers if sleeper.after < self._end]
        tell(outcomes)

    def _refuse(self, group: list[PendingAppend], error: TocsinError) -> None:
        with self._lock:
            for asked in group:
                self._waiting_bytes -= asked.size_bytes
                if asked.key is not None:
                    self._under_way.pop(asked.key, None)
        tell((done, error) for asked in group for done, _ in asked.waiting)

    def _roll_if_full(self) -> None:
        last = self._segments[-1]
        if last.size_bytes < self._segment_bytes or last.end == last.first:
            return
        # A failed write must not stay at the end of a segment that is not the newest any more.
        self._writer.settle()
        segment = files.create(self._folder, last.end, self._total_bytes)
        writer = files.SegmentWriter(segment)
        with self._lock:
            self._segments.append(segment)
        self._writer.close()
        self._writer = writer

    # ------------------------------------------------------------ life

    def _recover(self, landed: int | None) -> None:
        for segment in files.recovered(self._folder, landed or 0, self._recall):
            self._total_bytes += segment.frames_bytes
            self._segments.append(segment)
        self._landed = self._segments[0].first
        self._end = self._segments[-1].end
        self._keys.forget(self._clock(), self._age_clock())
        if landed is not None:
            self._check_held(landed)
            self._landed, self._landed_bytes = landed, self._bytes_before(landed)
        self._writer = files.writer(self._segments[-1])

    def _recall(self, entry: LogEntry) -> None:
        if self._witness is not None:
            self._witness.recall(entry)
        if entry.key is not None:
            self._keys.add(entry.key, RememberedAnswer(entry.first, entry.end, entry.answer, entry.at_s))

    async def close(self) -> None:
        """Finish what was asked for, and let the files go. What waits for more is told that none comes."""
        with self._lock:
            first_time, self._closed = not self._closed, True
            outcomes: list[Outcome] = [
                (sleeper.woken, UnavailableError("the feed's log is closed")) for sleeper in self._sleepers
            ]
        if first_time:
            self._hand_over()
            self._groups.put(None)
            tell(outcomes)
        await asyncio.to_thread(self._thread.join)
        self._writer.close()
