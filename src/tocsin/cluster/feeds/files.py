"""A started feed of files: each file that arrives lands once, whatever is killed whenever.

    Spark names new files ─▶ a batch ─▶ read in pieces ─▶ landed, with the position of the last piece

There is no log: the files are one. A position is the number of a batch, of a file in it, and of a piece of that file;
it means that all before it is in the dataset. Which files a batch has is noted, and synced, before any of it lands, and a
file gives the same pieces each time. So a batch that comes again goes on where it was, in each dataset for itself, and
does not look again at files that are in all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tocsin import faults
from tocsin.cluster.engine import Engine, told
from tocsin.cluster.entries import FeedEntry
from tocsin.cluster.feeds.batches import packed
from tocsin.cluster.feeds.feed import BATCH_BYTES, BATCH_ROWS, Accepted
from tocsin.cluster.feeds.file_options import Watching
from tocsin.cluster.feeds.landing import Landing, Rejections
from tocsin.cluster.feeds.standstill import Standstill
from tocsin.pipeline.landing.arrivals import Arrivals
from tocsin.pipeline.landing.arrived import Part, parts
from tocsin.pipeline.landing.checkpoint import Checkpoint
from tocsin.wire.errors import ConflictError, TocsinError

log = structlog.get_logger()

_RETRY_S: Final = (0.1, 0.5, 2.0, 10.0)
# A position has 63 bits: a batch a second for 68 years, 65,536 files in each, as many pieces (half a terabyte) of each.
_FILE_BITS: Final = 16
_PART_BITS: Final = 16
_PLACE_BITS: Final = 20  # more than a piece has records


def position(batch: int, file: int = 0, part: int = 0) -> int:
    """After this part of this file of this batch comes the next one; files and batches roll over by themselves."""
    return (((batch << _FILE_BITS) + file) << _PART_BITS) + part


def after_last(checkpoint: Checkpoint) -> int:
    """What is found from now on comes after it."""
    return position(checkpoint.last_batch + 1)


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one file that land together: from position `start` to `end`."""

    start: int
    end: int
    rows: int
    payload: bytes

    @property
    def first(self) -> int:
        """A place for its first record, and for as many as follow."""
        return self.start << _PLACE_BITS


class _Ended(Exception):
    """The feed is to end: what was not landed comes again."""


class FileFeed:
    def __init__(  # noqa: PLR0917
        self,
        entry: FeedEntry,
        wanted: Watching,
        checkpoint: Checkpoint,
        rejections: Rejections,
        landings: Sequence[Landing],
        engine: Engine,
        standstill: Standstill,
    ) -> None:
        self.entry = entry
        self._wanted = wanted
        self._checkpoint = checkpoint
        self._landings = landings
        # Rejected ones first: what is in every dataset is wholly done.
        self._targets: list[Rejections | Landing] = [rejections, *landings]
        self._engine = engine
        self._standstill = standstill
        self._arrivals = Arrivals(engine.spark, checkpoint, wanted.paths, wanted.period_s)
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()  # with the file that is being read
        self._halting = threading.Event()  # with the piece
        self._in_batch = threading.Lock()

    @property
    def end(self) -> int:
        return after_last(self._checkpoint)

    def start(self) -> None:
        if self._landings:  # files wait until there is somewhere to put them
            self._thread = threading.Thread(target=self._watch, name=f"files of {self.entry.name}", daemon=True)
            self._thread.start()

    async def accept(self, body: bytes, key: str | None = None) -> Accepted:
        raise ConflictError(
            f"the feed {self.entry.name} takes files, not requests",
            hint=f"put a file into {self._wanted.paths[0]}, or CREATE FEED with the http_adapter",
        )

    async def until_landed(self, position: int) -> None:
        """Nobody has a position to wait for."""

    async def stop(self, *, drained: bool) -> None:
        """No file is taken any more; with `drained`, the one that is being read has landed wholly when this returns."""
        self._ending.set()
        if not drained:
            self._halting.set()
            for target in self._targets:
                target.halted = True
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        with self._in_batch:
            pass
        if self._thread is not None:
            self._arrivals.end()
            self._thread.join()

    # ------------------------------------------------------------ a thread that waits for Spark

    def _watch(self) -> None:
        failures = 0
        while not self._ending.is_set():
            before = self._checkpoint.last_batch
            try:
                self._arrivals.watch(self._taken)
            except _Ended:
                return
            except TocsinError as error:
                log.warning("a feed of files must wait", feed=self.entry.name, reason=error.message)
            except Exception as error:
                if not self._engine.is_alive():
                    return
                log.warning("a feed of files must wait", feed=self.entry.name, reason=told(error).message)
            failures = 0 if self._checkpoint.last_batch > before else failures
            self._ending.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    # ------------------------------------------------------------ a thread of Spark's, for each batch

    def _taken(self, batch: int, files: Sequence[Path]) -> None:
        with self._in_batch:
            if self._ending.is_set():
                raise _Ended
            faults.reach("files.batch.named")
            self._checkpoint.sync()
            faults.reach("files.batch.synced")
            for group in self._groups(batch, files):
                asyncio.run_coroutine_threadsafe(self._land(group), self._loop).result()
                if self._halting.is_set():
                    raise _Ended
            faults.reach("files.batch.landed")

    def _groups(self, batch: int, files: Sequence[Path]) -> Iterator[list[Piece]]:
        """Pieces of one or many files, as many as land well together."""
        landed = min(target.position for target in self._landings)
        group: list[Piece] = []
        for number, path in enumerate(files):
            if position(batch, number + 1) <= landed:
                continue
            if self._ending.is_set():
                if group:
                    yield group
                raise _Ended
            for count, part in enumerate(parts(path, self._wanted.reading, self.entry.type)):
                group.append(self._piece(batch, number, count, part))
                if sum(one.rows for one in group) >= BATCH_ROWS or sum(len(one.payload) for one in group) >= BATCH_BYTES:
                    yield group
                    group = []
        if group:
            yield group

    def _piece(self, batch: int, file: int, count: int, part: Part) -> Piece:
        end = position(batch, file + 1) if part.is_last else position(batch, file, count + 1)
        return Piece(position(batch, file, count), end, len(part.records), packed(part.records, self.entry.type))

    # ------------------------------------------------------------ the event loop

    async def _land(self, group: Sequence[Piece]) -> None:
        for target in self._targets:
            failures = 0
            while not await self._landed(target, group):
                if self._ending.is_set():
                    raise _Ended
                await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1

    async def _landed(self, target: Rejections | Landing, group: Sequence[Piece]) -> bool:
        pieces = [piece for piece in group if piece.end > target.position]
        if not pieces:
            return True
        try:
            async with self._standstill.working():
                await self._engine.work(lambda: target.land(pieces), f"feed {self.entry.name}")
        except TocsinError as error:
            log.warning("landing must wait", feed=self.entry.name, reason=error.message)
        except Exception:
            log.exception("landing failed", feed=self.entry.name)
        else:
            return True
        return False
