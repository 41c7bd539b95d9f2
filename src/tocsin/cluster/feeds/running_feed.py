"""A started feed: accepts records, appends them to its intake log and lands them in its datasets.

A record is acknowledged when the log has it on the disk. One landing worker per dataset then copies it from the log, so
a slow or failing dataset delays neither the publisher nor the other datasets.

    accept ─▶ decode ─▶ intake log (fsync, acknowledge) ─▶ LandingWorker ─▶ dataset
                                                        └▶ LandingWorker ─▶ dataset
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol, TypeAlias

import orjson

from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.batches import BatchPacker, pack_batch
from tocsin.cluster.feeds.landing_worker import LandingProgress, LandingTarget, LandingWorker
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.intake.log import IntakeLog
from tocsin.pipeline.sources.decoder import Decode, DecodedRecord
from tocsin.serving.trouble import Trouble
from tocsin.wire.errors import (
    ConflictError,
    ReusedKeyError,
    StorageFullError,
    StoreError,
    TocsinError,
    UnavailableError,
)

_SHOWN_REFUSALS: Final = 1_000  # per answer; `<feed>Rejected` keeps all of them
_ReadBody: TypeAlias = tuple[bytes, int, int, dict[str, Any]]  # payload, rows, status and answer
# Decoding a body of this size takes less time than handing it to a thread.
_SMALL_BYTES: Final = 4096


class FeedAdapter(Protocol):
    """Brings records to a feed by itself, for example from sockets or by polling a URL."""

    @property
    def open(self) -> int | None:
        """The number of open connections; None for an adapter that nobody connects to."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AcceptedRecords:
    status: int
    answer: Mapping[str, Any]
    position: int


class RunningFeed:
    """One started feed. Its log is open from the start; `begin` starts landing, and `open` also accepts records."""

    def __init__(
        self,
        entry: FeedEntry,
        intake: IntakeLog,
        decode: Decode,
        engine: Engine,
        *,
        limits: FeedLimits,
        counts: FeedCounts,
    ) -> None:
        self._limits = limits
        self.entry = entry
        self.counts = counts
        self.sources: list[FeedAdapter] = []
        self._log = intake
        self._workers: list[LandingProgress] = []
        self._decode = decode
        self._engine = engine
        self._accepting = asyncio.Event()
        self._state: Literal["starting", "started", "stopping"] = "starting"
        self._taking = 0
        self._ended = False
        self._moved = asyncio.Condition()

    # ------------------------------------------------------------ datasets

    def add(self, target: LandingTarget) -> LandingProgress:
        """Adds a dataset to land in. The worker starts later, but the log keeps records for it from now on."""
        # Skip the offsets that the log no longer has: their records have landed in every dataset.
        target.position = max(target.position, self._log.first)
        worker = LandingWorker(
            self.entry.name, self._log, target, self._engine,
            counts=self.counts, landed=self._trim, changed=self._notify, limits=self._limits,
        )  # fmt: skip
        self._workers.append(worker)
        return worker

    async def remove(self, worker: LandingProgress) -> None:
        await worker.end()
        self._workers.remove(worker)
        await self._notify()

    def worker_for(self, dataset: Ref) -> LandingProgress:
        return next(worker for worker in self._workers if worker.target.dataset == dataset)

    def _trim(self) -> None:
        self._log.record_landed(min(worker.position for worker in list(self._workers)))

    @property
    def troubles(self) -> list[Trouble]:
        return [worker.trouble for worker in self._workers if worker.trouble is not None]

    @property
    def end(self) -> int:
        """The end of the log: the next record gets this offset."""
        return self._log.end

    @property
    def unlanded_bytes(self) -> int:
        return self._log.unlanded_bytes

    def lag(self) -> tuple[int, float]:
        """Returns how many acknowledged records are not yet in every dataset, and the age of the oldest in seconds."""
        landed = min(worker.position for worker in list(self._workers))
        records = self._log.end - landed
        if records <= 0:
            return 0, 0.0
        try:
            (oldest,) = self._log.read(landed, max_rows=1, max_bytes=1)
        except StoreError:
            return records, 0.0  # the record has landed meanwhile, and its segment is deleted
        return records, max(0.0, time.time() - oldest.at_s)

    @property
    def connections(self) -> int | None:
        """Open connections to the feed's sockets; None for a feed without sockets."""
        open_ = [source.open for source in self.sources if source.open is not None]
        return sum(open_) if open_ else None

    # ------------------------------------------------------------ accepting

    def _begin(self) -> None:
        for worker in self._workers:
            worker.start()

    def open(self) -> None:
        self._begin()
        self._state = "started"
        self._accepting.set()

    async def until_open(self) -> None:
        """Returns when the feed accepts records."""
        await self._accepting.wait()

    async def accept(self, body: bytes, key: str | None = None) -> AcceptedRecords:
        """Accepts the records of a request body. When this returns, the accepted records are durable."""
        async with self._let_in():
            if len(body) <= _SMALL_BYTES:
                payload, rows, status, answer = _run_to_end(self._read(body))
            else:
                payload, rows, status, answer = await self._engine.read_body(self._read(body), len(body))
            if rows == 0:
                return AcceptedRecords(status, answer, self._log.end)
            digest = "" if key is None else blake2b(body, digest_size=16).hexdigest()
            stored_answer = orjson.dumps([status, answer, digest])
            appended = await self._log.append(payload, rows, key=key, answer=stored_answer)
        if appended.repeated:
            status, answer, *others = orjson.loads(appended.answer)
            if others not in ([], [digest]):
                raise ReusedKeyError(
                    "this Idempotency-Key was sent before, with another body; nothing of this one is kept",
                    hint="a key is for one body, however often that is sent: make a new one for each",
                )
        else:
            self.counts.accepted += answer["accepted"]
            self.counts.rejected += rows - answer["accepted"]
            self.counts.taken_bytes += len(body)
        return AcceptedRecords(status, answer, appended.position)

    async def take(self, decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
        """Accepts the items of a poll. Records and marks are durable, in one write, when this returns."""
        async with self._let_in():
            payload = await asyncio.to_thread(pack_batch, decoded, self.entry.type, seen)
            await self._log.append(payload, len(decoded))
        accepted = sum(item.record is not None for item in decoded)
        self.counts.accepted += accepted
        self.counts.rejected += len(decoded) - accepted

    @asynccontextmanager
    async def _let_in(self) -> AsyncIterator[None]:
        if not self._accepting.is_set():
            raise ConflictError(f"the feed {self.entry.name} is {self._state}", hint="try again in a moment")
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1
            if not self._accepting.is_set():
                await self._notify()

    def _read(self, body: bytes) -> Generator[None, None, _ReadBody]:
        """Decodes and packs a body, a batch with each step."""
        packing = BatchPacker(self.entry.type)
        shown_refusals: list[dict[str, Any]] = []
        rows = refused = 0
        for batch in self._decode(body):
            packing.add(batch)
            rows += len(batch)
            refusals = [item for item in batch if item.record is None]
            refused += len(refusals)
            shown_refusals += [
                {"index": item.index, "field": item.field, "reason": item.reason}
                for item in refusals[: _SHOWN_REFUSALS - len(shown_refusals)]
            ]
            yield
        answer: dict[str, Any] = {"accepted": rows - refused, "rejected": shown_refusals}
        if refused > _SHOWN_REFUSALS:
            answer["rejected_in_all"] = refused
        return packing.finish(), rows, 200 if rows > refused else 422, answer

    # ------------------------------------------------------------ waiting until records have landed

    async def until_landed(self, position: int) -> None:
        """Returns when a query sees every record below the position. Raises UnavailableError if the feed ends before
        that, or if landing keeps failing."""
        for worker in self._workers:
            worker.hurry()
        await self._until(position, self._workers, self._limits.visible_patience_s, _invisible)

    async def until_drained(self, workers: Sequence[LandingProgress], impossible: str, otherwise: str = "") -> None:
        """Returns when every acknowledged record has landed in the datasets of these workers. If landing keeps failing,
        the error says what is `impossible`, and what the user can do `otherwise`."""
        for worker in workers:
            worker.hurry()
        await self._until(self._log.end, workers, self._limits.patience_s, partial(_refusal, impossible, otherwise))

    async def _until(
        self,
        position: int,
        workers: Sequence[LandingProgress],
        patience_s: float,
        refusal: Callable[[Trouble, int], TocsinError],
    ) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with self._moved:
            while behind := [worker for worker in workers if worker.position < position]:
                if self._ended:
                    raise UnavailableError(
                        f"the feed {self.entry.name} ended before its records were visible",
                        hint="they are kept, and land when it is started again",
                    )
                troubles = [worker.trouble for worker in behind if worker.trouble is not None]
                give_up_s = None
                if troubles:
                    give_up_s = patience_s + max(began_s, min(trouble.since_s for trouble in troubles))
                    if clock() >= give_up_s:
                        raise refusal(troubles[0], position - min(worker.position for worker in behind))
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(give_up_s):
                        await self._moved.wait()

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    # ------------------------------------------------------------ stopping

    async def drain(self, impossible: str, otherwise: str = "") -> None:
        """Stops accepting records, and returns when every acknowledged record is in its datasets.

        If that fails, or if the caller is cancelled, the feed accepts records again as before.
        """
        was_open = self._accepting.is_set()
        self._state = "stopping"
        self._accepting.clear()
        try:
            async with self._moved:
                # Let requests that are under way finish first, so that their records land too.
                await self._moved.wait_for(lambda: not self._taking)
            await self.until_drained(self._workers, impossible, otherwise)
        except BaseException:
            if was_open:
                self.open()
            raise

    async def stop(self) -> None:
        """Ends the feed. Records that have not landed stay in the log, and land when the feed starts again."""
        self._state = "stopping"
        self._accepting.clear()
        for source in self.sources:
            await source.close()
        await asyncio.gather(*(worker.end() for worker in self._workers))
        await self._log.close()
        self._ended = True
        await self._notify()


def _run_to_end(steps: Generator[None, None, _ReadBody]) -> _ReadBody:
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            read: _ReadBody = ended.value
            return read


def _refusal(impossible: str, otherwise: str, trouble: Trouble, records: int) -> UnavailableError | StorageFullError:
    kind = StorageFullError if trouble.disk_full else UnavailableError
    given_up = f", or give them up: {otherwise}" if otherwise else ""
    return kind(
        f"{impossible}: {records} acknowledged records have not landed, because {_describe(trouble)}",
        hint=f"the feed goes on as before, and nothing is lost; mend that and try again{given_up}",
    )


def _invisible(trouble: Trouble, _records: int) -> UnavailableError:
    return UnavailableError(
        f"the records are kept, and not visible yet, because {_describe(trouble)}",
        hint="they land by themselves when that is mended: there is no need to send them again",
    )


def _describe(trouble: Trouble) -> str:
    return f"{trouble.what} fails since {trouble.since:%Y-%m-%dT%H:%M:%SZ}: {trouble.reason}"
