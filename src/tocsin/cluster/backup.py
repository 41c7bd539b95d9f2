"""Backup and restore of everything durable: the catalog and every dataset with its history, checked.

A backup is one moment of a cluster that goes on working. Its catalog and its datasets are held first, quickly, while
nobody creates or drops a dataset: data files and log entries are never changed once they are there, so a second name
for each (a hard link) is enough to keep them, whatever upkeep or DROP do meanwhile. Then they are copied at leisure,
read back, and compared. The catalog and the channels' store are taken before the datasets, so that what they say of
commits is in these: a channel goes on where it was or a little before, and never passes over a record. Brokers whose
files lie in the data folder are saved before all that.

Neither a backup nor a restored data folder is ever seen half-done under its name: both are made beside it (`….part`,
`….restoring`, which may be removed when a crash left one) and renamed at the end.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tocsin import faults
from tocsin.cluster.archive import (
    TAR,
    check_files,
    create_archive,
    open_archive,
    read_manifest,
    sync_tree,
)
from tocsin.cluster.manifest import (
    CATALOG,
    CHANNELS,
    DATASETS,
    INTAKE,
    MANIFEST,
    PYTHON,
    DatasetMark,
    FileMark,
    Manifest,
)
from tocsin.cluster.renewal import renew_catalog, renew_channels
from tocsin.pipeline.datasets.durability import LOG_FOLDER, is_full_disk, sync_folder
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.store.channel_store import ChannelStore
from tocsin.store.store import EPOCH, ClusterStore
from tocsin.wire.errors import (
    ConflictError,
    InputError,
    StoppedError,
    StorageFullError,
    StoreError,
    UnavailableError,
)
from tocsin.wire.version import version

T = TypeVar("T")
Progress = Callable[[int, int], None]

_ATTEMPTS: Final = 10
_LOG_FILE: Final = re.compile(r"(\d{20})\.(?!.*\.tmp$).+")
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})


class Table(Protocol):
    """What a backup needs of a dataset's table."""

    def snapshot(self) -> Snapshot: ...


def no_progress(done_bytes: int, all_bytes: int) -> None:
    """Nobody watches."""


# ---------------------------------------------------------------- backup


async def write_backup(
    store: ClusterStore,
    tables: Mapping[str, Table],
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
    with _explained(destination):
        destination = _new(destination, data)
    with _explained(held):
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
            datasets = await _in_thread(lambda _: _hold_all(present, data, held))
        about = Manifest(epoch, datetime.now(UTC), version(), (), tuple(datasets))
        return await _in_thread(lambda stop: _write(held, about, destination, on_progress, stop))
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


def _hold_all(tables: Mapping[str, Table], data: Path, held: Path) -> list[DatasetMark]:
    # A feed's log must begin before and end after the position that its datasets have. Records may land meanwhile, so
    # that its beginning is trimmed, and others may come: its files are held first, and once more, the new ones, last.
    _hold_files(data / INTAKE, held / INTAKE, _link)
    marks = _hold(tables, data / DATASETS, held / DATASETS)
    _hold_files(data / INTAKE, held / INTAKE, _link)
    _hold_files(data / PYTHON, held / PYTHON, shutil.copyfile)  # no link: people edit files in place
    return marks


def _hold_files(folder: Path, held: Path, hold: Callable[[Path, Path], Any]) -> None:
    with _explained(held):
        for path in sorted(folder.rglob("*")):
            target = held / path.relative_to(folder)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # a log that is trimmed this moment: its records have landed
                    hold(path, target)


def _hold(tables: Mapping[str, Table], datasets: Path, held: Path) -> list[DatasetMark]:
    with _explained(held):
        return [_hold_table(name, tables[name], datasets / name, held / name) for name in sorted(tables)]


def _hold_table(name: str, table: Table, folder: Path, held: Path) -> DatasetMark:
    for _ in range(_ATTEMPTS):
        snapshot = table.snapshot()
        files = [os.path.relpath(path, folder) for path in snapshot.files]
        try:
            (held / LOG_FOLDER).mkdir(parents=True)
            _hold_log(folder, held, snapshot.version)
            for file in files:
                _link(folder / file, held / file)
            _hold_past(folder, held)
            rows = _check_table(held, snapshot.version, files)
            return DatasetMark(name, snapshot.number, snapshot.version, rows)
        except (FileNotFoundError, _Incomplete):
            # Upkeep put a checkpoint in the place of log entries between our look and our grasp.
            shutil.rmtree(held)
    raise UnavailableError(f"the dataset in {folder} could not be held still", hint="try again")


def _hold_log(folder: Path, held: Path, last_version: int) -> None:
    # Not `_last_checkpoint`: it may already name a later one, and nobody needs it to find those that are there.
    for path in (folder / LOG_FOLDER).iterdir():
        found = _LOG_FILE.fullmatch(path.name)
        if found is not None and int(found[1]) <= last_version:
            _link(path, held / LOG_FOLDER / path.name)


def _hold_past(folder: Path, held: Path) -> None:
    """The files of past states, as far as they are there: what is gone, the dataset knows not to offer."""
    for entry in (held / LOG_FOLDER).glob("*.json"):
        for line in entry.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                path = action.get(kind, {}).get("path")
                if path is not None and not (held / path).exists():
                    with suppress(FileNotFoundError):
                        _link(folder / path, held / path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


class _Incomplete(Exception):
    """A table that cannot be opened as it should."""


def _check_table(folder: Path, wanted: int, files: list[str] | None = None) -> int:
    """The rows of the table, which must open at this version, with these files, all there."""
    try:
        table = DeltaTable(str(folder))
        actions = pa.table(table.get_add_actions(flatten=True))
    except (DeltaError, OSError, ValueError) as error:
        raise _Incomplete(f"cannot be opened: {str(error).splitlines()[0]}") from None
    if table.version() != wanted:
        raise _Incomplete(f"is at version {table.version()} instead of {wanted}")
    paths = [str(path) for path in actions.column("path").to_pylist()]
    if files is not None and set(paths) != set(files):
        raise _Incomplete("has other files than it should")
    missing = next((path for path in paths if not (folder / path).is_file()), None)
    if missing is not None:
        raise _Incomplete(f"has lost its file {missing}")
    return sum(rows or 0 for rows in actions.column("num_records").to_pylist())


def _write(held: Path, about: Manifest, destination: Path, on_progress: Progress, stop: threading.Event) -> Manifest:
    part = destination.with_name(f"{destination.name}.{uuid4().hex[:8]}.part")
    sources = {path.relative_to(held).as_posix(): path for path in sorted(held.rglob("*")) if path.is_file()}
    # Written once, read back once.
    passed = _counting(2 * sum(path.stat().st_size for path in sources.values()), on_progress, stop)
    try:
        with _explained(destination):
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
        _remove(part)
        raise


def _fill(
    part: Path, about: Manifest, sources: Mapping[str, Path], passed: Callable[[int], None], *, tar: bool
) -> Manifest:
    with create_archive(part, tar=tar) as archive:
        marks: list[FileMark] = []
        for name, path in sources.items():
            with path.open("rb") as file:
                marks.append(archive.add(name, file, os.fstat(file.fileno()).st_size, passed))
        manifest = replace(about, files=tuple(marks))
        content = manifest.to_bytes()
        # Last: without it, a part of a backup is not taken for a whole one.
        archive.add(MANIFEST, io.BytesIO(content), len(content), lambda _: None)
    return manifest


# ---------------------------------------------------------------- restore


async def restore(
    source: Path,
    data: Path,
    *,
    open_store: Callable[[Path], ClusterStore],
    open_channels: Callable[[Path], ChannelStore],
    settle_broker: Callable[[Path], Awaitable[None]] | None = None,
    on_progress: Progress = no_progress,
) -> Manifest:
    """Make a data folder of a backup; `data` must be absent or empty. The restored cluster has a new epoch.

    `open_store` and `open_channels` give the store in a file, not yet opened; an older backup may have no channels.
    `settle_broker` checks a saved broker's file and makes it one that a broker can use. Whatever is wrong with the
    backup, `data` is left as it was.
    """
    with _explained(data):
        data = _unused(data)
        data.parent.mkdir(parents=True, exist_ok=True)
    part = data.with_name(f"{data.name}.{uuid4().hex[:8]}.restoring")
    try:
        manifest = await _in_thread(lambda stop: _unpack(source, part, on_progress, stop))
        await renew_catalog(open_store(part / CATALOG))
        if (part / CHANNELS).exists():
            await renew_channels(open_channels(part / CHANNELS))
        if settle_broker is not None:
            for name in manifest.brokers:
                await settle_broker(part / name)
        with _explained(data):
            sync_tree(part)
            faults.reach("restore.verified")
            _put_in_place(part, data)
        return manifest
    except BaseException:
        await asyncio.to_thread(_remove, part)
        raise


def _unused(data: Path) -> Path:
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


def _unpack(source: Path, part: Path, on_progress: Progress, stop: threading.Event) -> Manifest:
    with _explained(source), open_archive(source) as archive:
        manifest = read_manifest(archive, source)
        if CATALOG not in {mark.path for mark in manifest.files}:
            raise StoreError(f"the backup {source} is incomplete: its manifest names no {CATALOG}")
        passed = _counting(manifest.size_bytes, on_progress, stop)
        with _explained(part):
            part.mkdir(mode=0o700)
            check_files(archive, source, manifest, part, passed)
            (part / DATASETS).mkdir(mode=0o700, exist_ok=True)
    for dataset in manifest.datasets:
        try:
            _check_table(part / DATASETS / dataset.folder, dataset.version)
        except _Incomplete as error:
            raise StoreError(
                f"the backup {source} is incomplete: the table {DATASETS}/{dataset.folder} {error}"
            ) from None
    return manifest


def _put_in_place(part: Path, data: Path) -> None:
    try:
        part.rename(data)  # over an empty folder, never over one that is not
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"somebody began to use the data folder {data} meanwhile") from None
        raise
    sync_folder(data.parent)


# ---------------------------------------------------------------- both


def _counting(all_bytes: int, on_progress: Progress, stop: threading.Event) -> Callable[[int], None]:
    done_bytes = 0

    def passed(size_bytes: int) -> None:
        nonlocal done_bytes
        if stop.is_set():
            raise StoppedError("it was stopped; nothing remains of it")
        done_bytes += size_bytes
        on_progress(done_bytes, all_bytes)

    return passed


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """Beside the event loop; cancelled, it is told to stop and waited for."""
    stop = threading.Event()
    future = asyncio.ensure_future(asyncio.to_thread(work, stop))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
            stop.set()
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            raise StorageFullError(
                f"there is no room left for {path}", hint="make room, or choose another place; nothing was changed"
            ) from error
        raise InputError(f"{error.filename or path} cannot be used: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
