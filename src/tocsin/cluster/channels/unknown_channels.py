"""Removes channels at the start that have rows in the channel store but are unknown to the catalog."""

from __future__ import annotations

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import CHANNEL
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import Removal
from tocsin.wire.errors import NotFoundError


class UnknownChannels:
    """Removes the channels that an intent names: a crash interrupted their creation or removal. For other channels it
    first sets a copy of the whole store aside."""

    def __init__(self, catalog: CatalogStore, store: ChannelStore) -> None:
        self._catalog = catalog
        self._store = store

    async def remove_or_set_aside(self, lost: LostFolder) -> None:
        removals = self._catalog.removals
        known_ids = {entry.channel_id for entry in self._catalog.catalog.channels}
        unknown = [channel_id for channel_id in await self._store.channel_ids() if channel_id not in known_ids]
        intended = {removal.name for removal in await removals.list_for(CHANNEL)}
        unexplained = [
            channel_id for channel_id in unknown if str(channel_id) not in intended and await self._was_used(channel_id)
        ]
        if unexplained:
            place = lost.choose_place("channels.db")
            await self._store.backup_to(place)
            # Record intents first: if the start is killed from here on, the next start makes no second copy.
            await removals.record([Removal(CHANNEL, str(channel_id), removals.clock()) for channel_id in unexplained])
            about = f"rows of {len(unexplained)} channels, numbers {', '.join(map(str, unexplained))}"
            lost.report("channels in the channels' store", about, place)
        for channel_id in unknown:
            await self._store.drop_channel(channel_id)
        await removals.forget(CHANNEL, intended | {str(channel_id) for channel_id in unexplained})

    async def _was_used(self, channel_id: int) -> bool:
        """Returns whether the channel ever started. If not, it is only a number that was assigned, or a remainder of
        dropped rows."""
        try:
            return (await self._store.state(channel_id)).last_execution > 0
        except NotFoundError:
            return False
