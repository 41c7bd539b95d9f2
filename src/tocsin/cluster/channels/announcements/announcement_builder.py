"""Builds the announcement of the results that are new to a broker since a position.

Results of push channels are included as far as they fit. For other results the announcement has only the interests and
their newest cursors, and the broker fetches them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.rules.model.cursors import LAST_ORDINAL, Cursor, InterestId, Position, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, NewResults
from tocsin.wire.announcements import Announcement, PushedResults
from tocsin.wire.results import FetchedResult

# The number of results read for one announcement, which also bounds its interests.
_ITEMS: Final = 10_000
_PUSHED_BYTES: Final = 1 << 20


class AnnouncementBuilder:
    def __init__(
        self, catalog: CatalogStore, store: ChannelStore, *, items: int = _ITEMS, pushed_bytes: int = _PUSHED_BYTES
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._items = items
        self._pushed_bytes = pushed_bytes

    async def since(self, broker: BrokerName, after: Position, acknowledged: Position | None = None) -> Announcement:
        """Builds the announcement of what happened after `after`. It claims to start at `acknowledged`, an earlier
        position, if nothing for this broker lies between the two."""
        page = await self._store.new_results(after, broker=broker, limit=self._items)
        channels = {entry.channel_id: entry for entry in self._catalog.catalog.channels}
        items = [item for item in page.items if item.channel_id in channels]
        pushed = [result async for result in self._pushed([i for i in items if channels[i.channel_id].push], channels)]
        pushed_interests = {result.interest for result in pushed}
        heads: dict[str, list[tuple[InterestId, Cursor]]] = {}
        for item in items:
            if item.interest not in pushed_interests:
                heads.setdefault(full_name(channels[item.channel_id]), []).append((item.interest, item.cursor))
        gaps = [full_name(channels[channel_id]) for channel_id in page.gaps if channel_id in channels]
        return Announcement(
            full_name(broker),
            after if acknowledged is None else acknowledged,
            page.position, page.more, heads, pushed, gaps, page.dropped,
        )  # fmt: skip

    async def _pushed(
        self, items: Sequence[NewResults], channels: dict[int, ChannelEntry]
    ) -> AsyncIterator[PushedResults]:
        """Yields the results of these interests as long as they fit. An interest is included completely or not at
        all."""
        ranges = [Range(item.interest, before(item.first), item.cursor) for item in items]
        results_by_range: dict[int, list[FetchedResult]] = {}
        size_bytes, last, is_complete = 0, -1, True
        gap_ranges: set[int] = set()
        async for chunk in self._store.fetch(ranges, chunk_bytes=self._pushed_bytes):
            if size_bytes >= self._pushed_bytes:
                is_complete = False
                break
            for part in chunk:
                last = part.range
                results_by_range.setdefault(last, []).extend(FetchedResult(*result) for result in part.results)
                size_bytes += sum(result.size_bytes for result in part.results)
                if part.gap is not None or not part.known:
                    gap_ranges.add(last)
        # The last range of a chunk may continue in the next chunk, so it is not complete.
        complete_ranges = [
            index for index in results_by_range if (is_complete or index < last) and index not in gap_ranges
        ]
        for index in _take_fitting(complete_ranges, results_by_range, self._pushed_bytes):
            item = items[index]
            yield PushedResults(full_name(channels[item.channel_id]), item.interest, results_by_range[index])


def before(cursor: Cursor) -> Cursor:
    """Returns the cursor just before this one."""
    epoch, execution, ordinal = cursor
    return Cursor(epoch, execution, ordinal - 1) if ordinal else Cursor(epoch, execution - 1, LAST_ORDINAL)


def _take_fitting(indexes: Sequence[int], held: dict[int, list[FetchedResult]], limit_bytes: int) -> Iterator[int]:
    size_bytes = 0
    for index in indexes:
        size_bytes += sum(len(result.payload) for result in held[index])
        if size_bytes > limit_bytes:
            return
        yield index
