"""The identity of this broker among all that ever had its name: the id of its store, and the generation that the
cluster gave to its process.

A restore or `--take-over` gives the store a new id, and the new store takes over the name. The store that lost the name
remembers it: after a restart it does not take the name back by itself.
"""

from __future__ import annotations

from uuid import uuid4

from tocsin.clock import now_us
from tocsin.rules.model.cursors import Position
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import FENCED, GENERATION, NAME_SINCE, STORE_ID
from tocsin.wire.cursors import parse_position, position_text
from tocsin.wire.errors import FencedError


class BrokerGeneration:
    """The store id and the generation of this broker. `starts`: the cluster has not given this process a generation
    yet. `since_us`: when its store first had the name."""

    def __init__(self, store: BrokerStore, store_id: str, generation: Position | None, since_us: int) -> None:
        self._store = store
        self.store_id = store_id
        self.generation = generation
        self.since_us = since_us
        self.starts = True

    @staticmethod
    async def read(store: BrokerStore) -> BrokerGeneration:
        """Raises FencedError if another broker has taken over the name."""
        if reason := await store.fact(FENCED):
            raise FencedError(
                reason, hint="see which of the two is to go on; tocsin broker --take-over takes the name back"
            )
        store_id = await store.first_fact(STORE_ID, uuid4().hex)
        since_us = int(await store.first_fact(NAME_SINCE, str(now_us())))
        generation = await store.fact(GENERATION)
        return BrokerGeneration(store, store_id, parse_position(generation) if generation else None, since_us)

    @staticmethod
    async def renew(store: BrokerStore) -> None:
        """Gives the store a new identity that has never had the name."""
        await store.set_fact(GENERATION, "")
        await store.set_fact(STORE_ID, uuid4().hex)
        await store.set_fact(NAME_SINCE, str(now_us()))
        await store.set_fact(FENCED, "")

    async def record_generation(self, generation: Position) -> None:
        if self.generation != generation:
            await self._store.set_fact(GENERATION, position_text(generation))
            self.generation = generation
        self.starts = False

    async def record_fence(self, reason: str) -> None:
        await self._store.set_fact(FENCED, reason)
