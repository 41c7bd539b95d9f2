"""The channel store in one SQLite file (see store/sqlite/file.py): one writer, two readers that never wait for it.

The SQL is in the modules beside, as functions of a connection, so that several of them can share a transaction. The
removal of results (DROP, retention) is many short transactions, because others wait for the same writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, TypeVar, Unpack

from tocsin import faults
from tocsin.rules.model.cursors import Cursor, InterestId, Range
from tocsin.store.channels import rows
from tocsin.store.channels.interface import CHUNK_BYTES, EXECUTIONS_KEPT
from tocsin.store.channels.sqlite import brokers, results, retention
from tocsin.store.channels.sqlite import channel_rows as channels
from tocsin.store.channels.sqlite import shares as share_rows
from tocsin.store.channels.sqlite import subscriptions as subscription_rows
from tocsin.store.channels.sqlite.retention import STEP_ROWS, StoredBytes
from tocsin.store.channels.sqlite.upgrades import CHANNEL_UPGRADES
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.store.sqlite.file import CallParameters, OpeningMode, ReadCall, SqliteFile, StoreLayout, transaction
from tocsin.wire.errors import NotFoundError

_T = TypeVar("_T")

_TRIMMED: Final = 1_000


class _WriteCall(ReadCall[CallParameters, _T]):
    """A method that changes the store in one transaction. `point` names its crash points."""

    def __init__(
        self, work: Callable[Concatenate[sqlite3.Connection, CallParameters], _T], point: str | None = None
    ) -> None:
        super().__init__(work)
        self._point = point

    def run(self, store: SqliteChannelStore, work: Callable[[sqlite3.Connection], _T]) -> Coroutine[Any, Any, _T]:
        return store.write(work, self._point)


class SqliteChannelStore(SqliteFile):
    """Implements ChannelStore."""

    # "TCSC" in ASCII. By measurement, larger pages suit results of some hundred bytes, and the index of a million
    # interests fits this cache.
    layout = StoreLayout(0x54435343, CHANNEL_UPGRADES, readers=2, page_bytes=8192, cache_bytes=32 << 20)

    def __init__(
        self,
        path: Path,
        *,
        chunk_interests: int = 20_000,
        former_kept: int = 100_000,
        step_rows: int = STEP_ROWS,
        **opening: Unpack[OpeningMode],
    ) -> None:
        super().__init__(path, **opening)
        self._chunk_interests = chunk_interests
        self._former_kept = former_kept
        self._step_rows = step_rows
        self._epoch = 0
        # How many results were live in each execution when its dead rows were last removed, per channel.
        self._swept: dict[int, dict[int, int]] = {}

    @property
    def epoch(self) -> int:
        self.check_open()
        return self._epoch

    async def open(self) -> None:
        await super().open()
        self._epoch = await self.read(channels.current_epoch)

    async def renew_epoch(self) -> int:
        def renew(writer: sqlite3.Connection) -> int:
            brokers.forget_holders(writer)
            return channels.renew_epoch(writer)

        self._epoch = await self.write(renew)
        return self._epoch

    def first_rows(self, writer: sqlite3.Connection, now: datetime) -> None:
        channels.begin_epoch(writer, now)

    # --- channels

    add_channel = _WriteCall(channels.add_channel)
    channel_ids = ReadCall(channels.channel_ids)
    state = ReadCall(channels.state)

    async def drop_channel(self, channel_id: int) -> None:
        await self.write(lambda writer: retention.hide(writer, channel_id))
        await self._repeat(
            lambda writer: retention.drop_some(writer, channel_id, self._step_rows), "channel-store.drop.step"
        )

    # --- subscriptions and interests

    subscribe = _WriteCall(subscription_rows.subscribe, "channel-store.subscriptions")
    unsubscribe = _WriteCall(subscription_rows.unsubscribe, "channel-store.subscriptions")
    change_subscription = _WriteCall(subscription_rows.change_subscription, "channel-store.subscriptions")
    subscription = ReadCall(subscription_rows.subscription)
    subscriptions = ReadCall(subscription_rows.subscriptions)
    subscriptions_of = ReadCall(subscription_rows.subscriptions_of)
    holders = ReadCall(subscription_rows.holders)
    interest_changes = ReadCall(subscription_rows.interest_changes)

    async def interests(self, channel_id: int) -> AsyncIterator[rows.InterestChunk]:
        change: int | None = None
        after: int | None = 0
        while after is not None:
            page = partial(
                subscription_rows.interest_chunk, channel_id=channel_id, change=change, after=after,
                limit=self._chunk_interests,
            )  # fmt: skip
            chunk, after = await self.read(page)
            if chunk.ids or change is None:
                yield chunk
            change = chunk.change

    # --- executions

    record_failure = _WriteCall(channels.add_failure)
    executions = ReadCall(channels.executions)

    async def commit_execution(
        self,
        channel_id: int,
        execution: rows.Execution,
        interests: Sequence[InterestId],
        payloads: Sequence[bytes],
        *,
        matches_at_most: int | None = None,
    ) -> rows.CommittedExecution:
        def commit(writer: sqlite3.Connection) -> rows.CommittedExecution:
            committed, over = results.commit(
                writer, channel_id, execution, interests, payloads, matches_at_most=matches_at_most
            )
            if over:
                retention.overflow(writer, channel_id, execution.number, over)
            return committed

        return await self.write(commit, "channel-store.execution")

    # --- results

    async def fetch(
        self, ranges: Sequence[Range], *, chunk_bytes: int = CHUNK_BYTES
    ) -> AsyncIterator[list[rows.FetchedRange]]:
        waiting = iter(results.plan_fetch(ranges))
        todo = list(islice(waiting, results.RANGES))
        while todo:
            # Each chunk is a separate read: a slow reader must not keep the write-ahead log from being checkpointed.
            chunk, todo = await self.read(partial(results.fetch, todo=todo, chunk_bytes=chunk_bytes))
            if chunk:
                yield chunk
            todo += islice(waiting, results.RANGES - len(todo))

    async def retain(
        self,
        channel_id: int,
        *,
        ended_before_us: int | None = None,
        max_bytes: int | None = None,
        executions: int = EXECUTIONS_KEPT,
    ) -> int:
        await self.state(channel_id)  # raises NotFoundError if there is no such channel
        removed = await self._retention(lambda writer: retention.sweep_former(writer, channel_id, self._step_rows))
        await self._compact(channel_id)
        if ended_before_us is not None:
            old = partial(retention.too_old, channel_id=channel_id, ended_before_us=ended_before_us)
            removed += await self._remove(channel_id, old)
        if max_bytes is not None and await self.read(share_rows.are_several):
            removed += await self._share_out(channel_id, max_bytes)
        elif max_bytes is not None:
            much = partial(retention.too_much, channel_id=channel_id, max_bytes=max_bytes)
            removed += await self._remove(channel_id, much)
        await self._retention(
            lambda writer: retention.forget(writer, channel_id, executions, self._former_kept, self._step_rows)
        )
        return removed

    async def trim(self, channel_id: int, below: Mapping[InterestId, Cursor]) -> int:
        await self.state(channel_id)
        removed = 0
        cursors = iter(below.items())
        while batch := dict(islice(cursors, _TRIMMED)):
            removed += await self.write(partial(retention.trim, channel_id=channel_id, below=batch))
            faults.reach("channel-store.retention.step")
        await self._compact(channel_id)
        return removed

    async def delete_results(self, channel_id: int, results: Sequence[tuple[InterestId, Cursor]]) -> int:
        delete = partial(retention.delete, channel_id=channel_id, results=results)
        deleted = await self.write(delete, "channel-store.deletion")
        await self._compact(channel_id)
        return deleted

    # --- announcements of new results

    position = ReadCall(brokers.position)
    dropped = ReadCall(brokers.count_dropped)
    new_results = ReadCall(brokers.new_results)
    acknowledge = _WriteCall(brokers.acknowledge)

    async def lowest_acknowledged(self, channel_id: int) -> AsyncIterator[dict[InterestId, Cursor]]:
        after: int | None = 0
        while after is not None:
            page = partial(brokers.lowest_acknowledged, channel_id=channel_id, after=after, limit=self._chunk_interests)
            lowest, after = await self.read(page)
            if lowest:
                yield lowest

    # --- registered brokers

    register = _WriteCall(brokers.register)
    claim = _WriteCall(brokers.claim)
    renew_secret = _WriteCall(brokers.renew_secret)
    registrations = ReadCall(brokers.registrations)
    registration = ReadCall(brokers.registration)
    record_position = _WriteCall(brokers.record_position)

    async def unregister(self, broker: rows.BrokerName) -> None:
        while page := await self.subscriptions_of(broker, limit=self._step_rows):
            # Subscriptions of a channel that is being dropped are not listed; they end with the channel.
            for channel_id in {subscription.channel_id for subscription in page}:
                try:
                    await self.unsubscribe(
                        channel_id, [subscription.id for subscription in page if subscription.channel_id == channel_id]
                    )
                except NotFoundError:
                    continue
        await self.write(lambda writer: brokers.unregister(writer, broker))

    # --- steps

    async def _compact(self, channel_id: int) -> None:
        """Removes dead rows from executions that are mostly dead."""
        for execution in await self.read(lambda reader: retention.mostly_dead(reader, channel_id)):
            await self._remove_dead(channel_id, execution)

    async def _remove_dead(self, channel_id: int, execution: StoredBytes) -> None:
        if execution.live == 0:
            await self._remove_execution(channel_id, execution, records_gap=False)
            return
        dead = await self.read(partial(retention.dead_rows, execution=execution))
        for at in range(0, len(dead), self._step_rows):
            ids = dead[at : at + self._step_rows]
            await self.write(partial(retention.remove_dead, channel_id=channel_id, number=execution.number, ids=ids))
            faults.reach("channel-store.retention.step")

    async def _share_out(self, channel_id: int, max_bytes: int) -> int:
        """Removes results of shares above the fair level until the channel fits. Returns their number."""
        removed = 0
        exhausted: set[tuple[int, int]] = set()
        while (await self.state(channel_id)).result_bytes > max_bytes:
            while numbers := await self.read(lambda reader: share_rows.uncounted_executions(reader, channel_id)):
                counts: list[tuple[int, int, int, int]] = []
                for number in numbers:
                    counts += await self.read(partial(share_rows.count_shares, channel_id=channel_id, number=number))
                await self.write(partial(share_rows.keep_counts, counts=counts))
                faults.reach("channel-store.retention.step")
            eviction = await self.read(lambda reader: share_rows.eviction(reader, channel_id, max_bytes, exhausted))
            if eviction is None:
                # Dead rows are invisible, but they may be what exceeds the limit.
                if await self._remove_all_dead(channel_id):
                    continue
                break
            for number, shares in sorted(eviction.shares.items()):
                removed += await self._evict(channel_id, number, eviction.above, shares)
                exhausted.update((number, share) for share in shares)
        return removed

    async def _evict(self, channel_id: int, number: int, above: list[int], shares: list[int]) -> int:
        places = await self.read(lambda reader: share_rows.evicted_places(reader, channel_id, number, above, shares))
        removed = 0
        for at in range(0, len(places), _TRIMMED):
            batch = places[at : at + _TRIMMED]
            removed += await self.write(partial(retention.evict, channel_id=channel_id, number=number, places=batch))
            faults.reach("channel-store.retention.step")
        for execution in await self.read(lambda reader: retention.partly_dead(reader, channel_id, number)):
            await self._remove_dead(channel_id, execution)
        return removed

    async def _remove_all_dead(self, channel_id: int) -> bool:
        """Removes dead rows of all executions. Returns whether there was work. An execution is examined again only
        when more of it has died, because dead rows that live rows refer to have to stay.
        """
        swept = self._swept.get(channel_id, {})
        executions = await self.read(lambda reader: retention.partly_dead(reader, channel_id))
        self._swept[channel_id] = {execution.number: execution.live for execution in executions}
        changed = [execution for execution in executions if swept.get(execution.number) != execution.live]
        for execution in changed:
            await self._remove_dead(channel_id, execution)
        return bool(changed)

    async def _remove(self, channel_id: int, choose: Callable[[sqlite3.Connection], list[StoredBytes]]) -> int:
        removed = 0
        while victims := await self.read(choose):
            for execution in victims:
                removed += await self._remove_execution(channel_id, execution, records_gap=True)
        return removed

    async def _remove_execution(self, channel_id: int, execution: StoredBytes, *, records_gap: bool) -> int:
        return await self._retention(
            lambda writer: retention.remove_rows(
                writer, channel_id, execution.number, self._step_rows, records_gap=records_gap
            )
        )

    async def _retention(self, step: Callable[[sqlite3.Connection], tuple[int, bool]]) -> int:
        return await self._repeat(step, "channel-store.retention.step")

    async def _repeat(self, step: Callable[[sqlite3.Connection], tuple[int, bool]], point: str) -> int:
        """Repeats a step until there are no more; others may write in between. Returns the number of results
        removed.
        """
        total, more = 0, True
        while more:
            count, more = await self.write(step)
            faults.reach(point)
            total += count
        return total

    async def write(self, work: Callable[[sqlite3.Connection], _T], point: str | None = None) -> _T:
        async with self.turn:
            return await self.call(lambda: self._transact(work, point))

    def _transact(self, work: Callable[[sqlite3.Connection], _T], point: str | None) -> _T:
        writer = self.writer()
        with explain_sqlite_errors(self.path), transaction(writer):
            answer = work(writer)
            if point is not None:
                faults.reach(f"{point}.written")
        if point is not None:
            faults.reach(f"{point}.committed")
        return answer
