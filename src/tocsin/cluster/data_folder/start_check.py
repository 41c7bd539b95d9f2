"""Refuses to start on a data folder whose catalog or channel store was lost, before anything replaces it.

A new empty store would be in the way of restoring the old one. The operator decides: restore the store, or start anew
with `--set-aside`.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, INTAKE
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import full_name, list_some
from tocsin.cluster.data_folder.lost_folder import LOST
from tocsin.cluster.data_folder.removals import list_content
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import ClusterStore
from tocsin.wire.errors import StoreError

_FLAG: Final = "--set-aside"


def refuse_missing_catalog(data: Path, datasets: StorageFolder) -> None:
    """Raises StoreError if data exist without a catalog."""
    if not (data / CATALOG).exists():
        _refuse_lost_catalog(data, [_shown(folder, data) for folder in _data_in(data, datasets)])


async def refuse_empty_catalog(
    data: Path, datasets: StorageFolder, store: ClusterStore, channels: ChannelStore
) -> None:
    """Raises StoreError if the catalog is empty, and the folder has data that no recorded removal explains."""
    if await store.entries():
        return
    removal_names = {removal.name for removal in await store.removals()}
    content = await asyncio.to_thread(_data_in, data, datasets)
    unexplained = [_shown(folder, data) for folder in content if folder.name not in removal_names]
    if any(str(channel_id) not in removal_names for channel_id in await channels.channel_ids()):
        unexplained.append(CHANNELS)
    _refuse_lost_catalog(data, unexplained)


def refuse_missing_channels(data: Path, catalog: CatalogStore) -> None:
    """Raises StoreError if the catalog knows channels and there is no channel store."""
    if not (data / CHANNELS).exists():
        _refuse_lost_channels(data / CHANNELS, catalog.catalog.channels)


async def refuse_lost_channels(data: Path, catalog: CatalogStore, store: ChannelStore) -> None:
    """Raises StoreError if the catalog knows channels that the channel store does not know."""
    _refuse_lost_channels(data / CHANNELS, await find_lost_channels(catalog, store))


async def find_lost_channels(catalog: CatalogStore, store: ChannelStore) -> list[ChannelEntry]:
    """Returns the channels that have no rows in the channel store: the store was lost, or is an older copy.

    The store has a channel's rows before the catalog knows the channel, and loses them after the catalog forgets it. So
    a crash never leaves a channel without rows."""
    stored = set(await store.channel_ids())
    return [entry for entry in catalog.catalog.channels if entry.channel_id not in stored]


def _data_in(data: Path, datasets: StorageFolder) -> list[StorageFolder]:
    """Returns the folders of the datasets and of the feeds' intake logs."""
    return list_content(datasets) + list_content(LocalFolder(data / INTAKE))


def _shown(folder: StorageFolder, data: Path) -> str:
    return folder.url.removeprefix(f"{data}/")


def _refuse_lost_catalog(data: Path, beside: Sequence[str]) -> None:
    if beside:
        raise _lost_store(
            f"the data folder {data} holds data ({list_some(beside)}), and its catalog {CATALOG}",
            data / CATALOG,
            f"to begin anew, {_start_anew(data)} moves the data to {data / LOST}",
        )


def _refuse_lost_channels(path: Path, lost: Iterable[ChannelEntry]) -> None:
    names = [full_name(entry) for entry in lost]
    if names:
        raise _lost_store(
            f"the catalog knows channels ({list_some(names)}), and the channels' store {path}",
            path,
            f"{_start_anew(path.parent)} begins these channels anew, without their subscriptions and results",
        )


def _lost_store(problem: str, path: Path, otherwise: str) -> StoreError:
    return StoreError(
        f"{problem} {'knows nothing of them' if path.exists() else 'is missing'}",
        hint=f"put {path.name} back together with its -wal file, or restore a backup into a new folder (tocsin restore "
        f"BACKUP --data NEW); {otherwise}",
    )


def _start_anew(data: Path) -> str:
    return f"tocsin up {_FLAG} --data {shlex.quote(str(data.absolute()))}"
