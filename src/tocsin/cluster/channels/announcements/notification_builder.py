"""Builds the notifications of new results for a broker of the original's kinds: one message or more per execution.

The original notifies by subscription, and the store has results by interest. So each interest's results are sent for
all subscriptions of the broker to it, in messages of bounded size, in the JSON that AsterixDB's BAD sends:

    {"dataverseName":"v","channelName":"c","channelExecutionEpochTime":1794000060000,"subscriptionIds":[["id",…]]}
    {"dataverseName":"v","channelName":"p","channelExecutionEpochTime":1794000060000,"results":[
      {"result":…,"channelExecutionTime":"…","subscriptionId":"id","deliveryTime":"…"},…]}

A broker of the kind `bad` is another cluster's feed: the times and ids of results are then constructors of ADM, such as
`datetime("…")`, so that the feed knows their types.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import orjson

from tocsin.clock import from_us
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import BrokerKind, ChannelEntry
from tocsin.cluster.channels.announcements.announcement_builder import before
from tocsin.cluster.channels.execution_ends import ExecutionEnds
from tocsin.rules.model.cursors import Cursor, InterestId, Position, Range
from tocsin.rules.model.values import datetime_text
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, NewResults, NewResultsPage, ResultRow

_ITEMS: Final = 10_000
"""The number of results read for one page. Its messages are sent again as a whole if one of them fails."""
_IDS: Final = 10_000
"""The number of subscriptions in one message."""
_BODY_BYTES: Final = 512 << 10
"""The size of one message, unless a single result is larger: many servers take bodies of up to 1 MB."""

_Found = dict[InterestId, list[ResultRow]]
"""Results of one execution, by interest."""


class NotificationBuilder:
    def __init__(
        self,
        catalog: CatalogStore,
        store: ChannelStore,
        *,
        items: int = _ITEMS,
        ids: int = _IDS,
        body_bytes: int = _BODY_BYTES,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._items = items
        self._ids = ids
        self._body_bytes = body_bytes

    async def page(self, broker: BrokerName, after: Position) -> NewResultsPage:
        """Returns what is new to the broker after the position."""
        return await self._store.new_results(after, broker=broker, limit=self._items)

    async def bodies(self, broker: BrokerName, kind: BrokerKind, page: NewResultsPage) -> AsyncIterator[bytes]:
        """Yields the messages of a page, those of a channel in the order of its executions."""
        channels = {entry.channel_id: entry for entry in self._catalog.catalog.channels}
        items: dict[int, list[NewResults]] = {}
        for item in page.items:
            if item.channel_id in channels:
                items.setdefault(item.channel_id, []).append(item)
        for channel_id, found in items.items():
            channel = channels[channel_id]
            messages = (
                self._result_bodies(broker, kind, channel, found)
                if channel.push
                else self._id_bodies(broker, channel, found)
            )
            async for body in messages:
                yield body

    # ------------------------------------------------------------ channels without PUSH

    async def _id_bodies(
        self, broker: BrokerName, channel: ChannelEntry, items: Sequence[NewResults]
    ) -> AsyncIterator[bytes]:
        """Yields which subscriptions have results, by execution."""
        last: dict[tuple[int, int], tuple[int, dict[InterestId, Cursor]]] = {}
        async for results in self._results(items):
            for interest, rows in results.items():
                for row in rows:
                    execution = last.setdefault(row.cursor[:2], (row.executed_us, {}))
                    execution[1][interest] = row.cursor
        for _, (executed_us, cursors) in sorted(last.items()):
            ids: list[str] = []
            size_bytes = 0
            async for subscription_id in self._notified_ids(broker, channel, cursors):
                ids.append(subscription_id)
                size_bytes += len(subscription_id.encode()) + 3
                if len(ids) == self._ids or size_bytes > self._body_bytes:
                    yield _id_body(channel, executed_us, ids)
                    ids, size_bytes = [], 0
            if ids:
                yield _id_body(channel, executed_us, ids)

    async def _notified_ids(
        self, broker: BrokerName, channel: ChannelEntry, cursors: Mapping[InterestId, Cursor]
    ) -> AsyncIterator[str]:
        after: str | None = ""
        while after is not None:
            page = await self._store.holders(broker, channel.channel_id, sorted(cursors), after=after)
            for subscription in page:
                if subscription.since < cursors[subscription.interest]:
                    yield subscription.id
            after = page[-1].id if page else None

    # ------------------------------------------------------------ PUSH channels

    async def _result_bodies(
        self, broker: BrokerName, kind: BrokerKind, channel: ChannelEntry, items: Sequence[NewResults]
    ) -> AsyncIterator[bytes]:
        """Yields the results themselves, for every subscription."""
        async for results in self._results(items):
            for executed_us, found in _by_execution(results):
                packed: list[bytes] = []
                size_bytes = 0
                async for item in self._result_items(broker, kind, channel, found):
                    if packed and size_bytes + len(item) > self._body_bytes:
                        yield _result_body(channel, executed_us, packed)
                        packed, size_bytes = [], 0
                    packed.append(item)
                    size_bytes += len(item)
                if packed:
                    yield _result_body(channel, executed_us, packed)

    async def _result_items(
        self, broker: BrokerName, kind: BrokerKind, channel: ChannelEntry, found: _Found
    ) -> AsyncIterator[bytes]:
        after: str | None = ""
        ends = ExecutionEnds(self._store, channel.channel_id)
        while after is not None:
            page = await self._store.holders(broker, channel.channel_id, sorted(found), after=after)
            for subscription in page:
                for row in found[subscription.interest]:
                    if subscription.since < row.cursor:
                        times = from_us(row.executed_us), from_us(await ends.of(row))
                        yield _result_item(row.payload, times, subscription.id, adm=kind == "bad")
            after = page[-1].id if page else None

    # ------------------------------------------------------------ results

    async def _results(self, items: Sequence[NewResults]) -> AsyncIterator[_Found]:
        """Yields the results of these items, as many at a time as fit into a message."""
        ranges = [Range(item.interest, before(item.first), item.cursor) for item in items]
        async for chunk in self._store.fetch(ranges, chunk_bytes=self._body_bytes):
            found: _Found = {}
            for part in chunk:
                if part.results:
                    found.setdefault(items[part.range].interest, []).extend(part.results)
            if found:
                yield found


def _by_execution(results: Mapping[InterestId, Iterable[ResultRow]]) -> list[tuple[int, _Found]]:
    executions: dict[tuple[int, int], tuple[int, _Found]] = {}
    for interest, rows in results.items():
        for row in rows:
            execution = executions.setdefault(row.cursor[:2], (row.executed_us, {}))
            execution[1].setdefault(interest, []).append(row)
    return [found for _, found in sorted(executions.items(), key=lambda entry: entry[0])]


def _id_body(channel: ChannelEntry, executed_us: int, ids: Sequence[str]) -> bytes:
    return _notification_body((channel.dataverse, channel.name), executed_us, "subscriptionIds", [_id_list(ids)])


def _result_body(channel: ChannelEntry, executed_us: int, items: Sequence[bytes]) -> bytes:
    return _notification_body((channel.dataverse, channel.name), executed_us, "results", items)


def _notification_body(channel: tuple[str, str], executed_us: int, field: str, items: Iterable[bytes]) -> bytes:
    """A message about one execution of a channel (dataverse and name). `items` are encoded already."""
    head = {"dataverseName": channel[0], "channelName": channel[1], "channelExecutionEpochTime": executed_us // 1_000}
    return orjson.dumps(head)[:-1] + b',"' + field.encode() + b'":[' + b",".join(items) + b"]}"


def _id_list(subscription_ids: Iterable[str]) -> bytes:
    """The one item of `subscriptionIds`: the original lists the ids of an execution as an array in the array."""
    return orjson.dumps(list(subscription_ids))


def _result_item(payload: bytes, times: tuple[datetime, datetime], subscription_id: str, *, adm: bool) -> bytes:
    """A pushed result of one subscription. `times` are the instant of its execution and the end of the execution."""
    executed, delivered = (orjson.dumps(datetime_text(time)) for time in times)
    identity = orjson.dumps(subscription_id)
    if adm:
        executed, delivered = (b"datetime(" + time + b")" for time in (executed, delivered))
        identity = b"uuid(" + identity + b")" if _is_uuid(subscription_id) else identity
    return b"".join((
        b'{"result":', payload, b',"channelExecutionTime":', executed, b',"subscriptionId":', identity,
        b',"deliveryTime":', delivered, b"}",
    ))  # fmt: skip


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
