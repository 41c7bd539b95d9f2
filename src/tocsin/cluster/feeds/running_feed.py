"""A started feed: it takes records, keeps them in its log, and lands them in its datasets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

import orjson

from tocsin.cluster.catalog.entries import FeedEntry, Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.batches import BatchPacker, packed
from tocsin.cluster.feeds.landing_worker import (
    LandingProgress,
    LandingTarget,
    LandingTrouble,
    LandingWorker,
)
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.intake.log import IntakeLog
from tocsin.pipeline.sources.decoder import Decode, DecodedRecord
from tocsin.wire.errors import (
    ConflictError,
    ReusedKeyError,
    StorageFullError,
    StoreError,
    TocsinError,
    UnavailableError,
)

_SHOWN_REFUSALS: Final = 1_000  # in one answer; all of them are kept
# A body so small is read in less time than a thread takes to begin, and to have its turn among others.
_SMALL_BYTES: Final = 4096
# How long a statement waits for records to land while landing fails; while it goes on, as long as the statement may.
PATIENCE_S = 5.0
# The same for a publisher: longer than it takes to try again once all is mended.
VISIBLE_PATIENCE_S = 15.0


class FeedAdapter(Protocol):
    """Brings records to a feed by itself."""

    @property
    def open(self) -> int | None:
        """How many are connected, where that is how records come."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AcceptedRecords:
    status: int
    answer: Mapping[str, Any]
    position: int


class RunningFeed:
    """Made closed, with its log open: `begin` lets it land, and `open` take records."""

    def __init__(
        self, entry: FeedEntry, intake: IntakeLog, decode: Decode, engine: Engine, *, counts: FeedCounts
    ) -> None:
        self.entry = entry
        self.counts = counts
        self.sources: list[FeedAdapter] = []
        self._log = intake
        self._movers: list[LandingProgress] = []
        self._decode = decode
        self._engine = engine
        self._door = asyncio.Event()
        self._state: Literal["starting", "started", "stopping"] = "starting"
        self._taking = 0
        self._ended = False
        self._moved = asyncio.Condition()

    # ------------------------------------------------------------ its datasets

    def add(self, target: LandingTarget) -> LandingProgress:
        """One more place to land in, once its mover starts; from now on the log keeps what that one needs."""
        # What was trimmed from the log had landed everywhere.
        target.position = max(target.position, self._log.first)
        mover = LandingWorker(
            self.entry.name,
            self._log,
            target,
            self._engine,
            counts=self.counts,
            landed=self._trim,
            changed=self._notify,
        )
        self._movers.append(mover)
        return mover

    async def remove(self, mover: LandingProgress) -> None:
        await mover.end()
        self._movers.remove(mover)
        await self._notify()

    def mover(self, dataset: Ref) -> LandingProgress:
        return next(mover for mover in self._movers if mover.target.dataset == dataset)

    def _trim(self) -> None:
        self._log.landed(min(mover.position for mover in list(self._movers)))

    @property
    def troubles(self) -> list[LandingTrouble]:
        return [mover.trouble for mover in self._movers if mover.trouble is not None]

    @property
    def end(self) -> int:
        """The log's position: what comes now comes after it."""
        return self._log.end

    @property
    def unlanded_bytes(self) -> int:
        return self._log.unlanded_bytes

    def lag(self) -> tuple[int, float]:
        """How many acknowledged records are not yet in every dataset, and how long the oldest of them waits."""
        landed = min(mover.position for mover in list(self._movers))
        records = self._log.end - landed
        if records <= 0:
            return 0, 0.0
        try:
            (oldest,) = self._log.read(landed, max_rows=1, max_bytes=1)
        except StoreError:
            return records, 0.0  # it has landed meanwhile, and its segment is gone
        return records, max(0.0, time.time() - oldest.at_s)

    @property
    def connections(self) -> int | None:
        """To its sockets; None where it has none."""
        open_ = [source.open for source in self.sources if source.open is not None]
        return sum(open_) if open_ else None

    # ------------------------------------------------------------ in

    def begin(self) -> None:
        for mover in self._movers:
            mover.start()

    def open(self) -> None:
        self.begin()
        self._state = "started"
        self._door.set()

    async def opened(self) -> None:
        """Returns when records are taken."""
        await self._door.wait()

    async def accept(self, body: bytes, key: str | None = None) -> AcceptedRecords:
        """Takes what is in a body; when this returns, the accepted records are durable."""
        async with self._let_in():
            if len(body) <= _SMALL_BYTES:
                payload, rows, status, answer = self._read(body)
            else:
                payload, rows, status, answer = await self._engine.read_body(partial(self._read, body))
            if rows == 0:
                return AcceptedRecords(status, answer, self._log.end)
            digest = "" if key is None else blake2b(body, digest_size=16).hexdigest()
            kept = orjson.dumps([status, answer, digest])
            appended = await self._log.append(payload, rows, key=key, answer=kept)
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
        """Takes what a poll found; records and marks of the items are durable, as one, when this returns."""
        async with self._let_in():
            payload = await asyncio.to_thread(packed, decoded, self.entry.type, seen)
            await self._log.append(payload, len(decoded))
        accepted = sum(one.record is not None for one in decoded)
        self.counts.accepted += accepted
        self.counts.rejected += len(decoded) - accepted

    @asynccontextmanager
    async def _let_in(self) -> AsyncIterator[None]:
        if not self._door.is_set():
            raise ConflictError(f"the feed {self.entry.name} is {self._state}", hint="try again in a moment")
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1
            if not self._door.is_set():
                await self._notify()

    def _read(self, body: bytes) -> tuple[bytes, int, int, dict[str, Any]]:
        packing = BatchPacker(self.entry.type)
        shown: list[dict[str, Any]] = []
        rows = refused = 0
        for batch in self._decode(body):
            packing.add(batch)
            rows += len(batch)
            bad = [one for one in batch if one.record is None]
            refused += len(bad)
            shown += [
                {"index": one.index, "field": one.field, "reason": one.reason}
                for one in bad[: _SHOWN_REFUSALS - len(shown)]
            ]
        answer: dict[str, Any] = {"accepted": rows - refused, "rejected": shown}
        if refused > _SHOWN_REFUSALS:
            answer["rejected_in_all"] = refused
        return packing.finish(), rows, 200 if rows > refused else 422, answer

    # ------------------------------------------------------------ out

    async def until_landed(self, position: int) -> None:
        """Returns when a query would see everything below the position; UnavailableError if the feed ends before, or
        where landing fails and goes on failing."""
        for mover in self._movers:
            mover.hurry()
        await self._until(position, self._movers, VISIBLE_PATIENCE_S, _invisible)

    async def drained(self, movers: Sequence[LandingProgress], impossible: str, otherwise: str = "") -> None:
        """Returns when all that was acknowledged has landed there. Where landing fails and goes on failing, the error
        says what is `impossible`, and what to do `otherwise`."""
        for mover in movers:
            mover.hurry()
        await self._until(self._log.end, movers, PATIENCE_S, partial(_refusal, impossible, otherwise))

    async def _until(
        self,
        position: int,
        movers: Sequence[LandingProgress],
        patience_s: float,
        refusal: Callable[[LandingTrouble, int], TocsinError],
    ) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with self._moved:
            while behind := [mover for mover in movers if mover.position < position]:
                if self._ended:
                    raise UnavailableError(
                        f"the feed {self.entry.name} ended before its records were visible",
                        hint="they are kept, and land when it is started again",
                    )
                troubles = [mover.trouble for mover in behind if mover.trouble is not None]
                give_up_s = None
                if troubles:
                    give_up_s = patience_s + max(began_s, min(one.since_s for one in troubles))
                    if clock() >= give_up_s:
                        raise refusal(troubles[0], position - min(mover.position for mover in behind))
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(give_up_s):
                        await self._moved.wait()

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    # ------------------------------------------------------------ end

    async def drain(self, impossible: str, otherwise: str = "") -> None:
        """No record is taken any more, and everything acknowledged is in its datasets when this returns.

        Where it cannot be, or where the caller is cancelled, the feed goes on as before.
        """
        was_open = self._door.is_set()
        self._state = "stopping"
        self._door.clear()
        try:
            async with self._moved:
                # Whoever was let in before is answered first, so that what it sent lands too.
                await self._moved.wait_for(lambda: not self._taking)
            await self.drained(self._movers, impossible, otherwise)
        except BaseException:
            if was_open:
                self.open()
            raise

    async def stop(self) -> None:
        """The end. What has not landed is in the log, and lands when the feed is started again."""
        self._state = "stopping"
        self._door.clear()
        for source in self.sources:
            await source.close()
        await asyncio.gather(*(mover.end() for mover in self._movers))
        await self._log.close()
        self._ended = True
        await self._notify()


def _refusal(
    impossible: str, otherwise: str, trouble: LandingTrouble, records: int
) -> UnavailableError | StorageFullError:
    kind = StorageFullError if trouble.disk_full else UnavailableError
    given_up = f", or give them up: {otherwise}" if otherwise else ""
    return kind(
        f"{impossible}: {records} acknowledged records have not landed, because {_told(trouble)}",
        hint=f"the feed goes on as before, and nothing is lost; mend that and try again{given_up}",
    )


def _invisible(trouble: LandingTrouble, _records: int) -> UnavailableError:
    return UnavailableError(
        f"the records are kept, and not visible yet, because {_told(trouble)}",
        hint="they land by themselves when that is mended: there is no need to send them again",
    )


def _told(trouble: LandingTrouble) -> str:
    return f"{trouble.what} fails since {trouble.since:%Y-%m-%dT%H:%M:%SZ}: {trouble.reason}"
