"""Short ways to all that a store of the cluster holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tocsin.store.cluster.interface import ClusterStore

NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, UTC)


async def contents(store: ClusterStore) -> dict[str, Any]:
    return {
        "entries": await store.entries(),
        "tokens": await store.tokens(),
        "facts": await store.facts(),
        "removals": await store.removals(),
    }


async def names(store: ClusterStore) -> list[str]:
    return [entry.name for entry in await store.entries()]
