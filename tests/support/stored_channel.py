"""A channel of a store under test, and short ways to what its subscribers and brokers get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.rules.model.cursors import START, Cursor, Position, Range
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest, BrokerName, Execution

EAST, WEST = BrokerName("Default", "east"), BrokerName("Default", "west")


class StoredChannel:
    """A channel with some interests, and short ways to use it."""

    def __init__(self, store: ChannelStore, channel_id: int) -> None:
        self.store = store
        self.id = channel_id
        self.last = 0

    async def subscribe(self, *texts: str, broker: BrokerName = EAST, application: str = "") -> list[int]:
        wanted = [BackendRequest(text, broker, application=application) for text in texts]
        return [made.interest for made in await self.store.subscribe(self.id, wanted, created_us=5)]

    async def run(self, found: Mapping[int, Sequence[str]], **fields: Any) -> Position:
        """One execution that ends at its number × 100 and finds these."""
        self.last += 1
        pairs = [(interest, text.encode()) for interest, texts in found.items() for text in texts]
        execution = Execution(self.last, self.last * 100 - 1, self.last * 100, {"d": self.last}, **fields)
        done = await self.store.commit_execution(
            self.id, execution, [interest for interest, _ in pairs], [payload for _, payload in pairs]
        )
        return done.position

    async def texts(self, interest: int, after: Cursor = START, **fields: Any) -> list[str]:
        return [text for _, text in await self.pairs(interest, after, **fields)]

    async def pairs(self, interest: int, after: Cursor = START, **fields: Any) -> list[tuple[Cursor, str]]:
        found = await fetched(self.store, [Range(interest, after, **fields)])
        return [(result.cursor, result.payload.decode()) for result in found[0]["results"]]

    async def gap(self, interest: int, after: Cursor = START, **fields: Any) -> Cursor | None:
        gap: Cursor | None = (await fetched(self.store, [Range(interest, after, **fields)]))[0]["gap"]
        return gap


async def fetched(store: ChannelStore, ranges: Sequence[Range], **options: Any) -> list[dict[str, Any]]:
    """The answer to each range, put together, after a look at the order of the parts."""
    answers: list[dict[str, Any]] = [{"results": [], "gap": None, "known": None} for _ in ranges]
    order: list[int] = []
    async for chunk in store.fetch(ranges, **options):
        assert chunk
        for part in chunk:
            order.append(part.range)
            answer = answers[part.range]
            answer["results"] += part.results
            answer["gap"] = part.gap or answer["gap"]
            answer["known"] = part.known
    assert order == sorted(order)
    assert set(order) == set(range(len(ranges)))
    for answer in answers:
        cursors = [result.cursor for result in answer["results"]]
        assert cursors == sorted(set(cursors))
    return answers


async def new_heads_of(store: ChannelStore, after: Position, broker: BrokerName | None = None) -> dict[int, Cursor]:
    return {item.interest: item.cursor for item in (await store.new_results(after, broker=broker)).items}
