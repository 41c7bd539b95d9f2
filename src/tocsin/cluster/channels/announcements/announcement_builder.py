"""What there is to tell a broker since a position."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.rules.model.cursors import LAST_ORDINAL, Cursor, Position, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerName, NewResults
from tocsin.wire.announcements import Announcement, PushedResult
from tocsin.wire.results import FetchedResult

# Results looked at for one announcement, hence the most interests in it.
ITEMS: Final = 10_000
PUSHED_BYTES: Final = 1 << 20


class AnnouncementBuilder:
    def __init__(
        self, catalog: CatalogStore, store: ChannelStore, *, items: int = ITEMS, pushed_bytes: int = PUSHED_BYTES
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._items = items
        self._pushed_bytes = pushed_bytes

    async def since(self, broker: BrokerName, after: Position, told: Position | None = None) -> Announcement:
        """What happened after `after`; said to be what happened after `told`, between which there is nothing."""
        news = await self._store.news(after, broker=broker, limit=self._items)
        channels = {one.channel_id: one for one in self._catalog.catalog.channels}
        known = [item for item in news.items if item.channel_id in channels]
        pushed = [one async for one in self._pushed([i for i in known if channels[i.channel_id].push], channels)]
        inside = {one.interest for one in pushed}
        told_of: dict[str, list[tuple[int, Cursor]]] = {}
        for item in known:
            if item.interest not in inside:
                told_of.setdefault(full_name(channels[item.channel_id]), []).append((item.interest, item.cursor))
        gaps = [full_name(channels[one]) for one in news.gaps if one in channels]
        return Announcement(
            f"{broker.dataverse}.{broker.name}",
            after if told is None else told,
            news.position, news.more, told_of, pushed, gaps, news.dropped,
        )  # fmt: skip

    async def _pushed(
        self, items: Sequence[NewResults], channels: dict[int, ChannelEntry]
    ) -> AsyncIterator[PushedResult]:
        """The results of these, as far as they fit; of the others nothing."""
        ranges = [Range(one.interest, before(one.first), one.cursor) for one in items]
        held: dict[int, list[FetchedResult]] = {}
        size_bytes, last, whole = 0, -1, True
        gone: set[int] = set()
        async for chunk in self._store.fetch(ranges, chunk_bytes=self._pushed_bytes):
            if size_bytes >= self._pushed_bytes:
                whole = False
                break
            for part in chunk:
                last = part.range
                held.setdefault(last, []).extend(FetchedResult(*one) for one in part.results)
                size_bytes += sum(one.size_bytes for one in part.results)
                if part.gap is not None or not part.known:
                    gone.add(last)
        # What a chunk ends with may go on in the next one.
        complete = [place for place in held if (whole or place < last) and place not in gone]
        for one in _fitting(complete, held, self._pushed_bytes):
            item = items[one]
            yield PushedResult(full_name(channels[item.channel_id]), item.interest, held[one])


def full_name(entry: ChannelEntry) -> str:
    return f"{entry.dataverse}.{entry.name}"


def before(cursor: Cursor) -> Cursor:
    """Just before it, and after whatever comes before it."""
    epoch, execution, ordinal = cursor
    return Cursor(epoch, execution, ordinal - 1) if ordinal else Cursor(epoch, execution - 1, LAST_ORDINAL)


def _fitting(places: Sequence[int], held: dict[int, list[FetchedResult]], limit_bytes: int) -> Iterator[int]:
    size_bytes = 0
    for place in places:
        size_bytes += sum(len(one.payload) for one in held[place])
        if size_bytes > limit_bytes:
            return
        yield place
