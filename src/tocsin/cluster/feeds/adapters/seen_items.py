"""Which items a polled feed has taken, so that it takes each once, whatever is killed whenever.

An item's mark becomes durable in the same write as its record: it is part of what the feed's log keeps. The log does
not keep it for ever. Before a segment goes, all marks are written to a file beside it, with the position up to which
that file speaks for the log; whoever opens the feed again reads that file, and the marks of the log from there on.

    seen   magic  check  version  position │ marks, those that were longest in no answer first
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Self
from zlib import crc32

from tocsin import faults
from tocsin.cluster.feeds.batches import MARK_BYTES, seen_in
from tocsin.cluster.intake.frames import LogEntry
from tocsin.pipeline.datasets.delta.durability import sync_folder
from tocsin.wire.errors import StoreError

# More than an answer may hold: what is in the newest one is never forgotten.
LIMIT: Final = 200_000
VERSION: Final = 1
NAME: Final = "seen"
_UNFINISHED: Final = "seen.new"
_KEEP_EVERY: Final = 50_000
_MAGIC: Final = b"TOCSINSN"
_HEAD: Final = struct.Struct("<8sIIQ")
_CHECKED_FROM: Final = 12


def mark(identity: str) -> bytes:
    """An item's identity in few bytes; no two that anyone will ever see have the same."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


class SeenItems:
    """The marks of one feed; the witness of its log. From any thread."""

    @classmethod
    def open(cls, folder: Path, *, limit: int = LIMIT) -> Self:
        """What the file in the log's folder says; the log itself tells the rest when it is opened with this."""
        seen = cls(folder, limit)
        try:
            content = (folder / NAME).read_bytes()
        except FileNotFoundError:
            return seen
        seen._position = seen._kept = _position(content, folder / NAME)
        marks = memoryview(content)[_HEAD.size :]
        seen._marks = dict.fromkeys(bytes(marks[at : at + MARK_BYTES]) for at in range(0, len(marks), MARK_BYTES))
        return seen

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        # Guards all that follows; never held over the disk.
        self._lock = threading.Lock()
        self._marks: dict[bytes, None] = {}
        self._position = 0
        self._kept = 0
        self._unkept = 0
        # One writes at a time.
        self._keeping = threading.Lock()

    def __len__(self) -> int:
        return len(self._marks)

    def unseen(self, marks: Sequence[bytes]) -> list[int]:
        """The places of those that were never taken; of equal ones, the first."""
        with self._lock:
            places = {one: place for place, one in reversed(list(enumerate(marks))) if one not in self._marks}
        return sorted(places.values())

    def answered(self, marks: Iterable[bytes]) -> None:
        """These are in the newest answer, all of them taken. Of too many, those that were longest in none go.

        Nothing is forgotten at any other time: when the log is read again, it is not known which ones still come.
        """
        with self._lock:
            for one in marks:
                self._marks.pop(one, None)
                self._marks[one] = None
            for one in list(islice(self._marks, max(0, len(self._marks) - self._limit))):
                del self._marks[one]
            many = self._unkept >= _KEEP_EVERY
        if many:
            # So that what is read when the feed is opened again is bounded too.
            self.keep(self._position)

    # ------------------------------------------------------------ the log's witness

    def recall(self, entry: LogEntry) -> None:
        if entry.end <= self._position:
            return  # the file speaks for it
        marks = seen_in(entry.payload)
        with self._lock:
            self._marks.update(dict.fromkeys(marks))
            self._position = entry.end
            self._unkept += len(marks)

    def keep(self, position: int) -> None:
        with self._keeping:
            if position <= self._kept:
                return
            with self._lock:
                content, upto, unkept = b"".join(self._marks), self._position, self._unkept
            self._write(_head(upto, content) + content)
            with self._lock:
                self._kept = upto
                self._unkept -= unkept

    def _write(self, content: bytes) -> None:
        unfinished = self._folder / _UNFINISHED
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            faults.reach("polling.seen.written")
            unfinished.rename(self._folder / NAME)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        faults.reach("polling.seen.renamed")
        sync_folder(self._folder)


def _head(position: int, marks: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, 0, VERSION, position)[_CHECKED_FROM:]
    return _MAGIC + crc32(marks, crc32(head)).to_bytes(4, "little") + head


def _position(content: bytes, path: Path) -> int:
    """What the head says, if the file is as it was written."""
    if len(content) >= _HEAD.size:
        magic, check, version, position = _HEAD.unpack_from(content)
        if magic == _MAGIC and version > VERSION:
            raise StoreError(f"{path} was written by a newer Tocsin", hint="start the newer one")
        whole = (len(content) - _HEAD.size) % MARK_BYTES == 0
        if magic == _MAGIC and whole and check == crc32(content[_CHECKED_FROM:]):
            return int(position)
    raise StoreError(f"{path} is damaged", hint="it was left as it is; bring the file back from a copy of the disk")
