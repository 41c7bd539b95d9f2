"""Records which folders may be deleted. Nothing else is deleted, whatever a start finds in the data folder.

    CREATE   intent ─▶ folder ─▶ catalog: one transaction adds the entry and removes the intent
    DROP     catalog: one transaction removes the entry and adds an intent ─▶ delete the folder ─▶ remove the intent

So a crash at any point leaves a folder that either an entry or an intent names. A folder that neither names was not
made by this catalog: the start moves it to the lost folder (see `lost_folder`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias

import structlog

from tocsin import faults
from tocsin.cluster.catalog.entries import BrokerEntry, CatalogEntry, ChannelEntry, DatasetEntry, FeedEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.data_folder.lost_folder import DATASET
from tocsin.storage.interface import StorageFolder
from tocsin.store.cluster.interface import ClusterStore, Removal, StoreTransaction
from tocsin.wire.errors import StorageFullError

FEED: Final = "feed"
CHANNEL: Final = "channel"
BROKER: Final = "broker"

# Belongs to the file system, if the folder is a mount point.
_NOT_OURS: Final = frozenset({"lost+found"})

_log = structlog.get_logger()

RemovalStep: TypeAlias = Callable[[StoreTransaction], Awaitable[object]]


def _removal_of(entry: CatalogEntry) -> Removal | None:
    """Returns the intent to remove what an entry has on the disk; None if it has nothing there."""
    match entry:
        case DatasetEntry():
            return Removal(DATASET, entry.folder)
        case FeedEntry():
            return Removal(FEED, entry.folder)
        case ChannelEntry():
            return Removal(CHANNEL, str(entry.channel_id))
        case BrokerEntry():
            return Removal(BROKER, full_name(entry))
    return None


def plan_removals(before: Iterable[CatalogEntry], after: Iterable[CatalogEntry], now: datetime) -> list[RemovalStep]:
    """Returns the store steps for a change of the catalog: add intents for dropped entries, forget those of new
    ones."""
    had, has = _possessions(before), _possessions(after)
    removals = [Removal(*key, dropped_at=now) for key in had if key not in has]
    return [*(_adding(removal) for removal in removals), *(_forgetting(*key) for key in has if key not in had)]


def _possessions(entries: Iterable[CatalogEntry]) -> Mapping[tuple[str, str], None]:
    removals = (_removal_of(entry) for entry in entries)
    return dict.fromkeys((removal.kind, removal.name) for removal in removals if removal is not None)


def _adding(removal: Removal) -> RemovalStep:
    return lambda tx: tx.add_removal(removal)


def _forgetting(kind: str, name: str) -> RemovalStep:
    return lambda tx: tx.forget_removal(kind, name)


class Removals:
    """The recorded intents, and their execution."""

    def __init__(self, store: ClusterStore, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = store
        self.clock = clock

    async def list_for(self, kind: str) -> list[Removal]:
        return [removal for removal in await self._store.removals() if removal.kind == kind]

    async def intend(self, entry: CatalogEntry) -> None:
        """Records an intent before a CREATE makes files: they are removed unless the catalog gets the entry."""
        removal = _removal_of(entry)
        assert removal is not None, "only what is on the disk can be removed"
        await self.record([removal])

    async def record(self, removals: Iterable[Removal]) -> None:
        async with self._store.transaction() as transaction:
            for removal in removals:
                await transaction.add_removal(removal)

    async def forget(self, kind: str, names: Collection[str]) -> None:
        """Forgets intents whose folders are removed. On a full disk they stay, harmlessly, until a later start."""
        if not names:
            return
        try:
            async with self._store.transaction() as transaction:
                for name in names:
                    await transaction.forget_removal(kind, name)
        except StorageFullError as error:
            _log.warning(
                "a removal stays on record and is repeated", kind=kind, names=list(names), reason=error.message
            )

    async def carry_out(self, kind: str, folder: StorageFolder, is_due: Callable[[Removal], bool]) -> None:
        """Deletes the folders in `folder` that an intent names and that are due. A failed deletion is tried again
        later."""
        due = [removal.name for removal in await self.list_for(kind) if is_due(removal)]
        removed = [name for name in due if await asyncio.to_thread(_remove, folder, name)]
        if removed:
            # Make the deletions durable before the intents are forgotten.
            await asyncio.to_thread(folder.sync)
            faults.reach("removal.carried-out")
            await self.forget(kind, removed)

    async def find_unexplained(self, kind: str, folder: StorageFolder, known: Collection[str]) -> list[StorageFolder]:
        """Lists what the folder contains that neither the catalog (`known`) nor an intent names."""
        explained = {removal.name for removal in await self.list_for(kind)} | set(known)
        return [child for child in await asyncio.to_thread(list_content, folder) if child.name not in explained]


def list_content(folder: StorageFolder) -> list[StorageFolder]:
    """Lists the content of a folder of datasets or of feeds' logs; empty if there is no folder."""
    return [folder.child(name) for name in folder.list_children() if name not in _NOT_OURS]


def _remove(folder: StorageFolder, name: str) -> bool:
    """Deletes a folder in this one, and returns whether it is gone."""
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"{name!r} is not a folder in {folder.url}")
    return folder.child(name).remove_all()
