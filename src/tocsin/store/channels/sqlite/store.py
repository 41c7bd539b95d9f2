"""The channel store in one SQLite file (see store/sqlite/file.py): one writer, two readers that never wait for it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar, Unpack

from tocsin import faults
from tocsin.rules.model.cursors import Cursor, Position, Range
from tocsin.store.channels import checks as check
from tocsin.store.channels import rows
from tocsin.store.channels.interface import CHANGES, CHUNK_BYTES, EXECUTIONS_KEPT, NEWS, PAGE
from tocsin.store.channels.sqlite import (
    broker_positions,
    results,
    retention,
)
from tocsin.store.channels.sqlite import channel_rows as channels
from tocsin.store.channels.sqlite import (
    registrations as sqlite_registrations,
)
from tocsin.store.channels.sqlite import (
    shares as sqlite_shares,
)
from tocsin.store.channels.sqlite import (
    subscriptions as sqlite_subscriptions,
)
from tocsin.store.channels.sqlite.retention import STEP, StoredBytes
from tocsin.store.channels.sqlite.upgrades import CHANNEL_UPGRADES
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.store.sqlite.file import OpeningMode, SqliteFile, StoreLayout, transaction
from tocsin.wire.errors import NotFoundError

Answer = TypeVar("Answer")

INTERESTS: Final = 20_000
TRIMMED: Final = 1_000


class SqliteChannelStore(SqliteFile):
    """Implements ChannelStore."""

    # "TCSC" in ASCII. By measurement, larger pages suit results of some hundred bytes, and the index of a million
    # interests fits this cache.
    layout = StoreLayout(0x54435343, CHANNEL_UPGRADES, readers=2, page_bytes=8192, cache_bytes=32 << 20)

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
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
            sqlite_registrations.forget_holders(writer)
            return channels.renew_epoch(writer)

        self._epoch = await self._write(renew)
        return self._epoch

    def first_rows(self, writer: sqlite3.Connection, now: datetime) -> None:
        channels.begin_epoch(writer, now)

    # --- channels

    async def add_channel(self, *, after: int = 0) -> int:
        return await self._write(lambda writer: channels.add_channel(writer, after))

    async def drop_channel(self, channel_id: int) -> None:
        await self._write(lambda writer: retention.hide(writer, channel_id))
        await self._repeat(lambda writer: retention.drop_some(writer, channel_id), "channel-store.drop.step")

    async def channel_ids(self) -> list[int]:
        return await self.read(channels.channel_ids)

    async def state(self, channel_id: int) -> rows.ChannelState:
        return await self.read(lambda reader: channels.state(reader, channel_id))

    # --- subscriptions and interests

    async def subscribe(
        self,
        channel_id: int,
        wanted: Sequence[rows.BackendRequest],
        *,
        created_us: int,
        interests_at_most: int | None = None,
    ) -> list[rows.SubscribeOutcome]:
        for request in wanted:
            check.wanted(request)
        return await self._write(
            lambda writer: sqlite_subscriptions.subscribe(writer, channel_id, wanted, created_us, interests_at_most),
            "channel-store.subscriptions",
        )

    async def unsubscribe(self, channel_id: int, ids: Sequence[str]) -> rows.UnsubscribeOutcome:
        return await self._write(
            lambda writer: sqlite_subscriptions.unsubscribe(writer, channel_id, ids), "channel-store.subscriptions"
        )

    async def change_broker(
        self, channel_id: int, subscription_id: str, broker: rows.BrokerName
    ) -> rows.SubscriptionRow:
        check.broker(broker)
        return await self._write(
            lambda writer: sqlite_subscriptions.change_broker(writer, channel_id, subscription_id, broker),
            "channel-store.subscriptions",
        )

    async def subscription(self, channel_id: int, subscription_id: str) -> rows.SubscriptionRow | None:
        return await self.read(lambda reader: sqlite_subscriptions.subscription(reader, channel_id, subscription_id))

    async def subscriptions(self, channel_id: int, *, after: str = "", limit: int = PAGE) -> list[rows.SubscriptionRow]:
        return await self.read(lambda reader: sqlite_subscriptions.subscriptions(reader, channel_id, after, limit))

    async def subscriptions_of(
        self, broker: rows.BrokerName, *, after: tuple[int, str] = (0, ""), limit: int = PAGE
    ) -> list[rows.SubscriptionRow]:
        return await self.read(lambda reader: sqlite_subscriptions.subscriptions_of(reader, broker, after, limit))

    async def interests(self, channel_id: int) -> AsyncIterator[rows.InterestChunk]:
        chunk, after = await self.read(
            lambda reader: sqlite_subscriptions.first_interests(reader, channel_id, INTERESTS)
        )
        yield chunk
        while after is not None:
            following = partial(
                sqlite_subscriptions.next_interests,
                channel_id=channel_id,
                change=chunk.change,
                after=after,
                limit=INTERESTS,
            )
            chunk, after = await self.read(following)
            if chunk.ids:
                yield chunk

    async def interest_changes(
        self, channel_id: int, since: int, *, limit: int = CHANGES
    ) -> rows.InterestChanges | None:
        return await self.read(lambda reader: sqlite_subscriptions.interest_changes(reader, channel_id, since, limit))

    # --- executions

    async def commit_execution(
        self,
        channel_id: int,
        execution: rows.Execution,
        interests: Sequence[int],
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

        return await self._write(commit, "channel-store.execution")

    async def record_failure(self, channel_id: int, failure: rows.Failure) -> None:
        await self._write(lambda writer: channels.add_failure(writer, channel_id, failure))

    async def executions(self, channel_id: int, *, limit: int = PAGE) -> list[rows.RecordedExecution]:
        return await self.read(lambda reader: channels.executions(reader, channel_id, limit))

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
        removed = await self._retention(lambda writer: retention.sweep_former(writer, channel_id))
        await self._compact(channel_id)
        if ended_before_us is not None:
            old = partial(retention.too_old, channel_id=channel_id, ended_before_us=ended_before_us)
            removed += await self._remove(channel_id, old)
        if max_bytes is not None and await self.read(sqlite_shares.are_several):
            removed += await self._share_out(channel_id, max_bytes)
        elif max_bytes is not None:
            much = partial(retention.too_much, channel_id=channel_id, max_bytes=max_bytes)
            removed += await self._remove(channel_id, much)
        await self._retention(lambda writer: retention.forget(writer, channel_id, executions))
        return removed

    async def trim(self, channel_id: int, below: Mapping[int, Cursor]) -> int:
        await self.state(channel_id)
        removed = 0
        cursors = iter(below.items())
        while batch := dict(islice(cursors, TRIMMED)):
            removed += await self._write(partial(retention.trim, channel_id=channel_id, below=batch))
            faults.reach("channel-store.retention.step")
        await self._compact(channel_id)
        return removed

    # --- announcements of new results

    async def position(self) -> Position:
        return await self.read(broker_positions.position)

    async def dropped(self) -> int:
        return await self.read(broker_positions.count_dropped)

    async def news(
        self, after: Position, *, broker: rows.BrokerName | None = None, limit: int = NEWS
    ) -> rows.NewResultsPage:
        return await self.read(lambda reader: broker_positions.news(reader, after, broker, limit))

    async def acknowledge(self, broker: rows.BrokerName, cursors: Mapping[int, Cursor]) -> set[int]:
        return await self._write(lambda writer: broker_positions.acknowledge(writer, broker, cursors))

    async def lowest_acknowledged(self, channel_id: int) -> AsyncIterator[dict[int, Cursor]]:
        after: int | None = 0
        while after is not None:
            page = partial(broker_positions.lowest_acknowledged, channel_id=channel_id, after=after, limit=INTERESTS)
            lowest, after = await self.read(page)
            if lowest:
                yield lowest

    # --- registered brokers

    async def register(self, broker: rows.BrokerName, secret: str, *, owner: str | None) -> rows.Registration:
        check.broker(broker)
        return await self._write(lambda writer: sqlite_registrations.register(writer, broker, secret, owner))

    async def claim(self, broker: rows.BrokerName, claimant: rows.BrokerClaim, secret: str) -> rows.Registration:
        check.claimant(claimant)
        return await self._write(lambda writer: sqlite_registrations.claim(writer, broker, claimant, secret))

    async def renew_secret(self, broker: rows.BrokerName, secret: str) -> None:
        await self._write(lambda writer: sqlite_registrations.renew_secret(writer, broker, secret))

    async def registrations(self) -> list[rows.Registration]:
        return await self.read(sqlite_registrations.registrations)

    async def registration(self, broker: rows.BrokerName) -> rows.Registration | None:
        return await self.read(lambda reader: sqlite_registrations.registration(reader, broker))

    async def told(self, broker: rows.BrokerName, position: Position) -> Position:
        return await self._write(lambda writer: sqlite_registrations.record_position(writer, broker, position))

    async def unregister(self, broker: rows.BrokerName) -> None:
        while page := await self.subscriptions_of(broker, limit=STEP):
            # Subscriptions of a channel that is being dropped are not listed; they end with the channel.
            for channel_id in {subscription.channel_id for subscription in page}:
                try:
                    await self.unsubscribe(
                        channel_id, [subscription.id for subscription in page if subscription.channel_id == channel_id]
                    )
                except NotFoundError:
                    continue
        await self._write(lambda writer: sqlite_registrations.unregister(writer, broker))

    # --- steps

    async def _compact(self, channel_id: int) -> None:
        """Removes dead rows from executions that are mostly dead."""
        for execution in await self.read(lambda reader: retention.mostly_dead(reader, channel_id)):
            await self._remove_dead(channel_id, execution)

    async def _remove_dead(self, channel_id: int, execution: StoredBytes) -> None:
        if execution.live == 0:
            await self._remove_execution(channel_id, execution, told=False)
            return
        dead = await self.read(partial(retention.dead_rows, execution=execution))
        for at in range(0, len(dead), STEP):
            await self._write(
                partial(
                    retention.remove_dead,
                    channel_id=channel_id,
                    number=execution.number,
                    ids=dead[at : at + STEP],
                )
            )
            faults.reach("channel-store.retention.step")

    async def _share_out(self, channel_id: int, max_bytes: int) -> int:
        """Removes results of shares above the fair level until the channel fits. Returns their number."""
        removed = 0
        exhausted: set[tuple[int, int]] = set()
        while (await self.state(channel_id)).result_bytes > max_bytes:
            while numbers := await self.read(lambda reader: sqlite_shares.uncounted_executions(reader, channel_id)):
                counts: list[tuple[int, int, int, int]] = []
                for number in numbers:
                    counts += await self.read(partial(sqlite_shares.count_shares, channel_id=channel_id, number=number))
                await self._write(partial(sqlite_shares.keep_counts, counts=counts))
                faults.reach("channel-store.retention.step")
            eviction = await self.read(lambda reader: sqlite_shares.eviction(reader, channel_id, max_bytes, exhausted))
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
        places = await self.read(lambda reader: sqlite_shares.evicted_places(reader, channel_id, number, above, shares))
        removed = 0
        for at in range(0, len(places), TRIMMED):
            batch = places[at : at + TRIMMED]
            removed += await self._write(partial(retention.evict, channel_id=channel_id, number=number, places=batch))
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
                removed += await self._remove_execution(channel_id, execution, told=True)
        return removed

    async def _remove_execution(self, channel_id: int, execution: StoredBytes, *, told: bool) -> int:
        return await self._retention(
            lambda writer: retention.remove_rows(writer, channel_id, execution.number, told=told)
        )

    async def _retention(self, step: Callable[[sqlite3.Connection], tuple[int, bool]]) -> int:
        return await self._repeat(step, "channel-store.retention.step")

    async def _repeat(self, step: Callable[[sqlite3.Connection], tuple[int, bool]], point: str) -> int:
        """Repeats a step until there are no more; others may write in between. Returns the number of results
        removed.
        """
        total, more = 0, True
        while more:
            count, more = await self._write(step)
            faults.reach(point)
            total += count
        return total

    async def _write(self, work: Callable[[sqlite3.Connection], Answer], point: str | None = None) -> Answer:
        async with self.turn:
            return await self.call(lambda: self._transact(work, point))

    def _transact(self, work: Callable[[sqlite3.Connection], Answer], point: str | None) -> Answer:
        writer = self.writer()
        with explain_sqlite_errors(self.path), transaction(writer):
            answer = work(writer)
            if point is not None:
                faults.reach(f"{point}.written")
        if point is not None:
            faults.reach(f"{point}.committed")
        return answer
