"""Fences off old brokers: of several brokers with one name only the newest generation may act, and others are refused.

    process that starts ─▶ claim ─▶ generation, greater than all before ─▶ named with every request that follows

When a claim returns, no change by an older generation is still under way. So an old process cannot alter what the new
one has read from the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tocsin.cluster.catalog.refs import full_name
from tocsin.rules.model.cursors import Position
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName, Registration
from tocsin.wire.errors import FencedError


class BrokerFence:
    def __init__(self, store: ChannelStore) -> None:
        self._store = store
        # A cache of the store's generations; only this class changes them.
        self._newest: dict[BrokerName, Position | None] = {}
        self._changes: dict[asyncio.Future[None], tuple[BrokerName, Position]] = {}

    async def claim(self, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
        """See ChannelStore.claim. When this returns, changes that older generations had begun are complete."""
        registration = await self._store.claim(broker, claimant, secret)
        generation = registration.generation
        assert generation is not None, "a claim gives one"
        self._newest[broker] = generation
        older = [
            done
            for done, (name, changing_generation) in self._changes.items()
            if name == broker and changing_generation < generation
        ]
        if older:
            await asyncio.wait(older)
        return registration

    async def check(self, broker: BrokerName, generation: Position) -> None:
        """Raises FencedError if the name has a newer generation."""
        if broker not in self._newest:
            registration = await self._store.registration(broker)
            self._newest.setdefault(broker, None if registration is None else registration.generation)
        newest = self._newest[broker]
        if newest is not None and generation < newest:
            raise FencedError(
                f"another broker has taken the name {full_name(broker)} over",
                hint="stop one of the two; tocsin broker --take-over takes the name back",
            )

    @asynccontextmanager
    async def change(self, broker: BrokerName, generation: Position) -> AsyncIterator[None]:
        """Wraps a change that a broker makes at the cluster: checks the generation as above, and makes newer claims
        wait for the change."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Register the change before the check: a claim that comes in between then waits for it.
        self._changes[done] = broker, generation
        try:
            await self.check(broker, generation)
            yield
        finally:
            del self._changes[done]
            done.set_result(None)
