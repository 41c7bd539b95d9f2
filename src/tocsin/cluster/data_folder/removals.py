"""What may be removed from the data folder. Nothing else is, whatever a start finds there.

    CREATE   intent ─▶ folder ─▶ catalog: the entry comes and the intent goes, in one transaction
    DROP     catalog: the entry goes and an intent comes, in one transaction ─▶ the folder goes ─▶ the intent goes

So a crash at any place leaves a folder that either an entry or an intent names. A folder that neither names was not
made by this catalog: the start sets it aside (see `lost_folder`).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from tocsin import faults
from tocsin.cluster.catalog.entries import CatalogEntry, ChannelEntry, DatasetEntry, FeedEntry
from tocsin.pipeline.datasets.delta.durability import sync_folder
from tocsin.store.cluster.interface import ClusterStore, Removal, StoreTransaction
from tocsin.wire.errors import StorageFullError

DATASET: Final = "dataset"
FEED: Final = "feed"
CHANNEL: Final = "channel"

# A file system's own, where a folder is one.
_NOT_OURS: Final = frozenset({"lost+found"})

log = structlog.get_logger()

Step: TypeAlias = Callable[[StoreTransaction], Awaitable[object]]


def removal_of(entry: CatalogEntry) -> Removal | None:
    """What an entry has beside the catalog, as it would be removed."""
    match entry:
        case DatasetEntry():
            return Removal(DATASET, entry.folder)
        case FeedEntry():
            return Removal(FEED, entry.folder)
        case ChannelEntry():
            return Removal(CHANNEL, str(entry.channel_id))
    return None


def plan_removals(before: Iterable[CatalogEntry], after: Iterable[CatalogEntry], now: datetime) -> list[Step]:
    """What a change of the catalog records: what went may be removed, what came may not be any more."""
    had, has = _possessions(before), _possessions(after)
    gone = [Removal(*key, dropped_at=now) for key in had if key not in has]
    return [
        *(_adding(removal) for removal in gone),
        *(_forgetting(*key) for key in has if key not in had),
    ]


def _possessions(entries: Iterable[CatalogEntry]) -> Mapping[tuple[str, str], None]:
    found = (removal_of(entry) for entry in entries)
    return dict.fromkeys((removal.kind, removal.name) for removal in found if removal is not None)


def _adding(removal: Removal) -> Step:
    return lambda tx: tx.add_removal(removal)


def _forgetting(kind: str, name: str) -> Step:
    return lambda tx: tx.forget_removal(kind, name)


class Removals:
    """The recorded intents, and how they are carried out."""

    def __init__(self, store: ClusterStore, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = store
        self.clock = clock

    async def list_for(self, kind: str) -> list[Removal]:
        return [removal for removal in await self._store.removals() if removal.kind == kind]

    async def intend(self, entry: CatalogEntry) -> None:
        """Before a CREATE makes anything of this entry's on the disk: what it makes goes unless the catalog gets it."""
        removal = removal_of(entry)
        assert removal is not None, "only what is on the disk can be removed"
        await self.record([removal])

    async def record(self, removals: Iterable[Removal]) -> None:
        async with self._store.transaction() as transaction:
            for removal in removals:
                await transaction.add_removal(removal)

    async def forget(self, kind: str, names: Collection[str]) -> None:
        """They are removed. A full disk leaves the records, which harm nothing: a later start forgets them."""
        if not names:
            return
        try:
            async with self._store.transaction() as transaction:
                for name in names:
                    await transaction.forget_removal(kind, name)
        except StorageFullError as error:
            log.warning("what was removed stays recorded for now", kind=kind, names=list(names), reason=error.message)

    async def carry_out(self, kind: str, folder: Path, is_due: Callable[[Removal], bool]) -> None:
        """Remove those folders in `folder` that an intent names and that are due. One that cannot be removed now stays
        recorded, and is tried again."""
        due = [removal.name for removal in await self.list_for(kind) if is_due(removal)]
        done = [name for name in due if await asyncio.to_thread(_remove, folder / name, folder)]
        if done:
            # The folders' names are gone for good before the intents are.
            await asyncio.to_thread(sync_folder, folder)
            faults.reach("removal.carried-out")
            await self.forget(kind, done)

    async def find_unexplained(self, kind: str, folder: Path, known: Collection[str]) -> list[Path]:
        """What lies in the folder though neither the catalog (`known`) nor an intent names it."""
        named = {removal.name for removal in await self.list_for(kind)} | set(known)
        return [path for path in await asyncio.to_thread(list_paths, folder) if path.name not in named]


def list_paths(folder: Path) -> list[Path]:
    """What lies in a folder of datasets or of feeds' logs, if there is one."""
    return sorted(path for path in folder.iterdir() if path.name not in _NOT_OURS) if folder.is_dir() else []


def _remove(path: Path, folder: Path) -> bool:
    """Whether it is gone."""
    if path.parent != folder or path.name in ("", ".", ".."):
        raise ValueError(f"{path} is not a folder in {folder}")
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
