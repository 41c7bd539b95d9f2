"""Begins a new epoch in restored stores, so that cursors from after the backup cannot match later results."""

from __future__ import annotations

from datetime import UTC, datetime

from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import EPOCH, ClusterStore, next_epoch


async def renew_catalog(store: ClusterStore) -> None:
    await store.open()
    try:
        async with store.transaction() as transaction:
            before = (await transaction.facts())[EPOCH]
            await transaction.set_fact(EPOCH, next_epoch(before, datetime.now(UTC)))
    finally:
        await store.close()


async def renew_channels(store: ChannelStore) -> None:
    await store.open()
    try:
        await store.renew_epoch()
    finally:
        await store.close()
