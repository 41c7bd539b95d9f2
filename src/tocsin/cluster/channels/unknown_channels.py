"""Channels that the channels' store has rows of and the catalog does not know, when a cluster starts."""

from __future__ import annotations

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import CHANNEL
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import Removal
from tocsin.wire.errors import NotFoundError


class UnknownChannels:
    """Those that an intent names go. Of others a copy of the whole store is set aside first."""

    def __init__(self, catalog: CatalogStore, store: ChannelStore) -> None:
        self._catalog = catalog
        self._store = store

    async def remove_or_set_aside(self, lost: LostFolder) -> None:
        removals = self._catalog.removals
        known = {entry.channel_id for entry in self._catalog.catalog.channels}
        unknown = [channel_id for channel_id in await self._store.channel_ids() if channel_id not in known]
        named = {removal.name for removal in await removals.list_for(CHANNEL)}
        strange = [
            channel_id for channel_id in unknown if str(channel_id) not in named and await self._was_used(channel_id)
        ]
        if strange:
            place = lost.choose_place("channels.db")
            await self._store.backup_to(place)
            # From here on an intent names them: a start that is killed now makes no second copy.
            await removals.record([Removal(CHANNEL, str(channel_id), removals.clock()) for channel_id in strange])
            about = f"rows of {len(strange)} channels, numbers {', '.join(map(str, strange))}"
            lost.report("channels in the channels' store", about, place)
        for channel_id in unknown:
            await self._store.drop_channel(channel_id)
        await removals.forget(CHANNEL, named | {str(channel_id) for channel_id in strange})

    async def _was_used(self, channel_id: int) -> bool:
        """Whether it is more than a number that was given out, or the rest of rows that are being dropped."""
        try:
            return (await self._store.state(channel_id)).last_execution > 0
        except NotFoundError:
            return False
