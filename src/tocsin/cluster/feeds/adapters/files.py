"""A started feed of files: each file that arrives lands once, whatever is killed whenever.

It has no log, for the files are one, and nothing of it is acknowledged to anybody: who stops it waits for the file that
is being read, and the next one is read when it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

import structlog

from tocsin.cluster.catalog.entries import FeedEntry, Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.adapters.file_options import FileOptions
from tocsin.cluster.feeds.adapters.file_reader import FilePiece, FileReader, ReaderStopped, after_last
from tocsin.cluster.feeds.backup_barrier import BackupBarrier
from tocsin.cluster.feeds.landing_worker import RETRY_S, LandingProgress, LandingTarget, LandingTrouble
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.pipeline.landing.checkpoint import Checkpoint
from tocsin.wire.errors import ConflictError, StorageFullError, TocsinError

log = structlog.get_logger()


class FileReceiver:
    """One dataset of a feed of files. Nothing lands anywhere while one of them is not started."""

    def __init__(self, target: LandingTarget) -> None:
        self.target = target
        self.trouble: LandingTrouble | None = None
        self.started = asyncio.Event()
        self.ended = False
        self.turn = asyncio.Lock()
        """Held while something lands in it."""

    @property
    def position(self) -> int:
        return self.target.position

    def start(self) -> None:
        self.started.set()

    def hurry(self) -> None:
        """Nobody waits for a file."""

    async def end(self) -> None:
        """What is landing is waited for."""
        self.ended = True
        self.target.halted = True
        self.started.set()
        async with self.turn:
            pass


class FileFeed:
    """Made closed: `open` lets it take files."""

    sources: Final = ()
    connections: Final = None

    def __init__(
        self,
        entry: FeedEntry,
        wanted: FileOptions,
        checkpoint: Checkpoint,
        engine: Engine,
        standstill: BackupBarrier,
        *,
        counts: FeedCounts,
    ) -> None:
        self.entry = entry
        self.counts = counts
        self._wanted = wanted
        self._checkpoint = checkpoint
        self._engine = engine
        self._standstill = standstill
        # Rejected records come first: what is in every dataset is wholly done.
        self._receivers: list[FileReceiver] = []
        self._watch: FileReader | None = None
        self._trouble: LandingTrouble | None = None

    # ------------------------------------------------------------ its datasets

    def add(self, target: LandingTarget) -> LandingProgress:
        """One more place to land in, from its position on."""
        receiver = FileReceiver(target)
        self._receivers.append(receiver)
        return receiver

    async def remove(self, mover: LandingProgress) -> None:
        self._receivers = [one for one in self._receivers if one is not mover]
        await mover.end()

    def mover(self, dataset: Ref) -> LandingProgress:
        return next(one for one in self._receivers if one.target.dataset == dataset)

    @property
    def troubles(self) -> list[LandingTrouble]:
        found = [self._trouble, *(one.trouble for one in self._receivers)]
        return [one for one in found if one is not None]

    @property
    def end(self) -> int:
        """What is found from now on comes after it."""
        return after_last(self._checkpoint)

    @property
    def unlanded_bytes(self) -> int:
        return 0

    def lag(self) -> tuple[int, float]:
        """Nothing of it was acknowledged."""
        return 0, 0.0

    # ------------------------------------------------------------ in

    def open(self) -> None:
        for receiver in self._receivers:
            receiver.start()
        if self._watch is None:
            self._watch = FileReader(
                self.entry.name,
                self.entry.type,
                self._wanted,
                self._checkpoint,
                self._engine,
                land=self._land,
                landed=self._landed,
                troubled=self._troubled,
            )
            self._watch.start()

    async def accept(self, _body: bytes, _key: str | None = None) -> AcceptedRecords:
        raise ConflictError(
            f"the feed {self.entry.name} takes files, not requests",
            hint=f"put a file into {self._wanted.paths[0]}, or CREATE FEED with the http_adapter",
        )

    async def until_landed(self, _position: int) -> None:
        """Nobody has a position to wait for."""

    # ------------------------------------------------------------ out

    def _landed(self) -> int:
        """What is below is in every dataset, and wholly done."""
        return min(one.position for one in list(self._receivers) if one.target.counted)

    async def _land(self, group: Sequence[FilePiece]) -> None:
        receivers = list(self._receivers)
        for receiver in receivers:
            await receiver.started.wait()
        for receiver in receivers:
            failures = 0
            while not await self._landed_in(receiver, group):
                if self._watch is None or self._watch.is_ending:
                    raise ReaderStopped
                await self._engine.pause(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
        self.counts.accepted += sum(piece.rows - piece.refused for piece in group)
        self.counts.rejected += sum(piece.refused for piece in group)

    async def _landed_in(self, receiver: FileReceiver, group: Sequence[FilePiece]) -> bool:
        target = receiver.target
        async with receiver.turn, self._standstill.working():
            pieces = [piece for piece in group if piece.end > target.position]
            if not pieces or receiver.ended:
                return True
            try:
                landing = partial(target.land, pieces)
                await self._engine.land(landing, f"feed {self.entry.name}", asks_spark=target.asks_spark)
            except Exception as error:
                self.counts.failures += 1
                receiver.trouble = self._told(f"landing in {target.dataset}", error, receiver.trouble)
                return False
        receiver.trouble = None
        self.counts.batches += target.counted
        return True

    def _troubled(self, error: TocsinError | None) -> None:
        self._trouble = None if error is None else self._told("looking for files", error, self._trouble)

    def _told(self, what: str, error: Exception, known: LandingTrouble | None) -> LandingTrouble:
        reason = error.message if isinstance(error, TocsinError) else f"{type(error).__name__}: {error}"
        unforeseen = None if isinstance(error, TocsinError) else error
        # Files are taken whether or not it can be told.
        with suppress(Exception):
            log.warning("a feed must wait", feed=self.entry.name, what=what, reason=reason, exc_info=unforeseen)
        now = datetime.now(UTC), asyncio.get_running_loop().time()
        since, since_s = now if known is None else (known.since, known.since_s)
        return LandingTrouble(what, reason, since, since_s, isinstance(error, StorageFullError))

    # ------------------------------------------------------------ end

    async def drained(self, movers: Sequence[LandingProgress], impossible: str, otherwise: str = "") -> None:
        """Nothing was acknowledged that would have to land."""

    async def drain(self, impossible: str, otherwise: str = "") -> None:  # noqa: ARG002
        """No file is taken any more, and the one that is being read has landed wholly when this returns; where landing
        fails, it comes again when the feed is opened. Where the caller is cancelled, the feed goes on as before."""
        watch = self._watch
        if watch is None:
            return
        watch.finish()
        if not await self._ended(watch):
            self.open()
            raise asyncio.CancelledError

    async def stop(self) -> None:
        """The end. What has not landed is found again when the feed is started again."""
        if self._watch is not None:
            self._watch.halt()
            await self._ended(self._watch)
        await asyncio.gather(*(receiver.end() for receiver in self._receivers))

    async def _ended(self, watch: FileReader) -> bool:
        """Waits for its end, in any case; whether it was let to."""
        ending = asyncio.ensure_future(asyncio.to_thread(watch.join))
        patient = True
        while not ending.done():
            try:
                await asyncio.wait((ending,))
            except asyncio.CancelledError:
                patient = False
                watch.halt()
        ending.result()
        self._watch = None
        self._trouble = None
        return patient
