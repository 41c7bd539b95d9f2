"""Makes the channel store agree with the catalog and the datasets at the start.

After a crash only intents explain differences. Others come from a store, a catalog or a dataset that was lost, or is an
older copy.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import structlog

from tocsin import faults
from tocsin.clock import to_us
from tocsin.cluster.catalog.catalog import CatalogStore, Put
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.data_folder.dataset_tables import DatasetTables
from tocsin.cluster.data_folder.lost_folder import LostFolder
from tocsin.cluster.data_folder.removals import CHANNEL
from tocsin.cluster.data_folder.start_check import find_lost_channels
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import Execution
from tocsin.store.cluster.interface import Removal
from tocsin.wire.errors import NotFoundError, TocsinError

_log = structlog.get_logger()


async def renumber_lost_channels(catalog: CatalogStore, store: ChannelStore) -> None:
    """Gives channels that have lost their rows new numbers, because brokers and their caches may still know the old
    ones. A channel without an execution then starts from the current state of its datasets."""
    highest_id = max((entry.channel_id for entry in catalog.catalog.channels), default=0)
    for entry in await find_lost_channels(catalog, store):
        channel_id = await store.add_channel(after=highest_id)
        await catalog.apply([Put(replace(entry, channel_id=channel_id), when_taken="replace")])
        _log.warning(
            "a channel begins anew, without subscriptions and results: its rows were lost",
            channel=full_name(entry), number=entry.channel_id, now=channel_id,
        )  # fmt: skip


async def remove_unknown_channels(catalog: CatalogStore, store: ChannelStore, lost: LostFolder) -> None:
    """Removes the rows of channels that the catalog does not know. If an intent names a channel, a crash interrupted
    its creation or removal. For other channels that were used, a copy of the whole store is set aside first."""
    removals = catalog.removals
    known_ids = {entry.channel_id for entry in catalog.catalog.channels}
    unknown = [channel_id for channel_id in await store.channel_ids() if channel_id not in known_ids]
    intended = {removal.name for removal in await removals.list_for(CHANNEL)}
    unexplained = [
        channel_id for channel_id in unknown if str(channel_id) not in intended and await _was_used(store, channel_id)
    ]
    if unexplained:
        path = lost.choose_place("channels.db")
        await store.backup_to(path)
        # Record intents first: if the start is killed from here on, the next start makes no second copy.
        await removals.record([Removal(CHANNEL, str(channel_id), removals.clock()) for channel_id in unexplained])
        about = f"rows of {len(unexplained)} channels, numbers {', '.join(map(str, unexplained))}"
        lost.report("channels in the channels' store", about, path)
    for channel_id in unknown:
        await store.drop_channel(channel_id)
    await removals.forget(CHANNEL, intended | {str(channel_id) for channel_id in unexplained})


async def _was_used(store: ChannelStore, channel_id: int) -> bool:
    """Returns whether the channel ever started. If not, it is only a number that was assigned, or a remainder of
    dropped rows."""
    try:
        return (await store.state(channel_id)).last_execution > 0
    except NotFoundError:
        return False


async def follow_datasets(catalog: CatalogStore, store: ChannelStore, tables: DatasetTables) -> None:
    """Moves channels back that have read further than their datasets go, because a dataset was restored or lost
    commits. Such a channel continues from the dataset's current commit. A new epoch separates its results from the
    results of the lost commits."""
    datasets = {dataset.folder: dataset for dataset in catalog.catalog.datasets}
    ahead = []
    for entry in catalog.catalog.channels:
        try:
            state = await store.state(entry.channel_id)
        except NotFoundError:
            continue
        read = {folder: number for folder, number in state.vector.items() if folder in datasets}
        try:
            numbers = {folder: tables.table(datasets[folder]).number for folder in read}
        except TocsinError as error:
            # A damaged dataset must not stop the other channels. Its own channels report it when they start.
            _log.error("a channel's dataset cannot be opened", channel=entry.name, reason=error.message)
            continue
        if any(number > numbers[folder] for folder, number in read.items()):
            ahead.append((entry, state, {folder: min(number, numbers[folder]) for folder, number in read.items()}))
    if not ahead:
        return
    await store.renew_epoch()
    faults.reach("channel.ahead.renewed")
    for entry, state, vector in ahead:
        _log.warning("a channel had read further than its datasets go", channel=entry.name, vector=vector)
        now_us = to_us(datetime.now(UTC))
        details = {"went back": {folder: [state.vector[folder], number] for folder, number in vector.items()}}
        execution = Execution(state.last_execution + 1, now_us, now_us, vector, state.tick_us, details)
        await store.commit_execution(entry.channel_id, execution, (), ())
