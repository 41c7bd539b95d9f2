"""A started feed of files: each file that arrives lands exactly once, across crashes.

It needs no intake log, because the files are the log, and it acknowledges nothing. STOP waits for the file that is
being read; the next file is read after the next START.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.adapters.file_reader import FilePiece, FileReader, ReaderStopped, after_last
from tocsin.cluster.feeds.landing_worker import LandingProgress, LandingTarget, landing_back_off
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.options import FileOptions
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.cluster.shared_lock import SharedLock
from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint
from tocsin.serving.trouble import Trouble
from tocsin.wire.errors import ConflictError, TocsinError

_log = structlog.get_logger()


class _FileReceiver:
    """One dataset of a feed of files. No piece lands in any dataset until all of them have started."""

    def __init__(self, target: LandingTarget) -> None:
        self.target = target
        self.trouble: Trouble | None = None
        self.started = asyncio.Event()
        self.ended = False
        self.turn = asyncio.Lock()
        """Held while a piece lands in the dataset."""

    @property
    def position(self) -> int:
        return self.target.position

    def start(self) -> None:
        self.started.set()

    def hurry(self) -> None:
        """Does nothing: no caller waits for a file."""

    async def end(self) -> None:
        """Waits for the piece that is landing."""
        self.ended = True
        self.target.halted = True
        self.started.set()
        async with self.turn:
            pass


class FileFeed:
    """One started feed of files. It takes no file before `open`."""

    sources: Final = ()
    connections: Final = None

    def __init__(
        self,
        entry: FeedEntry,
        wanted: FileOptions,
        checkpoint: Checkpoint,
        engine: Engine,
        backup_barrier: SharedLock,
        *,
        limits: FeedLimits,
        counts: FeedCounts,
    ) -> None:
        self.entry = entry
        self.counts = counts
        self._limits = limits
        self._wanted = wanted
        self._checkpoint = checkpoint
        self._engine = engine
        self._backup_barrier = backup_barrier
        # The receiver for rejected records is the first: a position that all datasets have reached is then wholly done.
        self._receivers: list[_FileReceiver] = []
        self.reader: FileReader | None = None
        self._trouble: Trouble | None = None

    # ------------------------------------------------------------ datasets

    def add(self, target: LandingTarget) -> LandingProgress:
        """Adds a dataset to land in, from its position on."""
        receiver = _FileReceiver(target)
        self._receivers.append(receiver)
        return receiver

    async def remove(self, worker: LandingProgress) -> None:
        self._receivers = [receiver for receiver in self._receivers if receiver is not worker]
        await worker.end()

    def worker_for(self, dataset: Ref) -> LandingProgress:
        return next(receiver for receiver in self._receivers if receiver.target.dataset == dataset)

    @property
    def troubles(self) -> list[Trouble]:
        troubles = [self._trouble, *(receiver.trouble for receiver in self._receivers)]
        return [trouble for trouble in troubles if trouble is not None]

    @property
    def end(self) -> int:
        """The position after the last known batch: newly found files come after it."""
        return after_last(self._checkpoint)

    @property
    def unlanded_bytes(self) -> int:
        return 0

    def lag(self) -> tuple[int, float]:
        """Returns zero: the feed acknowledges nothing."""
        return 0, 0.0

    # ------------------------------------------------------------ accepting

    def open(self) -> None:
        for receiver in self._receivers:
            receiver.start()
        if self.reader is None:
            self.reader = FileReader(
                self.entry, self._wanted, self._checkpoint, self._engine, self._limits,
                land=self._land, landed=self._landed_position, troubled=self._set_trouble,
            )  # fmt: skip
            self.reader.start()

    async def accept(self, _body: bytes, _key: str | None = None) -> AcceptedRecords:
        raise ConflictError(
            f"the feed {self.entry.name} takes files, not requests",
            hint=f"put a file into {self._wanted.paths[0]}, or CREATE FEED with the http_adapter",
        )

    async def until_landed(self, _position: int) -> None:
        """Does nothing: no publisher has a position to wait for."""

    # ------------------------------------------------------------ landing

    def _landed_position(self) -> int:
        """The position that every dataset has reached."""
        return min(receiver.position for receiver in list(self._receivers) if receiver.target.counted)

    async def _land(self, group: Sequence[FilePiece]) -> None:
        receivers = list(self._receivers)
        for receiver in receivers:
            await receiver.started.wait()
        for receiver in receivers:
            back_off = landing_back_off()
            while not await self._land_in(receiver, group):
                if self.reader is None or self.reader.is_ending:
                    raise ReaderStopped
                await self._engine.pause(back_off.next_s())
        self.counts.accepted += sum(piece.rows - piece.refused for piece in group)
        self.counts.rejected += sum(piece.refused for piece in group)

    async def _land_in(self, receiver: _FileReceiver, group: Sequence[FilePiece]) -> bool:
        target = receiver.target
        async with receiver.turn, self._backup_barrier.acquire(alone=False):
            pieces = [piece for piece in group if piece.end > target.position]
            if not pieces or receiver.ended:
                return True
            try:
                landing = partial(target.land, pieces)
                await self._engine.land(landing, f"feed {self.entry.name}", asks_spark=target.asks_spark)
            except Exception as error:
                self.counts.failures += 1
                receiver.trouble = self._note_trouble(f"landing in {target.dataset}", error, receiver.trouble)
                return False
        receiver.trouble = None
        self.counts.batches += target.counted
        return True

    def _set_trouble(self, error: TocsinError | None) -> None:
        self._trouble = None if error is None else self._note_trouble("looking for files", error, self._trouble)

    def _note_trouble(self, what: str, error: Exception, known: Trouble | None) -> Trouble:
        trouble = Trouble.of(what, error, known)
        unexpected = None if isinstance(error, TocsinError) else error
        _log.warning(
            "a feed of files failed; retrying",
            feed=self.entry.name,
            what=what,
            reason=trouble.reason,
            exc_info=unexpected,
        )
        return trouble

    # ------------------------------------------------------------ stopping

    async def until_drained(self, workers: Sequence[LandingProgress], impossible: str, otherwise: str = "") -> None:
        """Does nothing: no acknowledged record has to land."""

    async def drain(self, impossible: str, otherwise: str = "") -> None:  # noqa: ARG002
        """Stops taking files, and returns when the file that is being read has landed. If landing fails, the file comes
        again when the feed opens. If the caller is cancelled, the feed continues as before."""
        reader = self.reader
        if reader is None:
            return
        reader.finish()
        if not await self._wait_for_end(reader):
            self.open()
            raise asyncio.CancelledError

    async def stop(self) -> None:
        """Ends the feed. Files that have not landed are found again when the feed starts again."""
        if self.reader is not None:
            self.reader.halt()
            await self._wait_for_end(self.reader)
        await asyncio.gather(*(receiver.end() for receiver in self._receivers))

    async def _wait_for_end(self, reader: FileReader) -> bool:
        """Waits until the reader has ended, even if cancelled; returns False if the caller was cancelled meanwhile."""
        ending = asyncio.ensure_future(asyncio.to_thread(reader.join))
        undisturbed = True
        while not ending.done():
            try:
                await asyncio.wait((ending,))
            except asyncio.CancelledError:
                undisturbed = False
                reader.halt()
        ending.result()
        self.reader = None
        self._trouble = None
        return undisturbed
