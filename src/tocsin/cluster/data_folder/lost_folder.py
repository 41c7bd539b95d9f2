"""Where a start moves files that it cannot explain. Tocsin deletes only what a record names.

lost/20261116T131500Z-dataset-3f2a…    a folder of datasets/ that the catalog does not know
lost/20261116T131500Z-feed-81bc…       a feed's log that the catalog does not know
lost/20261116T131500Z-channels.db      a copy of the channels' store with channels that the catalog does not know
lost/20261116T131500Z-clock.json       a record of the clock that cannot be read
lost/20261116T131500Z-tail-81bc…       the end of a feed's log, which fails its check
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from deltalake import DeltaTable

from tocsin import faults
from tocsin.durable_files import sync_folder, write_synced

LOST: Final = "lost"
TAIL: Final = "tail"

_log = structlog.get_logger()


class LostFolder:
    """The folder `lost` of one data folder. Each item has a date and its old name, and is never overwritten."""

    def __init__(self, data: Path, clock: Callable[[], datetime], say: Callable[[str], None] = lambda _: None) -> None:
        self._folder = data / LOST
        self._clock = clock
        self._say = say

    def choose_place(self, name: str) -> Path:
        """Returns a new path in the folder for an item of this name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(self._folder.parent)
        stamp = self._clock().strftime("%Y%m%dT%H%M%SZ")
        destination, tries = self._folder / f"{stamp}-{name}", 1
        while os.path.lexists(destination):
            tries += 1
            destination = self._folder / f"{stamp}-{name}-{tries}"
        return destination

    def set_aside(self, paths: Iterable[Path], kind: str) -> None:
        """Moves these paths there and reports each. A path that cannot be moved stays."""
        for path in paths:
            about = describe(path, kind)
            try:
                destination = self.choose_place(f"{kind}-{path.name}")
                path.rename(destination)
                faults.reach("lost.set-aside")
                sync_folder(destination.parent)
                sync_folder(path.parent)
            except OSError as error:
                _log.error("an unknown file cannot be moved to the lost folder", path=str(path), about=about)
                self._say(f"the catalog does not know {path} ({about}); it stays where it is: {error.strerror}")
                continue
            self.report(str(path), about, destination)

    def store_copy(self, content: bytes, name: str) -> Path:
        """Stores content that is about to be cut off. It is on the disk when this returns."""
        place = self.choose_place(name)
        write_synced(place, content, "xb")
        sync_folder(place.parent)
        return place

    def report(self, what: str, about: str, place: Path) -> None:
        _log.warning("an unknown file was moved to the lost folder", path=what, about=about, now=str(place))
        self._say(f"the catalog does not know {what} ({about}); it was set aside as {place}")


def describe(path: Path, kind: str) -> str:
    """Describes a path for a person who looks for missing data."""
    files = [child for child in path.rglob("*") if child.is_file()] if path.is_dir() else [path]
    size_bytes = 0
    for file in files:
        try:
            size_bytes += file.stat().st_size
        except OSError:
            continue
    about = f"{len(files):,} files, {size_bytes:,} bytes"
    if kind != "dataset":
        return f"a {kind}'s log: {about}" if kind == "feed" else about
    try:
        table = DeltaTable(str(path))
        fields = [field.name for field in table.schema().fields if not field.name.startswith("_")]
    except Exception:
        return f"a dataset's folder without a readable table: {about}"
    return f"a dataset with the fields {', '.join(fields)}: {about}"
