"""Reads the files that Spark finds, piece by piece, and hands the pieces to the feed.

    Spark lists new files ─▶ a batch ─▶ pieces ─▶ landed, with the position after the last piece

A position is the number of a batch, of a file in the batch, and of a piece of the file. It means that everything before
it is in the dataset. Spark's checkpoint names the files of a batch and is synced before any piece lands, and a file
always gives the same pieces. So a repeated batch continues at the position of each dataset, and skips the files that
are in all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin import faults
from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.cluster.feeds.batches import pack_batch
from tocsin.cluster.feeds.landing_worker import landing_back_off
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.options import FileOptions
from tocsin.pipeline.landing.arrivals import Arrivals
from tocsin.pipeline.landing.file_records import FilePart, parts
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.wire.errors import TocsinError

# A position has 63 bits: a batch a second for 68 years, 65,536 files each, 65,536 pieces (half a terabyte) each.
_FILE_BITS: Final = 16
_PART_BITS: Final = 16
_PLACE_BITS: Final = 20  # more than the records of a piece


def _position(batch: int, file: int = 0, part: int = 0) -> int:
    """The position just before this part of this file of this batch."""
    if file >> _FILE_BITS or part >> _PART_BITS:
        raise ValueError(f"there is no position for part {part} of file {file}")
    return (((batch << _FILE_BITS) + file) << _PART_BITS) + part


def after_last(checkpoint: Checkpoint) -> int:
    """The position after the last known batch: newly found files come after it."""
    return _position(checkpoint.last_batch + 1)


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Records of one file that land together, from position `start` to `end`."""

    start: int
    end: int
    rows: int
    refused: int
    payload: bytes

    @property
    def first(self) -> int:
        """The number of its first record; the others follow."""
        return self.start << _PLACE_BITS


class ReaderStopped(Exception):
    """Ends the reader's run. Pieces that have not landed come again at the next start."""


_Land = Callable[[Sequence[FilePiece]], Awaitable[None]]


class FileReader:
    """One run, from `start` to `finish` or `halt`. It calls its callbacks on the event loop that created it."""

    def __init__(
        self,
        entry: FeedEntry,
        wanted: FileOptions,
        checkpoint: Checkpoint,
        engine: Engine,
        limits: FeedLimits,
        *,
        land: _Land,
        landed: Callable[[], int],
        troubled: Callable[[TocsinError | None], None],
    ) -> None:
        self._limits = limits
        self._kind = entry.type
        self._wanted = wanted
        self._checkpoint = checkpoint
        self._engine = engine
        self._land = land
        self._landed = landed
        self._troubled = troubled
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals(checkpoint, wanted.paths, wanted.period_s)
        self._thread = threading.Thread(target=self._run, name=f"files of {entry.name}", daemon=True)
        self._ending = threading.Event()  # end after the current file
        self._halting = threading.Event()  # end after the current piece
        self._in_batch = threading.Lock()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Ends after the file that is being read."""
        self._ending.set()

    def halt(self) -> None:
        """Ends after the piece that is landing."""
        self._halting.set()
        self._ending.set()

    def join(self) -> None:
        """Blocks until the reader has ended."""
        with self._in_batch:
            pass  # do not interrupt Spark within a batch
        self._arrivals.end()
        self._thread.join()

    # ------------------------------------------------------------ the thread that waits for Spark

    def _run(self) -> None:
        back_off = landing_back_off()
        while not self.is_ending:
            before = self._checkpoint.last_batch
            try:
                self._arrivals.watch(self._engine.spark, self._take_batch)
            except ReaderStopped:
                return
            except Exception as error:
                if self._ending.is_set():
                    return
                translated = self._engine.translate_error(error)
                self._report(translated if isinstance(translated, TocsinError) else translate_spark_error(error))
            if self._checkpoint.last_batch > before:
                back_off.reset()
            self._ending.wait(back_off.next_s())

    def _report(self, error: TocsinError | None) -> None:
        self._loop.call_soon_threadsafe(self._troubled, error)

    # ------------------------------------------------------------ a thread of Spark, for each batch

    def _take_batch(self, batch: int, files: Sequence[Path]) -> None:
        with self._in_batch:
            if self.is_ending:
                raise ReaderStopped
            self._report(None)
            faults.reach("files.batch.named")
            self._checkpoint.sync()
            faults.reach("files.batch.synced")
            for group in self._groups(batch, files):
                asyncio.run_coroutine_threadsafe(_wait_for(self._land(group)), self._loop).result()
                if self._halting.is_set():
                    raise ReaderStopped
            faults.reach("files.batch.landed")

    def _groups(self, batch: int, files: Sequence[Path]) -> Iterator[list[FilePiece]]:
        """Groups pieces of one or many files into batches of a good size for landing."""
        landed = self._landed()
        group: list[FilePiece] = []
        for number, path in enumerate(files):
            if _position(batch, number + 1) <= landed:
                continue
            if self.is_ending:
                if group:
                    yield group
                raise ReaderStopped
            for count, part in enumerate(parts(path, self._wanted.reading, self._kind)):
                group.append(self._piece(batch, number, count, part))
                if (
                    sum(piece.rows for piece in group) >= self._limits.batch_rows
                    or sum(len(piece.payload) for piece in group) >= self._limits.batch_bytes
                ):
                    yield group
                    group = []
        if group:
            yield group

    def _piece(self, batch: int, file: int, count: int, part: FilePart) -> FilePiece:
        end = _position(batch, file + 1) if part.is_last else _position(batch, file, count + 1)
        refused = sum(item.record is None for item in part.records)
        payload = pack_batch(part.records, self._kind)
        return FilePiece(_position(batch, file, count), end, len(part.records), refused, payload)


async def _wait_for(work: Awaitable[None]) -> None:
    await work
