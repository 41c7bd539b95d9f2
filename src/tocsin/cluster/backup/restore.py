"""Restores a data folder from a backup: unpacks it beside its place, checks it, begins a new epoch, and renames it.

The rename comes last, so that a failed restore leaves the data folder unchanged. The new epoch keeps cursors that were
given out after the backup from matching later results.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tocsin import faults
from tocsin.cluster.backup.archive import check_files, open_archive, read_manifest, sync_tree
from tocsin.cluster.backup.frozen_state import IncompleteBackupError, check_table
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, DATASETS, Manifest
from tocsin.cluster.backup.progress import OnSaved, count_bytes, explain_os_errors, in_thread, no_progress, remove
from tocsin.cluster.data_folder.storage_owner import refuse_other_owner
from tocsin.durable_files import sync_folder
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import EPOCH, ClusterStore, next_epoch
from tocsin.wire.errors import ConflictError, InputError, StoreError

_AnyStore = TypeVar("_AnyStore", ClusterStore, ChannelStore)


async def restore(
    source: Path,
    data: Path,
    *,
    open_store: Callable[[Path], ClusterStore],
    open_channels: Callable[[Path], ChannelStore],
    settle_broker: Callable[[Path], Awaitable[None]] | None = None,
    storage: StorageFolder | None = None,
    on_progress: OnSaved = no_progress,
) -> Manifest:
    """Makes a data folder from a backup. `data` must be absent or empty. The restored cluster has a new epoch.

    `open_store` and `open_channels` return the store in a file, not yet opened; an older backup may have no channels.
    `settle_broker` checks a saved broker's file and prepares it for use. `storage` is where the datasets go, if that is
    not the data folder; it must have no datasets. If anything is wrong with the backup, `data` stays unchanged.
    """
    with explain_os_errors(data):
        data = check_unused(data)
        data.parent.mkdir(parents=True, exist_ok=True)
    elsewhere = None if storage == LocalFolder(data) else storage
    if elsewhere is not None:
        await asyncio.to_thread(_check_no_datasets, elsewhere.child(DATASETS))
        await asyncio.to_thread(refuse_other_owner, elsewhere, data)
    part = data.with_name(f"{data.name}.{uuid4().hex[:8]}.restoring")
    try:
        manifest = await in_thread(lambda stop: _unpack(source, part, elsewhere, on_progress, stop))
        await _begin_epoch(open_store(part / CATALOG), _renew_catalog)
        if (part / CHANNELS).exists():
            await _begin_epoch(open_channels(part / CHANNELS), lambda store: store.renew_epoch())
        if settle_broker is not None:
            for name in manifest.brokers:
                await settle_broker(part / name)
        with explain_os_errors(data):
            sync_tree(part)
            faults.reach("restore.verified")
            _put_in_place(part, data)
        return manifest
    except BaseException:
        await asyncio.to_thread(remove, part)
        if elsewhere is not None:
            await asyncio.to_thread(elsewhere.child(DATASETS).remove_all)
        raise


async def _begin_epoch(store: _AnyStore, renew: Callable[[_AnyStore], Awaitable[object]]) -> None:
    """Begins a new epoch in a restored store, so that cursors from after the backup cannot match later results."""
    await store.open()
    try:
        await renew(store)
    finally:
        await store.close()


async def _renew_catalog(store: ClusterStore) -> None:
    async with store.transaction() as transaction:
        before = (await transaction.facts())[EPOCH]
        await transaction.set_fact(EPOCH, next_epoch(before, datetime.now(UTC)))


def check_unused(data: Path) -> Path:
    """Returns the folder if a rename can put the data in place: it is absent or empty, and not a mount point."""
    data = data.absolute()
    if data.is_dir():
        if any(data.iterdir()):
            raise ConflictError(
                f"the data folder {data} is not empty", hint="restore into a new folder, chosen with --data"
            )
        if data.is_mount():
            raise InputError(
                f"{data} is a mount point, which cannot be put in place at once", hint="restore into a folder in it"
            )
    elif os.path.lexists(data):
        raise ConflictError(f"{data} is not a folder")
    return data


def _check_no_datasets(datasets: StorageFolder) -> None:
    if datasets.list_children():
        raise ConflictError(
            f"the storage {datasets.url} has datasets already",
            hint="restore to another cluster.storage.url; what a restore left that was killed can be removed",
        )


def _unpack(
    source: Path, part: Path, storage: StorageFolder | None, on_progress: OnSaved, stop: threading.Event
) -> Manifest:
    with explain_os_errors(source), open_archive(source) as archive:
        manifest = read_manifest(archive, source)
        if CATALOG not in {file.path for file in manifest.files}:
            raise StoreError(f"the backup {source} is incomplete: its manifest names no {CATALOG}")
        passed = count_bytes(manifest.size_bytes, on_progress, stop)
        with explain_os_errors(part):
            part.mkdir(mode=0o700)
            check_files(archive, source, manifest, part, passed, storage=storage)
            if storage is None:
                (part / DATASETS).mkdir(mode=0o700, exist_ok=True)
    datasets = (storage or LocalFolder(part)).child(DATASETS)
    for dataset in manifest.datasets:
        try:
            check_table(datasets.child(dataset.folder), dataset.version)
        except IncompleteBackupError as error:
            raise StoreError(
                f"the backup {source} is incomplete: the table {DATASETS}/{dataset.folder} {error}"
            ) from None
    return manifest


def _put_in_place(part: Path, data: Path) -> None:
    try:
        part.rename(data)  # replaces an empty folder, and fails for any other
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"somebody began to use the data folder {data} meanwhile") from None
        raise
    sync_folder(data.parent)
