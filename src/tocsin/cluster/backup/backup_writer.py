"""A backup is one moment of a cluster that goes on working.

Its catalog and its datasets are held first, quickly, while nobody creates or drops a dataset (see `holding`). Then they
are copied at leisure, read back, and compared. The catalog and the channels' store are taken before the datasets, so
that what they say of commits is in these: a channel goes on where it was or a little before, and never passes over a
record. Brokers whose files lie in the data folder are saved before all that.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from tocsin import faults
from tocsin.cluster.backup.archive import TAR, check_files, create_archive, open_archive, read_manifest
from tocsin.cluster.backup.frozen_state import BackupTable, hold_all
from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, MANIFEST, FileChecksum, Manifest
from tocsin.cluster.backup.progress import Progress, counting, explained, in_thread, no_progress, remove
from tocsin.pipeline.datasets.delta.durability import sync_folder
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.cluster.interface import EPOCH, ClusterStore
from tocsin.wire.errors import ConflictError, InputError, UnavailableError
from tocsin.wire.version import version


async def write_backup(
    store: ClusterStore,
    tables: Mapping[str, BackupTable],
    destination: Path,
    *,
    data: Path,
    channels: ChannelStore | None = None,
    save_brokers: Callable[[Path], Awaitable[None]] | None = None,
    standstill: AbstractAsyncContextManager[Any] | None = None,
    on_progress: Progress = no_progress,
) -> Manifest:
    """Write a backup to a new folder, or to one new file where the name ends with `.tar`, and check it.

    `tables`: every dataset's, by its folder under `data`/datasets; read inside `standstill`, which holds off CREATE and
    DROP of datasets for the moment that it lasts. Reads, commits and upkeep go on all the time. `channels` is saved
    before the datasets, so that no channel has read further than they go. `save_brokers` writes the brokers' files into
    the folder that it is given. `on_progress` is called from another thread.
    """
    held = data / "scratch" / f"backup-{uuid4().hex}"
    with explained(destination):
        destination = _new(destination, data)
    with explained(held):
        held.mkdir(mode=0o700, parents=True)
    try:
        if save_brokers is not None:
            await save_brokers(held)
        async with standstill if standstill is not None else nullcontext():
            epoch = (await store.facts())[EPOCH]
            await store.backup_to(held / CATALOG)
            present = dict(tables)
            for entry in await store.entries():
                if entry.kind == "dataset" and entry.body.get("folder") not in present:
                    raise UnavailableError(f"the dataset {entry.dataverse}.{entry.name} changed meanwhile; try again")
            if channels is not None:
                await channels.backup_to(held / CHANNELS)
            datasets = await in_thread(lambda _: hold_all(present, data, held))
        about = Manifest(epoch, datetime.now(UTC), version(), (), tuple(datasets))
        return await in_thread(lambda stop: _write(held, about, destination, on_progress, stop))
    finally:
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


def _write(held: Path, about: Manifest, destination: Path, on_progress: Progress, stop: threading.Event) -> Manifest:
    part = destination.with_name(f"{destination.name}.{uuid4().hex[:8]}.part")
    sources = {path.relative_to(held).as_posix(): path for path in sorted(held.rglob("*")) if path.is_file()}
    # Written once, read back once.
    passed = counting(2 * sum(path.stat().st_size for path in sources.values()), on_progress, stop)
    try:
        with explained(destination):
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


def _fill(
    part: Path, about: Manifest, sources: Mapping[str, Path], passed: Callable[[int], None], *, tar: bool
) -> Manifest:
    with create_archive(part, tar=tar) as archive:
        marks: list[FileChecksum] = []
        for name, path in sources.items():
            with path.open("rb") as file:
                marks.append(archive.add(name, file, os.fstat(file.fileno()).st_size, passed))
        manifest = replace(about, files=tuple(marks))
        content = manifest.to_bytes()
        # Last: without it, a part of a backup is not taken for a whole one.
        archive.add(MANIFEST, io.BytesIO(content), len(content), lambda _: None)
    return manifest
