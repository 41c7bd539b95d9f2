"""Where a start moves files that it cannot explain. Tocsin deletes only what a record names.

Datasets go to the folder `lost` of their storage, everything else to that of the data folder.

lost/20261116T131500Z-dataset-3f2a…    a folder of datasets/ that the catalog does not know
lost/20261116T131500Z-feed-81bc…       a feed's log that the catalog does not know
lost/20261116T131500Z-channels.db      a copy of the channels' store with channels that the catalog does not know
lost/20261116T131500Z-clock.json       a record of the clock that cannot be read
lost/20261116T131500Z-tail-81bc…       the end of a feed's log, which fails its check
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from tocsin import faults
from tocsin.durable_files import sync_folder, write_synced
from tocsin.pipeline.datasets.delta.log_files import open_delta
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder

LOST: Final = "lost"
DATASET: Final = "dataset"
TAIL: Final = "tail"

_log = structlog.get_logger()


class LostFolder:
    """The folder `lost` of one data folder, and of the storage of its datasets, if that is elsewhere. Each item has a
    date and its old name, and is never overwritten.
    """

    def __init__(
        self,
        data: Path,
        clock: Callable[[], datetime],
        say: Callable[[str], None] = lambda _: None,
        storage: StorageFolder | None = None,
    ) -> None:
        self._folder = data / LOST
        self._datasets = (storage or LocalFolder(data)).child(LOST)
        self._clock = clock
        self._say = say

    def choose_place(self, name: str) -> Path:
        """Returns a new path in the folder for an item of this name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(self._folder.parent)
        return self._folder / self._choose_name(LocalFolder(self._folder), name)

    def _choose_name(self, lost: StorageFolder, name: str) -> str:
        stamp = self._clock().strftime("%Y%m%dT%H%M%SZ")
        taken = set(lost.list_children())
        chosen, tries = f"{stamp}-{name}", 1
        while chosen in taken:
            tries += 1
            chosen = f"{stamp}-{name}-{tries}"
        return chosen

    def set_aside(self, folders: Iterable[StorageFolder], kind: str) -> None:
        """Moves these folders or files there and reports each. What cannot be moved stays."""
        lost = self._datasets if kind == DATASET else LocalFolder(self._folder)
        for folder in folders:
            about = describe(folder, kind)
            try:
                if isinstance(lost, LocalFolder):
                    lost.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                    sync_folder(lost.path.parent)
                destination = lost.child(self._choose_name(lost, f"{kind}-{folder.name}"))
                folder.move_to(destination)
                faults.reach("lost.set-aside")
            except OSError as error:
                _log.error("an unknown file cannot be moved to the lost folder", path=folder.url, about=about)
                self._say(
                    f"the catalog does not know {folder.url} ({about}); it stays where it is: {error.strerror or error}"
                )
                continue
            self.report(folder.url, about, destination.url)

    def store_copy(self, content: bytes, name: str) -> Path:
        """Stores content that is about to be cut off. It is on the disk when this returns."""
        place = self.choose_place(name)
        write_synced(place, content, "xb")
        sync_folder(place.parent)
        return place

    def report(self, what: str, about: str, place: Path | str) -> None:
        _log.warning("an unknown file was moved to the lost folder", path=what, about=about, now=str(place))
        self._say(f"the catalog does not know {what} ({about}); it was set aside as {place}")


def describe(folder: StorageFolder, kind: str) -> str:
    """Describes a folder or a file for a person who looks for missing data."""
    files, size_bytes = folder.total_size()
    about = f"{files:,} files, {size_bytes:,} bytes"
    if kind != DATASET:
        return f"a {kind}'s log: {about}" if kind == "feed" else about
    try:
        table = open_delta(folder)
        fields = [field.name for field in table.schema().fields if not field.name.startswith("_")]
    except Exception:
        return f"a dataset's folder without a readable table: {about}"
    return f"a dataset with the fields {', '.join(fields)}: {about}"
