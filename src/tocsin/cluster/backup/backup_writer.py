"""Writes a backup of a running cluster, consistent at one moment.

First the catalog and the datasets are frozen, quickly, while CREATE and DROP of datasets wait (see `frozen_state`).
Then they are copied, read back and compared, while the cluster works on. The catalog and the channels' store are saved
before the datasets, so that the datasets contain every commit that they name: a restored channel continues at the same
commit or a little before, and never skips a record. Brokers with files in the data folder are saved before all that.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from tocsin import faults
from tocsin.cluster.backup.archive import TAR, check_files, create_archive, open_archive, read_manifest
from tocsin.cluster.backup.frozen_state import BackupTable, FrozenState, PinnedFile, hold_all
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, DATASETS, MANIFEST, FileChecksum, Manifest
from tocsin.cluster.backup.progress import OnSaved, count_bytes, explain_os_errors, in_thread, no_progress, remove
from tocsin.cluster.catalog.refs import full_name
from tocsin.durable_files import sync_folder
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import EPOCH, ClusterStore
from tocsin.wire.errors import ConflictError, InputError, UnavailableError
from tocsin.wire.version import version


async def write_backup(
    store: ClusterStore,
    tables: Callable[[], Mapping[str, BackupTable]],
    destination: Path,
    *,
    data: Path,
    storage: StorageFolder | None = None,
    channels: ChannelStore | None = None,
    save_brokers: Callable[[Path], Awaitable[None]] | None = None,
    backup_barrier: AbstractAsyncContextManager[Any] | None = None,
    on_progress: OnSaved = no_progress,
) -> Manifest:
    """Writes a backup to a new folder, or to a new file if the name ends with `.tar`, and checks it.

    `tables` returns every dataset's table by its folder under `storage`/datasets (by default the data folder's). It is
    called inside `backup_barrier`, which blocks CREATE and DROP of datasets for that moment; reads, commits and upkeep
    continue. `channels` is saved before the datasets, so that no channel has read further than they go. `save_brokers`
    writes the brokers' files into the folder that it gets. `on_progress` is called from another thread.
    """
    held = data / "scratch" / f"backup-{uuid4().hex}"
    frozen = FrozenState(held)
    datasets = (storage or LocalFolder(data)).child(DATASETS)
    with explain_os_errors(destination):
        destination = _new(destination, data)
    with explain_os_errors(held):
        held.mkdir(mode=0o700, parents=True)
    try:
        if save_brokers is not None:
            await save_brokers(held)
        async with backup_barrier if backup_barrier is not None else nullcontext():
            epoch = (await store.facts())[EPOCH]
            await store.backup_to(held / CATALOG)
            present = tables()
            for entry in await store.entries():
                if entry.kind == "dataset" and entry.body.get("folder") not in present:
                    raise UnavailableError(f"the dataset {full_name(entry)} changed meanwhile; try again")
            if channels is not None:
                await channels.backup_to(held / CHANNELS)
            await in_thread(lambda _: hold_all(present, data, datasets, frozen))
        about = Manifest(epoch, datetime.now(UTC), version(), (), tuple(frozen.datasets))
        return await in_thread(lambda stop: _write(frozen, about, destination, on_progress, stop))
    finally:
        frozen.close()
        await asyncio.to_thread(shutil.rmtree, held, ignore_errors=True)


def _new(destination: Path, data: Path) -> Path:
    destination = destination.absolute()
    if os.path.lexists(destination):
        raise ConflictError(f"{destination} exists already", hint="choose a new name for the backup")
    if not destination.parent.is_dir():
        raise InputError(f"there is no folder {destination.parent}", hint="make it first, or choose another")
    if destination.resolve().is_relative_to(data.resolve()):
        raise InputError(
            f"{destination} lies in the data folder itself", hint="a backup belongs elsewhere, best on another disk"
        )
    return destination


@dataclass(frozen=True, slots=True)
class _HeldFile:
    path: Path
    size_bytes: int

    def open(self) -> BinaryIO:
        return self.path.open("rb")


_Sources = Mapping[str, _HeldFile | PinnedFile]


def _write(
    frozen: FrozenState, about: Manifest, destination: Path, on_progress: OnSaved, stop: threading.Event
) -> Manifest:
    part = destination.with_name(f"{destination.name}.{uuid4().hex[:8]}.part")
    held = [path for path in sorted(frozen.held.rglob("*")) if path.is_file()]
    files = {path.relative_to(frozen.held).as_posix(): _HeldFile(path, path.stat().st_size) for path in held}
    sources: _Sources = dict(sorted((files | frozen.pinned).items()))
    # Every byte is written once and read back once.
    passed = count_bytes(2 * sum(source.size_bytes for source in sources.values()), on_progress, stop)
    try:
        with explain_os_errors(destination):
            manifest = _fill(part, about, sources, passed, tar=destination.suffix == TAR)
            with open_archive(part) as written:
                check_files(written, destination, read_manifest(written, destination), None, passed)
            faults.reach("backup.copied")
            if os.path.lexists(destination):
                raise ConflictError(f"{destination} exists already", hint="choose a new name for the backup")
            part.rename(destination)
            sync_folder(destination.parent)
            return manifest
    except BaseException:
        remove(part)
        raise


def _fill(part: Path, about: Manifest, sources: _Sources, passed: Callable[[int], None], *, tar: bool) -> Manifest:
    with create_archive(part, tar=tar) as archive:
        checksums: list[FileChecksum] = []
        for name, source in sources.items():
            with source.open() as file:
                checksums.append(archive.add(name, file, source.size_bytes, passed))
        manifest = replace(about, files=tuple(checksums))
        content = manifest.to_bytes()
        # Add the manifest last: without it, an unfinished backup cannot pass for a whole one.
        archive.add(MANIFEST, io.BytesIO(content), len(content), lambda _: None)
    return manifest
