"""A started feed: it takes records, keeps them in its log, and lands them in its datasets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
import structlog

from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import FeedEntry
from tocsin.cluster.feeds.batches import packed
from tocsin.cluster.feeds.figures import FeedCounts
from tocsin.cluster.intake.log import Entry, IntakeLog
from tocsin.pipeline.readers.decoding import Decode, Decoded
from tocsin.wire.errors import ConflictError, StoreError, TocsinError, UnavailableError

log = structlog.get_logger()

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 32 << 20
_SHOWN_REFUSALS: Final = 1_000  # in one answer; all of them are kept
_RETRY_S: Final = (0.1, 0.5, 2.0, 10.0)


class Target(Protocol):
    counted: bool
    """Whether it is a dataset that the feed is connected to."""
    position: int
    halted: bool
    """Whether the feed ends: what fails from now on fails because of that."""

    def land(self, entries: Sequence[Entry]) -> int: ...


@dataclass(frozen=True, slots=True)
class Accepted:
    status: int
    answer: Mapping[str, Any]
    position: int


class RunningFeed:
    def __init__(
        self,
        entry: FeedEntry,
        intake: IntakeLog,
        targets: Sequence[Target],
        decode: Decode,
        engine: Engine,
        *,
        counts: FeedCounts,
    ) -> None:
        self.entry = entry
        self._log = intake
        self._targets = targets
        self._decode = decode
        self._engine = engine
        self.counts = counts
        self._accepting = True
        self._taking = 0
        self._ended = False
        self._moved = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for target in self._targets:
            # What was trimmed from the log had landed everywhere.
            target.position = max(target.position, self._log.first)
            self._tasks.append(asyncio.create_task(self._land(target)))

    @property
    def end(self) -> int:
        """The log's position: what comes now comes after it."""
        return self._log.end

    @property
    def stopping(self) -> bool:
        return not self._accepting

    @property
    def unlanded_bytes(self) -> int:
        return self._log.unlanded_bytes

    def lag(self) -> tuple[int, float]:
        """How many acknowledged records are not yet in every dataset, and how long the oldest of them waits."""
        landed = min(target.position for target in self._targets)
        records = self._log.end - landed
        if records <= 0:
            return 0, 0.0
        try:
            (oldest,) = self._log.read(landed, max_rows=1, max_bytes=1)
        except StoreError:
            return records, 0.0  # it has landed meanwhile, and its segment is gone
        return records, max(0.0, time.time() - oldest.at_s)

    # ------------------------------------------------------------ in

    async def accept(self, body: bytes, key: str | None = None) -> Accepted:
        """Takes what is in a body; when this returns, the accepted records are durable."""
        if self.stopping:
            raise ConflictError(f"the feed {self.entry.name} is stopping", hint="START FEED it again")
        self._taking += 1
        try:
            payload, rows, status, answer = await asyncio.to_thread(self._read, body)
            if rows == 0:
                return Accepted(200, answer, self._log.end)
            appended = await self._log.append(payload, rows, key=key, answer=orjson.dumps([status, answer]))
        finally:
            await self._taken()
        if appended.repeated:
            status, answer = orjson.loads(appended.answer)
        else:
            self.counts.accepted += answer["accepted"]
            self.counts.rejected += rows - answer["accepted"]
            self.counts.taken_bytes += len(body)
        return Accepted(status, answer, appended.position)

    async def _taken(self) -> None:
        self._taking -= 1
        if self.stopping:
            await self._notify()

    def _read(self, body: bytes) -> tuple[bytes, int, int, dict[str, Any]]:
        decoded: Sequence[Decoded] = self._decode(body)
        refused = [one for one in decoded if one.record is None]
        accepted = len(decoded) - len(refused)
        shown = [{"index": one.index, "field": one.field, "reason": one.reason} for one in refused[:_SHOWN_REFUSALS]]
        answer: dict[str, Any] = {"accepted": accepted, "rejected": shown}
        if len(refused) > _SHOWN_REFUSALS:
            answer["rejected_in_all"] = len(refused)
        status = 422 if refused and not accepted else 200
        return packed(decoded, self.entry.type), len(decoded), status, answer

    async def until_landed(self, position: int) -> None:
        """Returns when a query would see everything below the position; UnavailableError if the feed ends before."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._ended or self._has_landed(position))
        if not self._has_landed(position):
            raise UnavailableError(
                f"the feed {self.entry.name} ended before its records were visible",
                hint="they are kept, and land when it is started again",
            )

    def _has_landed(self, position: int) -> bool:
        return all(target.position >= position for target in self._targets)

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    # ------------------------------------------------------------ out

    async def _land(self, target: Target) -> None:
        failures = 0
        while True:
            await self._log.wait(target.position)
            try:
                await self._engine.work(lambda: self._batch(target), f"feed {self.entry.name}")
            except TocsinError as error:
                log.warning("landing must wait", feed=self.entry.name, reason=error.message)
            except Exception:
                log.exception("landing failed", feed=self.entry.name)
            else:
                failures = 0
                self.counts.batches += target.counted
                await self._notify()
                continue
            self.counts.failures += 1
            await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    def _batch(self, target: Target) -> None:
        entries = self._log.read(target.position, max_rows=BATCH_ROWS, max_bytes=BATCH_BYTES)
        if entries:
            target.land(entries)
            self._log.landed(min(one.position for one in self._targets))

    # ------------------------------------------------------------ end

    async def stop(self, *, drained: bool) -> None:
        """No record is taken any more; with `drained`, everything acknowledged is in its datasets when this returns."""
        self._accepting = False
        try:
            if drained:
                async with self._moved:
                    # Whoever was let in before is answered first, so that what it sent lands too.
                    await self._moved.wait_for(lambda: not self._taking)
                await self.until_landed(self._log.end)
        finally:
            for target in self._targets:
                target.halted = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._log.close()
            self._ended = True
            await self._notify()
