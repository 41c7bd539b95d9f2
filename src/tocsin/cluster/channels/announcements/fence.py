"""Of several brokers under one name the newest is heard: what an older one asks for is refused.

    process that starts ─▶ claim ─▶ generation, greater than all before ─▶ named with every request that follows

When a claim is answered, nothing that an older generation asked for is still being done: what the newer one finds at
the cluster stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tocsin.rules.model.cursors import Position
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName, Registration
from tocsin.wire.errors import FencedError


class BrokerFence:
    def __init__(self, store: ChannelStore) -> None:
        self._store = store
        # As the store has them, which only this changes.
        self._newest: dict[BrokerName, Position | None] = {}
        self._changes: dict[asyncio.Future[None], tuple[BrokerName, Position]] = {}

    async def claim(self, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
        """See ChannelStore.claim. Changes that older generations had begun are over when it returns."""
        kept = await self._store.claim(broker, claimant, secret)
        generation = kept.generation
        assert generation is not None, "a claim gives one"
        self._newest[broker] = generation
        older = [done for done, (of, given) in self._changes.items() if of == broker and given < generation]
        if older:
            await asyncio.wait(older)
        return kept

    async def check(self, broker: BrokerName, generation: Position) -> None:
        """Raises FencedError where the name has a newer generation."""
        if broker not in self._newest:
            kept = await self._store.registration(broker)
            self._newest.setdefault(broker, None if kept is None else kept.generation)
        newest = self._newest[broker]
        if newest is not None and generation < newest:
            raise FencedError(
                f"another broker has taken the name {broker.dataverse}.{broker.name} over",
                hint="stop one of the two; tocsin broker --take-over takes the name back",
            )

    @asynccontextmanager
    async def change(self, broker: BrokerName, generation: Position) -> AsyncIterator[None]:
        """Around what a broker changes at the cluster: checked as above, and waited for by newer ones."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Before the check: a claim that comes in between waits for this.
        self._changes[done] = broker, generation
        try:
            await self.check(broker, generation)
            yield
        finally:
            del self._changes[done]
            done.set_result(None)
