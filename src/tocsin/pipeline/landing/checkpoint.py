"""What a streaming query of Spark notes of the files that it has found, and what makes these notes survive a power cut.

    sources/0/7     the files that the first source found in its 7th look
    offsets/5       the batch 5 reaches up to these looks, one for each source
    commits/5       the batch 5 is done

Spark renames its notes into place but does not sync them. They are synced here before anything of a batch lands, so
what a torn note said has landed nowhere and may be found again. A torn `commits` only makes a batch come again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tocsin.pipeline.datasets.delta.durability import sync_file, sync_folder

_NUMBERED: Final = re.compile(r"(\d+)(\.compact)?")
_NONE: Final = -1


class Checkpoint:
    """The folder of one query. Its methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced: set[Path] = set()

    @property
    def last_batch(self) -> int:
        """The newest batch that was begun; -1 before the first."""
        return max(self._numbers("offsets"), default=_NONE)

    def files(self, batch: int) -> list[Path]:
        """All files of a batch, oldest first: always the same, also when some are gone by now."""
        after = self._looks(batch)
        before = self._looks(batch - 1) if batch else []
        before += [_NONE] * (len(after) - len(before))
        found = [
            file
            for source, (first, last) in enumerate(zip(before, after, strict=True))
            for look in range(first + 1, last + 1)
            for file in self._found(source, look)
        ]
        return [path for _, path in sorted(found)]

    def _looks(self, batch: int) -> list[int]:
        """How far each source is after this batch."""
        _, _, *lines = (self.folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        return [_NONE if line == "-" else int(json.loads(line)["logOffset"]) for line in lines]

    def _found(self, source: int, look: int) -> Iterator[tuple[int, Path]]:
        """When each was changed last, and where it is."""
        place = self.folder / "sources" / str(source)
        try:
            text = (place / str(look)).read_text(encoding="utf-8")
        except FileNotFoundError:
            # Every tenth look holds all files of those before it, too.
            text = (place / f"{look}.compact").read_text(encoding="utf-8")
        for line in text.splitlines()[1:]:
            entry = json.loads(line)
            if entry["batchId"] == look:
                yield entry["timestamp"], Path(unquote(urlsplit(entry["path"]).path))

    # ------------------------------------------------------------ power cuts

    def sync(self) -> None:
        """All notes are on the disk when this returns."""
        present = {path for path in self.folder.rglob("*") if not path.name.endswith(".tmp")}
        for path in sorted(present - self._synced):
            with suppress(FileNotFoundError):  # old ones go
                if path.is_file():
                    sync_file(path)
        for path in (self.folder.parent, self.folder, *(path for path in present if path.is_dir())):
            sync_folder(path)
        self._synced = {path for path in present if path.is_file()}

    def mend(self) -> None:
        """Takes away the newest notes where a power cut tore them."""
        if _lines(self.folder / "metadata") is None:
            _remove(self.folder / "metadata")
        sources = sorted(self.folder.glob("sources/*"), key=lambda path: int(path.name))
        for folder in ("commits", "offsets", *(f"sources/{path.name}" for path in sources)):
            self._drop_torn(folder)
        looks = [max(self._numbers(f"sources/{path.name}"), default=_NONE) for path in sources]
        while (batch := self.last_batch) > _NONE and any(
            wanted > (looks[source] if source < len(looks) else _NONE)
            for source, wanted in enumerate(self._looks(batch))
        ):
            _remove(self.folder / "offsets" / str(batch))

    def _drop_torn(self, folder: str) -> None:
        while numbers := self._numbers(folder):
            number = max(numbers)
            found = [
                path for path in (self.folder / folder).iterdir() if path.name in (str(number), f"{number}.compact")
            ]
            torn = [path for path in found if (lines := _lines(path)) is None or len(lines) < 2]
            for path in torn:
                _remove(path)
            if not torn:
                for path in found:
                    _checksum(path).unlink(missing_ok=True)  # it may be torn itself
                return

    def _numbers(self, folder: str) -> list[int]:
        try:
            names = [path.name for path in (self.folder / folder).iterdir()]
        except FileNotFoundError:
            return []
        return [int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name)) is not None]


def _lines(path: Path) -> list[Any] | None:
    """What each line says; None where one is not whole, or there is nothing."""
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
