"""Reads the checkpoint of a Spark streaming query over files, and makes it survive a power cut.

    sources/0/7     the files that the first source found in its 7th listing
    offsets/5       batch 5 reaches up to these listings, one for each source
    commits/5       batch 5 is done

Spark renames these files into place but does not sync them. They are synced here before anything of a batch lands, so
the content of a torn file has landed nowhere, and Spark may find it again. A torn `commits` file only repeats a batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tocsin.durable_files import sync_file, sync_folder

_NUMBERED: Final = re.compile(r"(\d+)(\.compact)?")
_NONE: Final = -1


class Checkpoint:
    """The checkpoint folder of one query. Its methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced: set[Path] = set()

    @property
    def last_batch(self) -> int:
        """The newest batch that was begun; -1 before the first."""
        return max(self._numbers("offsets"), default=_NONE)

    def files(self, batch: int) -> list[Path]:
        """All files of a batch, oldest first: always the same, even if some no longer exist."""
        after = self._looks(batch)
        before = self._looks(batch - 1) if batch else []
        before += [_NONE] * (len(after) - len(before))
        listed_files = [
            file
            for source, (first, last) in enumerate(zip(before, after, strict=True))
            for look in range(first + 1, last + 1)
            for file in self._found(source, look)
        ]
        return [path for _, path in sorted(listed_files)]

    def _looks(self, batch: int) -> list[int]:
        """How far each source is after this batch."""
        _, _, *lines = (self.folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return [_NONE if line == "-" else int(json.loads(line)["logOffset"]) for line in lines]

    def _found(self, source: int, look: int) -> Iterator[tuple[int, Path]]:
        """The modification time and the path of each file in a listing."""
        source_folder = self.folder / "sources" / str(source)
        try:
            text = (source_folder / str(look)).read_text(encoding="utf-8")
        except FileNotFoundError:
            # Every tenth file also contains all listings before it.
            text = (source_folder / f"{look}.compact").read_text(encoding="utf-8")
        for line in text.splitlines()[1:]:
            entry = json.loads(line)
            if entry["batchId"] == look:
                yield entry["timestamp"], Path(unquote(urlsplit(entry["path"]).path))

    # ------------------------------------------------------------ power cuts

    def sync(self) -> None:
        """Flushes all checkpoint files to the disk."""
        present = {path for path in self.folder.rglob("*") if not path.name.endswith(".tmp")}
        for path in sorted(present - self._synced):
            with suppress(FileNotFoundError):  # Spark removes old files meanwhile
                if path.is_file():
                    sync_file(path)
        for path in (self.folder.parent, self.folder, *(path for path in present if path.is_dir())):
            sync_folder(path)
        self._synced = {path for path in present if path.is_file()}

    def mend(self) -> None:
        """Removes the newest files if a power cut tore them."""
        if _lines(self.folder / "metadata") is None:
            _remove(self.folder / "metadata")
        sources = sorted(self.folder.glob("sources/*"), key=lambda path: int(path.name))
        for folder in ("commits", "offsets", *(f"sources/{path.name}" for path in sources)):
            self._drop_torn(folder)
        looks = [max(self._numbers(f"sources/{path.name}"), default=_NONE) for path in sources]
        while (batch := self.last_batch) > _NONE and any(
            needed > (looks[source] if source < len(looks) else _NONE)
            for source, needed in enumerate(self._looks(batch))
        ):
            _remove(self.folder / "offsets" / str(batch))

    def _drop_torn(self, folder: str) -> None:
        while numbers := self._numbers(folder):
            number = max(numbers)
            newest = [
                path for path in (self.folder / folder).iterdir() if path.name in (str(number), f"{number}.compact")
            ]
            torn = [path for path in newest if (lines := _lines(path)) is None or len(lines) < 2]
            for path in torn:
                _remove(path)
            if not torn:
                for path in newest:
                    _checksum(path).unlink(missing_ok=True)  # the checksum itself may be torn
                return

    def _numbers(self, folder: str) -> list[int]:
        try:
            names = [path.name for path in (self.folder / folder).iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)) is not None]


def _lines(path: Path) -> list[Any] | None:
    """The parsed lines; None if a line is incomplete, or there are none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [None if line in ("-", "v1") else json.loads(line) for line in lines] or None
    except (ValueError, FileNotFoundError):
        return None


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _checksum(path).unlink(missing_ok=True)
