"""Remembers which items a polled feed has taken, so that it takes each item once, across crashes.

An item's mark is durable in the same write as its record, because both are in one entry of the feed's log. The log does
not keep entries for ever. Before it deletes a segment, all marks are written to a file, with the log position that the
file covers. An opening feed reads the file, and then the marks of the log from that position on.

    seen   magic  check  version  position │ marks, least recently answered first
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Self
from zlib import crc32

from tocsin import faults
from tocsin.cluster.feeds.batches import MARK_BYTES, read_marks
from tocsin.cluster.intake.frames import LogEntry
from tocsin.durable_files import sync_folder, write_synced
from tocsin.wire.errors import StoreError

# More than one answer may hold, so an item of the newest answer is never forgotten.
LIMIT: Final = 200_000
_VERSION: Final = 1
NAME: Final = "seen"
_UNFINISHED: Final = "seen.new"
KEEP_EVERY: Final = 50_000
_MAGIC: Final = b"TOCSINSN"
_HEAD: Final = struct.Struct("<8sIIQ")
_CHECKED_FROM: Final = 12


def mark(identity: str) -> bytes:
    """Hashes an item's identity to a few bytes; a collision is practically impossible."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


class SeenItems:
    """The marks of one feed, and an observer of its log. Thread-safe."""

    @classmethod
    def open(cls, folder: Path, *, limit: int = LIMIT, keep_every: int = KEEP_EVERY) -> Self:
        """Reads the file in the log's folder. The log adds the later marks when it is opened with this observer."""
        seen = cls(folder, limit, keep_every)
        try:
            content = (folder / NAME).read_bytes()
        except FileNotFoundError:
            return seen
        seen._position = seen._kept = _position(content, folder / NAME)
        marks = memoryview(content)[_HEAD.size :]
        seen._marks = dict.fromkeys(
            bytes(marks[start : start + MARK_BYTES]) for start in range(0, len(marks), MARK_BYTES)
        )
        return seen

    def __init__(self, folder: Path, limit: int, keep_every: int = KEEP_EVERY) -> None:
        self._folder = folder
        self._limit = limit
        self._keep_every = keep_every
        # Guards all fields below; never held during disk I/O.
        self._lock = threading.Lock()
        self._marks: dict[bytes, None] = {}
        self._position = 0
        self._kept = 0
        self._unkept = 0
        # Only one thread writes the file at a time.
        self._keeping = threading.Lock()

    def __len__(self) -> int:
        return len(self._marks)

    def unseen(self, marks: Sequence[bytes]) -> list[int]:
        """Returns the indexes of the items that were never taken; of equal items only the first."""
        with self._lock:
            indexes = {
                item_mark: index
                for index, item_mark in reversed(list(enumerate(marks)))
                if item_mark not in self._marks
            }
        return sorted(indexes.values())

    def note_answer(self, marks: Iterable[bytes]) -> None:
        """Marks these items as part of the newest answer, all of them taken. Above the limit, the marks that were in no
        answer for longest go.

        Only an answer forgets marks: while the log is replayed, nobody knows which items the server still sends.
        """
        with self._lock:
            for item_mark in marks:
                self._marks.pop(item_mark, None)
                self._marks[item_mark] = None
            for item_mark in list(islice(self._marks, max(0, len(self._marks) - self._limit))):
                del self._marks[item_mark]
            is_due = self._unkept >= self._keep_every
        if is_due:
            # This bounds the marks that the feed must read from the log when it opens again.
            self.keep(self._position)

    # ------------------------------------------------------------ as observer of the log

    def recall(self, entry: LogEntry) -> None:
        if entry.end <= self._position:
            return  # the file covers this entry
        marks = read_marks(entry.payload)
        with self._lock:
            self._marks.update(dict.fromkeys(marks))
            self._position = entry.end
            self._unkept += len(marks)

    def keep(self, position: int) -> None:
        with self._keeping:
            if position <= self._kept:
                return
            with self._lock:
                content, covered, unkept = b"".join(self._marks), self._position, self._unkept
            self._write(_head(covered, content) + content)
            with self._lock:
                self._kept = covered
                self._unkept -= unkept

    def _write(self, content: bytes) -> None:
        unfinished = self._folder / _UNFINISHED
        try:
            write_synced(unfinished, content)
            faults.reach("polling.seen.written")
            unfinished.rename(self._folder / NAME)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        faults.reach("polling.seen.renamed")
        sync_folder(self._folder)


def _head(position: int, marks: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, 0, _VERSION, position)[_CHECKED_FROM:]
    return _MAGIC + crc32(marks, crc32(head)).to_bytes(4, "little") + head


def _position(content: bytes, path: Path) -> int:
    """Returns the position in the header, after the checks."""
    if len(content) >= _HEAD.size:
        magic, check, version, position = _HEAD.unpack_from(content)
        if magic == _MAGIC and version > _VERSION:
            raise StoreError(f"{path} was written by a newer Tocsin", hint="start the newer one")
        whole = (len(content) - _HEAD.size) % MARK_BYTES == 0
        if magic == _MAGIC and whole and check == crc32(content[_CHECKED_FROM:]):
            return int(position)
    raise StoreError(f"{path} is damaged", hint="it was left as it is; bring the file back from a copy of the disk")
