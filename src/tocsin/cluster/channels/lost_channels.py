"""Finds channels of the catalog that have no rows in the channel store: the store was lost, or is an older copy.

The store has a channel's rows before the catalog knows the channel, and loses them after the catalog forgets it. So a
crash never leaves a channel without rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from tocsin.cluster.catalog.catalog import CatalogStore, Put
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.data_folder.lost_folder import SET_ASIDE_FLAG
from tocsin.store.channels.interface import ChannelStore
from tocsin.wire.errors import StoreError

_SHOWN: Final = 3

log = structlog.get_logger()


class LostChannels:
    def __init__(self, catalog: CatalogStore, store: ChannelStore) -> None:
        self._catalog = catalog
        self._store = store

    async def find(self) -> list[ChannelEntry]:
        stored = set(await self._store.channel_ids())
        return [entry for entry in self._catalog.catalog.channels if entry.channel_id not in stored]

    async def renumber(self) -> None:
        """Gives lost channels new numbers, because brokers and their caches may still know the old ones. A channel
        without an execution then starts from the current state of its datasets."""
        highest_id = max((entry.channel_id for entry in self._catalog.catalog.channels), default=0)
        for entry in await self.find():
            channel_id = await self._store.add_channel(after=highest_id)
            await self._catalog.apply([Put(replace(entry, channel_id=channel_id), when_taken="replace")])
            log.warning(
                "a channel begins anew, without subscriptions and results: its rows were lost",
                channel=f"{entry.dataverse}.{entry.name}", number=entry.channel_id, now=channel_id,
            )  # fmt: skip


def refuse_lost_channels(path: Path, lost: Iterable[ChannelEntry]) -> None:
    """Raises StoreError if the store in this file has lost channels that the catalog knows."""
    names = [f"{entry.dataverse}.{entry.name}" for entry in lost]
    if not names:
        return
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    state = "knows nothing of them" if path.exists() else "is missing"
    raise StoreError(
        f"the catalog knows channels ({listed}), and the channels' store {path} {state}",
        hint=f"put {path.name} back together with its -wal file, or restore a backup into a new folder (tocsin restore "
        f"BACKUP --data NEW); tocsin up {SET_ASIDE_FLAG} --data {shlex.quote(str(path.parent.absolute()))} begins "
        "these channels anew, without their subscriptions and results",
    )
